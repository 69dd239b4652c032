"""Learning from few labels: fine-tuning on 1 %, 10 % or any share of the train set, and its frozen variant."""

import hashlib
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from excb.console import Reporter, plural
from excb.distributed.collectives import all_succeed, run_on_rank0
from excb.errors import UserError
from excb.images.image_set import Images
from excb.images.subset import Subset
from excb.inference.statistics import basis, interval
from excb.results.result import ResultRecord, interval_text

from ..data.folders import are_wnids
from ..probes.logistic import SOLVER
from ..probes.penalty import Chosen
from ..protocol import Measurement
from ..reporting.predictions import Predictions
from ..reporting.report import ScoredFiles, make_result
from ..task import Task
from . import logistic, training
from .options import FinetuneOptions, SemisupOptions
from .training import Settings

Options = SemisupOptions | FinetuneOptions
Choice = Literal["auto", "paper", "few-labels"]  # of the settings

# The paper's two pairs of learning rates, by percent of the labels; `Settings` holds its 50 epochs and batch of 512.
SETTINGS = {1: Settings(backbone_lr=8e-5, head_lr=1.0), 10: Settings(backbone_lr=3e-4, head_lr=0.2)}
SPLIT_SEED = 0  # of shares that nobody gave: every training seed sees the same images
# A share of fewer images than ten of the paper's batches takes the settings of `few_labels`.
FEW = 5_120
FEW_EPOCHS, FEW_STEPS = 50, 25  # epochs, and steps of an epoch: as many as on 1 % of ImageNet by the paper's protocol
SMALLEST_BATCH = 16
_GIVEN = "given"  # the source of a share that is listed


def few_labels(images: int) -> Settings:
    """Settings for a share of a few images, on which the paper's take one step of an epoch at rates meant for ImageNet.

    The head starts from the logistic regression on frozen features, so that training begins with what the frozen
    network reaches, whatever the scale of its features.
    """
    batch = max(SMALLEST_BATCH, round(images / FEW_STEPS))
    return Settings(backbone_lr=1e-3, head_lr=1.0, epochs=FEW_EPOCHS, batch=min(batch, images), start="frozen")


def share_settings(images: int, *, percent: int | None, published: bool, choice: Choice = "auto") -> Settings:
    """The settings of a share: the paper's, or those for few labels.

    Args:
        images: in the share.
        percent: 1 or 10, whose rates the paper states; others take those of 10.
        published: the share is 1 % or 10 % of ImageNet, which the paper's protocol is about.
        choice: "paper" or "few-labels"; "auto" takes the latter for few images of other sets.
    """
    few = images < FEW and not published if choice == "auto" else choice == "few-labels"
    return few_labels(images) if few else SETTINGS[percent or 10]


@dataclass(frozen=True)
class SharePlan:
    """All that `measure` computes."""

    share: np.ndarray  # indices of the train images to use
    source: str  # of these
    settings: Settings | None  # of the trainings; None of the frozen variant


def measure(task: Task, options: Options, reporter: Reporter) -> Measurement:
    """Fine-tune all weights on a share of the labels: by the paper's semi-supervised protocol, or on any share.

    Args:
        task: backbone and images.
        options: the share, the settings and the seeds. The share is SimCLR's list for 1 % and 10 % of ImageNet, the
            names in `split_file`, or else stratified by class. Seeds differ in the head's first weights, order, crops
            and flips. `state` is a folder for unfinished trainings, to resume from.
        reporter: prints notes and progress.

    Returns:
        Figures `semisup_1pct_top1`, `semisup_1pct_top5` (or `semisup_1pct_frozen_top1`, `finetune_top1`, ...) in
        percent, and the predictions. With several seeds the figures are means, beside those of every seed
        (`semisup_1pct_top1_seed0`) and their standard deviation (`semisup_1pct_top1_sd`); guesses without a seed's name
        are the first seed's.

    Raises:
        UserError: an option is out of range or has no use, an image cannot be read, or the training diverges.
    """
    plan = checked(task, options)
    return (_measure_frozen if plan.settings is None else _fine_tune)(task, options, plan, reporter)


def checked(task: Task, options: Options) -> SharePlan:
    """The plan that `measure` computes; it refuses what `measure` refuses before any work.

    Raises:
        UserError: as `measure`.
    """
    all_succeed(lambda: options.check(None))
    share, source = _share(task, options)
    assert task.train.labels is not None
    if len(np.unique(task.train.labels[share])) < 2:
        raise UserError.on_all_ranks("all images of the share are of one class: take a larger share")
    if options.frozen:
        return SharePlan(share, source, None)
    published = is_published(task, options.percent)
    chosen = share_settings(len(share), percent=options.percent, published=published, choice=options.choice)
    settings = all_succeed(lambda: replace(chosen, **options.changes))
    if settings.start == "random" and task.precision != "fp32":
        raise UserError.on_all_ranks(
            f"--feature-precision {task.precision} is of frozen features, and this trains all weights from a random "
            f"head: leave it out, or train in --precision {task.precision}"
        )
    return SharePlan(share, source, settings)


