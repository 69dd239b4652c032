"""`excb-eval --slurm` by submitit's local executor: the figures of a run without it, also where a job queues again."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from excb.distributed import slurm
from excb.transfer.cli import main
from tests.clone import ROOT
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import write_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]
PATIENCE = 240  # seconds for whatever a test waits for, on a busy machine


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and labelled images."""
    place = tmp_path_factory.mktemp("slurm")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(place / "data" / "train", each=4, seed=1)
    write_folder(place / "data" / "test", each=2, seed=2)
    return place


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The jobs that are submitted, from a folder of their own."""
    pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    submitted: list[Any] = []
    submit = slurm.submit_job

    def keep(*given: Any) -> Any:
        submitted.append(submit(*given))
        return submitted[-1]

    monkeypatch.setattr(slurm, "submit_job", keep)
    return submitted


def evaluate(protocol: str, place: Path, out: str, *options: str) -> int:
    usual = ["--ckpt", str(place / "run"), "--data", str(place / "data"), "--workers", "0", "--device", "cpu"]
    return main([protocol, *usual, "--no-cache", "--out", out, *options])


def measured(out: str) -> dict[str, Any]:
    """All of a result that does not tell when and where it was measured."""
    result: dict[str, Any] = json.loads(Path(out).read_text(encoding="utf-8"))
    timeless = ("protocol", "figures", "settings", "intervals", "per_class", "data")
    return {name: result[name] for name in timeless} | {"predictions": result["predictions"].get("sha256")}


def wait_until(holds: Callable[[], bool], job: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert not job.done(), job.stderr()
        assert time.monotonic() < deadline
        os.sched_yield()


def test_a_job_gives_the_result_of_the_command_itself(
    place: Path, jobs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate("knn", place, "here.json", "--k", "3") == 0
    capsys.readouterr()
    assert evaluate("knn", place, "job.json", "--k", "3", "--slurm", "cluster=local,tasks=2,time=30") == 0
    told = capsys.readouterr().out
    assert f"job {jobs[0].job_id}: 1 node x 2 processes" in told
    assert str(Path("runs", "slurm").absolute()) in told
    assert not Path("job.json").exists() or jobs[0].done()  # this command did not wait
    assert jobs[0].results() == [0, 0]
    assert measured("job.json") == measured("here.json")


def test_a_mistake_is_the_jobs_one_line(place: Path, jobs: list[Any]) -> None:
    assert evaluate("knn", place, "job.json", "--test", "nowhere", "--slurm", "cluster=local,time=30") == 0
    jobs[0].wait()
    assert "excb-eval: error: no folder nowhere" in jobs[0].stderr()
    assert jobs[0].exception() is not None


@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("linear", ["--protocol", "resnet", "--epochs", "40"]),
        ("finetune", ["--epochs", "6"]),
    ],
)
def test_a_job_at_its_limit_queues_again_and_goes_on(
    place: Path, jobs: list[Any], protocol: str, options: list[str]
) -> None:
    assert evaluate(protocol, place, "here.json", *options) == 0
    state = Path("state").absolute()
    job = ["--state", str(state), "--slurm", "cluster=local,time=30"]
    assert evaluate(protocol, place, "job.json", *options, *job) == 0
    wait_until(lambda: state.is_file() or any(state.glob("*.pt")), jobs[0])
    for task in Path(f"/proc/{jobs[0].job_id}/task/{jobs[0].job_id}/children").read_text().split():
        os.kill(int(task), signal.SIGUSR2)  # as Slurm does before the limit
    assert jobs[0].results() == [0]
    assert "Requeued job" in jobs[0].stdout()
    assert "resuming after epoch" in jobs[0].stderr()
    assert measured("job.json") == measured("here.json")
