"""`excb-eval linear`: its record."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from excb.console import Reporter, plural

from ..opening import labelled
from ..options import FrozenOptions
from ..probes.recipes import FOLDS, PROTOCOLS, LinearProtocol, protocol_of_name
from ..protocol import Family, Fields, FigureKind, InSuite, Measurement, Protocol, SuiteStep, Work, one_pass
from ..reporting.fields import named
from .options import CROSS_VALIDATED, LinearInSuite, LinearOptions

if TYPE_CHECKING:
    from ..published.claim import ClaimImages
    from ..task import Task


def _measure(task: "Task", options: LinearOptions, reporter: Reporter) -> Measurement:
    from ..data.multilabel import has_label_sets
    from . import label_sets, protocol

    measure = label_sets.measure if has_label_sets(task.train) else protocol.measure
    return measure(task, options, reporter)


def _work(task: "Task", options: LinearOptions, reporter: Reporter) -> Work:
    from ..data.multilabel import has_label_sets
    from ..probes.penalty import fits_of
    from . import label_sets, protocol

    if has_label_sets(task.train):
        tried = label_sets.checked(options)
        return Work(task.sets, then=(f"logistic regressions on these features: {len(tried)}, each of all classes",))
    options = protocol.suited(task, options, reporter)
    plan = protocol.checked(task, options)
    if not isinstance(plan, LinearProtocol):
        fits = fits_of(plan, FOLDS if options.protocol == CROSS_VALIDATED else 1)
        return Work(task.sets, then=(f"logistic regressions on these features: {fits}",))
    heads, each_epoch = len(plan.lr) * len(plan.weight_decay), len(task.train)
    many = f"{heads} head{'s' if heads > 1 else ''}"
    if plan.features == "patches":
        from ..features.parts import Part
        from ..probes.rows import part_extraction, shapes_of

        shapes = shapes_of(task)
        last = [Part("patches", len(shapes.maps) - 1)]
        then = (f"{many} on these patches for {plural(plan.epochs, 'epoch')}",)
        return Work(task.sets, then=then, extract=lambda images: part_extraction(task, images, last, shapes))
    if not plan.augmented:
        return Work(task.sets, plan.features, then=(f"{many} on these features for {plural(plan.epochs, 'epoch')}",))
    line = (
        f"{many} for {plural(plan.epochs, 'epoch')}, each of {plural(each_epoch, 'new crop')} of the train images "
        "through the network; none of it is cached"
    )
    chooses = heads > 1 and options.select == "holdout"
    sets = task.sets if chooses else {"test": task.test}
    return Work(sets, plan.features, (line,), plan.epochs * each_epoch)


def _kind_of(figure: str) -> FigureKind | None:
    metric = figure.removeprefix("linear_")
    return FigureKind("linear", metric) if metric in ("mAP", "mAP11") and metric != figure else None


def _cost(options: Mapping[str, Any], images: "ClaimImages") -> float | None:
    recipe = PROTOCOLS[options["protocol"]]
    if not recipe.augmented or images.train is None or images.test is None:
        return one_pass(options, images)
    return float(options.get("epochs", recipe.epochs) * images.train + images.test)


def _claim_fields(options: Fields, _kind: FigureKind) -> Fields:
    recipe = protocol_of_name(
        options["protocol"],
        epochs=options.get("epochs"),
        batch=options.get("train-batch"),
        lr=options.get("lr"),
        weight_decay=options.get("wd"),
    )
    several = len(recipe.lr) * len(recipe.weight_decay) > 1
    return named(recipe.settings()) | ({"select": options.get("select", "holdout")} if several else {})


def _steps(task: "Task", options: LinearInSuite, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    own = LinearOptions(protocol=options.linear).for_labels(len(task.train))
    own.plan()
    return [SuiteStep("linear", f"Linear, {own.protocol}", "linear", own, depends_on=depends_on)]


LINEAR = Protocol(
    name="linear",
    help="linear heads on the frozen backbone",
    options=LinearOptions,
    shared=FrozenOptions,
    open=labelled(multilabel=True),
    measure=_measure,
    work=_work,
    shares_task=True,
    families=(Family("linear", "Linear classification", "Linear"),),
    kind_of=_kind_of,
    state="state",
    state_suffix=".pt",
    keeps_state=lambda options: options.augmented,
    cost=_cost,
    result_fields=lambda settings, _kind: named(settings),
    claim_fields=_claim_fields,
    in_suite=InSuite(names=("linear",), steps=_steps, options=LinearInSuite),
    group="frozen features",
    examples=(
        "linear --ckpt runs/a --data photos",
        "linear --ckpt timm:resnet50 --data torchvision:CIFAR10",
    ),
)
