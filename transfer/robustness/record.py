"""`excb-eval robustness`: its record."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from excb.console import Reporter, plural

from ..opening import labelled
from ..options import TaskOptions
from ..protocol import Family, Fields, FigureKind, Measurement, Protocol, Work
from ..reporting.fields import named, without
from .names import COMMON, SEVERITIES
from .options import RobustnessOptions

if TYPE_CHECKING:
    from excb.images.image_set import Images
    from excb.results.beside import FileBeside

    from ..published.claim import ClaimImages
    from ..task import Task

_SUMMARY = {
    "corrupted_top1": FigureKind("robustness", "corrupted top-1"),
    "clean_top1": FigureKind("robustness", "clean top-1"),
    "relative_drop": FigureKind("robustness", "relative drop", unit="% of the clean accuracy", higher_is_better=False),
    "mce": FigureKind("robustness", "mCE", unit="% of the reference's error", higher_is_better=False),
    "relative_mce": FigureKind(
        "robustness", "relative mCE", unit="% of the rise of the reference's error", higher_is_better=False
    ),
    "clean_ece": FigureKind("robustness", "clean ECE", higher_is_better=False),
    "corrupted_ece": FigureKind("robustness", "corrupted ECE", higher_is_better=False),
    "labels_top1": FigureKind("robustness_sets", "several labels top-1"),
}
_ON = re.compile(r"on_(\w+?)_(clean_top1|top1|ece)")
_WORDS = {"clean_top1": "clean top-1", "top1": "top-1", "ece": "ECE"}
_OF_CORRUPTIONS = ("corruptions", "severities", "library", "corrupted", "stored", "reference")
_OF_SETS = ("sets", "candidates", "border")


def _measure(task: "Task", options: RobustnessOptions, reporter: Reporter) -> Measurement:
    from .protocol import measure

    return measure(task, options, reporter)


def _work(task: "Task", options: RobustnessOptions, reporter: Reporter) -> Work:
    from excb.references.untrained import NETWORK

    from .corruptions import seconds_of
    from .protocol import check_reference
    from .ready import Ready

    ready, severities = Ready.of(task, options, reporter.note), options.ascending_severities
    check_reference(ready)
    sets: dict[str, Images] = {"train": ready.task.train, "test": ready.task.test}
    sets |= ready.corrupted | {other.name: other.images for other in ready.others}
    cells, side = len(ready.corrupted) * len(severities), ready.task.preprocessing.crop
    then = [f"one head on the train images, judged on the test images and {plural(cells, 'corruption')} of them"]
    making = {name: seconds_of(name, severities, side, stored=options.stored == "jpeg") for name in ready.corrupted}
    if making:
        slowest = max(making, key=lambda name: making[name])
        mean = 1000 * sum(making.values()) / len(making)
        then.append(f"corrupting an image takes a core {mean:.1f} ms beside that, by {slowest} longest")
    if options.reference == NETWORK and ready.corrupted:
        then.append("all of that once more with the same network untrained, the reference of mCE")
    return Work(sets, then=tuple(then), extract=ready.extraction, making=making)


def _kind_of(figure: str) -> FigureKind | None:
    name = figure.removeprefix("robustness_")
    if name == figure:
        return None
    if (match := _ON.fullmatch(name)) is not None:
        lower = match[2] == "ece"
        return FigureKind("robustness_sets", f"{match[1]} {_WORDS[match[2]]}", higher_is_better=not lower)
    return _SUMMARY.get(name)


def _result_fields(settings: Mapping[str, Any], kind: FigureKind) -> Fields:
    """The fields that define a figure: other sets do not change those of corruptions, nor the reverse."""
    if kind.family == "robustness_sets":
        own = settings.get("sets", {}).get(kind.metric.partition(" ")[0])  # no set changes the figures of another
        return named(without(settings, _OF_CORRUPTIONS) | {"sets": own})
    left_out = [*_OF_SETS] if "mCE" in kind.metric else [*_OF_SETS, "reference"]
    return named(without(settings, left_out))


def _cost(options: Mapping[str, Any], images: "ClaimImages") -> float | None:
    """Every image passes once, and every test image once more for each corruption and severity."""
    if images.train is None or images.test is None:
        return None
    cells = len(options.get("corruptions", COMMON)) * len(options.get("severities", SEVERITIES))
    return float(images.train + images.test * (1 + cells))


def _beside(label_sets: bool) -> "list[FileBeside]":
    from excb.results.beside import scored_files
    from excb.results.pictures import SEVERITY

    return scored_files(label_sets, pictures=(SEVERITY,))


ROBUSTNESS = Protocol(
    name="robustness",
    help="one head trained on clean images, judged on corrupted ones and on other test sets: mCE, drop, calibration",
    options=RobustnessOptions,
    shared=TaskOptions,
    open=labelled(),
    beside=_beside,
    measure=_measure,
    work=_work,
    shares_task=True,
    families=(
        Family("robustness", "Robustness: corrupted test images", "Robustness"),
        Family("robustness_sets", "Robustness: other test sets", "Robustness"),
    ),
    kind_of=_kind_of,
    headline="robustness_corrupted_top1",
    cost=_cost,
    result_fields=_result_fields,
    group="frozen features",
    examples=(
        "robustness --ckpt rn50_400ep --data photos --out robustness.json",
        "robustness --ckpt rn50_400ep --data imagenet --corruptions none --also imagenet-r imagenet-a imagenet-sketch",
    ),
)
