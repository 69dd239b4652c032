"""Linear protocols: heads on a frozen backbone, a sweep in one pass, chosen on images that the heads never saw."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from excb.console import Reporter
from excb.distributed.collectives import all_succeed, rank
from excb.errors import require
from excb.results.result import Result, interval_text

from ..probes.recipes import LinearProtocol, choose
from ..probes.selection import as_text, held_out
from ..reporting.predictions import Predictions
from ..reporting.report import report
from ..task import Task
from .logreg import logistic_regression
from .probe import Probe


def evaluate(
    task: Task,
    reporter: Reporter,
    *,
    protocol: str = "resnet",
    epochs: int | None = None,
    batch: int | None = None,
    lr: Sequence[float] | None = None,
    wd: Sequence[float] | None = None,
    C: Sequence[float] | None = None,
    select: Literal["holdout", "test"] = "holdout",
    seed: int = 0,
    state: Path | None = None,
    table: bool = True,
) -> tuple[Result, Predictions]:
    """Train linear classifiers on the train images' frozen features and judge the chosen one on the test images.

    The backbone stays in eval mode and sees every batch once, however many heads there are. With more than one head,
    `select` says how one is chosen. "holdout": a seeded tenth of every class's train images is held out of a second
    set of heads that trains on the same batches; their accuracy on it chooses, and the figures are those of the head
    with the same settings that saw all train images. "test": the head that is best on the test images, as authors
    report it; the result's notes say so. The epoch is always the last.

    Args:
        task: backbone and images.
        reporter: prints notes, progress and tables.
        protocol: a name of `protocols.PROTOCOLS`, or "logreg" for scikit-learn's logistic regression.
        epochs: instead of the protocol's.
        batch: instead of the protocol's; learning rates scale with it.
        lr: instead of the protocol's, for its `lr_batch` images a step.
        wd: weight decays instead of the protocol's.
        C: of "logreg", inverse strengths of the L2 penalty; 1 by default.
        select: see above; of no consequence where there is one head.
        seed: names first weights, order, crops and held-out images.
        state: file that holds the heads after every epoch of a protocol that augments; a run that finds its own
            resumes from there, bit-exactly on the CPU. The others are quick and start anew.
        table: print figures and sweep.

    Returns:
        Figures `linear_top1` and `linear_top5` with the sweep in the settings, and the test images' predictions.

    Raises:
        UserError: a setting is out of range, `state` is of another evaluation, or an image cannot be read.
    """
    start = time.monotonic()
    chosen = check(task, protocol=protocol, epochs=epochs, batch=batch, lr=lr, wd=wd, C=C, select=select, seed=seed)
    if not isinstance(chosen, LinearProtocol):
        outcome = logistic_regression(task, reporter, chosen, select=select, seed=seed)
    else:
        plan = _fitted(chosen, task, reporter)
        probe = Probe(task, reporter, plan, select, seed)
        kept = probe.on_patches if plan.features == "patches" else probe.on_features
        outcome = probe.through_backbone(state) if plan.augmented else kept()
    predictions = Predictions.of(task, {"linear_{}": outcome.top5})
    result = report(
        task,
        protocol=f"linear_{protocol}",
        settings=outcome.settings | {"seed": seed},
        scored=predictions,
        seconds=time.monotonic() - start,
        notes=outcome.notes,
    )
    if table and rank() == 0:
        _print(result, protocol, reporter)
    return result, predictions


def check(
    task: Task,
    *,
    protocol: str,
    epochs: int | None,
    batch: int | None,
    lr: Sequence[float] | None,
    wd: Sequence[float] | None,
    C: Sequence[float] | None,
    select: str,
    seed: int,
) -> LinearProtocol | tuple[float, ...]:
    """What `evaluate` trains, given its arguments; of "logreg" the values of C. It refuses what `evaluate` refuses."""
    require(select in ("holdout", "test"), f"--select is 'holdout' or 'test', not '{select}'")
    chosen: LinearProtocol | tuple[float, ...]
    if protocol == "logreg":
        options = {"--epochs": epochs, "--batch": batch, "--lr": lr, "--wd": wd}
        wrong = [name for name, value in options.items() if value is not None]
        require(not wrong, f"logreg has no {', '.join(wrong)}: it takes --C, the inverse strength of its penalty")
        chosen = (1.0,) if C is None else tuple(dict.fromkeys(C))  # a repeat would be the same model once more
        require(len(chosen) > 0 and all(0 < each < math.inf for each in chosen), "--C must be above 0, such as 1")
        several = len(chosen) > 1
    else:
        require(C is None, f"--C is of logreg: {protocol} takes --lr and --wd")
        chosen = all_succeed(lambda: choose(protocol, epochs=epochs, batch=batch, lr=lr, weight_decay=wd))
        several = len(chosen.lr) * len(chosen.weight_decay) > 1
    if several and select == "holdout":
        assert task.train.labels is not None
        labels = task.train.labels
        all_succeed(lambda: held_out(labels, seed))
    return chosen


def _fitted(plan: LinearProtocol, task: Task, reporter: Reporter) -> LinearProtocol:
    """The protocol with a batch that is no larger than the train set."""
    if plan.batch <= len(task.train):
        return plan
    reporter.warn(
        f"only {len(task.train)} train images: batches of these instead of {plan.batch}, learning rates alike"
    )
    return replace(plan, batch=len(task.train))


def _print(result: Result, protocol: str, reporter: Reporter) -> None:
    """The figures, and below them the sweep: one row a learning rate, one column a weight decay."""
    settings, figures = result.settings, result.figures
    interval = interval_text(result.intervals["linear_top1"])
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
