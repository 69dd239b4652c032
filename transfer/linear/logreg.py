"""Logistic regression as a linear protocol: C is 1, or one of several that held-out images or folds choose."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from excb.console import Reporter
from excb.distributed.collectives import rank, run_on_rank0

from ..probes.failure import SameFeatures
from ..probes.logistic import SOLVER, Standard
from ..probes.penalty import BY_ONE_NUMBER, FEW_SETTINGS, Rule, choose_penalty, fits_of, log_likelihood, right_share
from ..probes.recipes import FOLDS
from ..probes.selection import Choice, JudgedGuesses
from ..task import Task
from .options import LOGREG, STRENGTHS_OF


def logistic_regression(
    task: Task,
    reporter: Reporter,
    strengths: Sequence[float],
    *,
    few: bool,
    select: Literal["holdout", "folds", "test"],
    seed: int,
) -> JudgedGuesses:
    """Fit on rank 0 for all.

    Args:
        task: backbone and images.
        reporter: prints notes, progress and tables.
        strengths: C of each model that is tried, inverse strengths of the L2 penalty; each once, above 0.
        few: fit them as on few labels: to features of one size.
        select: the images on which one of several models is chosen: a held-out tenth, all by cross-validation, or test.
        seed: names the held-out images.

    Raises:
        UserError: no image can be held out.
    """

    def judge(scores: Tensor, true: Tensor) -> tuple[float, float]:
        return right_share(scores, true), log_likelihood(scores, true)

    classes = len(task.train.classes or ())
    rows, labels = task.features(task.train, "train", reporter)
    test, targets = task.features(task.test, "test", reporter)
    with reporter.progress("logistic regression", fits_of(strengths, FOLDS if select == "folds" else 1)) as bar:
        fitted = run_on_rank0(
            lambda: choose_penalty(
                rows,
                labels,
                strengths,
                Rule.cross_validated(seed, judge) if few else Rule.held_out(seed, judge),
                classes=classes,
                on=(test, targets) if select == "test" else None,
                standard=Standard.by_size(rows) if few else None,
                device=task.device,
                progress=bar.advance,
            )
        )
    if rank() == 0:
        for note in fitted.notes:
            reporter.warn(f"{note}: try a smaller C")
    choice = Choice(0, {"chosen": {"C": fitted.C}})
    if fitted.sweep:
        tried = [{"C": C} for C in strengths]
        shares = [fitted.sweep[C][0] for C in strengths]
        choice = Choice.of(strengths.index(fitted.C), tried, shares, images=fitted.images, select=select)
    settings = SOLVER | {"features": "pooled"}
    if few:
        settings |= FEW_SETTINGS if fitted.sweep and select == "folds" else BY_ONE_NUMBER
    if few or tuple(strengths) != STRENGTHS_OF[LOGREG]:  # which results do not name, as before C was a setting
        settings |= {"C": sorted(strengths)}
    same = SameFeatures.of((rows, labels), (test, targets), classes=classes, device=task.device)
    return JudgedGuesses(fitted.top(test), settings | choice.settings, (*choice.notes, *fitted.notes), same)
