"""Many processes: the same run as one process, whatever their number."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from excb.checkpoint import run_checkpoint
from excb.files.run_files import read_metrics
from excb.pretrain.__main__ import main
from tests import forked
from tests.forked import launch
from tests.made_once import MadeOnce
from tests.pretrain.small_runs import OVERRIDES, write_images

STEPS = 21
EXACT = (
    "efficiency.precision=fp64",
    "optim.batch=12",
    "optim.epochs=7",
    "run.log_steps=1",
    "run.save_epochs=7",
    "monitor.every_epochs=7",
)
RESNET18 = ("model.backbone=resnet18", "model.options={}", "method.centroid_init=kmeans")
VIT = (
    "model.backbone=timm:vit_tiny_patch16_224",
    'model.options={"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 32}',
    "model.drop_path=0.3",
    "optim.optimizer=adamw",
    "optim.base_lr=0.002",
    "optim.clip=3",
    "optim.frozen_centroid_epochs=1",
)
AVERAGED = ("method.teacher_statistics=averaged", "method.head=batchnorm")


@pytest.fixture(scope="module")
def images(made_once: MadeOnce) -> Path:
    """37 labelled pictures: three batches of 12 an epoch, and one left over."""

    def write(folder: Path) -> None:
        write_images(folder, classes=3, each=12)
        (folder / "class2" / "0.png").rename(folder / "class2" / "12.png")

    return made_once("images-of-three-batches", write)


@pytest.fixture(autouse=True)
def one_thread_each(one_thread: None, short_end: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes beside each other are quickest with a thread each, and most runs need no end of their own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def command(images: Path, out: Path, *overrides: str) -> list[str]:
    """The command line of a small run."""
    return ["quickstart", "--data", str(images), "--out", str(out), "--quiet", *OVERRIDES, *EXACT, *overrides]


def close(first: Any, second: Any, tolerance: float = 1e-9, where: str = "") -> None:
    """Two checkpoints hold the same, but for times."""
    if isinstance(first, Tensor) and first.is_floating_point():
        torch.testing.assert_close(first, second, rtol=tolerance, atol=tolerance, msg=lambda text: f"{where}: {text}")
    elif isinstance(first, Tensor):
        assert sorted(first.flatten().tolist()) == sorted(second.flatten().tolist()), where
    elif isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for name in first.keys() - {"seconds", "peak_memory", "best", "last", "recipe", "arithmetic"}:
            close(first[name], second[name], tolerance, f"{where}.{name}")
    elif isinstance(first, list):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            close(one, other, tolerance, f"{where}[{number}]")
    elif isinstance(first, float):
        assert first == pytest.approx(second, rel=tolerance), where
    else:
        assert first == second, where


def assert_same_run(one: Path, other: Path, *, steps: int = STEPS) -> None:
    """Losses, epoch figures, weights, s and the optimizer's state agree to 1e-9."""
    lines = [
        [{name: value for name, value in line.items() if name != "images_per_second"} for line in read_metrics(run)]
        for run in (one, other)
    ]
    assert sum(line["kind"] == "step" for line in lines[0]) == steps
    close(lines[0], lines[1])
    close(
        run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(one)[0]),
        run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(other)[0]),
    )


@pytest.mark.parametrize(
    ("network", "processes"),
    [
        pytest.param(VIT, 2, id="vit-2"),
        pytest.param(AVERAGED, 3, id="averaged statistics-3"),
        pytest.param(VIT, 3, id="vit-3", marks=pytest.mark.slow),
        pytest.param(RESNET18, 2, id="resnet18-2", marks=pytest.mark.slow),
        pytest.param(RESNET18, 3, id="resnet18-3", marks=pytest.mark.slow),
    ],
)
def test_many_processes_are_one_run(images: Path, tmp_path: Path, network: tuple[str, ...], processes: int) -> None:
    few = (*network, "optim.epochs=3", "run.save_epochs=3", "monitor.every_epochs=3")
    assert main(command(images, tmp_path / "one", *few)) == 0
    assert launch("excb.pretrain", command(images, tmp_path / "many", *few), processes) == 0
    assert_same_run(tmp_path / "one", tmp_path / "many", steps=9)
    assert json.loads((tmp_path / "many" / "report.json").read_text())["processes"] == processes


@pytest.mark.parametrize("balancing", ["centering", "sinkhorn", pytest.param("mira", marks=pytest.mark.slow)])
def test_balancers_see_all_processes(images: Path, tmp_path: Path, balancing: str) -> None:
    few = (f"method.balancing={balancing}", "optim.epochs=1", "method.teacher_temperature=0.1")
    assert main(command(images, tmp_path / "one", *few)) == 0
    assert launch("excb.pretrain", command(images, tmp_path / "many", *few), 2) == 0
    assert_same_run(tmp_path / "one", tmp_path / "many", steps=3)


@pytest.mark.parametrize("clustering", ["true", "false"])
def test_negatives_come_from_all_processes(images: Path, tmp_path: Path, clustering: str) -> None:
    few = (
        f"method.clustering={clustering}",
        f"method.predictor={clustering}",
        "method.contrast=2",
        "method.projector_output_norm=true",
        "method.teacher_statistics=averaged",
        "optim.epochs=1",
    )
    assert main(command(images, tmp_path / "one", *few)) == 0
    assert launch("excb.pretrain", command(images, tmp_path / "many", *few), 2) == 0
    assert_same_run(tmp_path / "one", tmp_path / "many", steps=3)


NETWORK = ("method.centroid_init=kmeans",)
FILES = ("efficiency.workers=1", "run.save_steps=2", "run.keep=2")


@pytest.fixture(scope="module")
def undisturbed(images: Path, made_once: MadeOnce) -> Path:
    """One process's run from beginning to end; the samples that it saw are in `samples.0`, in the folder above."""

    def train(folder: Path) -> None:
        deed = ["tests.faults.deeds", f"record={folder / 'samples'}"]
        forked.run([sys.executable, "-m", *deed, *command(images, folder / "run", *NETWORK, *FILES)], check=True)

    return made_once("run-of-three-batches", train) / "run"


def test_torchrun_starts_the_same_run(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    arguments = ["--standalone", "--nproc-per-node", "2", "-m", "excb.pretrain"]
    overrides = command(images, tmp_path / "run", *NETWORK, *FILES)
    # torchrun starts new interpreters.
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments, *overrides], check=True, capture_output=True
    )
    assert_same_run(undisturbed, tmp_path / "run")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["optim.batch=13"], "cannot be shared by 2 processes"),
        (["optim.batch=1000"], "larger than the set"),
        (["model.backbone=timm:resnet19t"], "did you mean"),
        (["init=nowhere"], "nowhere"),
        (["efficiency.device=meta"], "device 'meta'"),
        (["efficiency.objective=triton", "efficiency.precision=auto"], "needs a CUDA device"),
    ],
)
def test_a_mistake_is_reported_once(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], overrides: list[str], words: str
) -> None:
    assert launch("excb.pretrain", command(images, tmp_path / "run", *overrides), 2) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if "error" in line]
    assert len(said) == 1, said
    assert words in said[0]


def test_more_gpus_than_there_are(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command(images, tmp_path / "run"), "--gpus", "99"]) == 2
    assert "--gpus 99, but this machine has" in capsys.readouterr().err
