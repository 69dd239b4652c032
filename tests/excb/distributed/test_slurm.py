"""Slurm jobs: what is asked for, what sbatch is given, and tasks that run, stop, queue again and fail, by submitit."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from excb.console import Reporter
from excb.distributed.slurm import submit_command, submit_job
from excb.distributed.slurm_request import parse_request
from excb.errors import UserError

# Notes who it is, then waits to be stopped in its first life, and ends at once in its second one.
PROGRAM = """
import os, signal, sys, time
folder, deed = sys.argv[1:3]
name = os.path.join(folder, f"{os.environ['RANK']}of{os.environ['WORLD_SIZE']}")
second = os.path.exists(name)
def stop(*_):
    open(name + ".asked", "a").write("x")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
open(name + ".task", "w").write(str(os.getppid()))
open(name + ".cores", "w").write(os.environ.get("EXCB_CORES", ""))
open(name, "a").write("x")
if deed.startswith("fail"):
    sys.exit(int(deed[4:]))
while deed == "wait" and not second:
    time.sleep(0.02)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "pretend.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return "pretend"


# ---------------------------------------------------------------------------------------------------------------------
# Whether a job is submitted
# ---------------------------------------------------------------------------------------------------------------------


def test_nothing_is_submitted_without_slurm_or_in_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert submit_command("pretend", [], None, tmp_path, Reporter(), gpus=None) is None
    monkeypatch.setenv("RANK", "0")
    assert submit_command("pretend", ["--slurm", "time=60"], "time=60", tmp_path, Reporter(), gpus=None) is None


def test_gpus_of_this_machine_are_no_jobs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="write gpus= in --slurm"):
        submit_command("pretend", [], "time=60", tmp_path, Reporter(), gpus=2)


def test_submitit_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"pip install 'excb\[slurm\]'"):
        submit_job("pretend", [], parse_request("time=60"), tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# What Slurm is given
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for Slurm's own: keeps the script that it was given."""
    pytest.importorskip("submitit")
    (tmp_path / "bin").mkdir()
    kept = tmp_path / "script"
    for name, text in (("srun", ""), ("sbatch", f'cp "$1" {kept}; echo Submitted batch job 4242')):
        file = tmp_path / "bin" / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return kept


def test_what_sbatch_is_given_and_what_the_user_is_told(
    sbatch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = "partition=gpu,nodes=2,gpus=8,cpus=10,mem=400,time=24:00:00,account=vision,qos=long"
    assert submit_command("pretend", ["a b"], request, tmp_path / "jobs", Reporter(), gpus=None) == 0
    asked = {line.removeprefix("#SBATCH --") for line in sbatch.read_text().splitlines() if line.startswith("#SBATCH")}
    assert asked >= {
        "partition=gpu",
        "nodes=2",
        "gpus-per-node=8",
        "ntasks-per-node=8",
        "cpus-per-task=10",
        "mem=400GB",
        "time=1440",
        "account=vision",
        "qos=long",
        "signal=USR2@180",
    }
    (command,) = (line.split() for line in sbatch.read_text().splitlines() if line.startswith("srun "))
    assert {"--kill-on-bad-exit=1", "--cpus-per-task=10"} <= set(command)  # srun takes over neither from the job
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2
    assert told[0].startswith("job 4242: 2 nodes x 8 processes")
    assert f"tail -F {tmp_path / 'jobs' / '4242_0_log.err'}" in told[1]
    assert told[1].endswith("scancel 4242")


def test_a_dry_run_prints_the_script_that_sbatch_would_be_given(
    sbatch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = "partition=gpu,nodes=2,gpus=8,cpus=10,mem=400,time=24:00:00,account=vision,constraint=a100"
    arguments = ["knn", "--dry-run", "--data", "a b"]
    assert submit_command("pretend", ["a b"], request, tmp_path / "jobs", Reporter(), gpus=None) == 0
    given = [line for line in sbatch.read_text().splitlines() if line.startswith("#SBATCH")]
    capsys.readouterr()
    monkeypatch.setenv("PATH", str(tmp_path))  # a machine without Slurm
    sbatch.unlink()
    assert submit_command("pretend", arguments, request, tmp_path / "j", Reporter(), gpus=None, dry_run=True) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.replace(str(tmp_path / "j"), str(tmp_path / "jobs")) for line in lines if line.startswith("#SBATCH")]
    assert shown == given
    assert any(line.startswith("srun ") for line in lines)
    assert lines[-1].endswith("-m pretend knn --data 'a b'")  # what is submitted does the work
    assert not (tmp_path / "j").exists()
    assert not sbatch.exists()
    local = "time=60,cluster=local,tasks=2"
    assert submit_command("pretend", arguments, local, tmp_path / "j", Reporter(), gpus=None, dry_run=True) == 0
    assert capsys.readouterr().out.startswith("# cluster=local has no script; 2 x ")


def test_a_job_that_slurm_refuses(sbatch: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho invalid partition specified: gpuu >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"Slurm refuses the job: .*invalid partition"):
        submit_job("pretend", [], parse_request("partition=gpuu,time=60"), tmp_path / "jobs")


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no Slurm here"):
        submit_job("pretend", [], parse_request("time=60"), tmp_path / "jobs")


# ---------------------------------------------------------------------------------------------------------------------
# What the tasks do
# ---------------------------------------------------------------------------------------------------------------------


def local(program: str, folder: Path, deed: str, tasks: int) -> Any:
    pytest.importorskip("submitit")
    return submit_job(
        program, [str(folder), deed], parse_request(f"time=30,cluster=local,tasks={tasks}"), folder / "jobs"
    )


def wait_for(job: Any, *files: Path) -> None:
    """Wait for files, or fail when the job has ended before."""
    deadline = time.monotonic() + 120
    while not all(file.exists() for file in files):
        assert not job.done(), job.stderr()
        assert time.monotonic() < deadline
        os.sched_yield()


def test_every_task_runs_one_process(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "5")  # as srun does in every task
    job = local(program, tmp_path, "end", 2)
    assert job.results() == [0, 0]
    assert {file.name for file in tmp_path.glob("?of?")} == {"0of2", "1of2"}
    assert [file.read_text() for file in tmp_path.glob("*.cores")] == ["5", "5"]


@pytest.mark.slow
def test_a_job_at_its_limit_saves_queues_again_and_goes_on(program: str, tmp_path: Path) -> None:
    job = local(program, tmp_path, "wait", 2)
    both = [tmp_path / "0of2", tmp_path / "1of2"]
    wait_for(job, *both)
    for task in (1, 0):  # as Slurm does before the limit
        os.kill(int((tmp_path / f"{task}of2.task").read_text()), signal.SIGUSR2)
    assert job.results() == [0, 0]
    assert [file.read_text() for file in both] == ["xx", "xx"]  # two lives
    assert [file.with_name(f"{file.name}.asked").read_text() for file in both] == ["x", "x"]  # asked once each


@pytest.mark.slow
def test_a_job_that_is_cancelled_saves_and_ends(program: str, tmp_path: Path) -> None:
    job = local(program, tmp_path, "wait", 1)
    wait_for(job, tmp_path / "0of1")
    os.kill(int(job.job_id), signal.SIGTERM)
    assert job.results() == [143]
    assert (tmp_path / "0of1").read_text() == "x"  # one life


@pytest.mark.slow
def test_a_failure_is_the_jobs(program: str, tmp_path: Path) -> None:
    job = local(program, tmp_path, "fail2", 1)
    job.wait()
    assert job.exception() is not None
    assert (tmp_path / "0of1").read_text() == "x"
