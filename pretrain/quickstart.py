"""`excb-pretrain quickstart`: from images to an evaluated representation, offline, in minutes on two CPU cores."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from excb.charts.style import BLUE, GREY, new_figure, save_figure, style_axes
from excb.console import Reporter, duration
from excb.files.foreign import read_text
from excb.files.run_files import REPORT
from excb.hub import loading
from excb.images.image_set import ImageSet
from excb.images.photographs import PHOTOGRAPHS, TEST, TRAIN, write_patches
from excb.images.scanning import scan_folder
from excb.neighbours.knn import top_accuracies, vote
from excb.neighbours.nearest import nearest
from excb.networks.features import Features, Inputs, extract
from excb.references import patches
from excb.references.baselines import REFERENCES, UNTRAINED, WITHOUT_NETWORK, features_without_network
from excb.references.untrained import estimate_batchnorm
from excb.results.pictures import CURVES, QUICKSTART

from .initialise import adopted, build_model
from .loop import run_training
from .recipe import Recipe
from .run.remote_mirror import RunLocation
from .run.run_folder import RunFolder

K, TEMPERATURE = 20, 0.07
TRAINED = "excb"
SHOWN = (*WITHOUT_NETWORK, patches.NAME, UNTRAINED)  # the references, in the order of table and picture


def run_quickstart(
    recipe: Recipe,
    out: Path,
    reporter: Reporter,
    *,
    table: bool = True,
    profile: bool = False,
    extend: int | None = None,
) -> int:
    """Write patches of photographs, pretrain on the train patches, and compare the k-NN accuracy of several features.

    Patches go into `data` in the run folder `out`, and its `report.json` gains `knn`. Returns the exit code.
    """
    start = time.monotonic()
    folder = RunFolder(RunLocation(out), reporter.warn)  # to fail early; training locks it again
    folder.close()
    data = out / "data"
    with reporter.progress("patches of photographs", len(PHOTOGRAPHS) * (TRAIN + TEST)) as bar:
        write_patches(data, bar.advance)
    sets = scan_folder(data / "train"), scan_folder(data / "test")
    recipe = adopted(recipe, reporter.note)
    preprocessing = recipe.views.preprocessing
    untrained = build_model(recipe).teacher.backbone
    estimate_batchnorm(untrained, sets[0], preprocessing)
    figures = {name: knn(sets, partial(features_without_network, name)) for name in WITHOUT_NETWORK}
    layer = patches.fitted(sets[0], preprocessing)
    figures[patches.NAME] = knn(sets, lambda images: extract(layer, Inputs(images, preprocessing), batch=256))
    figures[UNTRAINED] = knn(sets, lambda images: extract(untrained, Inputs(images, preprocessing), batch=256))
    before, seconds_before = folder.reported(), time.monotonic() - start
    # No verdict: the table below judges the run, on patches that it has not seen.
    if code := run_training(recipe, sets[0], out, reporter, table=False, profile=profile, verdict=False, extend=extend):
        return code
    after = time.monotonic()
    trained = loading.load(out)
    figures[TRAINED] = knn(sets, lambda images: extract(trained, Inputs(images, trained.transform), batch=256))
    _draw(figures, out / QUICKSTART)

    report: dict[str, Any] = json.loads(read_text(out / REPORT))
    report["knn"] = {name: round(figure, 2) for name, figure in figures.items()}
    report["training_seconds"] = report["seconds"]
    if before.get("steps") == report["steps"] and "training_seconds" in before:  # it was finished: this repeats it
        report["seconds"] = before["seconds"]
    else:
        report["seconds"] = round(report["seconds"] + seconds_before + time.monotonic() - after, 1)
    folder.report(report)
    if table:
        _print_report(report, out, reporter)
    return 0


def _print_report(report: dict[str, Any], out: Path, reporter: Reporter) -> None:
    figures = report["knn"]
    best = max(SHOWN, key=lambda name: figures[name])
    rows = [[REFERENCES[name], f"{figures[name]:.1f}", f"{figures[TRAINED] - figures[name]:+.1f}"] for name in SHOWN]
    rows.append(["ExCB", f"{figures[TRAINED]:.1f}", ""])
    title = f"Which of {len(PHOTOGRAPHS)} photographs is an unseen patch from? k-NN, k = {K}, top-1 in %"
    reporter.table(title, ["features", "k-NN", "ExCB leads by"], rows)
    lead = figures[TRAINED] - figures[best]
    if lead > 0:
        reporter.answer(f"\nExCB is {lead:.1f} points ahead of the best reference ({REFERENCES[best]}).")
    else:
        reporter.answer(
            f"\nExCB is {-lead:.1f} points behind {REFERENCES[best]}: this run learned nothing of use. Train longer "
            "(optim.epochs), or undo the overrides."
        )
    reporter.answer(
        f"{duration(report['seconds'])} in all. Curves: {out / CURVES}, references: {out / QUICKSTART}. Load the "
        "result:\n"
    )
    reporter.answer(
        f'  import excb\n  backbone = excb.load("{out}")\n  features = backbone(backbone.transform(image)[None])'
    )


def _draw(figures: dict[str, float], file: Path) -> None:
    """Draw ExCB's bar beside those of its references."""
    names = [*SHOWN, TRAINED]
    figure = new_figure(6, 3)
    axes = figure.subplots()
    bars = axes.barh(range(len(names)), [figures[name] for name in names], color=[GREY] * len(SHOWN) + [BLUE])
    axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=9)
    axes.set_yticks(range(len(names)), [*(REFERENCES[name] for name in SHOWN), "ExCB"])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    style_axes(axes, "Which photograph is an unseen patch from?", x=f"k-NN top-1, %, k = {K}")
    save_figure(figure, file)


def knn(sets: tuple[ImageSet, ImageSet], features: Callable[[ImageSet], Features]) -> float:
    """Top-1 accuracy of the weighted vote of K neighbours among the first set, for the second, in percent."""
    bank, queries = (features(images).rows for images in sets)
    labels, targets = (torch.from_numpy(images.labels) for images in sets)
    votes = vote(nearest(bank, queries, K), labels, ks=[K], temperatures=[TEMPERATURE], classes=len(PHOTOGRAPHS))
    return top_accuracies(votes[K, TEMPERATURE], targets)[0]
