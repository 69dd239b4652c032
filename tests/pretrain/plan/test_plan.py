"""`excb-pretrain plan`: what it counts, what it measures, what it says, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from excb.errors import UserError
from excb.pretrain.__main__ import main
from excb.pretrain.initialise import build_model
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan import plan as planning
from excb.pretrain.plan.devices import GPUS
from excb.pretrain.plan.plan import IMAGENET, fit_to_gpu
from excb.pretrain.recipes import RECIPES
from tests.pretrain.small_runs import OVERRIDES, write_images

NOTHING = "nothing was measured: no GPU to measure on (--measure measures on the CPU)"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, whatever the machine has, a moment's measuring, and no colours."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(planning, "STEP_SECONDS", 0.05)
    monkeypatch.setattr(planning, "LOADER_SECONDS", 0.05)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def command(*arguments: str) -> list[str]:
    return ["plan", "quickstart", *OVERRIDES[:-1], *arguments]


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(command(*arguments, "--json")) == 0
    counted: dict[str, Any] = json.loads(capsys.readouterr().out)
    return counted


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that is refused."""
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


def test_a_plan_needs_neither_images_nor_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    counted = report(capsys)
    recipe = apply(find_recipe("quickstart"), list(OVERRIDES))
    model = build_model(recipe)
    for name, network in (("student", model.student), ("teacher", model.teacher)):
        assert sum(counted["parameters"][name].values()) == sum(value.numel() for value in network.parameters())
    assert (counted["set"], counted["set_given"]) == (IMAGENET, False)
    assert counted["steps"] == recipe.optim.epochs * (IMAGENET // recipe.optim.batch)
    flops = counted["flops"]
    assert flops["image"] == flops["student"] + flops["teacher"] + flops["loss_head"]
    assert (flops["step"], flops["run"]) == (8 * flops["image"], counted["steps"] * 8 * flops["image"])
    memory = counted["memory"]
    assert memory["total"] == sum(value for name, value in memory.items() if name != "total")
    assert memory["weights"] == sum(value.nbytes for value in model.student.parameters())
    assert counted["communication"]["total"] == 0
    assert counted["measured"]["device"] is None
    assert counted["measured"]["missing"] in NOTHING


def test_more_processes_share_the_batch_and_send_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    alone, two = report(capsys), report(capsys, "--gpus", "2", "efficiency.accumulate=2")
    assert (alone["micro_batch"], two["micro_batch"]) == (8, 2)
    assert two["communication"]["gradients"] == 4 * sum(two["parameters"]["student"].values())  # a ring of two
    assert two["memory"]["activations"] < alone["memory"]["activations"] / 3
    assert two["flops"] == alone["flops"]


def test_on_the_cpu_there_is_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "--gpus", "0") == report(capsys)


def test_the_text_says_what_the_json_holds(capsys: pytest.CaptureFixture[str]) -> None:
    counted = report(capsys, "--gpus", "2")
    assert main(command("--gpus", "2")) == 0
    text = capsys.readouterr().out
    assert f"{counted['steps']:,} steps with {IMAGENET:,} images of ImageNet" in text
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines() if line}
    assert rows["backbone"][1:] == [f"{counted['parameters'][name]['backbone']:,}" for name in ("student", "teacher")]
    assert rows["loss head"][-4:-2] == [f"{counted['flops']['loss_head'] / 1e6:.4g}", "MFLOP"]
    assert rows["total, at most"][-2:] == [f"{counted['memory']['total'] / 2**20:,.1f}", "MiB"]
    assert rows["gradients"][-2:] == [f"{counted['communication']['gradients'] / 2**20:,.1f}", "MiB"]
    assert text.splitlines()[-1] == NOTHING


def test_measuring_on_the_cpu_with_images_tells_the_limit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", each=4)
    counted = report(capsys, "--measure", "--data", str(folder))
    assert (counted["set"], counted["set_given"], counted["steps"]) == (12, True, 3)
    measured = counted["measured"]
    step, loader = measured["step"], measured["loader"]
    assert measured["missing"] is None
    assert measured["device"].startswith("CPU")
    assert step["images"] == 8
    assert step["steps"] >= 1
    speeds = {"device": step["images_per_second"], "loader": loader["images_per_second"]}
    assert measured["limit"] == min(speeds, key=lambda name: speeds[name])
    assert measured["hours"] == pytest.approx(3 * 8 / min(speeds.values()) / 3600)


def test_measuring_without_images_leaves_the_limit_open(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("--measure")) == 0
    text = capsys.readouterr().out
    assert "Measured here in one process (CPU" in text
    assert "the limit is" in text
    assert "not known without --data DIR" in text
    assert "nothing was measured" not in text


def test_measuring_leaves_torchs_random_numbers_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_rng_state()
    report(capsys, "--measure")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("plan",), "plan which recipe?"),
        (("plan", "quickstar"), "did you mean 'quickstart'"),
        (("plan", "quickstart", "optim.epoch=3"), "did you mean 'optim.epochs'"),
        (("plan", "quickstart", "optim.batch=10", "--gpus", "4"), "10 images cannot be shared by 4 processes"),
        (("plan", "quickstart", "--gpus", "-1"), "--gpus takes 0"),
        (("plan", "quickstart", "--data", "nowhere"), "nowhere"),
        (("plan", "quickstart", "model.backbone=resnet51"), "resnet51"),
        (("show", "quickstart", "--measure"), "unrecognized arguments: --measure"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(
    arguments: tuple[str, ...], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cause in refused(capsys, *arguments)


def test_a_batch_larger_than_the_set_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", each=2)
    assert "larger than the set of 6 images" in refused(capsys, *command("--data", str(folder)))


def test_a_run_fits_into_a_gpu_that_leaves_the_allocator_some_room() -> None:
    recipe = RECIPES["rn50_100ep"]().change(efficiency={"precision": "bf16"})
    needed = [{"memory": {"total": gib * 2**30}, "teachers": None} for gib in (21, 22)]
    assert [fit_to_gpu(recipe, counted, GPUS["rtx4090"])["fits"] for counted in needed] == [True, False]  # it has 24
    with pytest.raises(UserError, match=r"a v100 does not compute in bf16: set efficiency\.precision=fp16"):
        fit_to_gpu(recipe, needed[0], GPUS["v100"])


def test_a_plan_for_another_gpu_says_whether_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "--device", "H100")["estimate"]["device"] == "h100"
    assert main(["plan", "conv4_tiny", "--device", "h100", "--gpus", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("conv4_tiny on 2 processes, bf16 (auto): ")
    assert lines[-1].startswith("h100: ")
    assert lines[-1].endswith("GiB at most, it fits")
    assert report(capsys, "efficiency.precision=auto", "--device", "v100")["precision"] == "fp32"  # auto has no bf16


@pytest.mark.parametrize(("capabilities", "wanted"), [({"avx512_bf16": True}, "bf16"), ({}, "fp32")])
def test_a_plan_on_a_cpu_has_the_precision_of_its_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], wanted: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", capabilities.copy)
    assert main(["plan", "photos_small", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["precision"] == wanted


def test_a_dry_run_says_how_long_the_run_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "BRIEF_SECONDS", 0.0)
    data = write_images(tmp_path / "images", each=4)
    words = ["train", "conv4_tiny", "--data", str(data), "--out", str(tmp_path / "run"), "--gpus", "0", "optim.batch=4"]
    assert main([*words, "--dry-run", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert measured["hours"] > 0
    assert measured["loader"] is None
    assert main([*words, "--dry-run"]) == 0
    assert "reading was not timed" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
