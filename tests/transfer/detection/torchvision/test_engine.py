"""The torchvision engine: what it resumes, what it finds, what it refuses; all on tiny networks and images."""

import copy
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from excb.checkpoint import run_checkpoint
from excb.distributed.collectives import rank
from excb.distributed.parallel import joined
from excb.errors import UserError
from excb.transfer.coco.scoring import score
from excb.transfer.detection.engines import open_engine
from excb.transfer.detection.setup.job import Job
from excb.transfer.detection.setup.samples import Loader
from excb.transfer.detection.torchvision import engine as torchvision_engine
from excb.transfer.detection.torchvision import model
from excb.transfer.detection.torchvision.training import Training, learning_rate
from tests.clone import ROOT
from tests.forked import launch
from tests.transfer.detection.tiny_detector import make_job, narrow, newest, small_networks, train
from tests.transfer.tiny_coco import write_coco


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with small_networks():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(tmp_path_factory.mktemp("coco"))


def assert_equal(one: Any, other: Any) -> None:
    """Bit for bit, in nested containers."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert_equal(value, other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


# ---------------------------------------------------------------------------------------------------------------------
# Going on
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"optimizer": "adamw", "norm": "FrozenBN", "precise_bn": False}], ids=["sgd", "adamw"]
)
def test_a_stopped_run_ends_as_if_it_had_not_stopped(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    whole = make_job(data, tmp_path / "whole", **options)
    assert train(whole)

    job, step = make_job(data, tmp_path / "parts", **options), Training.step

    def stopped(self: Any, samples: Any, number: int) -> Any:
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, samples, number)

    monkeypatch.setattr(Training, "step", stopped)
    assert not train(job)
    assert newest(job)["step"] == 3
    monkeypatch.setattr(Training, "step", step)
    torch.manual_seed(77)
    assert train(job)
    assert_equal(newest(job), newest(whole))
    assert_equal(torchvision_engine.predict(job, job.val), torchvision_engine.predict(whole, whole.val))
    assert scalars(job.folder) == scalars(whole.folder)
    monkeypatch.setattr(Training, "step", lambda *_: pytest.fail("it was finished"))
    assert train(job)


def test_a_signal_while_batchnorm_is_measured(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, job = make_job(data, tmp_path / "whole"), make_job(data, tmp_path / "parts")
    assert train(whole)
    losses = Training._losses

    def stopped(self: Any, samples: Any, number: int) -> dict[str, Tensor]:
        if number == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return losses(self, samples, number)

    monkeypatch.setattr(Training, "_losses", stopped)
    assert not train(job)
    assert not newest(job)["finished"]
    monkeypatch.setattr(Training, "_losses", losses)
    assert train(job)
    assert_equal(newest(job), newest(whole))


def test_what_is_kept(data: Path, tmp_path: Path) -> None:
    job = make_job(data, tmp_path, iterations=5, save_every=1)
    assert train(job)
    assert [file.name for file in run_checkpoint.in_run(tmp_path)] == ["step-5.pt", "step-4.pt"]
    shown = scalars(tmp_path)
    assert [step for step, _ in shown["train/loss"]] == [1, 2, 3, 4, 5]
    assert [value for _, value in shown["train/learning_rate"]] == pytest.approx(
        [learning_rate(job.settings, step) for step in range(5)]
    )
    parts = [shown[tag] for tag in shown if tag.startswith("train/loss_")]
    assert len(parts) == 5
    for number, (_, loss) in enumerate(shown["train/loss"]):
        assert loss == pytest.approx(sum(part[number][1] for part in parts), rel=1e-5)


def test_another_training_is_not_gone_on_with(data: Path, tmp_path: Path) -> None:
    job = make_job(data, tmp_path, iterations=1, steps=(), precise_bn=False)
    assert train(job)
    assert train(replace(job, settings=replace(job.settings, save_every=9, test_size=48)))
    with pytest.raises(UserError, match=r"another run \(base_lr was .*, now 0.1\): choose another folder"):
        train(replace(job, settings=replace(job.settings, base_lr=0.1)))
    with pytest.raises(UserError, match=r"\(other images\)"):
        train(replace(job, train=job.train.subset([0, 1])))
    with pytest.raises(UserError, match=r"\(other weights\)"):
        torchvision_engine.predict(replace(job, backbone={**job.backbone, "conv1.weight": torch.zeros(1)}), job.val)


# ---------------------------------------------------------------------------------------------------------------------
# Seeing
# ---------------------------------------------------------------------------------------------------------------------


class AllKnowing(nn.Module):
    """A stub of a detector that finds each object of the set; it identifies images by their size."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, 1, 1))
        self.job, self.number = job, 0

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        entry = self.job.val.images[self.number]
        self.number += 1
        height, width = images[0].shape[1:]
        assert min(height, width) == self.job.settings.test_size
        objects = [each for each in entry.annotations if each.trainable]
        boxes = torch.tensor([each.box for each in objects]).view(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        scale = torch.tensor([width / entry.width, height / entry.height]).repeat(2)
        return [
            {
                "boxes": boxes * scale,
                "labels": torch.tensor([each.label + 1 for each in objects], dtype=torch.int64),
                "scores": torch.full((len(objects),), 0.9),
                "masks": torch.ones(len(objects), 1, 14, 14),
            }
        ]

    def load_state_dict(self, *_: Any) -> None:
        """It has learned nothing."""


def test_known_boxes_score_full_marks(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(data, tmp_path, iterations=1, steps=(), precise_bn=False, test_size=50)
    assert train(job)
    monkeypatch.setattr(torchvision_engine, "new_detector", AllKnowing)
    results = torchvision_engine.predict(job, job.val)
    assert {result["category_id"] for result in results} == {3, 7, 90}
    assert {result["image_id"] for result in results} <= {image.id for image in job.val.images}
    scores = score(job.val, results)
    assert scores.figures["bbox_AP"] == pytest.approx(100)
    assert scores.per_class["segm_AP"]["square"] == pytest.approx(100)  # squares fill their boxes


def test_predicting_needs_a_checkpoint(data: Path, tmp_path: Path) -> None:
    job = make_job(data, tmp_path)
    with pytest.raises(UserError, match="holds no checkpoint: train first"):
        torchvision_engine.predict(job, job.val)


def test_first_losses_fall_and_leave_nothing(data: Path, tmp_path: Path) -> None:
    job = make_job(data, tmp_path / "run", optimizer="adamw", base_lr=0.003, warmup=1000)
    state = torch.random.get_rng_state()
    losses = torchvision_engine.first_losses(job, 2, 12)
    assert len(losses) == 12
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    assert not (tmp_path / "run").exists()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torchvision_engine.first_losses(job, 2, 2) == torchvision_engine.first_losses(job, 2, 2)


def test_the_engine_is_found_by_name() -> None:
    assert open_engine("torchvision").train_detector is torchvision_engine.train_detector
    assert all(isinstance(text, str) for text in open_engine("torchvision").differences)


# ---------------------------------------------------------------------------------------------------------------------
# Many processes
# ---------------------------------------------------------------------------------------------------------------------

FROZEN = {"norm": "FrozenBN", "precise_bn": False, "iterations": 3, "steps": (2,)}


def test_two_processes_average_what_each_finds(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle: one process that computes both shares' gradients itself, one after the other."""
    monkeypatch.chdir(ROOT)
    arguments = [str(data), str(tmp_path / "two")]
    assert launch("tests.transfer.detection.torchvision.test_engine", arguments, 2) == 0

    job = make_job(data, tmp_path / "one", **FROZEN)
    training = Training(job)
    shares = [iter(Loader(job.train, job.settings, rank=number, world=2)) for number in (0, 1)]
    for step in range(3):
        gradients = []
        for number, batches in enumerate(shares):
            monkeypatch.setattr("excb.transfer.detection.torchvision.training.rank", lambda number=number: number)
            training.model.zero_grad()
            torch.stack(list(training._losses(next(batches), step).values())).sum().backward()
            gradients.append([copy.deepcopy(weight.grad) for weight in training.model.parameters()])
        for weight, *parts in zip(training.model.parameters(), *gradients, strict=True):
            weight.grad = None if parts[0] is None else (parts[0] + parts[1]) / 2
        for group in training.optimizer.param_groups:
            group["lr"] = learning_rate(job.settings, step)
        training.optimizer.step()
    saved = newest(replace(job, folder=tmp_path / "two"))
    for name, value in training.model.state_dict().items():
        torch.testing.assert_close(saved["model"][name], value, rtol=1e-4, atol=1e-5)
    alone = replace(job, folder=tmp_path / "two")
    predicted = torch.load(tmp_path / "two" / "results-0", weights_only=True)
    expected = torchvision_engine.predict(alone, alone.val)
    assert sorted(map(repr, predicted)) == sorted(map(repr, expected))
    assert torch.load(tmp_path / "two" / "results-1", weights_only=True) == []


def work(data: Path, folder: Path) -> None:
    """One of two processes: train with frozen norms and predict; then a few steps with common BatchNorm."""
    model.detector_resnet = narrow
    job = make_job(data, folder, **FROZEN)
    assert train(job)
    torch.save(torchvision_engine.predict(job, job.val), folder / f"results-{rank()}")
    assert train(make_job(data, folder / "common"))


if __name__ == "__main__":  # one of several processes
    with joined("cpu"):
        torch.set_num_threads(1)
        work(Path(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)  # gloo's threads may still let go of Python objects, and would abort an interpreter that is ending