def has_imagenet_folders(images: Images) -> bool:
    """Whether images lie in ImageNet's 1,000 class folders, of which SimCLR's lists name files."""
    classes = images.classes or ()
    return len(classes) == 1000 and are_wnids(classes)


def is_published(task: Task, percent: int | None) -> bool:
    """Whether the share is what the paper's figures are of: 1 % or 10 % of ImageNet."""
    return percent is not None and has_imagenet_folders(task.train)


def _share(task: Task, options: Options) -> tuple[np.ndarray, str]:
    """Indices of the train images to use, and their source."""
    from excb.remote.home import cache_root

    from ..data.splits import simclr_split, stratified_split

    file, labels = options.split_file, task.train.labels
    if file is not None or is_published(task, options.percent):
        listed = simclr_split(options.percent or 10, task.train, file=file, cache=task.cache or cache_root())
        if not len(listed):
            raise UserError.on_all_ranks("the split names no train image")
        return listed, _GIVEN
    assert labels is not None
    stratified = all_succeed(lambda: stratified_split(labels, options.fraction, SPLIT_SEED))
    return stratified, f"stratified, seed {SPLIT_SEED}"


def _describe(task: Task, options: Options, plan: SharePlan) -> tuple[dict[str, Any], list[str]]:
    """The share, for the settings, and what a reader must know of it."""
    share, percent = plan.share, 100 * options.fraction
    assert task.train.labels is not None
    paths = "\n".join(sorted(task.train.paths[index] for index in share))
    digest = hashlib.sha256(paths.encode("utf-8", "surrogateescape")).hexdigest()
    classes = len(task.train.classes or ())
    missing = classes - len(np.unique(task.train.labels[share]))
    notes = (
        [f"no image in the share for {missing} of {plural(classes, 'class', 'classes')}: none of theirs is found"]
        if missing
        else []
    )
    asked = round(len(task.train) * percent / 100)
    if plan.source != _GIVEN and asked < len(share):
        notes.append(
            f"the share has {plural(len(share), 'image')}, one of every class: {percent:g} % of "
            f"{len(task.train):,} is {asked}"
        )
    return {"share": {"images": len(share), "sha256": digest, "source": plan.source}}, notes


def _fine_tune(task: Task, options: Options, plan: SharePlan, reporter: Reporter) -> Measurement:
    start = time.monotonic()
    name, seeds, state, share, settings = options.figure, options.seeds, options.state, plan.share, plan.settings
    assert settings is not None
    described, notes = _describe(task, options, plan)
    if settings.batch > len(share):
        notes.append(
            f"the share has {plural(len(share), 'image')}, less than a batch of {settings.batch}: one batch an epoch"
        )
        settings = replace(settings, batch=len(share))
    head = _frozen_head(task, reporter, share) if settings.start == "frozen" else None
    notes.append(_which(settings, len(share)))
    top5: dict[str, Tensor] = {}
    for seed in seeds:
        file = None if state is None else state / f"{name}-seed{seed}.pt"
        top5[f"{name}_{{}}_seed{seed}"] = training.finetune(
            task, share, settings, seed=seed, reporter=reporter, state=file, head=head
        )
    first = next(iter(top5.values()))
    predictions = Predictions.of(task, {f"{name}_{{}}": first} | (top5 if len(seeds) > 1 else {}))
    if len(seeds) > 1:
        notes.append(
            f"{name}_top1, {name}_top5 and accuracy by class are means of {plural(len(seeds), 'seed')}; the confusion "
            f"matrix and the predictions of {name} are those of seed {seeds[0]}"
        )
    result = make_result(
        task,
        protocol="finetune" if options.percent is None else "semisup",
        settings=settings.to_dict() | described | {"seeds": list(seeds)},
        scored=predictions,
        seconds=time.monotonic() - start,
        notes=notes,
    )
    if len(seeds) > 1:
        result = _average(result, predictions, name, seeds)
    for note in notes:
        reporter.note(note)
    show = partial(_show, result, name, seeds, len(share))
    return Measurement(result, predictions, show, ScoredFiles(predictions))


def _frozen_head(task: Task, reporter: Reporter, share: np.ndarray) -> training.FrozenHead:
    """Where fine-tuning on few labels starts."""
    rows, labels = task.features(Subset(task.train, share), "the share", reporter)
    return run_on_rank0(lambda: logistic.head_of(_logistic(task, rows, labels, SPLIT_SEED), rows))


