"""Tests of gains: when a difference is proof, and the verdict in words."""

import json

import pytest
import torch

from excb.pretrain.run.gain import SOURCE, TARGET, Adapted, Gain


def hits(gained: int, lost: int, both: int, neither: int) -> tuple[torch.Tensor, torch.Tensor]:
    before = [0] * gained + [1] * lost + [1] * both + [0] * neither
    after = [1] * gained + [0] * lost + [1] * both + [0] * neither
    return torch.tensor(before).bool(), torch.tensor(after).bool()


def gain(gained: int, lost: int, *, tries: int = 1) -> Gain:
    before, after = hits(gained, lost, 50, 40)
    return Gain.between(before, after, figure="k-NN top-1", measured_on="of photos/val", tries=tries)


def test_a_handful_of_lucky_images_is_no_proof() -> None:
    assert not gain(3, 0).risen
    assert gain(12, 0).risen
    assert gain(0, 12).fallen
    assert not gain(0, 3).fallen


@pytest.mark.parametrize(("images", "known"), [(59, False), (60, True)])
def test_of_few_images_that_are_each_others_neighbours_there_is_no_interval(images: int, known: bool) -> None:
    before, after = torch.zeros(images).bool(), torch.ones(images).bool()
    halves = (before.repeat(100, 1), after.repeat(100, 1))
    one = Gain.between(before, after, figure="k-NN top-1", measured_on="of photos", halves=halves)
    assert one.risen == known
    assert one.interval().startswith("95 %" if known else "fewer than 60 images")
    assert Gain.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    better, summary = Adapted({TARGET: one}, 5, 50, 8).judge()
    assert better is (True if known else None)
    assert ("may be chance" in summary) == (not known)


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
