"""Steps of the torchvision engine: rates, decay, BatchNorm's statistics, and what stops them."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from excb.console import Reporter
from excb.distributed.signals import StopRequest
from excb.errors import UserError
from excb.transfer.detection.setup.samples import Loader
from excb.transfer.detection.setup.settings import settings_for
from excb.transfer.detection.torchvision import model
from excb.transfer.detection.torchvision.training import Training, learning_rate, optimizer
from tests.transfer.detection.tiny_detector import make_job, small_networks, train
from tests.transfer.tiny_coco import write_coco


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with small_networks():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(tmp_path_factory.mktemp("coco"))


# ---------------------------------------------------------------------------------------------------------------------
# Learning
# ---------------------------------------------------------------------------------------------------------------------


def test_the_learning_rate_rises_and_falls() -> None:
    settings = settings_for("1x")
    rates = {0: 0.00002, 500: 0.01001, 1000: 0.02, 59_999: 0.02, 60_000: 0.002, 79_999: 0.002, 80_000: 0.0002}
    for step, rate in rates.items():
        assert learning_rate(settings, step) == pytest.approx(rate)
    assert learning_rate(replace(settings, warmup=0), 0) == 0.02


def test_norms_have_no_weight_decay() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 2))
    network[2].requires_grad_(False)
    for kind, name in ((torch.optim.SGD, "sgd"), (torch.optim.AdamW, "adamw")):
        made = optimizer(network, settings_for("1x", options={"optimizer": name}))
        assert isinstance(made, kind)
        decays = {id(weight): group["weight_decay"] for group in made.param_groups for weight in group["params"]}
        assert decays == {
            **{id(weight): 1e-4 for weight in network[0].parameters()},
            **{id(weight): 0.0 for weight in network[1].parameters()},
        }


def test_precise_statistics_are_those_of_all_batches_together(data: Path, tmp_path: Path) -> None:
    """The last norm sees as many regions in every batch: its statistics are those of all of them as one."""
    job = make_job(data, tmp_path, precise_bn_iterations=3)
    training, seen = Training(job), []
    layer = training.model.heads.box_head.norm
    layer.register_forward_pre_hook(lambda _, rows: seen.append(rows[0].double()))
    batches = iter(Loader(job.train, job.settings))
    with StopRequest() as stop:
        assert training.measure_batchnorm(batches, stop, Reporter(quiet=True))
    assert len(seen) == 3
    assert len({rows.shape for rows in seen}) == 1
    rows = torch.cat(seen).transpose(0, 1).flatten(1)
    torch.testing.assert_close(layer.running_mean.double(), rows.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.running_var.double(), rows.var(1), rtol=1e-2, atol=1e-6)
    assert layer.momentum == 0.1


def lagging(data: Path, folder: Path, **options: Any) -> Training:
    """Training on the CPU as on a GPU: a fused optimizer, and losses that are read a step later."""
    job = make_job(data, folder, **options)
    training = Training(job)
    training.lags, training.optimizer = True, optimizer(training.model, job.settings, fused=True)
    return training


def test_losses_that_are_read_later_are_those_of_steps_that_wait(data: Path, tmp_path: Path) -> None:
    job = make_job(data, tmp_path / "waits")
    waits, lags = Training(job), lagging(data, tmp_path / "lags")
    readings = []
    for training in (waits, lags):
        batches = iter(Loader(job.train, job.settings))
        readings.append([training.step(next(batches), step) for step in range(3)])
    for own, later in zip(*readings, strict=True):
        assert own() == pytest.approx(later(), rel=1e-4)
    for one, other in zip(waits.model.parameters(), lags.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_no_weight_changes_after_a_loss_that_is_not_finite(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = lagging(data, tmp_path)
    batches = iter(Loader(training._job.train, training._job.settings))
    training.step(next(batches), 0)()
    before = [weight.detach().clone() for weight in training.model.parameters()]
    inner = training._losses
    monkeypatch.setattr(training, "_losses", lambda *given: {"all": sum(inner(*given).values()) * math.nan})
    broken = training.step(next(batches), 1)
    monkeypatch.setattr(training, "_losses", inner)
    training.step(next(batches), 2)
    for weight, kept in zip(training.model.parameters(), before, strict=True):
        assert torch.equal(weight, kept)
    with pytest.raises(UserError, match="diverged in step 2 of 4"):
        broken()


def test_a_state_resumes_with_the_optimizer_of_the_device(data: Path, tmp_path: Path) -> None:
    training = lagging(data, tmp_path)
    batches = iter(Loader(training._job.train, training._job.settings))
    training.step(next(batches), 0)
    waits = Training(make_job(data, tmp_path / "waits"))
    assert waits.restore(training.state()) == 1
    assert not any(group["fused"] for group in waits.optimizer.param_groups)
    training.restore(waits.state())
    assert all(group["fused"] for group in training.optimizer.param_groups)


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes
# ---------------------------------------------------------------------------------------------------------------------


def test_divergence_is_reported(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"diverged in step \d of 4: lower base_lr or lengthen warmup"):
        train(make_job(data, tmp_path, base_lr=1e30))


def test_mixed_precision_needs_a_gpu(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a GPU: use precision=fp32"):
        train(make_job(data, tmp_path, precision="amp"))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_too_little_memory_is_reported(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def full(*_: Any) -> None:
        raise error

    monkeypatch.setattr(model.Detector, "batch", full)
    with pytest.raises(UserError, match="no memory for 2 images at once: use a smaller batch"):
        train(make_job(data, tmp_path))
