"""Many processes: the same run as one process, whatever their number, also after a stop at another number."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from excb import checkpoint
from excb.launch import GRACE, launch
from excb.pretrain.__main__ import main
from excb.pretrain.journal import read_metrics
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
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """37 labelled pictures: three batches of 12 an epoch, and one left over."""
    folder = write_images(tmp_path_factory.mktemp("images"), classes=3, each=12)
    (folder / "class2" / "0.png").rename(folder / "class2" / "12.png")
    return folder


@pytest.fixture(autouse=True)
def one_thread_each(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes beside each other are quickest with a thread each."""
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
        for name in first.keys() - {"seconds", "best", "last", "recipe"}:
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
    close(checkpoint.read(checkpoint.in_run(one)[0]), checkpoint.read(checkpoint.in_run(other)[0]))


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
    assert main(command(images, tmp_path / "one", *network)) == 0
    assert launch("excb.pretrain", command(images, tmp_path / "many", *network), processes) == 0
    assert_same_run(tmp_path / "one", tmp_path / "many")
    assert json.loads((tmp_path / "many" / "report.json").read_text())["processes"] == processes


@pytest.mark.parametrize("balancing", ["centering", "sinkhorn", pytest.param("mira", marks=pytest.mark.slow)])
def test_balancers_see_all_processes(images: Path, tmp_path: Path, balancing: str) -> None:
    few = (f"method.balancing={balancing}", "optim.epochs=1", "method.teacher_temperature=0.1")
    assert main(command(images, tmp_path / "one", *few)) == 0
    assert launch("excb.pretrain", command(images, tmp_path / "many", *few), 2) == 0
    assert_same_run(tmp_path / "one", tmp_path / "many", steps=3)


# ---------------------------------------------------------------------------------------------------------------------
# Stops
# ---------------------------------------------------------------------------------------------------------------------

LAUNCH = "import sys; from excb.errors import run; from excb.launch import launch; "
LAUNCH += "sys.exit(run('excb-pretrain', lambda: launch('excb.pretrain', sys.argv[2:], int(sys.argv[1]))))"
NETWORK = ("method.centroid_init=kmeans",)
FILES = ("efficiency.workers=1", "run.save_steps=2", "run.keep=2")


@pytest.fixture(scope="module")
def undisturbed(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process's run from beginning to end."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert main(command(images, out, *NETWORK, *FILES)) == 0
    return out


def start(images: Path, out: Path, processes: int, *overrides: str) -> subprocess.Popen[str]:
    """Start a run of several processes, in the background."""
    arguments = [sys.executable, "-c", LAUNCH, str(processes), *command(images, out, *NETWORK, *FILES, *overrides)]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)


