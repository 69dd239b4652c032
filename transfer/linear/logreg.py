"""scikit-learn's logistic regression on frozen features."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from excb.console import Reporter
from excb.distributed.collectives import rank, run_on_rank0

from ..probes.heads import HeadBank
from ..probes.selection import HeadSettings, Outcome, Rows, choose_on_features
from ..task import Task

STEPS = 1000  # of lbfgs, at most


def logistic_regression(
    task: Task, reporter: Reporter, strengths: Sequence[float], *, select: str, seed: int
) -> Outcome:
    """Fit scikit-learn's, by lbfgs on standardised features; rank 0 fits for all.

    Args:
        task: backbone and images.
        reporter: prints notes, progress and tables.
        strengths: C of each model that is tried, inverse strengths of the L2 penalty; each once, above 0.
        select: "holdout" or "test": the images on which one of several models is chosen.
        seed: names the held-out images.

    Raises:
        UserError: no image can be held out.
    """
    classes = len(task.train.classes or ())
    notes: list[str] = []

    def fit(source: Rows, every: Tensor, among: Tensor, tried: Sequence[HeadSettings]) -> HeadBank:
        rows, labels = source[among], every[among]
        bank = HeadBank(classes, rows.shape[1], lr=[0] * len(tried), weight_decay=[0] * len(tried), dtype=torch.float64)
        with reporter.progress("logistic regression", len(tried)) as bar:
            for head, one in enumerate(tried):
                weight, bias, converged = run_on_rank0(partial(_fit, rows, labels, one["C"], classes))
                if not converged:
                    notes.append(f"logistic regression with C = {one['C']:g} has not converged in {STEPS} steps")
                bank.weight[head], bank.bias[head] = torch.from_numpy(weight), torch.from_numpy(bias)
                bar.advance()
        return bank

    outcome = choose_on_features(
        task,
        reporter,
        [{"C": C} for C in strengths],
        standardised,
        fit,
        settings={"solver": "scikit-learn, lbfgs", "steps": STEPS, "features": "pooled"},
        kind="pooled",
        select=select,
        seed=seed,
    )
    notes = [*dict.fromkeys(notes)]
    if rank() == 0:
        for note in notes:
            reporter.warn(f"{note}: try a smaller C")
    return replace(outcome, notes=(*outcome.notes, *notes))


def _fit(rows: Tensor, labels: Tensor, C: float, classes: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Weights [classes, D] and biases [classes] in float64, and whether they converged."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=C, max_iter=STEPS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(rows.double().numpy(), labels.numpy())
    converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    # Of two classes scikit-learn keeps the difference: half of it up and half of it down is the same model.
    weight, bias = model.coef_, model.intercept_
    if len(model.classes_) == 2:
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    all_weight, all_bias = np.zeros((classes, rows.shape[1])), np.full(classes, -1e4)  # a class without images: never
    all_weight[model.classes_], all_bias[model.classes_] = weight, bias
    return all_weight, all_bias, converged


def standardised(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Features [N, D] and [Q, D] with the mean 0 and standard deviation 1 that the train images would have."""
    mean, deviation = train.mean(0), train.std(0, correction=0)
    deviation = torch.where(deviation > 1e-6 * mean.abs() + 1e-12, deviation, 1.0)  # constant: 0 after the mean is gone
    return (train - mean) / deviation, (test - mean) / deviation
