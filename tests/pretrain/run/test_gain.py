"""Tests of gains: their intervals against simulation and by hand, and the verdict in words."""

import json
import math

import numpy as np
import pytest
import torch

from excb.pretrain.run.gain import SOURCE, TARGET, Adapted, Gain, paired_interval


def hits(gained: int, lost: int, both: int, neither: int) -> tuple[torch.Tensor, torch.Tensor]:
    before = [0] * gained + [1] * lost + [1] * both + [0] * neither
    after = [1] * gained + [0] * lost + [1] * both + [0] * neither
    return torch.tensor(before).bool(), torch.tensor(after).bool()


def gain(gained: int, lost: int, *, tries: int = 1) -> Gain:
    before, after = hits(gained, lost, 50, 40)
    return Gain.between(before, after, figure="k-NN top-1", measured_on="images of photos/val", tries=tries)


def test_the_interval_by_hand() -> None:
    low, high = paired_interval(*hits(12, 4, 50, 34))
    n, b, c = 102, 12.5, 4.5
    mean, error = (b - c) / n, 1.959964 * math.sqrt(b + c - (b - c) ** 2 / n) / n
    assert low == pytest.approx(100 * (mean - error), rel=1e-6)
    assert high == pytest.approx(100 * (mean + error), rel=1e-6)
    wider = paired_interval(*hits(12, 4, 50, 34), tries=10)
    assert wider[1] - wider[0] == pytest.approx((high - low) * 2.807034 / 1.959964, rel=1e-6)  # 1 - 0.025 / 10


def test_95_of_100_intervals_hold_the_truth() -> None:
    random, held = np.random.default_rng(0), 0
    for _ in range(2000):
        kinds = random.choice(4, 60, p=[0.15, 0.05, 0.5, 0.3])
        low, high = paired_interval(*hits(*(int((kinds == kind).sum()) for kind in range(4))))
        held += low <= 10 <= high
    assert 0.94 <= held / 2000 <= 0.98


def test_a_handful_of_lucky_images_is_no_proof() -> None:
    low, _ = paired_interval(*hits(3, 0, 20, 4))
    assert low < 0


@pytest.mark.parametrize(
    ("target", "epoch", "better", "begins"),
    [
        (
            gain(30, 4),
            5,
            True,
            "Better than the original: k-NN top-1 on 124 images of photos/val is 64.5 % after epoch 5",
        ),
        (gain(3, 2), 5, None, "Keep the original: the best of 8 measurements, after epoch 5, is 1.1 points above its"),
        (gain(0, 0), 0, False, "Keep the original: none of 8 measurements is above its k-NN top-1 on 90 images"),
    ],
)
def test_the_verdict(target: Gain, epoch: int, better: bool | None, begins: str) -> None:
    said, summary = Adapted({TARGET: target}, epoch, 10 * epoch, 8).judge()
    assert said is better
    assert summary.startswith(begins)


def test_the_verdict_on_a_single_measurement() -> None:
    _, summary = Adapted({TARGET: gain(0, 0)}, 0, 0, 1).judge()
    assert summary.startswith("Keep the original: the only measurement is not above its k-NN top-1 on 90 images")


def test_the_verdict_says_what_was_forgotten_and_why_the_run_ended() -> None:
    gains = {TARGET: gain(30, 4), SOURCE: gain(2, 40)}
    _, summary = Adapted(gains, 5, 50, 8, "4 measurements in a row brought nothing better").judge()
    assert "On 132 images of photos/val, its source, it is 28.8 points below the original" in summary
    assert "it has forgotten" in summary
    assert summary.endswith("The run ended early: 4 measurements in a row brought nothing better.")


def test_round_trip_through_json() -> None:
    one = gain(5, 2, tries=3)
    assert Gain.from_dict(json.loads(json.dumps(one.to_dict()))) == one
