"""Linear protocols: heads on a frozen backbone, a sweep in one pass, chosen on images that the heads never saw."""

import time
from dataclasses import replace
from functools import partial

from excb.console import Reporter
from excb.distributed.collectives import all_succeed
from excb.errors import UserError
from excb.results.result import Result, interval_text

from ..probes.recipes import LinearProtocol
from ..probes.selection import as_text, held_out
from ..protocol import Measurement
from ..reporting.predictions import Predictions
from ..reporting.report import ScoredFiles, make_result
from ..task import Task
from .logreg import logistic_regression
from .options import LinearOptions
from .probe import Probe


def measure(task: Task, options: LinearOptions, reporter: Reporter) -> Measurement:
    """Train linear classifiers on the train images' frozen features and judge the chosen one on the test images.

    The backbone stays in eval mode and sees every batch once, however many heads there are. With more than one head,
    `select` says how one is chosen. "holdout": a seeded tenth of every class's train images is held out of a second
    set of heads that trains on the same batches; their accuracy on it chooses, and the figures are those of the head
    with the same settings that saw all train images. "test": the head that is best on the test images, as authors
    report it; the result's notes say so. The epoch is always the last.

    Args:
        task: backbone and images.
        options: `protocol` is a name of `recipes.PROTOCOLS`, or "logreg" for scikit-learn's logistic regression, whose
            `C` are inverse strengths of the L2 penalty. `epochs`, `train_batch`, `lr` and `wd` replace the protocol's;
            learning rates scale with the batch. `seed` names first weights, order, crops and held-out images. `state`
            holds the heads after every epoch of a protocol that augments; a run that finds its own resumes from there,
            bit-exactly on the CPU.
        reporter: prints notes and progress.

    Returns:
        Figures `linear_top1` and `linear_top5` with the sweep in the settings, and the test images' predictions.

    Raises:
        UserError: a setting is out of range, `state` is of another evaluation, or an image cannot be read.
    """
    start = time.monotonic()
    plan, select, seed = checked(task, options), options.select, options.seed
    if not isinstance(plan, LinearProtocol):
        outcome = logistic_regression(task, reporter, plan, select=select, seed=seed)
    else:
        plan = _fitted(plan, task, reporter)
        probe = Probe(task, reporter, plan, select, seed)
        kept = probe.on_patches if plan.features == "patches" else probe.on_features
        outcome = probe.through_backbone(options.state) if plan.augmented else kept()
    predictions = Predictions.of(task, {"linear_{}": outcome.top5})
    result = make_result(
        task,
        protocol=f"linear_{options.protocol}",
        settings=outcome.settings | {"seed": seed},
        scored=predictions,
        seconds=time.monotonic() - start,
        notes=outcome.notes,
    )
    return Measurement(result, predictions, partial(_show, result, options.protocol), ScoredFiles(predictions))


def checked(task: Task, options: LinearOptions) -> LinearProtocol | tuple[float, ...]:
    """The protocol that `measure` trains; of "logreg" the values of C. It refuses what `measure` refuses."""
    all_succeed(lambda: options.check(None))
    plan = options.plan()
    heads = len(plan.lr) * len(plan.weight_decay) if isinstance(plan, LinearProtocol) else len(plan)
    if heads == 1 and options.select == "test":
        raise UserError.on_all_ranks(
            f"--select test chooses among several heads, and this trains one by {options.protocol}: leave it out"
        )
    if heads > 1 and options.select == "holdout":
        assert task.train.labels is not None
        labels = task.train.labels
        all_succeed(lambda: held_out(labels, options.seed))
    return plan


def _fitted(plan: LinearProtocol, task: Task, reporter: Reporter) -> LinearProtocol:
    """The protocol with a batch that is no larger than the train set."""
    if plan.batch <= len(task.train):
        return plan
    reporter.warn(
        f"only {len(task.train)} train images: batches of these instead of {plan.batch}, learning rates alike"
    )
    return replace(plan, batch=len(task.train))


def _show(result: Result, protocol: str, reporter: Reporter) -> None:
    """The figures, and below them the sweep: one row per learning rate, one column per weight decay."""
    settings, figures = result.settings, result.figures
    interval = interval_text(result.intervals.get("linear_top1"))
    row = [as_text(settings["chosen"]), f"{figures['linear_top1']:.2f}", interval, f"{figures['linear_top5']:.2f}"]
    reporter.table(f"Linear, protocol {protocol}", ["settings", "top-1 %", "95 % interval", "top-5 %"], [row])
    if "sweep" not in settings:
        return
    figure = f"{settings['select']}_top1"
    names = [name for name in settings["chosen"] if name != "wd"]
    table: dict[str, list[str]] = {}
    for one in settings["sweep"]:
        table.setdefault(f"{one[names[0]]:g}", []).append(f"{one[figure]:.2f}")
    header = [f"wd {decay:g}" for decay in settings["weight_decay"]] if "wd" in settings["chosen"] else ["top-1 %"]
    where = "test" if settings["select"] == "test" else "held-out"
    use = "" if where == "test" else ", to choose by: the best of many is optimistic"
    title = f"Sweep: top-1 % on {settings['select_images']:,} {where} images{use}"
    reporter.table(title, [names[0], *header], [[value, *cells] for value, cells in table.items()])
