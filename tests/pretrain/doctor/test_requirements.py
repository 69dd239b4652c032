"""The needs of a recipe, compared with what a run writes and hands over."""

import io
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from excb.pretrain.doctor import requirements
from excb.pretrain.doctor.requirements import batch_bytes, check_step, checkpoint_bytes, time_limit
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan import frozen_teachers
from excb.pretrain.plan.speed import build_trainer, random_batch
from excb.pretrain.recipe import Recipe
from excb.pretrain.step import state_tensors
from tests.pretrain.distil import taught
from tests.pretrain.small_runs import OVERRIDES

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


def recipe(*overrides: str) -> Recipe:
    return apply(find_recipe("quickstart"), [*OVERRIDES, *overrides])


@pytest.mark.parametrize("overrides", [(), ("optim.optimizer=adamw", "efficiency.precision=fp64")])
def test_the_size_of_a_checkpoint(overrides: tuple[str, ...]) -> None:
    small = recipe("method.clusters=2000", "method.hidden=512", *overrides)
    trainer = build_trainer(small, CPU)
    trainer.step(random_batch(small, 8), 0)
    stream = io.BytesIO()
    torch.save({"model": state_tensors(trainer.model), **trainer.state()}, stream)
    assert checkpoint_bytes(small, images=0) == pytest.approx(stream.tell(), rel=0.15)  # names take the rest
    assert checkpoint_bytes(small, images=1000) - checkpoint_bytes(small, images=0) == 1000 * (2 * 4 + 8)


def test_heads_for_teachers_are_part_of_a_checkpoint_and_of_a_step(tmp_path: Path) -> None:
    teacher = taught.write_teacher(tmp_path, taught.CONV)
    small = taught.recipe(f"distil.teachers={teacher}", "distil.hidden=2000", "distil.statistics=whitened")
    teachers = frozen_teachers.frozen_teachers_of(small)
    trainer = build_trainer(small, CPU, teachers)
    trainer.step(random_batch(small, 8), 0)
    stream = io.BytesIO()
    torch.save({"model": state_tensors(trainer.model), **trainer.state()}, stream)
    assert checkpoint_bytes(small, 0, teachers) == pytest.approx(stream.tell(), rel=0.15)
    assert check_step(small, CPU, 1, teachers).verdict == "ok"


def test_a_teacher_whose_pass_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = taught.recipe(f"distil.teachers={taught.write_teacher(tmp_path, taught.CONV)}")
    teachers = frozen_teachers.frozen_teachers_of(small)
    need = frozen_teachers.pass_memory(small, teachers)
    monkeypatch.setattr(requirements, "step_memory", lambda *_: SimpleNamespace(total=0))
    for free, verdict in ((need, "ok"), (need - 1, "error")):
        monkeypatch.setattr(requirements, "available_memory", lambda free=free: free)
        finding = check_step(small, CPU, 1, teachers)
        assert finding.verdict == verdict
    assert "a teacher's features need" in finding.found
    assert "distil.teacher_size" in finding.fix


def test_the_size_of_a_batch() -> None:
    batch = random_batch(recipe(), 8)
    assert batch.local_crops is not None
    assert batch_bytes(recipe(), 1) == batch.global_crops.nbytes + batch.local_crops.nbytes
    assert batch_bytes(recipe(), 2) * 2 == batch_bytes(recipe(), 1)


def test_a_step_is_taken() -> None:
    finding = check_step(recipe(), CPU, 1)
    assert finding.verdict == "ok"
    assert "8 images on cpu" in finding.found


def test_a_step_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "available_memory", lambda: 1000)
    finding = check_step(recipe(), CPU, 1)
    assert finding.verdict == "error"
    assert "not tried" in finding.found
    assert "accumulate" in finding.fix


def fail(error: Exception) -> object:
    def measure(*_: object, **__: object) -> None:
        raise error

    return measure


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("CUDA error: launch failure\nmore"),
            "it fails: CUDA error: launch failure",
        ),
        (torch.OutOfMemoryError("much"), "out of memory"),
    ],
)
def test_a_step_that_fails(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    monkeypatch.setattr(requirements, "measure_step", fail(error))
    finding = check_step(recipe(), CPU, 1)
    assert finding.verdict == "error"
    assert finding.found.endswith(words) or words in finding.found


@pytest.mark.timeout(0)  # pytest's limit takes the same clock
def test_a_step_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(*_: object, **__: object) -> None:
        while True:
            pass

    monkeypatch.setattr(requirements, "measure_step", forever)
    monkeypatch.setattr(requirements, "STEP_LIMIT", 0.05)
    assert "no step within" in check_step(recipe(), CPU, 1).found
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    with time_limit(60):
        pass
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
