"""Tests of Detectron2 as an engine: resumed runs are bit-exact, predictions fit the set, mistakes are reported."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models import resnet50

from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.distributed.signals import StopRequest
from excb.errors import UserError
from excb.transfer.coco.reading import open_coco
from excb.transfer.coco.scoring import score
from excb.transfer.detection.engines import open_engine
from excb.transfer.detection.setup.job import Job
from excb.transfer.detection.setup.settings import DetectionSettings
from tests.transfer.tiny_coco import CATEGORIES, write_coco

pytest.importorskip("detectron2.modeling", reason="detectron2: not installed")  # quiet about what it imports
from detectron2.engine import SimpleTrainer

from excb.transfer.detection.detectron2 import engine as detectron2_engine
from excb.transfer.detection.detectron2 import hooks, losses

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.detectron2]

TINY = DetectionSettings(
    min_sizes=(32, 48),
    test_size=48,
    max_size=80,
    batch=2,
    iterations=4,
    steps=(3,),
    warmup=2,
    base_lr=0.002,
    rois=8,
    rpn_pre_test=50,
    rpn_post_test=10,
    precise_bn_iterations=1,
    save_every=2,
)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """Jobs on one small set with one backbone."""
    train, val = open_coco(write_coco(tmp_path_factory.mktemp("coco")))
    torch.manual_seed(0)
    backbone = {name: tensor for name, tensor in resnet50().state_dict().items() if not name.startswith("fc.")}

    def job(folder: Path, settings: DetectionSettings = TINY) -> Job:
        return Job(settings, 50, backbone, train, val, folder, torch.device("cpu"), 0, Reporter(quiet=True))

    return job


class Killed(BaseException):
    """An exception that neither our code nor Detectron2's catches, like SIGKILL."""


class After(StopRequest):
    """Does something after so many steps."""

    def __init__(self, steps: int, act: Callable[[], None]) -> None:
        super().__init__()
        self._steps, self._act = steps, act

    def agreed(self) -> bool:
        self._steps -= 1
        if self._steps == 0:
            self._act()
        return super().agreed()


def ask_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def kill() -> None:
    raise Killed


