"""Runs on many machines by others' engines: torchrun's agents die and come back, Slurm's jobs queue again."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from excb.checkpoint import run_checkpoint
from excb.distributed import slurm
from excb.files.run_files import read_metrics
from excb.pretrain.__main__ import main
from tests.faults.runs import ranks
from tests.pretrain.test_parallel import FILES, NETWORK, assert_same_run, command, images, one_thread_each

__all__ = ["images", "one_thread_each"]  # fixtures
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]
PATIENCE = 240  # seconds for whatever a test waits for, on a busy machine


def wait_until(holds: Callable[[], bool], *processes: subprocess.Popen[bytes]) -> None:
    """Wait until something holds; fail where a process ends before."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert all(process.poll() is None for process in processes)
        assert time.monotonic() < deadline
        os.sched_yield()


def at_step(run: Path, step: int) -> Callable[[], bool]:
    return lambda: any(line["step"] >= step for line in read_metrics(run))


@pytest.fixture
def undisturbed(images: Path, tmp_path: Path) -> Path:
    assert main(command(images, tmp_path / "undisturbed", *NETWORK, *FILES)) == 0
    return tmp_path / "undisturbed"


# ---------------------------------------------------------------------------------------------------------------------
# torchrun
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def agent(images: Path, tmp_path: Path) -> Iterator[Callable[[bool], subprocess.Popen[bytes]]]:
    """Starts an agent of torchrun with one process; all of them are ended after the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started: list[subprocess.Popen[bytes]] = []
    # Without it torch's surviving agent does not say its address again, and the one that comes back waits in vain.
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def start(hosts_store: bool) -> subprocess.Popen[bytes]:
        options = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-id", "test"]
        options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        options += ["--rdzv-conf", f"is_host={int(hosts_store)}", "-m", "excb.pretrain"]
        overrides = command(images, tmp_path / "run", *NETWORK, *FILES)
        with (tmp_path / f"agent{len(started)}.log").open("wb") as log:
            # torchrun starts new interpreters.
            torchrun = [sys.executable, "-m", "torch.distributed.run", *options, *overrides]
            process = subprocess.Popen(torchrun, env=environment, stdout=log, stderr=log)
        started.append(process)
        return process

    yield start
    for process in started:
        kill_machine(process)


def kill_machine(agent: subprocess.Popen[bytes]) -> None:
    """End an agent and its process at once, as a power cut would."""
    for process in (agent.pid, *ranks(agent.pid)):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    agent.wait()


def test_an_agent_that_dies_and_comes_back_leaves_no_trace(
    undisturbed: Path, tmp_path: Path, agent: Callable[[bool], subprocess.Popen[bytes]]
) -> None:
    run = tmp_path / "run"
    host, other = agent(True), agent(False)
    wait_until(at_step(run, 5), host, other)
    kill_machine(other)
    killed = max(map(run_checkpoint.step_of, run_checkpoint.in_run(run)))
    assert killed < 21
    other = agent(False)
    assert host.wait(PATIENCE) == other.wait(PATIENCE) == 0, (tmp_path / "agent0.log").read_text()
    assert_same_run(undisturbed, run)
    assert json.loads((run / "report.json").read_text())["processes"] == 2


# ---------------------------------------------------------------------------------------------------------------------
# Slurm
# ---------------------------------------------------------------------------------------------------------------------


def test_a_slurm_job_at_its_limit_queues_again_and_leaves_no_trace(
    images: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    run, submit = tmp_path / "run", slurm.submit_job
    jobs: list[Any] = []

    def keep(*given: Any) -> Any:
        jobs.append(submit(*given))
        return jobs[0]

    monkeypatch.setattr(slurm, "submit_job", keep)
    options = ["--slurm", "cluster=local,tasks=2,time=30"]
    assert main([*command(images, run, *NETWORK, *FILES), *options]) == 0
    wait_until(at_step(run, 5))
    for task in children(int(jobs[0].job_id)):
        os.kill(task, signal.SIGUSR2)  # as Slurm does before the limit
    assert jobs[0].results() == [0, 0]
    assert "Requeued job" in jobs[0].stdout()
    assert_same_run(undisturbed, run)
    assert json.loads((run / "report.json").read_text())["processes"] == 2


def children(controller: int) -> list[int]:
    """The tasks of a local job, which submitit's controller has started."""
    text = Path(f"/proc/{controller}/task/{controller}/children").read_text()
    return [int(child) for child in text.split()]
