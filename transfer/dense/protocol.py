"""The dense protocol: heads on frozen patches, the masks they predict, and a result."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from excb.console import Reporter
from excb.distributed.collectives import rank
from excb.errors import require
from excb.networks.backbone import weights_hash
from excb.references.guessing import MAJORITY
from excb.references.untrained import NETWORK
from excb.results.result import Result, interval_text

from ..reporting.references import PIXELS
from .heads import linear, logistic, neighbours
from .heads.memory import Memory, choose
from .heads.recipes import LINEAR, LOGISTIC
from .patches.labels import PatchLabels
from .patches.metrics import MEASURES, Areas, figure_name, interval
from .pictures import spread
from .segmentation import QUERIES, segment
from .setup import DenseTask

HEADS = ("knn", "linear", "logreg")
Classify = Callable[[Tensor], Tensor]  # patches [Q, D] -> scores [Q, C]


@dataclass(frozen=True)
class Request:
    """What is measured."""

    heads: tuple[str, ...]  # of `HEADS`
    k: int = 30
    temperature: float = 0.02
    parts: tuple[int, ...] = (1,)  # k-NN remembers 1 / part of the train images
    memory: int = 10_240_000  # patches, at most
    seeds: tuple[int, ...] = (0,)
    linear: str = "fast"
    logistic: str = "fast"
    backend: Literal["auto", "faiss", "torch"] = "auto"

    def check(self) -> None:
        """Raise UserError unless all of it can be measured."""
        for name, known, option in (
            *((head, HEADS, "--heads") for head in self.heads),
            (self.linear, LINEAR, "--linear"),
            (self.logistic, LOGISTIC, "--logistic"),
        ):
            require(name in known, f"{option} {name}: there are {', '.join(known)}")
        neighbours.check(self.k, self.temperature)
        require(self.memory >= 1, "--memory is a number of patches, at least 1")
        require(min(self.parts) >= 1, f"--parts {min(self.parts)}: 8 stands for an eighth of the train images")


@dataclass(frozen=True)
class Measured:
    """What was measured, beside the result: areas for every figure and seed, and masks to look at."""

    areas: dict[str, list[Areas]]  # by head and part, such as "knn_1of8"
    masks: dict[str, dict[int, np.ndarray]]  # predicted masks by head and image


def evaluate(
    dense: DenseTask,
    request: Request,
    reporter: Reporter,
    *,
    untrained: bool = False,
    pixels: bool = False,
    table: bool = True,
) -> tuple[Result, Measured]:
    """Measure the heads, and the references that are asked for; all ranks call this.

    Args:
        dense: backbone and views.
        request: what to measure.
        reporter: prints notes, progress and tables.
        untrained: also measure the same network untrained.
        pixels: also measure raw pixels.
        table: print the table.

    Returns:
        Figures `dense_HEAD_miou` and `dense_HEAD_pixel_accuracy` in percent, of k-NN with parts of the train images
        `dense_knn_miou_1of8`, means over seeds; and what they were made of.

    Raises:
        UserError: an image or mask cannot be used, or a setting is out of range.
    """
    start = time.monotonic()
    request.check()
    with reporter.progress("masks of train", len(dense.train)) as bar:
        labels = PatchLabels(dense.train, dense.grid, bar.advance)
    measured, notes = _measure(dense, request, labels, reporter)
    references = {MAJORITY: _majority(labels, measured)}
    others = {NETWORK: dense.untrained} if untrained and not dense.task.is_untrained else {}
    for name, other in (others | ({PIXELS: dense.of_pixels} if pixels else {})).items():
        reporter.note(f"reference: {name}")
        references[name] = figures_of(_measure(other(), request, labels, reporter)[0].areas)
    result = _result(dense, request, measured.areas, references, notes=notes, seconds=time.monotonic() - start)
    if table and rank() == 0:
        _print(dense, result, reporter)
    return result, measured


def figures_of(areas: dict[str, list[Areas]]) -> dict[str, float]:
    """Figures in percent, the mean over seeds."""
    return {
        figure_name(run, measure): round(float(np.mean([getattr(each, measure)() for each in seeds])), 4)
        for run, seeds in areas.items()
        for measure in MEASURES
    }


def _measure(dense: DenseTask, request: Request, labels: PatchLabels, reporter: Reporter) -> tuple[Measured, list[str]]:
    patches = dense.patches(dense.train, "train", reporter)
    tested = dense.patches(dense.test, "test", reporter)(np.zeros(0, np.int64))
    measured, notes = Measured({}, {}), list[str]()
    shown = spread(len(dense.test.images))
    for head in request.heads:
        for part in sorted(set(request.parts)) if head == "knn" else (1,):
            run = head if part == 1 else f"{head}_1of{part}"
            measured.areas[run] = []
            for seed in _seeds(request, labels, head, part):
                numbers = choose(labels, dense.train, dense.grid.patches, part=part, most=request.memory, seed=seed)
                memory = Memory(patches(numbers), labels)
                classify, said = _classifier(dense, request, head, memory, seed=seed, reporter=reporter)
                with reporter.progress(f"{run}, seed {seed}", len(dense.test.images)) as bar:
                    areas, masks = segment(
                        dense.test,
                        tested,
                        dense.grid,
                        classify,
                        dense.scoring,
                        keep=shown if part == 1 and seed == request.seeds[0] else (),
                        progress=bar.advance,
                    )
                measured.areas[run].append(areas)
                notes += said
                if masks:
                    measured.masks[head] = masks
    return measured, [*dict.fromkeys(notes)]


def _seeds(request: Request, labels: PatchLabels, head: str, part: int) -> tuple[int, ...]:
    """The seeds that differ: neighbours in a memory of all patches depend on none."""
    everything = part == 1 and len(labels.labelled()) <= request.memory
    return request.seeds[:1] if head == "knn" and everything else request.seeds


def _classifier(
    dense: DenseTask, request: Request, head: str, memory: Memory, *, seed: int, reporter: Reporter
) -> tuple[Classify, list[str]]:
    """What gives scores of patches, and notes about it."""
    if head == "knn":
        classify = neighbours.classifier(
            memory,
            k=request.k,
            temperature=request.temperature,
            queries=min(QUERIES, len(dense.test) * dense.grid.patches),
            backend=request.backend,
            device=dense.task.device,
            note=reporter.note if rank() == 0 else lambda _line: None,
        )
        return classify, []
    if head == "linear":
        recipe = LINEAR[request.linear]
        steps = linear.steps_of(recipe, len(linear.items_of(recipe, memory, dense.grid)))
        with reporter.progress(f"linear head ({request.linear})", steps) as bar:
            trained = linear.train(
                memory, dense.train, dense.grid, recipe, seed=seed, device=dense.task.device, progress=bar.advance
            )
        note = "the linear head saw every train image once, without random crops, scales and flips"
        return linear.scores_of(trained), [] if request.linear == "fast" else [note]
    tried = LOGISTIC[request.logistic]
    with reporter.progress(f"logistic regression ({request.logistic})", logistic.fits_of(tried)) as bar:
        fitted, strength, notes = logistic.fit(memory, dense.grid, tried, seed=seed, progress=bar.advance)
    return linear.scores_of(fitted), [f"logistic regression: C = {strength:g}, chosen on held-out train images", *notes]


def _majority(labels: PatchLabels, measured: Measured) -> dict[str, float]:
    """Figures of predicting the most frequent class of the train pixels everywhere."""
    guess = int(labels.pixels.argmax())
    found = dict[str, float]()
    for run, seeds in measured.areas.items():
        true = seeds[0].true
        right, predicted = np.zeros_like(true), np.zeros_like(true)
        right[:, guess], predicted[:, guess] = true[:, guess], true.sum(1)
        found |= figures_of({run: [Areas(right, predicted, true)]})
    return found


def _result(
    dense: DenseTask,
    request: Request,
    areas: dict[str, list[Areas]],
    references: dict[str, dict[str, float]],
    *,
    notes: Sequence[str],
    seconds: float,
) -> Result:
    figures, task = figures_of(areas), dense.task
    random = ["random weights, with the BatchNorm statistics of the train images"] if task.is_untrained else []
    below = [
        f"{name} of {figures[name]:.2f} % is below the {value:.2f} % of predicting the most frequent class everywhere"
        for name, value in references[MAJORITY].items()
        if figures[name] < value
    ]
    sets = {"train": dense.train, "test": dense.test}
    return Result(
        protocol="dense",
        figures=figures,
        settings=settings_of(dense, request),
        checkpoint=task.describe_checkpoint() | {"weights_sha256": weights_hash(task.backbone.network)},
        data={
            name: {"root": str(views.images.root), "images": len(views.images), "fingerprint": views.images.fingerprint}
            for name, views in sets.items()
        }
        | {"classes": len(dense.test.classes)},
        seconds=round(seconds, 1),
        intervals={
            figure_name(run, measure): interval(seeds, measure) for run, seeds in areas.items() for measure in MEASURES
        },
        per_class={figure_name(run, "miou"): _by_class(seeds, dense.test.classes) for run, seeds in areas.items()},
        notes=[*notes, *random, *below],
        references=references,
    )


def settings_of(dense: DenseTask, request: Request) -> dict[str, Any]:
    """Every setting: those of all heads, and each head's own."""
    own: dict[str, dict[str, Any]] = {
        "knn": {"k": request.k, "temperature": request.temperature, "similarity": "cosine", "vote": "softmax(s / T)"},
        "linear": {"recipe": request.linear} | _values(LINEAR[request.linear]),
        "logreg": {"recipe": request.logistic} | _values(LOGISTIC[request.logistic]),
    }
    chosen = {head: own[head] for head in request.heads}
    return dense.settings() | {"memory": request.memory, "seeds": list(request.seeds)} | chosen


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


def _print(dense: DenseTask, result: Result, reporter: Reporter) -> None:
    titles = {PIXELS: "pixels", NETWORK: "untrained", MAJORITY: "majority"}
    shown = [name for name in titles if name in result.references]
    rows = [
        [
            name.removeprefix("dense_").replace("_", " "),
            f"{value:.2f}",
            interval_text(result.intervals[name]),
        ]
        + [f"{result.references[reference][name]:.2f}" for reference in shown]
        for name, value in result.figures.items()
    ]
    for note in result.notes:
        reporter.note(note)
    train, test, grid = dense.train.images, dense.test.images, dense.grid
    title = (
        f"Dense, {len(train):,} train and {len(test):,} test images, {len(test.classes)} classes, "
        f"{grid.height} x {grid.width} patches of stride {grid.stride}"
    )
    reporter.table(title, ["figure", "%", "95 % interval", *(titles[name] for name in shown)], rows)
