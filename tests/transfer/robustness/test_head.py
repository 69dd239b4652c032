"""Tests of the head: the penalty in the terms of `--l2`, and its choice by cross-entropy."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from excb.transfer.probes.selection import held_out
from excb.transfer.robustness.head import Head, fit_head

pytestmark = pytest.mark.usefixtures("one_thread")


def data(images: int = 90, classes: int = 3, width: int = 6) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(0)
    labels = np.arange(images) % classes
    rows = random.normal(size=(images, width)) * 3 + 5 + (labels[:, None] == np.arange(width)) * 2.5
    rows[:, -1] = 7  # a feature without information, whose deviation is 0
    return torch.from_numpy(rows).float(), torch.from_numpy(labels)


def fitted(rows: Tensor, labels: Tensor, penalties: tuple[float, ...]) -> Head:
    return fit_head(rows, labels, 3, penalties, seed=0, device=torch.device("cpu"))


def test_the_penalty_of_the_least_held_out_loss_is_taken() -> None:
    rows, labels = data()
    tried = (1e-4, 0.1, 10.0)
    found = fitted(rows, labels, tried)
    held = held_out(labels.numpy(), 0)
    losses = {}
    mean, scale = rows.mean(0), rows.std(0, correction=0)
    scale[-1] = 1
    whole = ((rows - mean) / scale).double().numpy()
    for l2 in tried:  # the penalty of the mean loss over all train images
        model = LogisticRegression(C=1 / (l2 * len(rows)), tol=1e-8, max_iter=5000)
        model.fit(whole[~held], labels[~held])
        losses[l2] = -model.predict_log_proba(whole[held])[np.arange(int(held.sum())), labels[held]].mean()
    assert found.l2 == min(losses, key=lambda l2: losses[l2])
    assert {one["l2"]: one["holdout_loss"] for one in found.sweep} == pytest.approx(losses, abs=1e-3)
    again = fitted(rows, labels, (found.l2,))  # and it has seen all images
    assert torch.allclose(found.logits(rows), again.logits(rows), atol=1e-6)
    assert found.logits(rows).dtype == torch.float32


def test_on_few_labels_features_have_one_size_and_all_images_are_held_out() -> None:
    rows, labels = data()
    found = fit_head(rows, labels, 3, (1e-4, 0.1), seed=0, few=True, device=torch.device("cpu"))
    scaled = (rows - rows.mean(0)) / (rows - rows.mean(0)).square().mean().sqrt()
    model = LogisticRegression(C=1 / (found.l2 * len(rows)), tol=1e-8, max_iter=5000).fit(scaled.double(), labels)
    expected = torch.from_numpy(model.predict_proba(scaled.double()))
    torch.testing.assert_close(found.logits(rows).double().softmax(1), expected, atol=5e-3, rtol=0)
    assert found.chosen.images == len(rows)