def files(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.pth"))


def tensors(value: Any, name: str = "") -> dict[str, Any]:
    """All leaves of nested dicts and lists, by path."""
    if isinstance(value, (list, dict)):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        return {path: leaf for key, part in entries for path, leaf in tensors(part, f"{name}/{key}").items()}
    return {name: value}


def assert_equal(first: Path, second: Path) -> None:
    one, two = (tensors(run_checkpoint.read_run_checkpoint(file)) for file in (first, second))
    assert one.keys() == two.keys()
    assert sum(isinstance(value, Tensor) for value in one.values()) > 300
    for name, value in one.items():
        assert torch.equal(value, two[name]) if isinstance(value, Tensor) else value == two[name], name


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_resumed_run_is_the_undisturbed_one(make: Callable[..., Job], tmp_path: Path, optimizer: Any) -> None:
    settings = replace(TINY, optimizer=optimizer)
    whole, parts = (make(tmp_path / name, settings) for name in ("whole", "parts"))
    with StopRequest() as stop:
        assert detectron2_engine.train_detector(whole, stop)
    assert files(whole.folder) == ["checkpoints/model_0000003.pth", "checkpoints/model_final.pth"]

    with After(1, ask_to_stop) as stop:
        assert not detectron2_engine.train_detector(parts, stop)
    assert stop.received == signal.SIGTERM
    assert files(parts.folder) == ["checkpoints/model_0000000.pth"]
    torch.rand(7)  # random numbers in between change nothing
    with pytest.raises(Killed), After(2, kill) as stop:  # in step 3; the newest checkpoint is of step 2
        detectron2_engine.train_detector(parts, stop)
    assert files(parts.folder) == ["checkpoints/model_0000000.pth", "checkpoints/model_0000001.pth"]
    with StopRequest() as stop:
        assert detectron2_engine.train_detector(parts, stop)
        final = parts.folder / "checkpoints" / "model_final.pth"
        assert_equal(final, whole.folder / "checkpoints" / "model_final.pth")
        written = final.stat().st_mtime_ns
        assert detectron2_engine.train_detector(parts, stop), "nothing is left to do"
        assert final.stat().st_mtime_ns == written


@pytest.fixture(scope="module")
def trained(make: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = make(tmp_path_factory.mktemp("run"), replace(TINY, iterations=1, steps=(), save_every=1))
    with StopRequest() as stop:
        assert detectron2_engine.train_detector(job, stop)
    return job


def test_folder_of_a_run(trained: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert list((trained.folder / "tensorboard").glob("events.out.tfevents.*"))
    assert "NORM: BN" in (trained.folder / "detectron2.yaml").read_text()
    assert "Starting training from iteration 0" in (trained.folder / "detectron2.log").read_text()
    assert capsys.readouterr().out == "", "stdout is the result's"


def test_predictions_are_of_the_set(trained: Job) -> None:
    found = detectron2_engine.predict(trained, trained.val)
    sizes = {image.id: [image.height, image.width] for image in trained.val.images}
    assert found, "an untrained detector sees things everywhere"
    assert [result["image_id"] for result in found] == sorted(result["image_id"] for result in found)
    for result in found:
        assert result["category_id"] in CATEGORIES
        assert result["segmentation"]["size"] == sizes[result["image_id"]]
        left, top, width, height = result["bbox"]
        assert 0 <= left <= left + width <= sizes[result["image_id"]][1] + 1e-3
        assert 0 <= top <= top + height <= sizes[result["image_id"]][0] + 1e-3
        assert 0.05 < result["score"] <= 1
    assert detectron2_engine.predict(trained, trained.val) == found


def test_boxes_alone(make: Callable[..., Job], tmp_path: Path) -> None:
    job = make(tmp_path, replace(TINY, masks=False, iterations=1, steps=()))
    job = replace(job, train=replace(job.train, masks=False), val=replace(job.val, masks=False))
    with StopRequest() as stop:
        assert detectron2_engine.train_detector(job, stop)
    found = detectron2_engine.predict(job, job.val)
    assert found
    assert not any("segmentation" in result for result in found)
    assert list(score(job.val, found).figures) == ["bbox_AP", "bbox_AP50", "bbox_AP75"]
    names = run_checkpoint.read_run_checkpoint(next((tmp_path / "checkpoints").glob("*final.pth")))["model"]
    assert not any("mask" in name for name in names)


def test_folder_of_another_training_is_refused(trained: Job) -> None:
    other = replace(trained, settings=replace(trained.settings, base_lr=0.5, seed=3))
    with StopRequest() as stop, pytest.raises(UserError, match=r"base_lr was .*; seed was .*: choose another folder"):
        detectron2_engine.train_detector(other, stop)
    with pytest.raises(UserError, match=r"base_lr was .*; seed was"):
        detectron2_engine.predict(other, trained.val)


def test_evaluation_may_look_closer(trained: Job) -> None:
    closer = replace(trained, settings=replace(trained.settings, test_size=64))
    assert detectron2_engine.predict(closer, trained.val) != detectron2_engine.predict(trained, trained.val)


def test_damaged_checkpoint_is_reported(trained: Job, make: Callable[..., Job], tmp_path: Path) -> None:
    job = make(tmp_path, trained.settings)
    whole = (trained.folder / "checkpoints" / "model_final.pth").read_bytes()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "model_final.pth").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "checkpoints" / "last_checkpoint").write_text("model_final.pth")
    with pytest.raises(UserError, match="is damaged"):
        detectron2_engine.predict(job, job.val)


def test_first_losses_fall_and_leave_no_trace(make: Callable[..., Job], tmp_path: Path) -> None:
    job = make(tmp_path / "run", replace(TINY, optimizer="adamw", base_lr=1e-4))  # as the preflight has it
    before = torch.get_rng_state()
    losses = detectron2_engine.first_losses(job, 2, 8)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(losses) == 8
    assert sum(losses[4:]) < 0.95 * sum(losses[:4]), "which regions are proposed changes with the weights"
    assert not job.folder.exists()


def test_an_engine_by_name() -> None:
    assert open_engine("detectron2") is detectron2_engine
    assert all(isinstance(text, str) for text in detectron2_engine.differences)


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes
# ---------------------------------------------------------------------------------------------------------------------


def error_of(job: Job) -> str:
    with StopRequest() as stop, pytest.raises(UserError) as error:
        detectron2_engine.train_detector(job, stop)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nOf this..."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to..."),
        MemoryError(),
    ],
)
def test_out_of_memory_is_one_line(
    make: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(hooks, "inputs", fail)
    assert error_of(make(tmp_path)).startswith("out of memory on cpu: lower the batch (2), rois (8)")


def test_other_errors_are_not_hidden(make: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(hooks, "inputs", fail)
    with StopRequest() as stop, pytest.raises(RuntimeError, match="a mistake of ours"):
        detectron2_engine.train_detector(make(tmp_path), stop)


def test_divergence_is_one_line(make: Callable[..., Job], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = make(tmp_path, replace(TINY, base_lr=1e12, warmup=0))
    assert "diverged" in error_of(job)
    assert "Traceback" not in capfd.readouterr().err


def test_backbone_of_another_kind_is_one_line(make: Callable[..., Job], tmp_path: Path) -> None:
    job = make(tmp_path)
    few = {name: tensor for name, tensor in job.backbone.items() if not name.startswith("layer4")}
    assert "missing (res5.0.conv1.norm.bias" in error_of(replace(job, backbone=few))


def test_what_a_cpu_cannot(make: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "needs a GPU" in error_of(make(tmp_path, replace(TINY, precision="amp")))
    monkeypatch.setattr(detectron2_engine, "world_size", lambda: 2)
    assert "one process on a CPU" in error_of(make(tmp_path))


def test_nothing_trained(make: Callable[..., Job], tmp_path: Path) -> None:
    job = make(tmp_path)
    with pytest.raises(UserError, match="holds no trained detector: train first"):
        detectron2_engine.predict(job, job.val)


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, float]]:
    """Losses by step, as they are written into Detectron2's storage."""
    found: dict[int, dict[str, float]] = {}
    write = SimpleTrainer.write_metrics

    def writing(values: dict[str, Tensor], data_time: float, step: int, prefix: str = "") -> None:
        assert step not in found
        found[step] = {name: value.item() for name, value in values.items()}
        write(values, data_time, step, prefix)

    monkeypatch.setattr(SimpleTrainer, "write_metrics", staticmethod(writing))
    return found


def test_losses_are_those_of_detectron2s_trainer(
    make: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(TINY, save_every=100, iterations=5)
    monkeypatch.setattr(detectron2_engine, "WRITE_EVERY", 2)
    with monkeypatch.context() as patch, StopRequest() as stop:
        late = recorded(patch)
        assert detectron2_engine.train_detector(make(tmp_path / "late", settings), stop)
    with monkeypatch.context() as patch, StopRequest() as stop:
        patch.setattr(losses.Detectron2Trainer, "_write_metrics", SimpleTrainer._write_metrics)
        patch.setattr(losses.Detectron2Trainer, "write_pending", lambda _self: None)
        at_once = recorded(patch)
        assert detectron2_engine.train_detector(make(tmp_path / "at_once", settings), stop)
    assert late == at_once
    assert list(late) == [0, 1, 2, 3, 4]
    curves = [curve(tmp_path / folder / detectron2_engine.TENSORBOARD, "total_loss") for folder in ("late", "at_once")]
    assert curves[0] == curves[1]
    assert [step for step, _ in curves[0]] == [1, 3, 4]  # and after the last step


def test_a_steps_losses_are_written_with_the_next(
    make: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = recorded(monkeypatch)
    seen: list[list[int]] = []

    class Looking(StopRequest):
        def agreed(self) -> bool:  # after every step but the last
            seen.append(list(written))
            return super().agreed()

    with Looking() as stop:
        assert detectron2_engine.train_detector(make(tmp_path, replace(TINY, save_every=3)), stop)
    assert seen == [[], [0], [0, 1, 2]]  # the third is saved, which its losses are read before


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("step", [1, 2])
def test_no_checkpoint_holds_a_diverged_step(
    make: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, stopped: bool
) -> None:
    usual = losses.Detectron2Trainer._write_metrics

    def diverging(self: Any, loss_dict: dict[str, Tensor], *rest: Any, **more: Any) -> None:
        factor = float("nan") if self.iter == step else 1.0
        usual(self, {name: loss * factor for name, loss in loss_dict.items()}, *rest, **more)

    monkeypatch.setattr(losses.Detectron2Trainer, "_write_metrics", diverging)
    settings = replace(TINY, save_every=100) if stopped else TINY  # which saves after steps 1 and 3
    stop = After(step + 1, ask_to_stop) if stopped else StopRequest()
    with stop, pytest.raises(UserError, match=rf"diverged .*iteration={step}!"):
        detectron2_engine.train_detector(make(tmp_path, settings), stop)
    kept = ["checkpoints/model_0000001.pth"] if step > 1 and not stopped else []
    assert files(tmp_path) == kept
