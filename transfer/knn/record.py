"""`excb-eval knn`: its record."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from excb.console import Reporter, plural

from ..opening import labelled
from ..options import FrozenOptions
from ..protocol import Family, Fields, FigureKind, InSuite, Measurement, Protocol, SuiteStep, Work, one_pass
from ..reporting.fields import named
from .options import KnnOptions

if TYPE_CHECKING:
    from ..task import Task

_FIGURE = re.compile(r"knn_(top[15]|mAP|mAP11)(?:_k(\d+))?(?:_T([\d.e+-]+))?")


def _measure(task: "Task", options: KnnOptions, reporter: Reporter) -> Measurement:
    from ..data.multilabel import has_label_sets
    from . import label_sets, protocol

    measure = label_sets.measure if has_label_sets(task.train) else protocol.measure
    return measure(task, options, reporter)


def _work(task: "Task", options: KnnOptions, reporter: Reporter) -> Work:
    from .protocol import checked

    ks, search = checked(task, options, reporter)
    votes = f"{plural(max(ks), 'neighbour')} of each test image among the train images, by {search}"
    return Work(task.sets, then=(votes,))


def _kind_of(figure: str) -> FigureKind | None:
    if (match := _FIGURE.fullmatch(figure)) is None:
        return None
    settings: list[tuple[str, Any]] = [("k", int(match[2]))] if match[2] else []
    settings += [("T", float(match[3]))] if match[3] else []
    return FigureKind("knn", match[1].replace("top", "top-"), tuple(settings))


def _of_result(settings: Mapping[str, Any], kind: FigureKind) -> Fields:
    """The fields of a measured figure. Top-5 of older versions stands apart: it counted classes without a vote."""
    older = kind.metric == "top-5" and "top5" not in settings
    return named(_of_one_figure(settings, kind)) | ({"top5": "also classes without a vote"} if older else {})


def _of_one_figure(settings: Mapping[str, Any], kind: FigureKind) -> Fields:
    """k and T of one figure of a grid: the figure's name holds what the settings have several of."""
    return {"k": _only(settings.get("k")), "T": _only(settings.get("temperature"))} | dict(kind.settings)


def _only(values: Any) -> Any:
    return values[0] if isinstance(values, list) and len(values) == 1 else values


def _steps(_task: "Task", _options: Any, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    return [SuiteStep("knn", "k-NN", "knn", KnnOptions(), depends_on=depends_on)]


KNN = Protocol(
    name="knn",
    help="weighted k-nearest-neighbour vote on frozen features (DINO's protocol)",
    options=KnnOptions,
    shared=FrozenOptions,
    open=labelled(multilabel=True),
    measure=_measure,
    work=_work,
    shares_task=True,
    families=(Family("knn", "k-NN on frozen features", "k-NN"),),
    kind_of=_kind_of,
    headline="knn_top1_k20",
    cost=one_pass,
    result_fields=_of_result,
    claim_fields=_of_one_figure,
    in_suite=InSuite(names=("knn",), steps=_steps),
    group="frozen features",
    examples=(
        "knn --ckpt runs/a --data photos --out knn.json",
        "knn --ckpt timm:resnet50 --train a --test b",
    ),
)
