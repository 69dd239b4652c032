"""Fine-tuning of backbone and linear head on a share of the train set; the same result on any number of ranks."""

import copy
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from excb import seeding
from excb.checkpoint import run_checkpoint
from excb.checkpoint.same_run import require_same_run
from excb.console import Reporter
from excb.distributed.batchnorm import synchronise_batchnorm
from excb.distributed.collectives import all_succeed, gather_objects, rank, run_on_rank0, sum_over_ranks, world_size
from excb.distributed.machine import start_copy
from excb.errors import UserError, require
from excb.features.extraction import refuse_broken
from excb.images.image_set import sizes_hash
from excb.images.subset import Subset
from excb.networks.backbone import has_batchnorm, weights_hash
from excb.networks.drop_path import SampleDropPath
from excb.networks.features import Inputs, extract

from ..data.batches import Augmentation, LabelledBatch, TrainingBatches
from ..task import Task


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to fine-tune. The paper (Sec. 4) gives the learning rates, epochs and batch, all else is `ASSUMED`.

    Args:
        backbone_lr: first learning rate of the backbone; it falls to 0 on a cosine, step by step.
        head_lr: first learning rate of the head.
        epochs: passes over the share.
        batch: images per step, all ranks and micro-batches together.
        momentum: of SGD.
        weight_decay: of all weights.
        precision: of the forward and backward pass; fp32 is the precision that the backbone has.
        accumulate: micro-batches per step, for less memory; BatchNorm takes its statistics over one of them.
        start: of the head: "random" weights, or a "frozen" backbone's logistic regression. After the latter BatchNorm
            keeps the checkpoint's statistics, and `head_lr` is divided by the mean squared norm of frozen features.

    Raises:
        UserError: a value is out of range.
    """

    backbone_lr: float
    head_lr: float
    epochs: int = 50
    batch: int = 512
    momentum: float = 0.9
    weight_decay: float = 0.0
    precision: Literal["fp32", "bf16"] = "fp32"
    accumulate: int = 1
    start: Literal["random", "frozen"] = "random"

    def __post_init__(self) -> None:
        rates = (self.backbone_lr, self.head_lr, self.weight_decay)
        require(all(0 <= rate < math.inf for rate in rates), "learning rates and weight decay must be at least 0")
        require(0 <= self.momentum < 1, "momentum must be at least 0 and below 1")
        require(self.precision in ("fp32", "bf16"), f"precision is fp32 or bf16, not '{self.precision}'")
        smallest = min(self.epochs, self.batch, self.accumulate)
        require(smallest >= 1, "epochs, batch and micro-batches must be at least 1")

    def to_dict(self) -> dict[str, Any]:
        """All settings of the protocol, for the result; `assumed` names what no paper states."""
        fixed = {"optimizer": "SGD", "schedule": "cosine to 0, step by step"} | HEADS[self.start]
        return _values(self) | fixed | {"augmentation": "RandomResizedCrop, flip", "assumed": list(ASSUMED)}


# What results say of the head, and of what comes with it.
HEADS = {
    "random": {"head": "weights N(0, 0.01), bias 0"},
    "frozen": {
        "recipe": "few labels",
        "head": "logistic regression on frozen features",
        "head_solver": "that of linear",  # results without it started from another standardisation, in float32
        "head_lr_per": "mean squared norm of frozen features",
        "batchnorm": "statistics of the checkpoint",
    },
}
ASSUMED = ("optimizer", "momentum", "schedule", "weight_decay", "head", "augmentation")


@dataclass(frozen=True)
class FrozenHead:
    """A classifier of frozen features, which fine-tuning may start from."""

    weight: Tensor  # [classes, D]
    bias: Tensor  # [classes]
    squared_norm: float  # mean over the features that it was fitted to


def finetune(
    task: Task,
    chosen: np.ndarray,
    settings: Settings,
    *,
    seed: int,
    reporter: Reporter,
    state: Path | None = None,
    head: FrozenHead | None = None,
) -> Tensor:
    """Fine-tune a copy of the task's backbone with a new head, and classify the test images.

    Args:
        task: backbone, train and test images; its backbone stays as it is.
        chosen: indices [n] of the train images to use.
        settings: how to train.
        seed: names the head's weights, the order, crops and flips.
        reporter: where to talk; only rank 0 prints.
        state: file that is written after every epoch and resumed from, bit-exactly on the CPU.
        head: where the head starts, with settings that start from frozen features.

    Returns:
        The classes of the highest scores, best first, int64 [Q, min(5, classes)], on the CPU.

    Raises:
        UserError: an image cannot be read, the training diverges, or `state` is of something else.
    """
    require(len(chosen) > 0, "no train image is chosen: fine-tuning needs at least one")
    reporter = reporter if rank() == 0 else Reporter(quiet=True)
    augmentation = Augmentation.like(task.preprocessing)
    batches = TrainingBatches(
        task.train,
        augmentation,
        batch=settings.batch,
        seed=seed,
        workers=task.workers,
        chosen=chosen,
        pin_memory=task.device.type == "cuda",
    )
    assert (head is not None) == (settings.start == "frozen")
    training = _Training(task, settings, seed, head, steps=settings.epochs * batches.steps)
    identity = _identity(task, chosen, settings, seed) if state is not None else {}
    done = training.restore(state, identity) if state is not None else 0
    if done:
        reporter.note(f"resuming after epoch {done} of {settings.epochs}")
    first, last = done * batches.steps, settings.epochs * batches.steps
    views = batches.run(first=done, last=settings.epochs)
    with reporter.progress(f"fine-tuning, seed {seed}", last, done=first) as bar:
        for step in range(first, last):
            loss = training.step(all_succeed(lambda: next(views)), step)
            if (step + 1) % batches.steps == 0:
                loss = training.finish()
                if state is not None:
                    training.save(state, identity, epochs=(step + 1) // batches.steps)
            bar.status = f"loss {loss:.3f}"
            bar.advance()
    return _top5(task, training.classifier, reporter)


class _Training:
    """The state that a step changes: a classifier [B, 3, S, S] -> [B, classes] and its optimizer."""

    def __init__(self, task: Task, settings: Settings, seed: int, start: FrozenHead | None, *, steps: int) -> None:
        # Gradients of small maps do not take the layout that `Task` chooses for forward passes.
        backbone = copy.deepcopy(task.backbone).to(memory_format=torch.contiguous_format)
        self._dtype = next(backbone.parameters()).dtype
        head = _new_head(backbone.width, len(task.train.classes or ()), seed)
        if start is not None:
            head.load_state_dict({"weight": start.weight, "bias": start.bias})
        head = head.to(task.device, self._dtype)
        _switch_off_drop_path(backbone)
        self.classifier = synchronise_batchnorm(nn.Sequential(OrderedDict(backbone=backbone, head=head))).train()
        if start is not None:
            _keep_statistics(self.classifier)
        self._has_batchnorm = has_batchnorm(backbone) and start is None
        head_lr = settings.head_lr / (1.0 if start is None else start.squared_norm)
        groups = [
            {"params": [w for w in part.parameters() if w.requires_grad], "peak": peak}
            for part, peak in ((backbone, settings.backbone_lr), (head, head_lr))
        ]
        # A fused optimizer skips a step by a value that stays on the GPU. On the CPU there is nothing to wait for.
        self._fused = task.device.type == "cuda"
        self._optimizer = torch.optim.SGD(
            groups, lr=0.0, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=self._fused
        )
        self._loss_and_gradients = self._lay_out()
        self._valid = torch.ones((), dtype=torch.bool, device=task.device)  # whether all steps so far were finite
        self._pending: Callable[[], float] | None = None  # reads the newest step's loss, if that is still to do
        self._mean_loss = math.nan  # the newest that was read
        self._task, self._settings, self._seed, self._steps = task, settings, seed, steps

    def _lay_out(self) -> Tensor:
        """One tensor for the loss and, behind it, the gradients of all weights: summed over ranks in one all_reduce."""
        weights = [weight for group in self._optimizer.param_groups for weight in group["params"]]
        sizes = [weight.numel() for weight in weights]
        flat = torch.zeros(1 + sum(sizes), dtype=self._dtype, device=weights[0].device)
        for weight, part in zip(weights, flat[1:].split(sizes), strict=True):
            weight.grad = part.view_as(weight)
        return flat

    def step(self, batch: LabelledBatch, step: int) -> float:
        """Take one step on all ranks' images, and return their mean loss: on a GPU that of the step before.

        Raises:
            UserError: the loss or a gradient is not finite, or was in the step before; no weight has changed since.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * (1 + math.cos(math.pi * step / self._steps)) / 2
        flat = self._loss_and_gradients.zero_()
        # Dropout draws from torch's generator: make that a function of the step.
        torch.manual_seed(seeding.fold(seeding.Purpose.STEP, self._seed, step, rank()))
        for images, labels in self._micro_batches(batch):
            loss = self._loss(images, labels) / batch.whole
            loss.backward()
            flat[0] += loss.detach()
        flat = sum_over_ranks(flat)
        self._valid = self._valid & flat.isfinite().all()
        newest = self._reading(torch.stack([flat[0], self._valid.to(flat.dtype)]), step)
        if not self._fused:
            self._mean_loss = newest()
            self._optimizer.step()
            return self._mean_loss
        # This is how torch's GradScaler makes a fused optimizer skip a step.
        self._optimizer.found_inf = (~self._valid).float()  # type: ignore[attr-defined]
        self._optimizer.step()
        self.finish()
        self._pending = newest
        return self._mean_loss

    def finish(self) -> float:
        """Wait for the newest step if nothing has yet, and return its mean loss.

        Raises:
            UserError: the step diverged.
        """
        if self._pending is not None:
            self._mean_loss, self._pending = self._pending(), None
        return self._mean_loss

    def _reading(self, values: Tensor, step: int) -> Callable[[], float]:
        """Start to copy a step's mean loss and whether it was finite to the CPU; what is returned waits for them."""
        copied = start_copy(values)

        def read() -> float:
            mean_loss, valid = copied().tolist()
            if not valid:
                raise UserError.on_all_ranks(
                    f"fine-tuning diverged in step {step + 1} of {self._steps}: lower the learning rates",
                )
            return float(mean_loss)

        return read

    def _micro_batches(self, batch: LabelledBatch) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's images of each micro-batch, [b, 3, S, S] and [b]; the same micro-batches for any world_size.

        BatchNorm synchronises all ranks, so a rank without an image still passes an empty tensor.
        """
        size = -(-batch.whole // self._settings.accumulate)
        places = np.arange(rank(), batch.whole, world_size())  # of this rank's images in the whole batch
        side = self._task.preprocessing.crop
        images = batch.images if len(places) else batch.images.new_empty(0, batch.images.shape[1], side, side)
        for start in range(0, batch.whole, size):
            first, last = np.searchsorted(places, [start, start + size])
            if last > first or self._has_batchnorm:
                yield images[first:last], batch.labels[first:last]

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        device, dtype = self._task.device, self._dtype
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=self._settings.precision == "bf16"):
                scores = self.classifier(images.to(device, dtype, non_blocking=True))
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise UserError.on_all_ranks(
                "the last batch of an epoch is a single image, too little for this network's BatchNorm: "
                "choose another batch",
            ) from None
        return F.cross_entropy(scores.to(dtype), labels.to(device, non_blocking=True), reduction="sum")

    def save(self, file: Path, identity: dict[str, Any], *, epochs: int) -> None:
        """Write what `restore` resumes from; rank 0 does it."""

        def write() -> None:
            contents = {"model": self.classifier.state_dict(), "optimizer": self._optimizer.state_dict()}
            run_checkpoint.write_run_checkpoint({"finetune": identity, "epochs": epochs} | contents, file)

        run_on_rank0(write)

    def restore(self, file: Path, identity: dict[str, Any]) -> int:
        """Resume from a file, if there is one, and return the number of epochs done.

        Raises:
            UserError: it is damaged, or of another training.
        """
        if (contents := run_on_rank0(lambda: _read(file, identity))) is None:
            return 0
        self.classifier.load_state_dict(contents["model"])
        self._optimizer.load_state_dict(contents["optimizer"])
        for group in self._optimizer.param_groups:
            group["fused"] = self._fused  # the file may come from another device
        return int(contents["epochs"])


def _new_head(width: int, classes: int, seed: int) -> nn.Linear:
    head = nn.Linear(width, classes)
    random = torch.Generator().manual_seed(seeding.fold(seeding.Purpose.TRANSFER_WEIGHTS, seed))
    nn.init.normal_(head.weight, std=0.01, generator=random)
    nn.init.zeros_(head.bias)
    return head


def _switch_off_drop_path(backbone: nn.Module) -> None:
    """Train without stochastic depth, also where the pretraining had it: no fine-tuning protocol of the field has."""
    from timm.layers import DropPath

    for module in backbone.modules():
        if isinstance(module, SampleDropPath):
            module.rate = 0.0
        elif isinstance(module, DropPath):
            module.drop_prob = 0.0


def _keep_statistics(network: nn.Module) -> None:
    """Let every BatchNorm normalise as in evaluation: few images give poor statistics."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


