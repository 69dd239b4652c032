"""NaN in one micro-batch: nothing moves, the run stops with the state before the step, and can go on."""

from pathlib import Path

import pytest
import torch

from excb.checkpoint import run_checkpoint
from tests.faults.runs import check_whole, run

PARTS = ("efficiency.accumulate=2", "run.save_steps=1", "run.keep=20")


@pytest.mark.parametrize("position", [pytest.param(16, marks=pytest.mark.slow), 20])
def test_nothing_moves_and_the_run_resumes(images: Path, tmp_path: Path, position: int) -> None:
    """Step 5 sees the images from place 16 of its epoch on; the first or the second half of them gives NaN."""
    out = tmp_path / "run"
    ended = run(images, out, *PARTS, deed=f"not_finite=5,{position},0")
    assert ended.code == 2, ended.said
    assert "stopped at step 5" in ended.error
    assert "the loss is nan" in ended.error
    assert f"the state before it is in {out / 'diverged' / 'step-5.pt'}" in ended.error
    assert check_whole(out) == 5
    before, kept = (
        run_checkpoint.read_run_checkpoint(out / name / "step-5.pt") for name in ("checkpoints", "diverged")
    )
    assert before["model"].keys() == kept["model"].keys()
    for name, value in before["model"].items():
        assert torch.equal(value, kept["model"][name]), name
    for one, other in zip(before["optimizer"]["state"].values(), kept["optimizer"]["state"].values(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one if isinstance(one[name], torch.Tensor))
    assert run(images, out, *PARTS).code == 0
    whole = tmp_path / "whole"
    assert run(images, whole, *PARTS).code == 0
    first, second = (
        run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(folder)[0])["model"] for folder in (whole, out)
    )
    assert all(torch.equal(value, second[name]) for name, value in first.items())
