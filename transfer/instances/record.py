"""`excb-eval instances`: its record."""

import re
from functools import partial
from typing import TYPE_CHECKING

from excb.console import Reporter

from ..options import OwnSetOptions
from ..protocol import Family, FigureKind, Measurement, Protocol, Work, one_pass
from ..reporting.fields import named
from .options import InstanceOptions

if TYPE_CHECKING:
    import torch

    from excb.results.beside import FileBeside

    from .setup import InstanceTask

_REVISITED = re.compile(r"revisited_(mAP|mP_at_\d+)_(medium|hard|easy)")
_COPIES = re.compile(r"copies_(muAP|recall_at_p90|mAP)(?:_(strong|crops|jpeg))?")
_METRICS = {"recall_at_p90": "recall at 90 % precision"}


def _open(shared: OwnSetOptions, own: InstanceOptions, device: "torch.device", reporter: Reporter) -> "InstanceTask":
    from excb.distributed.collectives import all_succeed

    from .setup import open_task

    return all_succeed(partial(open_task, shared, own, device, reporter)).calibrated()


def _measure(task: "InstanceTask", options: InstanceOptions, reporter: Reporter) -> Measurement:
    from .protocol import measure

    return measure(task, options, reporter)


def _work(task: "InstanceTask", _options: InstanceOptions, _reporter: Reporter) -> Work:
    return Work(task.sets, then=(f"layout {task.layout.name}: {task.layout.title}",))


def _kind_of(figure: str) -> FigureKind | None:
    if (match := _REVISITED.fullmatch(figure)) is not None:
        return FigureKind("revisited", f"{match[1].replace('_at_', '@')} {match[2]}")
    if (match := _COPIES.fullmatch(figure)) is not None:
        return FigureKind("copies", f"{_METRICS.get(match[1], match[1])} {match[2] or ''}".strip())
    return None


def _beside(label_sets: bool) -> "list[FileBeside]":
    from excb.results.beside import page_beside, scored_files, table_beside

    from .files import PAIRS

    return [
        *scored_files(label_sets, pictures=()),
        page_beside("{}.html", "instances"),
        table_beside("{}.pairs.csv", "table of pairs", PAIRS),
    ]


INSTANCES = Protocol(
    name="instances",
    help="the same object, or a copied image: ROxford, RParis, Copydays, DISC21, or pairs of your own",
    options=InstanceOptions,
    shared=OwnSetOptions,
    open=_open,
    beside=_beside,
    measure=_measure,
    work=_work,
    families=(
        Family("revisited", "Retrieval of landmarks: ROxford and RParis", "landmarks"),
        Family("copies", "Copy detection", "copies"),
    ),
    kind_of=_kind_of,
    labels="queries",
    headline="revisited_mAP_medium",
    cost=one_pass,
    result_fields=lambda settings, _kind: named(settings),
    group="frozen features",
    examples=(
        "instances --ckpt rn50_400ep --data roxford5k --mode longer --size 1024 --pooling gem",
        "instances --ckpt runs/a --data copydays --distractors yfcc10k --out copies.json",
    ),
)
