"""Tests of statistics of scores of either kind: hits and numbers, by class, and compared with each other."""

import numpy as np
import pytest
import torch

from excb.inference import statistics


def numbers(seed: int, images: int = 60) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(images))


def test_images_that_do_not_count_change_nothing() -> None:
    scores, gap = numbers(0), torch.tensor([float("nan")], dtype=torch.float64)
    padded = torch.cat([scores[:5], gap, scores[5:], gap])
    assert statistics.percent(padded) == pytest.approx(100 * float(scores.mean()))
    assert statistics.interval(padded) == statistics.interval(scores)
    by_class = statistics.by_class(padded, torch.tensor([0] * 5 + [1] + [0] * 56), ("a", "b", "c"))
    assert by_class == {"a": pytest.approx(100 * float(scores.mean()), abs=1e-4), "b": None, "c": None}


def test_classes_are_scored_by_themselves() -> None:
    names = ("ant", "bee", "cat", "nobody")
    targets = torch.tensor([0, 0, 0, 1, 2, 2])
    right = torch.tensor([True, False, False, True, False, False])
    assert statistics.by_class(right, targets, names) == {"ant": 33.3333, "bee": 100, "cat": 0, "nobody": None}


def test_classes_of_one_name_stay_apart() -> None:
    by_class = statistics.by_class(torch.tensor([True, False]), torch.tensor([0, 2]), ("crane", "dog", "crane"))
    assert by_class == {"crane (0)": 100, "dog": None, "crane (2)": 0}


def test_hits_compare_with_numbers_as_numbers() -> None:
    hits = numbers(1) > 0.5
    found = statistics.compared(hits, hits.double() - 0.25)
    assert found.test == "randomisation"
    assert found.difference == pytest.approx(-25)
    assert statistics.compared(hits, hits).test == "McNemar (mid-P)"
