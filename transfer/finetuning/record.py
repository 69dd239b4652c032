"""`excb-eval semisup` and `excb-eval finetune`: their records."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from excb.console import Reporter, plural

from ..opening import labelled
from ..options import TaskOptions
from ..protocol import Family, Fields, FigureKind, InSuite, Measurement, Protocol, SuiteStep, Work
from ..reporting.fields import named
from .options import SETTINGS_BY_OPTION, FinetuneOptions, SemisupInSuite, SemisupOptions

if TYPE_CHECKING:
    from excb.results.result import ResultRecord

    from ..published.claim import ClaimImages
    from ..task import Task

_TRAINING_PASS = 3  # a forward and a backward pass cost about three forward passes


def _measure(task: "Task", options: SemisupOptions | FinetuneOptions, reporter: Reporter) -> Measurement:
    from .protocol import measure

    return measure(task, options, reporter)


def _work(task: "Task", options: SemisupOptions | FinetuneOptions, _reporter: Reporter) -> Work:
    from excb.images.subset import Subset

    from .protocol import checked

    plan = checked(task, options)
    images = f"{plural(len(plan.share), 'train image')} ({plan.source})"
    if plan.settings is None:
        line = f"a logistic regression on the features of {images}"
        return Work({"the share": Subset(task.train, plan.share), "test": task.test}, then=(line,))
    seeds, epochs = len(options.seeds), plan.settings.epochs
    line = (
        f"{seeds} training{'s' if seeds > 1 else ''} of all weights, {plural(epochs, 'epoch')} of {images}, and the "
        "test images through each network; none of it is cached"
    )
    each = _TRAINING_PASS * epochs * len(plan.share) + len(task.test)
    return Work({}, then=(line,), passes=seeds * each)


def _result_fields(settings: Fields, _kind: FigureKind) -> Fields:
    settings = dict(settings)
    if isinstance(share := settings.pop("share", None), dict):
        settings |= {"share": f"{share.get('images')} images", "split": str(share.get("sha256"))[:12]}
    return named(settings)


def _claim_fields(options: Fields, _kind: FigureKind) -> Fields:
    from .protocol import SETTINGS

    settings = SETTINGS[options["percent"]].to_dict()
    for name, field in SETTINGS_BY_OPTION.items():
        settings[field] = options.get(name.replace("_", "-"), settings[field])
    return named(settings) | {"share": f"{options['percent']} %", "split": "SimCLR's list"}


def _label(result: "ResultRecord") -> str:
    """The percentage is not a part of the result's protocol, and two of them may be submitted."""
    return next((match[0] for name in result.figures if (match := re.match(r"semisup_\d+pct", name))), result.protocol)


def _cost(options: Mapping[str, Any], images: "ClaimImages") -> float | None:
    if images.train is None or images.test is None:
        return None
    return float(_TRAINING_PASS * options["epochs"] * images.train * options["percent"] / 100 + images.test)


def _steps(task: "Task", options: SemisupInSuite, depends_on: Mapping[str, Any]) -> list[SuiteStep]:
    every = [SemisupOptions(percent=1, seeds=options.seeds), SemisupOptions(percent=10, seeds=options.seeds)]
    every[0].check(None)
    return [
        SuiteStep(
            f"semisup_{own.percent}",
            f"{own.percent} % of the labels",
            "semisup",
            own,
            skipped=_too_few(task, own.percent),
            depends_on=depends_on,
        )
        for own in every
    ]


def _too_few(task: "Task", percent: int) -> str:
    images, classes = round(len(task.train) * percent / 100), len(task.train.classes or ())
    if images >= classes:
        return ""
    return (
        f"{percent} % of {plural(len(task.train), 'train image')} are {images}, fewer than "
        f"{plural(classes, 'class', 'classes')}"
    )


SEMISUP = Protocol(
    name="semisup",
    help="fine-tuning on 1 % or 10 % of the labels",
    options=SemisupOptions,
    shared=TaskOptions,
    open=labelled(),
    measure=_measure,
    work=_work,
    shares_task=True,
    families=(
        Family("semisup_1pct", "Fine-tuning on 1 % of the labels", "1 % of labels"),
        Family("semisup_10pct", "Fine-tuning on 10 % of the labels", "10 % of labels"),
        Family("semisup_1pct_frozen", "Logistic regression on 1 % of the labels", "semisup_1pct_frozen"),
        Family("semisup_10pct_frozen", "Logistic regression on 10 % of the labels", "semisup_10pct_frozen"),
    ),
    state="state",
    keeps_state=lambda options: not options.frozen,  # a logistic regression takes no time
    cost=_cost,
    result_fields=_result_fields,
    claim_fields=_claim_fields,
    label=_label,
    in_suite=InSuite(names=("semisup_1", "semisup_10"), steps=_steps, options=SemisupInSuite),
    group="training",
    examples=(
        "semisup --ckpt runs/a --data photos --percent 10 --seeds 0 1 2",
        "semisup --ckpt runs/a --data photos --percent 1 --frozen",
    ),
)

FINETUNE = Protocol(
    name="finetune",
    help="fine-tuning on any share of the labels",
    options=FinetuneOptions,
    shared=TaskOptions,
    open=labelled(),
    measure=_measure,
    work=_work,
    shares_task=True,
    families=(Family("finetune", "Fine-tuning on a share of the labels", "finetune"),),
    state="state",
    cost=lambda _options, _images: None,
    result_fields=_result_fields,
    group="training",
    examples=(
        "finetune --ckpt runs/a --data photos --fraction 0.25",
        "finetune --ckpt runs/a --data photos --settings paper --state unfinished",
    ),
)