def _values(settings: Settings) -> dict[str, Any]:
    """The fields of the settings but `start`, which files of earlier versions lack; `HEADS` says it."""
    return {name: value for name, value in asdict(settings).items() if name != "start"}


def _identity(task: Task, chosen: np.ndarray, settings: Settings, seed: int) -> dict[str, Any]:
    share = hashlib.sha256(np.ascontiguousarray(chosen, dtype="<i8").tobytes())
    start = {} if settings.start == "random" else {"start": settings.start}
    return (
        _values(settings)
        | start
        | {
            "seed": seed,
            "weights": weights_hash(task.backbone),
            "train images": task.train.fingerprint,
            "share": share.hexdigest(),
            "files": sizes_hash(Subset(task.train, chosen)),
            "preprocessing": task.preprocessing.to_dict(),
        }
    )


def _read(file: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        contents = run_checkpoint.read_run_checkpoint(file)
    except run_checkpoint.DamagedFileError as error:
        raise UserError(f"{error}: remove it, and fine-tuning starts anew") from None
    before = contents.get("finetune")
    if isinstance(before, dict):
        before = {"files": identity["files"]} | before  # those of earlier versions do not say
    require_same_run(file, before, identity, advice="remove it to start anew")
    return contents


def _top5(task: Task, classifier: nn.Module, reporter: Reporter) -> Tensor:
    """The best five classes [Q, <=5] of every test image; each rank classifies its own share."""
    mine = range(rank(), len(task.test), world_size())
    with reporter.progress("test", len(mine)) as bar:
        outputs = extract(
            classifier,
            Inputs(task.test, task.preprocessing, indices=mine),
            device=task.device,
            batch=task.batch,
            workers=task.workers,
            progress=bar.advance,
        )
    all_succeed(lambda: refuse_broken(outputs.broken, task.test))
    # Equal scores fall to the first class, on any device.
    best = outputs.rows.argsort(dim=1, descending=True, stable=True)[:, :5] if len(outputs.rows) else None
    parts = [(samples, rows) for samples, rows in gather_objects((outputs.samples, best)) if rows is not None]
    order = torch.cat([samples for samples, _ in parts]).argsort()
    return torch.cat([rows for _, rows in parts])[order]
