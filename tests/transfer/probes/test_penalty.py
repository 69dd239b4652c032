"""Tests of how the penalty of a logistic regression is chosen."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from excb.errors import UserError
from excb.transfer.probes.logistic import fit_regression
from excb.transfer.probes.penalty import Rule, choose_penalty, fits_of, log_likelihood, right_share
from excb.transfer.probes.selection import held_out

pytestmark = pytest.mark.usefixtures("one_thread")
RANDOM = np.random.default_rng(0)
LABELS = torch.from_numpy(np.arange(90) % 3)
ROWS = torch.from_numpy(RANDOM.normal(size=(90, 6)) * 3 + 5 + (LABELS[:, None] == torch.arange(6)).numpy() * 2.5)
TRIED = (1e-4, 0.01, 10.0)


def losses() -> dict[float, float]:
    """Of scikit-learn's models, on the images that are held out."""
    held = held_out(LABELS.numpy(), 0)
    rows = ((ROWS - ROWS.mean(0)) / ROWS.std(0, correction=0)).numpy()
    found = {}
    for C in TRIED:
        model = LogisticRegression(C=C, tol=1e-8, max_iter=5000).fit(rows[~held], LABELS[~held])
        found[C] = -model.predict_log_proba(rows[held])[np.arange(int(held.sum())), LABELS[held]].mean()
    return found


def test_the_best_on_images_that_the_fit_did_not_see_is_fitted_again_to_all() -> None:
    rule = Rule.held_out(0, lambda scores, true: (log_likelihood(scores, true), right_share(scores, true)))
    chosen = choose_penalty(ROWS, LABELS, TRIED, rule, classes=3)
    expected = losses()
    assert {C: -figures[0] for C, figures in chosen.sweep.items()} == pytest.approx(expected, abs=1e-3)
    assert min(expected, key=lambda C: expected[C]) == chosen.C
    assert chosen.images == int(held_out(LABELS.numpy(), 0).sum())
    whole = fit_regression(chosen.standard(ROWS), LABELS, chosen.C, classes=3)
    assert torch.equal(chosen.model.weight, whole.weight)
    assert torch.equal(chosen.top(ROWS)[:, 0], whole.scores(chosen.standard(ROWS)).argmax(1))
    assert chosen.top(ROWS).shape == (90, 3)


def test_later_figures_break_ties_then_the_stronger_penalty_wins() -> None:
    def judged(*figures: tuple[float, ...]) -> float:
        left = iter(figures)
        return choose_penalty(ROWS, LABELS, TRIED, Rule.held_out(0, lambda _s, _t: next(left)), classes=3).C

    assert judged((1, 0), (2, 0), (2, 1)) == 10.0
    assert judged((1, 0), (2, 1), (2, 1)) == 0.01
    assert judged((1,), (1,), (1,)) == 1e-4
    assert judged((np.nan,), (0,), (np.nan,)) == 0.01


def test_figures_of_several_masks_are_means() -> None:
    folds = [torch.arange(90) % 2 == number for number in range(2)]
    seen: list[Tensor] = []

    def judge(_scores: Tensor, true: Tensor) -> tuple[float]:
        seen.append(true)
        return (float(len(seen)),)

    fits: list[int] = []
    chosen = choose_penalty(ROWS, LABELS, TRIED, Rule(lambda _t: folds, judge), classes=3, progress=fits.append)
    assert list(chosen.sweep.values()) == [(1.5,), (3.5,), (5.5,)]
    assert torch.equal(torch.cat(seen[:2]), torch.cat([LABELS[fold] for fold in folds]))
    assert (chosen.images, sum(fits)) == (90, fits_of(TRIED, masks=2))


def test_other_images_may_choose() -> None:
    rule = Rule.held_out(0, lambda scores, true: (right_share(scores, true),))
    chosen = choose_penalty(ROWS, LABELS, TRIED, rule, classes=3, on=(ROWS[:8], LABELS[:8]))
    assert chosen.images == 8
    for C, (right,) in chosen.sweep.items():
        model = fit_regression(chosen.standard(ROWS), LABELS, C, classes=3)
        assert right == right_share(model.scores(chosen.standard(ROWS[:8])), LABELS[:8])


def test_one_strength_needs_no_held_out_images() -> None:
    rule = Rule.held_out(0, lambda scores, true: (right_share(scores, true),))
    alone = choose_penalty(ROWS[:3], LABELS[:3], [1.0, 1.0], rule, classes=3)
    assert (alone.C, alone.sweep, fits_of([1.0, 1.0])) == (1.0, {}, 1)
    with pytest.raises(UserError, match="no class has two train images"):
        choose_penalty(ROWS[:3], LABELS[:3], TRIED, rule, classes=3)
    assert choose_penalty(ROWS, LABELS, [10.0], rule, classes=3, steps=1).notes == [
        "logistic regression with C = 10 has not converged in 1 step"
    ]
