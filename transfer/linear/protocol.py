"""Linear protocols: heads on a frozen backbone, a sweep in one pass, chosen on images that the heads never saw."""

import time
from dataclasses import replace
from functools import partial

import torch

from excb.console import Reporter, plural
from excb.distributed.collectives import all_succeed
from excb.errors import UserError
from excb.references.guessing import majority
from excb.results.result import ResultRecord, interval_text

from ..probes.recipes import FEW_LABELS, FOLDS, PROTOCOLS, LinearProtocol
from ..probes.selection import JudgedGuesses, as_text, held_out
from ..protocol import Measurement
from ..reporting.predictions import Predictions
from ..reporting.references import NEIGHBOURS, tell_notes
from ..reporting.report import ScoredFiles, make_result
from ..task import Task
from .logreg import logistic_regression
from .options import CROSS_VALIDATED, LOGREG, LinearOptions
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
    asked, options = options, suited(task, options, reporter)
    plan, select, seed = checked(task, options), options.select, options.seed
    if not isinstance(plan, LinearProtocol):
        few = options.protocol == CROSS_VALIDATED
        chosen_on = "folds" if few and select == "holdout" else select
        outcome = logistic_regression(task, reporter, plan, few=few, select=chosen_on, seed=seed)
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
        notes=[*_reason(task, asked, options), *outcome.notes, *_failed(outcome, predictions, task, options)],
        references={} if outcome.same is None else {NEIGHBOURS: {"linear_top1": outcome.same.percent}},
    )
    return Measurement(result, predictions, partial(_show, result, options.protocol), ScoredFiles(predictions))


def suited(task: Task, options: LinearOptions, reporter: Reporter) -> LinearOptions:
    """The options with the protocol that suits the labels, where the user names none; a line says which."""
    chosen = options.for_labels(len(task.train))
    if chosen != options:
        reporter.note(
            f"linear heads by {chosen.protocol}: {plural(len(task.train), 'train image')} (--protocol names another)"
        )
    return chosen


def _reason(task: Task, asked: LinearOptions, options: LinearOptions) -> list[str]:
    """The default on few labels, for whoever knows that on many."""
    few = options.protocol == CROSS_VALIDATED and asked.protocol != options.protocol
    how = f"few labels ({plural(len(task.train), 'train image')}, below {FEW_LABELS:,}): logistic regression"
    chosen = f", {FOLDS} folds choose its penalty" if options.select == "holdout" else ""
    return [f"{how}{chosen}"] if few else []


def _failed(outcome: JudgedGuesses, predictions: Predictions, task: Task, options: LinearOptions) -> list[str]:
    """A sentence that blames the head, where it failed."""
    if outcome.same is None:
        return []
    (hits,) = predictions.hits(within=1).values()
    better = LOGREG if options.protocol == CROSS_VALIDATED else CROSS_VALIDATED
    advice = f"try --protocol {better}" + (", or more epochs" if options.protocol in PROTOCOLS else "")
    assert task.train.labels is not None
    guessing = majority(torch.from_numpy(task.train.labels), predictions.targets)
    return outcome.same.blame(hits, guessing=guessing, advice=advice)


def checked(task: Task, options: LinearOptions) -> LinearProtocol | tuple[float, ...]:
    """The protocol that `measure` trains; of "logreg" the values of C. It refuses what `measure` refuses."""
    all_succeed(lambda: options.check(None))
    plan = options.plan()
    heads = len(plan.lr) * len(plan.weight_decay) if isinstance(plan, LinearProtocol) else len(plan)
    if heads == 1 and options.select == "test":
        raise UserError.on_all_ranks(
            f"--select test chooses among several heads, and this trains one by {options.protocol}: leave it out"
        )
    if not isinstance(plan, LinearProtocol) and (heads == 1 or options.select == "test"):
        options.refuse_seed()
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
        f"only {plural(len(task.train), 'train image')}: batches of these instead of {plan.batch}, learning rates alike"
    )
    return replace(plan, batch=len(task.train))


def _show(result: ResultRecord, protocol: str, reporter: Reporter) -> None:
    """The figures, and below them the sweep: one row per learning rate, one column per weight decay."""
    settings, figures = result.settings, result.figures
    interval = interval_text(result.intervals.get("linear_top1"))
    row = [as_text(settings["chosen"]), f"{figures['linear_top1']:.2f}", interval, f"{figures['linear_top5']:.2f}"]
    reporter.table(f"Linear, protocol {protocol}", ["settings", "top-1 %", "95 % interval", "top-5 %"], [row])
    tell_notes(result, reporter)
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
    title = f"Sweep: top-1 % on {plural(settings['select_images'], where + ' image')}{use}"
    reporter.table(title, [names[0], *header], [[value, *cells] for value, cells in table.items()])
