"""The penalty of a logistic regression: one of several strengths, chosen on images that the models did not see.

Letters: N train images, Q queries, D feature width, K classes. C is the inverse strength of the penalty.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from excb.console import plural

from .logistic import NEVER, SCORES, STEPS, Regression, Standard, fit_regression
from .recipes import FOLDS
from .selection import folds, held_out

# Every decade of the 45 values of Kornblith et al. (2019), from the strongest penalty.
STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)

BY_ONE_NUMBER = {"standardised": "by one number"}  # of `Standard.by_size`, for results
FEW_SETTINGS = BY_ONE_NUMBER | {"folds": FOLDS}  # of `cross_validated`, likewise


@dataclass(frozen=True)
class Rule:
    """How one of several strengths is chosen on images that the models did not see."""

    # Targets -> masks [N] bool of train images to hold out; of several, each is held out once, and figures are means.
    hold_out: Callable[[Tensor], Sequence[Tensor]]
    # Scores [n, K] and targets -> figures, higher is better: the first decides, then the next, then the penalty.
    judge: Callable[[Tensor, Tensor], Sequence[float]]

    @classmethod
    def held_out(cls, seed: int, judge: Callable[[Tensor, Tensor], Sequence[float]]) -> "Rule":
        """By the images that `selection.held_out` keeps for choosing."""
        return cls(lambda targets: [torch.from_numpy(held_out(targets.numpy(), seed))], judge)

    @classmethod
    def cross_validated(cls, seed: int, judge: Callable[[Tensor, Tensor], Sequence[float]]) -> "Rule":
        """By the parts that `selection.folds` makes: every train image is held out once."""
        return cls(lambda targets: [torch.from_numpy(held) for held in folds(targets.numpy(), seed)], judge)


@dataclass(frozen=True)
class Chosen:
    """A model of all train images, and how its strength was chosen."""

    standard: Standard
    model: Regression
    C: float
    sweep: dict[float, tuple[float, ...]]  # C -> figures of the images that chose; empty where there was no choice
    images: int = 0  # that chose
    notes: list[str] = field(default_factory=list)  # on models that have not converged

    def scores(self, rows: Tensor) -> Tensor:
        """Logits, or log-odds of every label: features as they are [Q, D] -> [Q, K] float64, on the CPU."""
        parts = rows.split(max(1, SCORES // rows.shape[1]))
        return torch.cat([self.model.scores(self.standard(part)) for part in parts])

    def top(self, rows: Tensor) -> Tensor:
        """The five likeliest classes, or all that have train images: [Q, D] -> [Q, 5 or fewer] int64, best first."""
        return self.scores(rows).topk(min(5, int((self.model.bias > NEVER).sum()))).indices


def choose_penalty(
    rows: Tensor,
    targets: Tensor,
    strengths: Sequence[float],
    rule: Rule,
    *,
    classes: int,
    on: tuple[Tensor, Tensor] | None = None,
    standard: Standard | None = None,
    steps: int = STEPS,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] = lambda _fits: None,
) -> Chosen:
    """Choose the strength of the penalty, then fit again to all train images.

    Args:
        rows: [N, D], features of the train images as they are.
        targets: as `fit_regression`.
        strengths: values of C to choose from; of equals the strongest penalty is taken.
        rule: of the choice.
        classes: K.
        on: features and targets of other images to choose on, instead of train images that are held out.
        standard: how to standardise, by default by these rows.
        steps: as `fit_regression`.
        device: as `fit_regression`.
        progress: called with numbers of fits; see `fits_of`.

    Raises:
        UserError: no image can be held out.
    """
    standard = standard or Standard.of(rows)
    features, notes = standard(rows), list[str]()

    def fitted(some: Tensor, C: float, *, draft: bool) -> Regression:
        model = fit_regression(
            features[some], targets[some], C, classes=classes, steps=steps, device=device, draft=draft
        )
        if not model.converged:
            notes.append(f"logistic regression with C = {C:g} has not converged in {plural(steps, 'step')}")
        progress(1)
        return model

    everything, sweep, images = torch.arange(len(rows)), dict[float, tuple[float, ...]](), 0
    tried = sorted(set(strengths))
    if len(tried) > 1:
        if on is not None:
            splits = [(everything, standard(on[0]), on[1])]
        else:
            splits = [(everything[~held], features[held], targets[held]) for held in rule.hold_out(targets)]
        images = sum(len(answers) for _, _, answers in splits)
        for C in tried:
            figures = [
                rule.judge(fitted(train, C, draft=True).scores(queries), answers) for train, queries, answers in splits
            ]
            sweep[C] = tuple(np.nan_to_num(np.mean(figures, 0), nan=-np.inf).tolist())
    best = max(tried, key=lambda C: sweep.get(C, ()))
    return Chosen(standard, fitted(everything, best, draft=False), best, sweep, images, [*dict.fromkeys(notes)])


def cross_validated(
    rows: Tensor,
    labels: Tensor,
    strengths: Sequence[float],
    judge: Callable[[Tensor, Tensor], Sequence[float]],
    *,
    classes: int,
    seed: int,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] = lambda _fits: None,
) -> Chosen:
    """The regression for few labels: features of one size, and a penalty that cross-validation chooses.

    Args:
        rows: [N, D], features of the train images as they are.
        labels: [N] classes.
        strengths: values of C to choose from; of equals the strongest penalty is taken.
        judge: see `Rule`.
        classes: K.
        seed: names the parts of the train images.
        device: as `fit_regression`.
        progress: called with numbers of fits; see `fits_of`.

    Raises:
        UserError: no class has two images.
    """
    return choose_penalty(
        rows,
        labels,
        strengths,
        Rule.cross_validated(seed, judge),
        classes=classes,
        standard=Standard.by_size(rows),
        device=device,
        progress=progress,
    )


def fits_of(strengths: Sequence[float], masks: int = 1) -> int:
    """How many models `choose_penalty` fits, by a rule of so many masks."""
    tried = len(set(strengths))
    return tried * masks + 1 if tried > 1 else 1


def right_share(scores: Tensor, targets: Tensor) -> float:
    """The share of right answers: scores [n, K] and class indices [n]."""
    return float((scores.argmax(1) == targets).double().mean())


def log_likelihood(scores: Tensor, targets: Tensor) -> float:
    """The mean over images: scores [n, K] and class indices [n]."""
    return -float(F.cross_entropy(scores, targets))
