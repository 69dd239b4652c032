"""`excb-eval retrieval`: its record."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from excb.console import Reporter, plural

from ..opening import labelled
from ..options import FrozenOptions
from ..protocol import Family, FigureKind, InSuite, Measurement, Protocol, SuiteStep, Work, one_pass
from .options import RetrievalOptions

if TYPE_CHECKING:
    from excb.results.beside import FileBeside

    from ..task import Task

_FIGURE = re.compile(r"retrieval_(mAP|R_precision|recall_at_\d+)")
_MOST_PAIRS = 2**30  # of queries and gallery images that `all` compares: minutes on a few cores


def _measure(task: "Task", options: RetrievalOptions, reporter: Reporter) -> Measurement:
    from .protocol import measure

    return measure(task, options, reporter)


def _work(task: "Task", options: RetrievalOptions, _reporter: Reporter) -> Work:
    sets = {"test": task.test} if options.gallery == "test" else task.sets
    return Work(sets, then=(f"rankings of the {options.gallery} images for each test image",))


def _kind_of(figure: str) -> FigureKind | None:
    if (match := _FIGURE.fullmatch(figure)) is None:
        return None
    return FigureKind("retrieval", match[1].replace("recall_at_", "recall@").replace("_", "-"))


def _steps(task: "Task", _options: Any, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    pairs = len(task.train) * len(task.test)
    why = (
        f"it compares {plural(pairs, 'pair')} of images: run `excb-eval retrieval` for it"
        if pairs > _MOST_PAIRS
        else ""
    )
    return [SuiteStep("retrieval", "Retrieval", "retrieval", RetrievalOptions(), skipped=why, depends_on=depends_on)]


def _unknown(options: RetrievalOptions | None) -> str:
    """Test images retrieve each other where they are the gallery themselves, whatever classes train has."""
    return "" if options is not None and options.gallery == "test" else "left out"


def _beside(label_sets: bool) -> "list[FileBeside]":
    from excb.results.beside import scored_files

    return scored_files(label_sets, pictures=())


RETRIEVAL = Protocol(
    name="retrieval",
    help="images of the same class by cosine on frozen features: mAP, R-precision, recall@k",
    options=RetrievalOptions,
    shared=FrozenOptions,
    open=labelled(unknown=_unknown),
    beside=_beside,
    measure=_measure,
    work=_work,
    shares_task=True,
    unknown=_unknown,
    families=(Family("retrieval", "Retrieval of images of the same class", "Retrieval"),),
    kind_of=_kind_of,
    cost=one_pass,
    in_suite=InSuite(names=("retrieval",), steps=_steps),
    group="frozen features",
    examples=(
        "retrieval --ckpt runs/a --data photos",
        "retrieval --ckpt runs/a --train a --test b --gallery test",
    ),
)
