"""The dense protocol: heads on frozen patches, the masks they predict, and a result."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from excb.console import Reporter, plural
from excb.distributed.collectives import all_succeed, rank
from excb.errors import require
from excb.inference.basis import JACKKNIFE, stated
from excb.inference.estimate import Estimate
from excb.references.guessing import MAJORITY
from excb.results.result import ResultRecord, interval_text

from ..probes.penalty import fits_of
from ..protocol import Measurement
from ..reporting.references import tell_notes
from .files import DenseFiles, DenseMeasurements
from .heads import linear, logistic, neighbours
from .heads.memory import Memory, choose_patches
from .heads.recipes import LINEAR, LOGISTIC, HeadName
from .options import DenseOptions
from .patches.labels import PatchLabels
from .patches.metrics import MATCHED_MEASURES, MEASURES, Areas, area_spread, figure_name, matched
from .pictures import spread
from .segmentation import QUERIES, segment
from .setup import DenseTask

Classify = Callable[[Tensor], Tensor]  # patches [Q, D] -> scores [Q, C]


def measure(task: DenseTask, options: DenseOptions, reporter: Reporter) -> Measurement:
    """Learn heads on the patches of the train images, and segment the test images; all ranks call this.

    Args:
        task: backbone and views.
        options: heads, their recipes, seeds and parts of the train images.
        reporter: prints notes and progress.

    Returns:
        Figures `dense_HEAD_miou` and `dense_HEAD_pixel_accuracy` in percent, of k-NN with parts of the train images
        `dense_knn_miou_1of8`, means over seeds, and with matching `dense_HEAD_miou_hungarian`; and the areas that
        they were made of.

    Raises:
        UserError: an image or mask cannot be used, or a setting is out of range.
    """
    start = time.monotonic()
    labels = task.labels(reporter)
    measured, notes = _measure(task, options, labels, reporter)
    result = _result(task, options, measured, labels, notes=notes, seconds=time.monotonic() - start)
    files = DenseFiles(task, measured)
    return Measurement(result, files.scored, partial(_show, task, result), files)


def figures_of(areas: dict[str, list[Areas]]) -> dict[str, float]:
    """Figures in percent, the mean over seeds."""
    return {
        figure_name(run, measure): round(float(np.mean([getattr(each, measure)() for each in seeds])), 4)
        for run, seeds in areas.items()
        for measure in MEASURES
    }


def _spreads(areas: dict[str, list[Areas]]) -> dict[str, Estimate]:
    """The spread of every figure, as shares of 1; where predicted classes were matched, also that of matched ones."""
    spreads = dict[str, Estimate]()
    for run, seeds in areas.items():
        spreads |= {figure_name(run, measure): area_spread(seeds, measure) for measure in MEASURES}
        if all(each.confusions is not None for each in seeds):
            relabelled = [matched(each) for each in seeds]
            spreads |= {figure_name(run, name): area_spread(relabelled, name) for name in MATCHED_MEASURES}
    return spreads


def _measure(
    task: DenseTask, options: DenseOptions, labels: PatchLabels, reporter: Reporter
) -> tuple[DenseMeasurements, list[str]]:
    all_succeed(partial(_require_neighbours, task, options, labels))
    patches = task.patches(task.train, "train", reporter)
    tested = task.patches(task.test, "test", reporter)(np.zeros(0, np.int64))
    measured, notes = DenseMeasurements({}, {}), list[str]()
    shown = spread(len(task.test.images))
    for head in options.resolved.heads:
        for part in sorted(set(options.parts)) if head == "knn" else (1,):
            run = head if part == 1 else f"{head}_1of{part}"
            measured.areas[run] = []
            seeds = _seeds(options, labels, head, part)
            if len(seeds) < len(set(options.seeds)):
                notes.append("neighbours among all train patches depend on no seed: they are measured once")
            for seed in seeds:
                numbers = choose_patches(
                    labels, task.train, task.grid.patches, part=part, most=options.memory, seed=seed
                )
                memory = Memory(patches(numbers), labels)
                classify, said = _classifier(task, options, head, memory, seed=seed, reporter=reporter)
                with reporter.progress(f"{run}, seed {seed}", len(task.test.images)) as bar:
                    areas, masks = segment(
                        task.test,
                        tested,
                        task.grid,
                        classify,
                        task.scoring,
                        keep=shown if part == 1 and seed == options.seeds[0] else (),
                        confusions=options.matching == "hungarian",
                        progress=bar.advance,
                    )
                measured.areas[run].append(areas)
                notes += said
                if masks:
                    measured.masks[head] = masks
    return measured, [*dict.fromkeys(notes)]


def _require_neighbours(task: DenseTask, options: DenseOptions, labels: PatchLabels) -> None:
    """Raise UserError if a memory has too few patches, before anything is measured with another."""
    k, most = options.resolved.k, options.memory
    for part in sorted(set(options.parts)) if "knn" in options.resolved.heads else ():
        for seed in _seeds(options, labels, "knn", part):
            patches = len(choose_patches(labels, task.train, task.grid.patches, part=part, most=most, seed=seed))
            named = "the memory has" if part == 1 else f"the memory of --parts {part} has"
            require(k <= patches, f"--k {k}: {named} {plural(patches, 'patch', 'patches')}: name a smaller --k")


def _seeds(options: DenseOptions, labels: PatchLabels, head: HeadName, part: int) -> tuple[int, ...]:
    """The seeds that differ: neighbours in a memory of all patches depend on none."""
    everything = part == 1 and len(labels.labelled()) <= options.memory
    seeds = tuple(dict.fromkeys(options.seeds))
    return seeds[:1] if head == "knn" and everything else seeds


def _classifier(
    task: DenseTask, options: DenseOptions, head: HeadName, memory: Memory, *, seed: int, reporter: Reporter
) -> tuple[Classify, list[str]]:
    """A function that scores patches, and notes about it."""
    how = options.resolved
    if head == "knn":
        classify = neighbours.classifier(
            memory,
            k=how.k,
            temperature=how.temperature,
            queries=min(QUERIES, len(task.test) * task.grid.patches),
            backend=options.backend,
            device=task.device,
            note=reporter.note if rank() == 0 else lambda _line: None,
        )
        return classify, []
    if head == "linear":
        recipe = LINEAR[how.linear]
        steps = linear.steps_of(recipe, len(linear.items_of(recipe, memory, task.grid)))
        with reporter.progress(f"linear head ({how.linear})", steps) as bar:
            trained = linear.train_dense_head(
                memory, task.train, task.grid, recipe, seed=seed, device=task.device, progress=bar.advance
            )
        note = "the linear head saw every train image once, without random crops, scales and flips"
        return linear.scorer_of(trained), [] if how.linear == "fast" else [note]
    tried = LOGISTIC[how.logistic]
    with reporter.progress(f"logistic regression ({how.logistic})", fits_of(tried.strengths)) as bar:
        fitted, strength, notes = logistic.fit_to_patches(memory, task.grid, tried, seed=seed, progress=bar.advance)
    return linear.scorer_of(fitted), [f"logistic regression: C = {strength:g}, chosen on held-out train images", *notes]


def _majority(labels: PatchLabels, measured: DenseMeasurements) -> dict[str, float]:
    """Figures of predicting the most frequent class of the train pixels everywhere."""
    guess = int(labels.pixels.argmax())
    figures = dict[str, float]()
    for run, seeds in measured.areas.items():
        true = seeds[0].true
        right, predicted = np.zeros_like(true), np.zeros_like(true)
        right[:, guess], predicted[:, guess] = true[:, guess], true.sum(1)
        figures |= figures_of({run: [Areas(right, predicted, true)]})
    return figures


def _result(
    task: DenseTask,
    options: DenseOptions,
    measured: DenseMeasurements,
    labels: PatchLabels,
    *,
    notes: Sequence[str],
    seconds: float,
) -> ResultRecord:
    areas, described = measured.areas, task.describe()
    figures, majority = figures_of(areas), _majority(labels, measured)
    random = ["random weights, with the BatchNorm statistics of the train images"] if task.is_untrained else []
    below = [
        f"{name} of {figures[name]:.2f} % is below the {value:.2f} % of predicting the most frequent class everywhere"
        for name, value in majority.items()
        if figures[name] < value
    ]
    spreads = _spreads(areas)
    figures |= {name: round(100 * spread.value, 4) for name, spread in spreads.items() if name not in figures}
    intervals = {name: ends for name, spread in spreads.items() if (ends := spread.interval()) is not None}
    return ResultRecord(
        protocol="dense",
        figures=figures,
        settings=settings_of(task, options),
        checkpoint=described["checkpoint"],
        data=described["data"],
        ledger=described["ledger"],
        seconds=round(seconds, 1),
        intervals=intervals,
        inference=stated(dict.fromkeys(spreads, JACKKNIFE), intervals),
        per_class={figure_name(run, "miou"): _by_class(seeds, task.test.classes) for run, seeds in areas.items()},
        notes=[*notes, *random, *below],
        references={MAJORITY: majority},
    )


def settings_of(task: DenseTask, options: DenseOptions) -> dict[str, Any]:
    """Every setting: those of all heads, and each head's own."""
    how = options.resolved
    own: dict[HeadName, dict[str, Any]] = {
        "knn": {"k": how.k, "temperature": how.temperature, "similarity": "cosine", "vote": "softmax(s / T)"},
        "linear": {"recipe": how.linear} | _values(LINEAR[how.linear]),
        "logreg": {"recipe": how.logistic} | _values(LOGISTIC[how.logistic]),
    }
    seeds = list(dict.fromkeys(options.seeds))
    matching = {} if options.matching == "none" else {"matching": options.matching}
    shared = task.settings | {"memory": options.memory, "seeds": seeds} | matching
    return shared | {head: own[head] for head in how.heads}


def _values(recipe: Any) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(recipe).items()}


def _by_class(seeds: Sequence[Areas], classes: Sequence[str]) -> dict[str, float | None]:
    """IoU of every class in percent, the mean over seeds; None of classes that are neither true nor predicted."""
    values = np.stack([each.iou() for each in seeds])
    return {
        name if classes.count(name) == 1 else f"{name} ({number})": (
            None if np.isnan(column).all() else round(100 * float(np.nanmean(column)), 4)
        )
        for number, (name, column) in enumerate(zip(classes, values.T, strict=True))
    }


def _show(task: DenseTask, result: ResultRecord, reporter: Reporter) -> None:
    rows = [
        [name.removeprefix("dense_").replace("_", " "), f"{value:.2f}", interval_text(result.intervals.get(name))]
        for name, value in result.figures.items()
    ]
    tell_notes(result, reporter)
    train, test, grid = task.train.images, task.test.images, task.grid
    title = (
        f"Dense, {len(train):,} train and {plural(len(test), 'test image')}, "
        f"{plural(len(test.classes), 'class', 'classes')}, {grid.height} x {plural(grid.width, 'patch', 'patches')} "
        f"of stride {grid.stride}"
    )
    reporter.table(title, ["figure", "%", "95 % interval"], rows)