def wait_for_step(out: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Wait until the run has written a step's line."""
    deadline = time.monotonic() + 120
    while not any(line["step"] >= step for line in read_metrics(out)):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        os.sched_yield()


def ranks(launcher: int) -> list[int]:
    """The processes that a launcher started, by their number in the run."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == launcher:
                variables = dict(
                    item.split("=", 1) for item in (folder / "environ").read_text().split("\0") if "=" in item
                )
                found[int(variables["RANK"])] = int(folder.name)
        except (OSError, KeyError):
            continue
    return [found[number] for number in sorted(found)]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_run_stopped_at_two_processes_goes_on_at_one(
    images: Path, undisturbed: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = start(images, tmp_path / "run", 2)
    wait_for_step(tmp_path / "run", 4, process)
    process.send_signal(number)
    said = process.communicate()[1]
    assert process.returncode == 128 + number, said
    stopped = checkpoint.read(checkpoint.in_run(tmp_path / "run")[0])["step"]
    assert 4 <= stopped < STEPS
    assert main(command(images, tmp_path / "run", *NETWORK, *FILES)) == 0
    assert_same_run(undisturbed, tmp_path / "run")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_signal_to_all_processes_at_once_is_one_request(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    process = start(images, tmp_path / "run", 2)
    wait_for_step(tmp_path / "run", 3, process)
    for each in (*ranks(process.pid), process.pid):
        os.kill(each, signal.SIGTERM)
    said = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGTERM, said
    assert checkpoint.in_run(tmp_path / "run")
    assert main(command(images, tmp_path / "run", *NETWORK, *FILES)) == 0
    assert_same_run(undisturbed, tmp_path / "run")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_one_process_killed_stops_the_others_and_is_named(
    images: Path, undisturbed: Path, tmp_path: Path, victim: int
) -> None:
    process = start(images, tmp_path / "run", 2)
    wait_for_step(tmp_path / "run", 4, process)
    both = ranks(process.pid)
    os.kill(both[victim], signal.SIGKILL)
    killed = time.monotonic()
    said = process.communicate()[1]
    assert time.monotonic() - killed < GRACE + 5
    assert process.returncode == 2
    assert f"process {victim} of 2 was killed by SIGKILL, and the others were stopped" in said
    assert "Traceback" not in said
    assert not any(Path(f"/proc/{pid}").exists() for pid in both)
    assert launch("excb.pretrain", command(images, tmp_path / "run", *NETWORK, *FILES), 2) == 0
    assert_same_run(undisturbed, tmp_path / "run")


def test_torchrun_starts_the_same_run(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    arguments = ["--standalone", "--nproc-per-node", "2", "-m", "excb.pretrain"]
    overrides = command(images, tmp_path / "run", *NETWORK, *FILES)
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
        (["efficiency.compile=true", "efficiency.checkpointing=true"], "exclude each other"),
    ],
)
def test_a_mistake_is_told_once(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], overrides: list[str], words: str
) -> None:
    assert launch("excb.pretrain", command(images, tmp_path / "run", *overrides), 2) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if "error" in line]
    assert len(said) == 1, said
    assert words in said[0]


def test_more_gpus_than_there_are(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command(images, tmp_path / "run"), "--gpus", "99"]) == 2
    assert "99 GPUs are asked for" in capsys.readouterr().err


LONG = ("optim.epochs=60", "run.save_epochs=1", "monitor.every_epochs=20")


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until something holds or the process has ended."""
    while not holds() and process.poll() is None:
        os.sched_yield()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_twenty_kills_leave_no_trace(images: Path, tmp_path: Path) -> None:
    """kill -9 at random moments, by turns: everything, one process of two, process 0 while it writes a checkpoint."""
    assert main(command(images, tmp_path / "undisturbed", *NETWORK, *FILES, *LONG)) == 0
    chance, out, kills, saved = random.Random(11), tmp_path / "run0", 0, 0
    while kills < 20:
        process = start(images, out, 2, *LONG)
        kind = kills % 3
        if kind == 2:
            wait_until(lambda at=out: any((at / "checkpoints").glob(".*.tmp")), process)  # type: ignore[misc]
        else:
            # From the start of the processes on: also while they import, join, resume, measure or save.
            moment = time.monotonic() + chance.uniform(1, 14)
            wait_until(lambda at=moment: time.monotonic() > at, process)  # type: ignore[misc]
        victims = ranks(process.pid)
        if process.poll() is not None or not victims:
            process.communicate()
            assert process.returncode == 0
            assert_same_run(tmp_path / "undisturbed", out, steps=180)
            out, saved = tmp_path / f"run{kills}", 0  # finished before the next kill: another run
            continue
        doomed = {0: [process.pid, *victims], 1: [chance.choice(victims)], 2: victims[:1]}[kind]
        for victim in doomed:
            os.kill(victim, signal.SIGKILL)
        process.communicate()
        kills += 1
        newest = max(map(checkpoint.step_of, checkpoint.in_run(out)), default=0)
        assert newest >= saved  # what was saved stays
        saved = newest
    assert launch("excb.pretrain", command(images, out, *NETWORK, *FILES, *LONG), 2) == 0
    assert_same_run(tmp_path / "undisturbed", out, steps=180)
