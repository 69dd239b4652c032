"""Tests of estimates for a GPU that is not here: hours by FLOPs and rate, memory by the plan's count."""

import json
from typing import Any

import pytest

from excb.errors import UserError
from excb.pretrain.__main__ import main
from excb.pretrain.plan.devices import GPUS
from excb.pretrain.plan.plan import estimate
from excb.pretrain.recipes import RECIPES

COUNTED: dict[str, Any] = {
    "processes": 2,
    "flops": {"run": 7.2e19},
    "memory": {"total": 20 * 2**30},
    "teachers": None,
}


def test_hours_and_memory() -> None:
    recipe = RECIPES["rn50_100ep"]().change(efficiency={"precision": "bf16"})
    gpu = GPUS["a100"]
    found = estimate(recipe, COUNTED, gpu)
    assert found["hours"] == pytest.approx(7.2e19 / (2 * gpu.rate("bf16") * 1e12) / 3600)
    assert (found["fits"], found["measured"], found["device"]) == (True, False, "a100")
    small = estimate(recipe, COUNTED | {"memory": {"total": 22 * 2**30}}, GPUS["rtx4090"])
    assert not small["fits"]  # 22 of 24 GiB: the allocator needs some
    with pytest.raises(UserError, match=r"a v100 does not compute in bf16: set efficiency\.precision=fp16"):
        estimate(recipe, COUNTED, GPUS["v100"])


def test_plan_says_that_it_is_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "conv4_tiny", "--device", "H100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["estimate"]["device"] == "h100"
    assert main(["plan", "conv4_tiny", "--device", "h100", "--gpus", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Estimated for 2 x h100, not measured: ") for line in lines)
    assert lines[-1].endswith("GiB at most, it fits")
    assert lines[0].startswith("conv4_tiny on 2 processes, bf16 (auto): ")
    assert main(["plan", "conv4_tiny", "--device", "v100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["precision"] == "fp32"  # where auto has no bf16
    assert main(["plan", "conv4_tiny", "--device", "h1000"]) == 2
    assert "did you mean 'h100'?" in capsys.readouterr().err
