"""How gradients are averaged over processes: rounding has a bound, static graphs and buckets change nothing."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

from excb.errors import UserError
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.training import start
from tests.forked import launch
from tests.pretrain.averaged_steps import WAYS
from tests.pretrain.small_runs import OVERRIDES, write_images

BF16, FP16 = 2.0**-8, 2.0**-11  # relative errors of rounding


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Tensor]]:
    """Of two gloo processes, by way and step."""
    out = tmp_path_factory.mktemp("averaging") / "gradients.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        patch.setenv("OMP_NUM_THREADS", "1")
        assert launch("tests.pretrain.averaged_steps", [str(out)], 2) == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    return {name: [torch.tensor(step) for step in found[name]] for name in WAYS}


def error(gradients: dict[str, list[Tensor]], way: str, step: int = 0) -> float:
    """Norm of the difference, as a share of the plain gradient's."""
    one, other = gradients[way][step].double(), gradients["none"][step].double()
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize(("way", "rounding"), [("bf16", BF16), ("fp16", FP16)])
def test_compressed_gradients_are_rounded_and_no_more(
    gradients: dict[str, list[Tensor]], way: str, rounding: float
) -> None:
    # Each share is rounded, and so is their sum, each by half a digit of its own size.
    assert 0 < error(gradients, way) < 3 * rounding


@pytest.mark.parametrize("way", ["powersgd in small buckets", "static, recomputed"])
def test_other_ways_do_not_change_the_gradient(gradients: dict[str, list[Tensor]], way: str) -> None:
    """PowerSGD sends whole gradients in its first steps."""
    for step in range(2):
        assert error(gradients, way, step=step) < 1e-4


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["efficiency.compression=powersgd", "efficiency.precision=fp16"], "would keep the overflows"),
        (["efficiency.static_graph=true", "efficiency.compile=true"], "exclude each other"),
        (["efficiency.static_graph=true", "efficiency.accumulate=2"], r"set efficiency\.accumulate=1"),
        (["efficiency.bucket_mb=0"], "efficiency.bucket_mb must be above 0"),
        (["efficiency.compression=int8"], "efficiency.compression"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        apply(find_recipe("quickstart"), overrides)


@pytest.mark.parametrize(
    ("compression", "processes", "step", "refused"),
    [("powersgd", 2, 5, True), ("powersgd", 2, 9, False), ("powersgd", 1, 5, False), ("bf16", 2, 5, False)],
    ids=["unfinished", "finished", "one process", "another way"],
)
def test_powersgd_does_not_resume(compression: str, processes: int, step: int, refused: bool) -> None:
    """Its error feedback is in no checkpoint."""
    recipe = apply(find_recipe("quickstart"), [f"efficiency.compression={compression}"])
    with pytest.raises(UserError, match="its error feedback is in no checkpoint") if refused else nullcontext():
        start.refuse_lost_feedback(recipe, {"step": step}, steps=9, processes=processes)


@pytest.mark.slow  # three runs of two processes
def test_resuming_with_and_without_powersgd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whole runs: only the other ways resume."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    images = write_images(tmp_path / "images", classes=3, each=4)
    command = ["quickstart", "--data", str(images), "--out", str(tmp_path / "run"), "--quiet", *OVERRIDES]
    assert launch("excb.pretrain", [*command, "efficiency.compression=powersgd"], 2) == 0
    newest = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    newest.unlink()
    capfd.readouterr()
    assert launch("excb.pretrain", [*command, "efficiency.compression=powersgd"], 2) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1, said
    assert "continue with efficiency.compression=none or bf16" in said
    assert launch("excb.pretrain", [*command, "efficiency.compression=bf16", "efficiency.static_graph=true"], 2) == 0
