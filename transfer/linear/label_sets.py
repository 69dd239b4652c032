"""Linear probing of images with a set of labels each: one logistic regression per class on frozen features."""

import time
from functools import partial

import torch
from torch import Tensor

from excb.console import Reporter, plural
from excb.distributed.collectives import all_succeed, run_on_rank0
from excb.errors import UserError
from excb.results.result import ResultRecord, interval_text

from ..data.multilabel import MultiLabelImages
from ..probes.logistic import SOLVER
from ..probes.penalty import STRENGTHS, Rule, choose_penalty
from ..probes.selection import HELD_OUT_SETS
from ..protocol import Measurement
from ..reporting import average_precision
from ..reporting.label_scores import LabelScores, report_label_scores
from ..reporting.report import ScoredFiles
from ..task import Task
from .options import LOGREG, LinearOptions


def checked(options: LinearOptions) -> tuple[float, ...]:
    """The values of C to choose from.

    Raises:
        UserError: the protocol is another than logreg, a C is out of range, or heads are to be chosen on test images.
    """
    words = "images with a set of labels each"
    options = options.for_labels(None)
    if options.protocol != LOGREG:
        raise UserError.on_all_ranks(f"{words} need --protocol logreg: a regression for each class")
    if wrong := options.given("select"):
        raise UserError.on_all_ranks(f"{words} have no use for {wrong[0]}: held-out images choose; leave it out")
    tried = all_succeed(options.plan)
    assert isinstance(tried, tuple)
    if options.C is not None and len(tried) == 1:
        options.refuse_seed()
    return STRENGTHS if options.C is None else tried


def _judge(scores: Tensor, targets: Tensor) -> tuple[float]:
    """Mean average precision with area, which chooses the strength of the penalty."""
    return (float(average_precision.mean(scores.numpy(), targets.numpy(), average_precision.area)[0]),)


def measure(task: Task, options: LinearOptions, reporter: Reporter) -> Measurement:
    """Fit a regression for each class on the train images, and score the test images.

    The strength of the penalty, one for all classes, is the best on a held-out fifth of the train images by mAP; the
    model is then fitted again on all of them.

    Args:
        task: backbone and images.
        options: `C` are inverse strengths to choose from, and `seed` names the held-out images.
        reporter: prints notes and progress.

    Returns:
        Figures `linear_mAP` and `linear_mAP11` in percent, and the scores.

    Raises:
        UserError: as `checked`, or an image cannot be read.
    """
    start, tried, seed = time.monotonic(), checked(options), options.seed
    train, test = task.train, task.test
    assert isinstance(train, MultiLabelImages)
    assert isinstance(test, MultiLabelImages)
    classes = len(train.classes or ())
    rows, queries = (task.stored(images, name, reporter).all() for images, name in ((train, "train"), (test, "test")))
    reporter.note(
        f"a logistic regression for each of {plural(classes, 'class', 'classes')}, {plural(len(tried), 'strength')} of "
        "the penalty"
    )

    fitted = run_on_rank0(
        lambda: choose_penalty(
            rows,
            torch.from_numpy(train.targets),
            tried,
            Rule.held_out(seed, _judge),
            classes=classes,
            device=task.device,
        )
    )
    scored = LabelScores(test.targets, test.paths, test.classes or (), {"linear_{}": fitted.scores(queries).numpy()})
    result = report_label_scores(
        task,
        protocol="linear_logreg",
        settings=SOLVER
        | {
            "features": "pooled",
            "held_out": HELD_OUT_SETS if fitted.sweep else None,
            "C": sorted(tried),
            "chosen": {"C": fitted.C},
            "sweep": [{"C": C, "holdout_mAP": round(100 * mean, 4)} for C, (mean,) in fitted.sweep.items()],
            "seed": seed,
        },
        scored=scored,
        seconds=time.monotonic() - start,
    )
    return Measurement(result, scored, partial(_show, result), ScoredFiles(scored))


def _show(result: ResultRecord, reporter: Reporter) -> None:
    intervals = {name: interval_text(result.intervals.get(name)) for name in result.figures}
    lines = [[name, f"{value:.2f}", intervals[name]] for name, value in result.figures.items()]
    title = f"Linear, logistic regression, C = {result.settings['chosen']['C']:g}"
    reporter.table(title, ["figure", "%", "95 % interval"], lines)
