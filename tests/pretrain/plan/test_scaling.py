"""The model of a step's time: its terms by hand from counts and peaks, and what overlaps."""

import json

import pytest

from excb.pretrain.__main__ import main
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan.assumptions import ASSUMED, EXCHANGE, EXCHANGE_ACROSS, LAUNCH
from excb.pretrain.plan.flops import Counts, Flops
from excb.pretrain.plan.peaks import PEAKS, Peaks
from excb.pretrain.plan.scaling import StepTime, step_time
from excb.pretrain.plan.work import Passes, Work

# A GPU of 1 TFLOP/s with 1 TB/s of memory and links of 100 GB/s; a network with 10^9 FLOPs an image and 10^8 weights.
SIMPLE = Peaks(half=1, tf32=0.5, fp32=0.25, fp64=0.1, bandwidth=1000, link=100, network=80, source="none")
COUNTS = Counts({"student": {"backbone": 10**8}, "teacher": {}}, Flops(600_000_000, 400_000_000, 0), (), 10**8)
WORK = Work(Passes(100, 0, 1e9), Passes(200, 0, 3e9), Passes(30, 0, 1e9), Passes(10, 0, 5e9))


def modelled(processes: int, *overrides: str) -> StepTime:
    recipe = apply(find_recipe("conv4_tiny"), ["efficiency.precision=bf16", "optim.batch=64", *overrides])
    return step_time(recipe, COUNTS, WORK, processes, SIMPLE)


def test_the_terms_of_one_process() -> None:
    time = modelled(1)
    assert time.compute == pytest.approx(64e9 / 1e12)
    assert time.memory == pytest.approx(1e10 / 1e12)
    assert time.launches == pytest.approx(340 * LAUNCH)
    assert (time.gradients, time.hidden, time.collectives) == (0, 0, 0)
    assert time.total == time.gpu == time.compute + time.memory
    assert time.bound == "gpu"


def test_gradients_travel_behind_the_backward_pass() -> None:
    time = modelled(2)
    # A ring of two sends each gradient once: 400 MB and 16 buckets of 25 MiB.
    assert time.gradients == pytest.approx(4e8 / 1e11 + 16 * EXCHANGE)
    assert time.hidden == pytest.approx(time.gradients * 15 / 16)
    assert time.total == time.gpu < modelled(1).total
    assert modelled(2, "efficiency.bucket_mb=1000").hidden == 0  # one bucket leaves when all is computed
    halved = modelled(2, "efficiency.compression=bf16")
    assert halved.gradients == pytest.approx(2e8 / 1e11 + 16 * EXCHANGE)


def test_other_nodes_are_behind_the_networks_of_a_node() -> None:
    across = modelled(16)
    # Eight networks of 10 GB/s each carry what a node sends; a ring of 16 sends each gradient 15/8 times.
    assert across.gradients == pytest.approx(15 / 8 * 4e8 / 8e10 + 16 * EXCHANGE_ACROSS)


def test_plan_shows_every_term_and_says_that_it_is_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "conv4_tiny", "--device", "rtx5090"]) == 0
    text = capsys.readouterr().out
    assert "A model, not a measurement: ms of a step of 64 images" in text
    for term in ("compute", "memory", "launches", "gradients", "hidden", "collectives", "decoding", "step", "images/s"):
        assert any(line.startswith(term) for line in text.splitlines())
    assert all(assumption in text for assumption in ASSUMED)
    assert PEAKS["rtx5090"].source in text
    assert "makes a step longer" in text
    assert "makes a step shorter" in text
    assert main(["plan", "conv4_tiny", "--device", "l4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] is None  # no link and network are stated for it
    assert "l4" not in PEAKS
