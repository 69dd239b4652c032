"""Linear probing of images with a set of labels each: a logistic regression a class on frozen features."""

import time
from collections.abc import Sequence

import numpy as np

from excb.console import Reporter
from excb.distributed.collectives import rank, run_on_rank0
from excb.errors import require
from excb.results.result import Result, interval_text

from ..data.multilabel import MultiLabelImages
from ..reporting import average_precision
from ..reporting.label_scores import LabelScores, report_label_scores
from ..task import Task
from .regression import HELD_OUT, STEPS, STRENGTHS, choose


def strengths(protocol: str, C: Sequence[float] | None) -> tuple[float, ...]:
    """The strengths of the penalty to choose from.

    Raises:
        UserError: the protocol is another than logreg, or a C is out of range.
    """
    require(
        protocol == "logreg", "images with a set of labels each need --protocol logreg: a regression for each class"
    )
    require(C is None or all(0 < each < float("inf") for each in C), "--C must be above 0, such as 1")
    return STRENGTHS if C is None else tuple(1 / each for each in C)


def mean_average_precision(scores: np.ndarray, targets: np.ndarray) -> float:
    """Mean average precision with area, which chooses the strength of the penalty."""
    return float(average_precision.mean(scores, targets, average_precision.area)[0])


def evaluate(
    task: Task, reporter: Reporter, *, tried: Sequence[float], seed: int = 0, table: bool = True
) -> tuple[Result, LabelScores]:
    """Fit a regression for each class on the train images, and score the test images.

    The strength of the penalty, one for all classes, is the best on a held-out fifth of the train images by mAP; the
    model is then fitted again on all of them.

    Args:
        task: backbone and images.
        reporter: prints notes, progress and tables.
        tried: strengths to choose from.
        seed: names the held-out images.
        table: print the figures.

    Returns:
        Figures `linear_mAP` and `linear_mAP11` in percent, and the scores.

    Raises:
        UserError: an image cannot be read.
    """
    start = time.monotonic()
    train, test = task.train, task.test
    assert isinstance(train, MultiLabelImages)
    assert isinstance(test, MultiLabelImages)
    classes = len(train.classes or ())
    rows, queries = (task.stored(images, name, reporter).all() for images, name in ((train, "train"), (test, "test")))
    reporter.note(f"a logistic regression for each of {classes} classes, {len(tried)} strengths of the penalty")

    def fitted() -> tuple[np.ndarray, float, dict[float, float]]:
        chosen = choose(
            rows, train.targets, mean_average_precision, classes, strengths=tried, seed=seed, device=task.device
        )
        return chosen.model.scores(queries), chosen.strength, chosen.sweep

    scores, strength, sweep = run_on_rank0(fitted)
    scored = LabelScores(test.targets, test.paths, test.classes or (), {"linear_{}": scores})
    result = report_label_scores(
        task,
        protocol="linear_logreg",
        settings={
            "solver": "torch, L-BFGS",
            "steps": STEPS,
            "features": "pooled",
            "held_out": HELD_OUT if len(tried) > 1 else None,
            "C": sorted(1 / each for each in tried),
            "chosen": {"C": 1 / strength},
            "sweep": [{"C": 1 / one, "holdout_mAP": round(100 * value, 4)} for one, value in sweep.items()],
            "seed": seed,
        },
        scored=scored,
        seconds=time.monotonic() - start,
    )
    if table and rank() == 0:
        lines = [
            [name, f"{value:.2f}", interval_text(result.intervals[name])] for name, value in result.figures.items()
        ]
        reporter.table(f"Linear, logistic regression, C = {1 / strength:g}", ["figure", "%", "95 % interval"], lines)
    return result, scored