def _which(settings: Settings, images: int) -> str:
    """Which settings were used, for the reader."""
    rates = (
        f"batch {settings.batch}, learning rate {settings.backbone_lr:g} for the backbone and {settings.head_lr:g} for "
        "the head"
    )
    if settings.start == "frozen":
        return (
            f"settings for few labels ({plural(images, 'image')}): {rates} (divided by the mean squared norm of "
            "features); the head starts from logistic regression on frozen features, and BatchNorm keeps the "
            "checkpoint's statistics (--settings paper for the paper's)"
        )
    return f"settings of the paper's protocol: {rates}, from a random head"


def _average(result: ResultRecord, predictions: Predictions, name: str, seeds: Sequence[int]) -> ResultRecord:
    """Put means over seeds, with intervals, in the place of the first seed's figures, and add the spread."""
    figures, intervals, inference = dict(result.figures), dict(result.intervals), dict(result.inference)
    for top in (1, 5):
        hits = predictions.hits(within=top)
        names = [f"{name}_top{top}_seed{seed}" for seed in seeds]
        values = [figures[each] for each in names]
        figures[f"{name}_top{top}"] = round(statistics.fmean(values), 4)
        figures[f"{name}_top{top}_sd"] = round(statistics.stdev(values), 4)
        scores = torch.stack([hits[each] for each in names]).double().mean(0)  # of these trainings
        intervals[f"{name}_top{top}"] = interval(scores)
        inference[f"{name}_top{top}"] = basis(scores).to_dict()
    return replace(result, figures=figures, intervals=intervals, inference=inference)


def _show(result: ResultRecord, name: str, seeds: Sequence[int], images: int, reporter: Reporter) -> None:
    figures = result.figures
    kinds = [f"{name}_top1", f"{name}_top5"]

    def row(called: str, values: Iterable[float], interval: str = "") -> list[str]:
        top1, top5 = values
        return [called, f"{top1:.2f}", interval, f"{top5:.2f}"]

    called = "mean" if len(seeds) > 1 else str(seeds[0])
    rows = [row(called, (figures[kind] for kind in kinds), interval_text(result.intervals.get(kinds[0])))]
    if len(seeds) > 1:
        rows = [*(row(str(seed), (figures[f"{kind}_seed{seed}"] for kind in kinds)) for seed in seeds), *rows]
        rows.append(row("standard deviation", (figures[f"{kind}_sd"] for kind in kinds)))
        for word, pick in (("least", min), ("most", max)):
            rows.append(row(word, (pick(figures[f"{kind}_seed{seed}"] for seed in seeds) for kind in kinds)))
    epochs = result.settings["epochs"]
    title = f"{name}: fine-tuned on {plural(images, 'image')}, {epochs} epoch{'s' if epochs != 1 else ''}"
    reporter.table(title, ["seed", "top-1 %", "95 % interval", "top-5 %"], rows)


def _measure_frozen(task: Task, options: Options, plan: SharePlan, reporter: Reporter) -> Measurement:
    start, name, seed = time.monotonic(), options.figure, options.seeds[0]
    described, notes = _describe(task, options, plan)
    for note in notes:
        reporter.note(note)
    rows, labels = task.features(Subset(task.train, plan.share), "the share", reporter)
    queries, _ = task.features(task.test, "test", reporter)
    reporter.note(f"logistic regression on the features of {plural(len(rows), 'image')}")
    fitted = run_on_rank0(lambda: _logistic(task, rows, labels, seed))
    predictions = Predictions.of(task, {f"{name}_{{}}": fitted.top(queries)})
    result = make_result(
        task,
        protocol="semisup-frozen",
        settings=described
        | SOLVER
        | {"features": "standardised", "seeds": [seed], "C": list(logistic.GRID), "folds": logistic.FOLDS},
        scored=predictions,
        seconds=time.monotonic() - start,
        notes=[*notes, logistic.how_chosen(fitted), *fitted.notes],
    )
    show = partial(_show_frozen, result, name, len(rows), fitted.C)
    return Measurement(result, predictions, show, ScoredFiles(predictions))


def _show_frozen(result: ResultRecord, name: str, images: int, strength: float, reporter: Reporter) -> None:
    first, fifth = (f"{result.figures[f'{name}_top{top}']:.2f}" for top in (1, 5))
    interval = interval_text(result.intervals.get(f"{name}_top1"))
    title = f"{name}: logistic regression on {plural(images, 'image')}"
    reporter.table(title, ["C", "top-1 %", "95 % interval", "top-5 %"], [[f"{strength:g}", first, interval, fifth]])


def _logistic(task: Task, rows: Tensor, labels: Tensor, seed: int) -> Chosen:
    return logistic.fit_to_share(rows, labels, classes=len(task.train.classes or ()), seed=seed, device=task.device)
