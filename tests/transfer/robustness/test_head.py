"""Tests of the head: scikit-learn's logistic regression, and the choice of the penalty."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from excb.errors import UserError
from excb.transfer.robustness import head
from excb.transfer.robustness.head import Head, fit, fits_of, held_out

pytestmark = pytest.mark.usefixtures("one_thread")


def data(images: int = 90, classes: int = 3, width: int = 6) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(0)
    labels = np.arange(images) % classes
    rows = random.normal(size=(images, width)) * 3 + 5 + (labels[:, None] == np.arange(width)) * 2.5
    rows[:, -1] = 7  # a feature without information, whose deviation is 0
    return torch.from_numpy(rows).float(), torch.from_numpy(labels)


def fitted(rows: Tensor, labels: Tensor, penalties: tuple[float, ...], classes: int = 3) -> Head:
    return fit(rows, labels, classes, penalties, seed=0, device=torch.device("cpu"))


@pytest.mark.parametrize("l2", [1.0, 0.01])
def test_probabilities_are_those_of_scikit_learn(l2: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_ROWS", 32)  # several parts
    rows, labels = data()
    regression = LogisticRegression(C=1 / (l2 * len(rows)), tol=1e-8, max_iter=5000)
    model = make_pipeline(StandardScaler(), regression).fit(rows.double().numpy(), labels.numpy())
    ours = fitted(rows, labels, (l2,)).logits(rows).softmax(1)
    assert ours.numpy() == pytest.approx(model.predict_proba(rows.double().numpy()), abs=5e-4)


def test_the_penalty_of_the_least_held_out_loss_is_taken() -> None:
    rows, labels = data()
    tried = (1e-4, 0.1, 10.0)
    chosen = fitted(rows, labels, tried)
    held = torch.zeros(len(rows), dtype=torch.bool)
    held[torch.from_numpy(held_out(labels.numpy(), 0))] = True
    losses = {}
    mean, scale = rows.mean(0), rows.std(0, correction=0)
    scale[-1] = 1
    whole = ((rows - mean) / scale).double().numpy()
    for l2 in tried:
        model = LogisticRegression(C=1 / (l2 * int((~held).sum())), tol=1e-8, max_iter=5000)
        model.fit(whole[~held], labels[~held])
        losses[l2] = -model.predict_log_proba(whole[held])[np.arange(int(held.sum())), labels[held]].mean()
    assert chosen.l2 == min(losses, key=lambda l2: losses[l2])
    assert {one["l2"]: one["holdout_loss"] for one in chosen.sweep} == pytest.approx(losses, abs=1e-3)
    again = fitted(rows, labels, (chosen.l2,))  # and it has seen all images
    assert torch.allclose(chosen.weight, again.weight, atol=1e-4)


def test_a_tenth_of_every_class_is_held_out_but_no_only_image() -> None:
    labels = np.array([0] * 40 + [1] * 20 + [2])
    held = held_out(labels, 0)
    assert np.bincount(labels[held], minlength=3).tolist() == [4, 2, 0]
    with pytest.raises(UserError, match="no class has two train images"):
        held_out(np.arange(5), 0)


def test_fits_are_counted_for_progress() -> None:
    rows, labels = data()
    for penalties in ((0.1,), (0.1, 1.0), (0.1, 0.1)):
        done: list[int] = []
        fit(rows, labels, 3, penalties, seed=0, device=torch.device("cpu"), progress=done.append)
        assert sum(done) == fits_of(penalties)
