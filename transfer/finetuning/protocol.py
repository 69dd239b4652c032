"""Learning from few labels: fine-tuning on 1 %, 10 % or any share of the train set, and its frozen variant."""

import hashlib
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from excb.console import Reporter
from excb.distributed.collectives import rank, run_on_rank0
from excb.errors import require
from excb.images.image_set import Images
from excb.images.subset import Subset
from excb.results.result import Result, interval_text
from excb.seeding import Purpose, generator

from ..inference.accuracy import RESAMPLES, percentiles
from ..reporting.predictions import Predictions
from ..reporting.report import report
from ..task import Task
from . import logistic, training
from .training import Settings

Choice = Literal["auto", "paper", "few-labels"]  # of the settings

# The paper's two pairs of learning rates, by percent of the labels; `Settings` holds its 50 epochs and batch of 512.
SETTINGS = {1: Settings(backbone_lr=8e-5, head_lr=1.0), 10: Settings(backbone_lr=3e-4, head_lr=0.2)}
SPLIT_SEED = 0  # of shares that nobody gave: every training seed sees the same images
# A share of fewer images than ten of the paper's batches takes the settings of `few_labels`.
FEW = 5_120
FEW_EPOCHS, FEW_STEPS = 50, 25  # epochs, and steps of an epoch: as many as on 1 % of ImageNet by the paper's protocol
SMALLEST_BATCH = 16


def few_labels(images: int) -> Settings:
    """Settings for a share of a few images, on which the paper's take one step of an epoch at rates meant for ImageNet.

    The head starts from the logistic regression on frozen features, so that training begins with what the frozen
    network reaches, whatever the scale of its features.
    """
    batch = max(SMALLEST_BATCH, round(images / FEW_STEPS))
    return Settings(backbone_lr=1e-3, head_lr=1.0, epochs=FEW_EPOCHS, batch=min(batch, images), start="frozen")


def settings_for(images: int, *, percent: int | None, published: bool, choice: Choice = "auto") -> Settings:
    """The settings of a share: the paper's, or those for few labels.

    Args:
        images: in the share.
        percent: 1 or 10, whose rates the paper states; others take those of 10.
        published: the share is 1 % or 10 % of ImageNet, which the paper's protocol is about.
        choice: "paper" or "few-labels"; "auto" takes the latter for few images of other sets.
    """
    few = images < FEW and not published if choice == "auto" else choice == "few-labels"
    return few_labels(images) if few else SETTINGS[percent or 10]


def evaluate(
    task: Task,
    reporter: Reporter,
    *,
    percent: int | None = None,
    fraction: float = 1.0,
    split: np.ndarray | None = None,
    seeds: Sequence[int] = (0,),
    frozen: bool = False,
    settings: Settings | None = None,
    state: Path | None = None,
    table: bool = True,
) -> tuple[Result, Predictions]:
    """Fine-tune all weights on a share of the labels: by the paper's semi-supervised protocol, or on any share.

    Args:
        task: backbone and images.
        reporter: prints notes, progress and tables.
        percent: 1 or 10, for the paper's protocol; None for any share.
        fraction: without `percent`, the share of the train images, above 0 and at most 1, stratified by class.
        split: indices of the train images to use: SimCLR's list for ImageNet. By default a stratified share.
        seeds: trainings to average; they differ in the head's first weights, order, crops and flips.
        frozen: with `percent`, logistic regression on frozen features of the share instead.
        settings: by default what `settings_for` chooses.
        state: folder for the state of unfinished trainings, to resume from.
        table: print the table.

    Returns:
        Figures `semisup_1pct_top1`, `semisup_1pct_top5` (or `semisup_1pct_frozen_top1`, `finetune_top1`, ...) in
        percent, and the predictions. With several seeds the figures are means, beside those of every seed
        (`semisup_1pct_top1_seed0`) and their standard deviation (`semisup_1pct_top1_sd`); guesses without a seed's name
        are the first seed's.

    Raises:
        UserError: an argument is out of range, an image cannot be read, or the training diverges.
    """
    share, source = check(task, percent=percent, fraction=fraction, split=split, seeds=seeds, frozen=frozen)
    name = "finetune" if percent is None else f"semisup_{percent}pct"
    described, notes = _describe(task, share, source, 0.0 if split is not None else (percent or 100 * fraction))
    if frozen:
        return _evaluate_frozen(
            task, reporter, share, described, notes, name=f"{name}_frozen", seed=seeds[0], table=table
        )
    return _fine_tune(
        task,
        reporter,
        share,
        described,
        notes,
        protocol="finetune" if percent is None else "semisup",
        name=name,
        seeds=seeds,
        settings=settings or settings_for(len(share), percent=percent, published=is_published(task, percent)),
        state=state,
        table=table,
    )


