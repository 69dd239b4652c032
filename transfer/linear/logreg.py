"""Logistic regression as a linear protocol: C is 1, or one of several that is chosen as other heads are."""

from collections.abc import Sequence
from typing import Literal

from excb.console import Reporter
from excb.distributed.collectives import rank, run_on_rank0

from ..probes.logistic import SOLVER
from ..probes.penalty import Rule, choose_penalty, fits_of, log_likelihood, right_share
from ..probes.selection import Choice, JudgedGuesses
from ..task import Task


def logistic_regression(
    task: Task, reporter: Reporter, strengths: Sequence[float], *, select: Literal["holdout", "test"], seed: int
) -> JudgedGuesses:
    """Fit on rank 0 for all.

    Args:
        task: backbone and images.
        reporter: prints notes, progress and tables.
        strengths: C of each model that is tried, inverse strengths of the L2 penalty; each once, above 0.
        select: the images on which one of several models is chosen.
        seed: names the held-out images.

    Raises:
        UserError: no image can be held out.
    """
    rows, labels = task.features(task.train, "train", reporter)
    test, targets = task.features(task.test, "test", reporter)
    with reporter.progress("logistic regression", fits_of(strengths)) as bar:
        fitted = run_on_rank0(
            lambda: choose_penalty(
                rows,
                labels,
                strengths,
                Rule.held_out(seed, lambda scores, true: (right_share(scores, true), log_likelihood(scores, true))),
                classes=len(task.train.classes or ()),
                on=(test, targets) if select == "test" else None,
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
    settings = SOLVER | {"features": "pooled"} | choice.settings
    return JudgedGuesses(fitted.top(test), settings, (*choice.notes, *fitted.notes))
