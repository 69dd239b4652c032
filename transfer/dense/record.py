"""`excb-eval dense`: its record."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.console import Reporter
from excb.options import option

from ..options import OwnSetOptions
from ..protocol import Family, Fields, FigureKind, InSuite, Measurement, Protocol, SuiteStep, Work, one_pass
from ..reporting.fields import named
from .options import DenseOptions

if TYPE_CHECKING:
    import torch

    from excb.inference.paired import Paired
    from excb.results.beside import FileBeside

    from ..task import Task
    from .setup import DenseTask

_FIGURE = re.compile(r"dense_(knn|linear|logreg)_(miou|miou_hungarian|pixel_accuracy)(?:_1of(\d+))?")
_METRICS = {"miou": "mIoU", "miou_hungarian": "mIoU, matched", "pixel_accuracy": "pixel accuracy"}
_HEADS = ("knn", "linear", "logreg")
_OF_LABELLED = ("preprocessing", "train", "test")  # what results on other images than these do not depend on


def _open(shared: OwnSetOptions, own: DenseOptions, device: "torch.device", reporter: Reporter) -> "DenseTask":
    from excb.distributed.collectives import all_succeed

    from .setup import open_task

    return all_succeed(partial(open_task, shared, own, device, reporter)).calibrated()


def _measure(task: "DenseTask", options: DenseOptions, reporter: Reporter) -> Measurement:
    from .protocol import measure

    return measure(task, options, reporter)


def _work(task: "DenseTask", options: DenseOptions, _reporter: Reporter) -> Work:
    grid, heads = task.grid, ", ".join(options.resolved.heads)
    patches = f"{grid.height} x {grid.width} patches of stride {grid.stride} a view; heads: {heads}"
    return Work(task.sets, then=(patches,))


def _kind_of(figure: str) -> FigureKind | None:
    if (match := _FIGURE.fullmatch(figure)) is None:
        return None
    settings = (("part", f"1/{match[3]}"),) if match[3] else ()
    return FigureKind(f"dense_{match[1]}", _METRICS[match[2]], settings)


def _result_fields(settings: Mapping[str, Any], kind: FigureKind) -> Fields:
    """The fields that define a figure: the settings of all heads, and those of its own."""
    shared = {name: value for name, value in settings.items() if name not in _HEADS}
    return named(shared | settings.get(kind.family.removeprefix("dense_"), {}) | dict(kind.settings))


def _read_paired(file: Path) -> "Paired":
    from .comparison import read_areas

    return read_areas(file)


@dataclass(frozen=True, kw_only=True)
class DenseInSuite:
    """The images of the step of `excb-eval all`."""

    masks: Path | None = option(None, "images and masks for dense evaluation", metavar="DIR")


def _steps(_task: "Task", options: DenseInSuite, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    if options.masks is None:
        why = "name images and masks for it with --masks DIR"
        return [SuiteStep("dense", "Dense", "dense", None, skipped=why)]
    from excb.features.extraction import files_hash

    from .layouts.table import mask_layout_of, mask_splits

    sets = mask_splits(options.masks, mask_layout_of(options.masks))
    depends_on = {name: value for name, value in depends_on.items() if name not in _OF_LABELLED}
    depends_on |= {"masks": [[images.fingerprint, files_hash(images)] for images in sets]}
    return [SuiteStep("dense", "Dense", "dense", DenseOptions(data=options.masks), depends_on=depends_on)]


def _beside(_label_sets: bool) -> "list[FileBeside]":
    from excb.results.beside import drawn_beside, text_beside
    from excb.results.pictures import MASKS

    return [
        text_beside("{}.areas.json", "areas of masks", '{"classes":[', '"areas":{'),
        drawn_beside(MASKS),
    ]


DENSE = Protocol(
    name="dense",
    help="semantic segmentation on frozen maps: patch k-NN, a linear head, logistic regression",
    options=DenseOptions,
    shared=OwnSetOptions,
    open=_open,
    beside=_beside,
    measure=_measure,
    work=_work,
    families=(
        Family("dense_knn", "Dense: k-NN of patches", "dense k-NN"),
        Family("dense_linear", "Dense: linear segmentation", "dense linear"),
        Family("dense_logreg", "Dense: logistic regression of patches", "dense logistic"),
    ),
    kind_of=_kind_of,
    labels="masks",
    headline="dense_knn_miou",
    cost=one_pass,
    result_fields=_result_fields,
    read_paired=_read_paired,
    in_suite=InSuite(names=("dense",), steps=_steps, options=DenseInSuite),
    group="frozen features",
    examples=(
        "dense --ckpt rn50_400ep --data VOCdevkit/VOC2012 --out dense.json",
        "dense --ckpt timm:vit_small_patch14_dinov2 --data ADEChallengeData2016 --settings hummingbird --size 504",
    ),
)