def check(
    task: Task,
    *,
    percent: int | None,
    fraction: float,
    split: np.ndarray | None,
    seeds: Sequence[int],
    frozen: bool,
) -> tuple[np.ndarray, str]:
    """Indices of the train images that `evaluate` uses, and their source; it refuses what `evaluate` refuses."""
    require(
        percent is None or percent in SETTINGS,
        f"{percent} %: the protocol knows 1 and 10; `excb-eval finetune` takes any --fraction",
    )
    require(len(seeds) > 0 and len(set(seeds)) == len(seeds), "name at least one seed, and none twice")
    require(not frozen or len(seeds) == 1, "the frozen variant has nothing random to average: give one seed")
    share, source = _share(task, fraction if percent is None else percent / 100, split)
    assert task.train.labels is not None
    apart = len(np.unique(task.train.labels[share])) > 1
    require(apart, "the share has images of one class only: nothing to tell apart")
    return share, source


def is_imagenet(images: Images) -> bool:
    """Whether images lie in ImageNet's 1,000 class folders, of which SimCLR's lists name files."""
    classes = images.classes or ()
    return len(classes) == 1000 and all(re.fullmatch(r"n\d{8}", name) for name in classes)


def is_published(task: Task, percent: int | None) -> bool:
    """Whether the share is what the paper's figures are of: 1 % or 10 % of ImageNet."""
    return percent is not None and is_imagenet(task.train)


def _share(task: Task, fraction: float, split: np.ndarray | None) -> tuple[np.ndarray, str]:
    """Indices of the train images to use, and where they come from."""
    if split is not None:
        require(len(split) > 0, "the split names no train image")
        return split, "given"
    from ..data.splits import stratified_split

    assert task.train.labels is not None
    return stratified_split(task.train.labels, fraction, SPLIT_SEED), f"stratified, seed {SPLIT_SEED}"


def _describe(task: Task, share: np.ndarray, source: str, percent: float) -> tuple[dict[str, Any], list[str]]:
    """The share, for the settings, and what a reader must know of it; `percent` is what was asked for, 0 of a list."""
    assert task.train.labels is not None
    paths = "\n".join(sorted(task.train.paths[index] for index in share))
    digest = hashlib.sha256(paths.encode("utf-8", "surrogateescape")).hexdigest()
    classes = len(task.train.classes or ())
    missing = classes - len(np.unique(task.train.labels[share]))
    notes = (
        [f"{missing} of {classes} classes have no image in the share, so none of theirs is found"] if missing else []
    )
    asked = round(len(task.train) * percent / 100)
    if percent > 0 and asked < len(share):
        notes.append(
            f"the share has {len(share)} images, one of every class: {percent:g} % of {len(task.train):,} is {asked}"
        )
    return {"share": {"images": len(share), "sha256": digest, "source": source}}, notes


def _fine_tune(
    task: Task,
    reporter: Reporter,
    share: np.ndarray,
    described: dict[str, Any],
    notes: list[str],
    *,
    protocol: str,
    name: str,
    seeds: Sequence[int],
    settings: Settings,
    state: Path | None,
    table: bool,
) -> tuple[Result, Predictions]:
    start = time.monotonic()
    if settings.batch > len(share):
        notes.append(f"the share has {len(share)} images, less than a batch of {settings.batch}: one batch an epoch")
        settings = replace(settings, batch=len(share))
    head = _frozen_head(task, reporter, share) if settings.start == "frozen" else None
    notes.append(_which(settings, len(share)))
    top5: dict[str, Tensor] = {}
    for seed in seeds:
        file = None if state is None else state / f"{name}-seed{seed}.pt"
        top5[f"{name}_{{}}_seed{seed}"] = training.run(
            task, share, settings, seed=seed, reporter=reporter, state=file, head=head
        )
    first = next(iter(top5.values()))
    predictions = Predictions.of(task, {f"{name}_{{}}": first} | (top5 if len(seeds) > 1 else {}))
    if len(seeds) > 1:
        notes.append(
            f"{name}_top1, {name}_top5 and accuracy by class are means of {len(seeds)} seeds; the confusion matrix and "
            f"the predictions of {name} are those of seed {seeds[0]}"
        )
    result = report(
        task,
        protocol=protocol,
        settings=settings.to_dict() | described | {"seeds": list(seeds)},
        scored=predictions,
        seconds=time.monotonic() - start,
        notes=notes,
    )
    if len(seeds) > 1:
        result = _average(result, predictions, name, seeds)
    if rank() == 0:
        for note in notes:
            reporter.note(note)
        if table:
            _print(reporter, result, name, seeds, len(share))
    return result, predictions


def _frozen_head(task: Task, reporter: Reporter, share: np.ndarray) -> training.FrozenHead:
    """Where fine-tuning on few labels starts."""
    rows, labels = task.features(Subset(task.train, share), "the share", reporter)
    return run_on_rank0(
        lambda: logistic.fit(rows, labels, SPLIT_SEED).head(rows, len(task.train.classes or ()))  # rank 0 fits for all
    )


