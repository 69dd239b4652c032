"""Tests of calibration, corruption errors and drops, against figures by hand and loops."""

import numpy as np
import pytest
import torch

from excb.transfer.robustness.metrics import (
    Answers,
    Reference,
    calibration_error,
    corruption_error,
    drop_interval,
    relative_corruption_error,
    relative_drop,
)


def answers(*pairs: tuple[bool, float]) -> Answers:
    hits, confidence = zip(*pairs, strict=True)
    return Answers(torch.tensor(hits), torch.tensor(confidence, dtype=torch.float64))


def test_calibration_by_hand() -> None:
    # Two bins, (0, 1/2] and (1/2, 1]. The first: 1 of 2 right at 0.3 on average. The second: 2 of 3 at 0.8.
    given = answers((True, 0.2), (False, 0.4), (True, 0.7), (True, 0.8), (False, 0.9))
    assert calibration_error(given, bins=2) == pytest.approx(100 * (2 / 5 * 0.2 + 3 / 5 * (0.8 - 2 / 3)))
    assert calibration_error(answers((True, 1.0), (True, 1.0))) == 0
    assert calibration_error(answers((False, 1.0))) == 100


def test_a_confidence_on_an_edge_is_of_the_lower_bin() -> None:
    assert calibration_error(answers((True, 0.5), (False, 0.51)), bins=2) == pytest.approx(50 * (0.5 + 0.51))
    assert calibration_error(answers((True, 0.49), (False, 0.5)), bins=2) == pytest.approx(100 * 0.01 / 2)


def test_calibration_is_that_of_a_loop_over_fifteen_bins() -> None:
    random = np.random.default_rng(0)
    confidence, hits = random.random(500), random.random(500) < 0.6
    error = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if inside.any():
            error += inside.mean() * abs(hits[inside].mean() - confidence[inside].mean())
    given = Answers(torch.from_numpy(hits), torch.from_numpy(confidence))
    assert calibration_error(given) == pytest.approx(100 * error)


def test_corruption_errors_by_hand() -> None:
    # Four images. Under fog 3 are right, under snow 1: errors 0.25 and 0.75, of the reference 0.5 and 0.6.
    hits = {
        "fog": torch.tensor([1.0, 1, 1, 0], dtype=torch.float64),
        "snow": torch.tensor([0.5, 0.5, 0, 0], dtype=torch.float64),  # right at half of the severities
    }
    reference = Reference("a reference", 0.2, {"fog": 0.5, "snow": 0.6})
    assert float(corruption_error(hits, reference).mean()) == pytest.approx((0.25 / 0.5 + 0.75 / 0.6) / 2)
    clean = torch.tensor([1.0, 1, 1, 1], dtype=torch.float64)  # no error: rises of 0.25 and 0.75, of 0.3 and 0.4
    relative = relative_corruption_error(hits, clean, reference)
    assert float(relative.mean()) == pytest.approx((0.25 / 0.3 + 0.75 / 0.4) / 2)


def test_a_network_relative_to_itself_has_100_percent() -> None:
    random = np.random.default_rng(1)
    clean, hits = (torch.from_numpy((random.random(200) < share).astype(float)) for share in (0.9, 0.4))
    itself = Reference("itself", 1 - float(clean.mean()), {"fog": 1 - float(hits.mean())})
    assert float(corruption_error({"fog": hits}, itself).mean()) == pytest.approx(1)
    assert float(relative_corruption_error({"fog": hits}, clean, itself).mean()) == pytest.approx(1)


def test_relative_drop_and_its_interval() -> None:
    random = np.random.default_rng(2)
    clean = torch.from_numpy((random.random(400) < 0.8).astype(float))
    corrupted = clean * torch.from_numpy((random.random(400) < 0.5).astype(float))
    drop = relative_drop(clean, corrupted)
    assert drop == pytest.approx(100 * (clean.sum() - corrupted.sum()) / clean.sum())
    ends = drop_interval(clean, corrupted)
    assert ends is not None
    low, high = ends
    assert low < drop < high
    # Corrupted images are right with p = 1/2 where the clean one is: the normal approximation of a proportion.
    half = 1.96 * 100 * (0.25 / float(clean.sum())) ** 0.5
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)
    assert drop_interval(clean, corrupted) == (low, high)


def test_answers_name_only_candidates() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [0.0, 1.0, 5.0]])
    right = torch.tensor([[False, True, False], [False, True, True]])
    free = Answers.of(logits, right)
    assert free.hits.tolist() == [False, True]
    assert free.confidence.tolist() == pytest.approx(logits.double().softmax(1).max(1).values.tolist())
    limited = Answers.of(logits, right, torch.tensor([False, True, True]))
    assert limited.hits.tolist() == [True, True]
    assert float(limited.confidence[0]) == pytest.approx(1 / (1 + np.exp(-1)))
    assert len(limited.chosen(torch.tensor([True, False])).hits) == 1
