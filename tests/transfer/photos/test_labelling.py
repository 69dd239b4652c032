"""Choices of images to label, and of labels to doubt, where the answer is known."""

import numpy as np
import pytest
import torch

from excb.transfer.photos.label_errors import suspicious
from excb.transfer.photos.label_kinds import ONE
from excb.transfer.photos.labelling import COVERED, Rule, next_to_label


def clusters(sizes: list[int], *, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Tight clusters in orthogonal directions, and which each row is in."""
    random = np.random.default_rng(seed)
    which = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.eye(len(sizes), 16)[which] + 0.05 * random.normal(size=(len(which), 16))
    return torch.from_numpy(rows).float(), which


def test_coverage_takes_one_of_each_cluster_the_largest_first() -> None:
    rows, which = clusters([40, 5, 20, 10])
    chosen, rule = next_to_label(rows, np.full(75, -1), 4, margins=None, seed=0)
    assert rule == "coverage"
    assert which[chosen].tolist() == [0, 2, 3, 1]


def test_coverage_leaves_out_clusters_with_a_label() -> None:
    rows, which = clusters([40, 5, 20, 10])
    labels = np.full(75, -1)
    labels[3] = 0
    chosen, _ = next_to_label(rows, labels, 3, margins=None, seed=0)
    assert sorted(which[chosen].tolist()) == [1, 2, 3]


def test_uncertainty_takes_the_least_margins_once_classes_are_covered() -> None:
    rows, which = clusters([30, 30])
    labels = np.where(np.arange(60) % 30 < COVERED, which, -1)
    margins = np.linspace(0, 1, 60)
    probabilities = torch.from_numpy(np.stack([(1 + margins) / 2, (1 - margins) / 2], 1))
    chosen, rule = next_to_label(rows, labels, 3, margins=ONE.margins(probabilities), seed=0)
    assert rule == "uncertainty"
    assert chosen == [10, 11, 12]  # the first ten are labelled


def test_k_center_takes_what_is_farthest_from_all_labels() -> None:
    rows, which = clusters([30, 2, 30])
    labels = np.where(which == 0, 0, -1)
    chosen, _ = next_to_label(rows, labels, 2, margins=None, seed=0, rule="k-center")
    assert sorted(which[chosen].tolist()) == [1, 2]


@pytest.mark.parametrize("rule", ["coverage", "uncertainty", "k-center"])
def test_all_that_is_left_is_taken_once(rule: Rule) -> None:
    rows, which = clusters([6, 7])
    labels = np.where(np.arange(13) < 4, which, -1)
    margins = torch.zeros(13)
    chosen, _ = next_to_label(rows, labels, 100, margins=margins, seed=0, rule=rule)
    assert sorted(chosen) == list(range(4, 13))


@pytest.mark.parametrize("rule", ["coverage", "uncertainty", "k-center"])
def test_copies_are_asked_for_once_and_last_of_all_those_of_labelled_images(rule: Rule) -> None:
    rows, _ = clusters([8, 8])
    labels = np.full(16, -1)
    labels[[0, 8]] = 0, 1
    groups = np.arange(16) // 2  # every image has a copy beside it; those of 0 and 8 are labelled
    margins = torch.zeros(16)
    chosen, _ = next_to_label(rows, labels, 100, margins=margins, seed=0, groups=groups, rule=rule)
    assert sorted(groups[chosen[:6]].tolist()) == [1, 2, 3, 5, 6, 7]
    assert sorted(chosen) == [index for index in range(16) if index not in (0, 8)]


def test_equal_images_are_fewer_clusters_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    chosen, _ = next_to_label(torch.eye(2).repeat(4, 1), np.full(8, -1), 6, margins=None, seed=0)
    assert len(set(chosen)) == 6
    assert not recwarn.list


def test_flipped_labels_are_doubted_and_no_others() -> None:
    random = np.random.default_rng(0)
    truth = random.integers(0, 5, 300)
    given = truth.copy()
    given[::20] = (given[::20] + 1) % 5
    logits = random.normal(size=(300, 5))
    logits[np.arange(300), truth] += 9
    probabilities = torch.from_numpy(logits).softmax(1)
    doubted = suspicious(probabilities, torch.from_numpy(given))
    assert {index for index, _ in doubted} == set(range(0, 300, 20))
    assert all(truth[index] == suggestion for index, suggestion in doubted)
    assert not suspicious(probabilities, torch.from_numpy(truth))