def _which(settings: Settings, images: int) -> str:
    """Which settings were used, for the reader."""
    rates = (
        f"batch {settings.batch}, learning rate {settings.backbone_lr:g} for the backbone and {settings.head_lr:g} for "
        "the head"
    )
    if settings.start == "frozen":
        return (
            f"settings for few labels ({images:,} images): {rates} (divided by the mean squared norm of features); the "
            "head starts from logistic regression on frozen features, and BatchNorm keeps the checkpoint's statistics "
            "(--settings paper for the paper's)"
        )
    return f"settings of the paper's protocol: {rates}, from a random head"


def _average(result: Result, predictions: Predictions, name: str, seeds: Sequence[int]) -> Result:
    """Put means over seeds, with intervals, in the place of the first seed's figures, and add the spread."""
    figures, intervals = dict(result.figures), dict(result.intervals)
    for top in (1, 5):
        hits = predictions.hits(within=top)
        names = [f"{name}_top{top}_seed{seed}" for seed in seeds]
        values = [figures[each] for each in names]
        figures[f"{name}_top{top}"] = round(statistics.fmean(values), 4)
        figures[f"{name}_top{top}_sd"] = round(statistics.stdev(values), 4)
        intervals[f"{name}_top{top}"] = interval_of_mean(torch.stack([hits[each] for each in names]))
    return replace(result, figures=figures, intervals=intervals)


def interval_of_mean(hits: Tensor) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the mean accuracy over seeds, in percent.

    Images are drawn with replacement, each with the answers of all seeds. The interval is about these trainings; the
    spread over seeds says how much trainings differ.

    Args:
        hits: [seeds, Q] bool.
    """
    seeds, images = hits.shape
    counts = torch.bincount(hits.sum(0), minlength=seeds + 1).numpy()  # images that 0, 1, ... seeds have right
    random = generator(Purpose.BOOTSTRAP, images, *counts.tolist())
    draws = random.multinomial(images, counts / images, RESAMPLES) @ np.arange(seeds + 1)
    return percentiles(draws, images * seeds)


def _print(reporter: Reporter, result: Result, name: str, seeds: Sequence[int], images: int) -> None:
    figures = result.figures
    kinds = [f"{name}_top1", f"{name}_top5"]

    def row(called: str, values: Iterable[float], interval: str = "") -> list[str]:
        top1, top5 = values
        return [called, f"{top1:.2f}", interval, f"{top5:.2f}"]

    called = "mean" if len(seeds) > 1 else str(seeds[0])
    rows = [row(called, (figures[kind] for kind in kinds), interval_text(result.intervals[kinds[0]]))]
    if len(seeds) > 1:
        rows = [*(row(str(seed), (figures[f"{kind}_seed{seed}"] for kind in kinds)) for seed in seeds), *rows]
        rows.append(row("standard deviation", (figures[f"{kind}_sd"] for kind in kinds)))
        for word, pick in (("least", min), ("most", max)):
            rows.append(row(word, (pick(figures[f"{kind}_seed{seed}"] for seed in seeds) for kind in kinds)))
    epochs = result.settings["epochs"]
    title = f"{name}: fine-tuned on {images:,} images, {epochs} epoch{'s' if epochs != 1 else ''}"
    reporter.table(title, ["seed", "top-1 %", "95 % interval", "top-5 %"], rows)


def _evaluate_frozen(
    task: Task,
    reporter: Reporter,
    share: np.ndarray,
    described: dict[str, Any],
    notes: list[str],
    *,
    name: str,
    seed: int,
    table: bool,
) -> tuple[Result, Predictions]:
    start = time.monotonic()
    if rank() == 0:
        for note in notes:
            reporter.note(note)
    rows, labels = task.features(Subset(task.train, share), "the share", reporter)
    queries, _ = task.features(task.test, "test", reporter)
    if rank() == 0:
        reporter.note(f"logistic regression on the features of {len(rows):,} images")
    top5, strength, how = run_on_rank0(lambda: _logistic(rows, labels, queries, seed))
    predictions = Predictions.of(task, {f"{name}_{{}}": top5})
    result = report(
        task,
        protocol="semisup-frozen",
        settings=described
        | {"classifier": "scikit-learn LogisticRegression", "features": "standardised", "seeds": [seed]}
        | {"C": list(logistic.GRID), "folds": logistic.FOLDS},
        scored=predictions,
        seconds=time.monotonic() - start,
        notes=[*notes, f"C = {strength:g}, {how}"],
    )
    if table and rank() == 0:
        first, fifth = (f"{result.figures[f'{name}_top{top}']:.2f}" for top in (1, 5))
        interval = interval_text(result.intervals[f"{name}_top1"])
        title = f"{name}: logistic regression on {len(rows):,} images"
        columns = ["C", "top-1 %", "95 % interval", "top-5 %"]
        reporter.table(title, columns, [[f"{strength:g}", first, interval, fifth]])
    return result, predictions


def _logistic(rows: Tensor, labels: Tensor, queries: Tensor, seed: int) -> tuple[Tensor, float, str]:
    """The best five classes [Q, <=5] of the queries, the C that was used, and how it was found."""
    fitted = logistic.fit(rows, labels, seed)
    return fitted.best(queries), fitted.strength, fitted.how
