"""Tests of logistic regression by L-BFGS against scikit-learn's, and of how its penalty is chosen."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from excb.errors import UserError
from excb.transfer.linear.regression import choose, fit, validation

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(4, size=90)
ROWS = RANDOM.normal(size=(90, 6)) + 1.5 * np.eye(4, 6)[LABELS] + np.arange(6)
QUERIES = RANDOM.normal(size=(20, 6)) + np.arange(6)


def scikit(labels: np.ndarray, strength: float) -> np.ndarray:
    scaler = StandardScaler().fit(ROWS)
    model = LogisticRegression(C=1 / strength, max_iter=5000, tol=1e-10).fit(scaler.transform(ROWS), labels)
    scores: np.ndarray = model.decision_function(scaler.transform(QUERIES))
    return scores


def test_softmax_regressions_are_those_of_scikit_learn() -> None:
    for model, strength in zip(fit(torch.from_numpy(ROWS), LABELS, [100.0, 1.0], 4), [100.0, 1.0], strict=True):
        own = model.scores(torch.from_numpy(QUERIES))
        np.testing.assert_allclose(own - own.mean(1, keepdims=True), scikit(LABELS, strength), atol=1e-3)


def test_a_regression_for_each_class_without_its_ignored_images() -> None:
    targets = (RANDOM.random((90, 2)) < 0.4).astype(np.int8)
    (model,) = fit(torch.from_numpy(ROWS), targets, [2.0], 2)
    own = model.scores(torch.from_numpy(QUERIES))
    for label in range(2):
        np.testing.assert_allclose(own[:, label], scikit(targets[:, label], 2.0), atol=1e-3)
    ignored = targets.copy()
    ignored[::3, 0] = -1
    (other,) = fit(torch.from_numpy(ROWS), ignored, [2.0], 2)
    np.testing.assert_allclose(other.scores(torch.from_numpy(QUERIES))[:, 1], own[:, 1], atol=1e-3)
    ignored[::3, 0] = 1 - targets[::3, 0]
    (flipped,) = fit(torch.from_numpy(ROWS), ignored, [2.0], 2)
    assert np.abs(other.scores(torch.from_numpy(QUERIES)) - flipped.scores(torch.from_numpy(QUERIES))).max() > 0.1


def test_the_strength_is_the_best_on_images_that_the_fit_did_not_see() -> None:
    seen = []

    def score(scores: np.ndarray, targets: np.ndarray) -> float:
        seen.append(targets)
        return float((scores.argmax(1) == targets).mean())

    found = choose(torch.from_numpy(ROWS), LABELS, score, 4, strengths=[1e5, 1.0, 1e-3], seed=0)
    held = validation(LABELS, 0)
    assert len(seen) == 3
    assert all((each == LABELS[held]).all() for each in seen)
    assert found.sweep[found.strength] == max(found.sweep.values())
    (whole,) = fit(torch.from_numpy(ROWS), LABELS, [found.strength], 4)
    np.testing.assert_allclose(found.model.weight, whole.weight)
    assert choose(torch.from_numpy(ROWS), LABELS, lambda _s, _t: 1.0, 4, strengths=[1.0, 10.0]).strength == 10


def test_a_fifth_of_each_class_is_held_out_and_never_all() -> None:
    labels = np.array([0] * 10 + [1] * 5 + [2] * 2 + [3])
    held = validation(labels, 3)
    assert [int(held[labels == label].sum()) for label in range(4)] == [2, 1, 1, 0]
    assert (validation(labels, 3) == held).all()
    assert int(validation(np.zeros((50, 3), np.int8), 0).sum()) == 10
    with pytest.raises(UserError, match="no class has two train images"):
        validation(np.array([0, 1, 2]), 0)
