"""Training steps of the torchvision engine; a step's randomness is a function of the seed and its number."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from excb import seeding
from excb.console import Reporter, plural
from excb.distributed.batchnorm import synchronise_batchnorm
from excb.distributed.collectives import all_succeed, mean_over_ranks, rank
from excb.distributed.machine import start_copy, to_device
from excb.distributed.parallel import average_gradients
from excb.distributed.signals import StopRequest
from excb.errors import UserError

from ..setup.job import Job
from ..setup.samples import Sample
from ..setup.settings import DetectionSettings
from .model import Detector, build


class Training:
    """A detector and its optimizer, with the training step.

    Raises:
        UserError: the settings cannot run on this machine, or the backbone is of another network.
    """

    def __init__(self, job: Job) -> None:
        settings = job.settings
        amp = settings.precision == "amp"
        if amp and job.device.type == "cpu":
            raise UserError.on_all_ranks("precision=amp needs a GPU: use precision=fp32")
        model = new_detector(job).to(job.device)
        if settings.norm in ("SyncBN", "naiveSyncBN"):
            synchronise_batchnorm(model)
        self.model, self._job, self._done = model.train(), job, 0
        self._parallel = average_gradients(model)
        # A fused optimizer skips a step by a value that stays on the GPU. On the CPU there is nothing to wait for.
        self.lags = job.device.type == "cuda"
        self.optimizer = optimizer(model, settings, fused=self.lags)
        self._valid = torch.ones((), dtype=torch.bool, device=job.device)  # whether all losses so far were finite
        self._scaler = torch.amp.GradScaler(job.device.type, enabled=amp)
        self._autocast = torch.autocast(job.device.type, torch.float16 if amp else None, enabled=amp)

    def step(self, samples: Sequence[Sample], step: int) -> Callable[[], dict[str, float]]:
        """Take one step on the global batch.

        Args:
            samples: this rank's images.
            step: its number from 0; with the seed it fixes all random numbers of the step.

        Returns:
            What waits for the `loss` and its parts, averaged over the ranks, and raises UserError if the loss was not
            finite: weights have not changed since, but with precision=amp, where other steps may have followed. Where
            `lags`, it is to be called while the next step runs.

        Raises:
            UserError: memory is too small; or the loss is not finite, if nothing lags.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self._job.settings, step)
        self.optimizer.zero_grad()
        with memory_for(f"{plural(len(samples), 'image')} at once"):
            losses = self._losses(samples, step)
            loss = torch.stack(list(losses.values())).sum()
            self._scaler.scale(loss).backward()
        means = mean_over_ranks(torch.stack([loss, *losses.values()]).detach().float())
        read = self._reading(means, ["loss", *losses], step)
        if not self.lags:
            read()
        elif not self._scaler.is_enabled():
            # This is how torch's GradScaler makes a fused optimizer skip a step.
            self._valid = self._valid & means[0].isfinite()
            self.optimizer.found_inf = (~self._valid).float()  # type: ignore[attr-defined]
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self._done = step + 1
        return read

    def _reading(self, means: Tensor, names: Sequence[str], step: int) -> Callable[[], dict[str, float]]:
        """Start to copy a step's losses to the CPU; what is returned waits for them."""
        copied = start_copy(means)

        def read() -> dict[str, float]:
            values = copied().tolist()
            if not math.isfinite(values[0]):
                where = f"in step {step + 1} of {self._job.settings.iterations}"
                raise UserError.on_all_ranks(f"training diverged {where}: lower base_lr or lengthen warmup")
            return dict(zip(names, values, strict=True))

        return read

    def _losses(self, samples: Sequence[Sample], step: int) -> dict[str, Tensor]:
        # Regions and anchors are sampled with torch's generator: seed it by the step.
        torch.manual_seed(seeding.fold(seeding.Purpose.STEP, self._job.settings.seed, step, rank()))
        model = self.model if self._parallel is None or not torch.is_grad_enabled() else self._parallel
        with self._autocast:
            return losses_of(model, samples, self._job.device)

    @torch.no_grad()
    def measure_batchnorm(self, batches: Iterator[Sequence[Sample]], stop: StopRequest, reporter: Reporter) -> bool:
        """Set BatchNorm's statistics to their means over the next batches ("precise BN"; Wu and Johnson, 2021).

        Returns:
            Whether it finished. If not, a signal asked to stop.
        """
        layers = [module for module in self.model.modules() if isinstance(module, _BatchNorm)]
        count = self._job.settings.precise_bn_iterations
        if not layers or not count:
            return True
        momenta = [layer.momentum for layer in layers]
        for layer in layers:
            layer.momentum = 1.0  # the running statistics are then those of the newest batch
        sums = [torch.zeros(2, layer.num_features, dtype=torch.float64, device=self._job.device) for layer in layers]
        with reporter.progress("BatchNorm's statistics", count) as bar:
            for step in range(self._done, self._done + count):
                with memory_for("a batch's images"):
                    self._losses(all_succeed(lambda: next(batches)), step)
                for total, layer in zip(sums, layers, strict=True):
                    mean, variance = (layer.get_buffer(name).double() for name in ("running_mean", "running_var"))
                    total.add_(torch.stack([mean, variance + mean.square()]))
                bar.advance()
                if stop.agreed():
                    return False
        for total, layer, momentum in zip(sums, layers, momenta, strict=True):
            layer.momentum = momentum
            mean, square = total / count
            layer.get_buffer("running_mean").copy_(mean)
            layer.get_buffer("running_var").copy_(square - mean.square())
        return True

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs."""
        return {
            "step": self._done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> int:
        """Load a state, and return the number of completed steps."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:
            group["fused"] = self.lags  # the state may be of another device, or of a version that had none
        self._scaler.load_state_dict(state["scaler"])
        self._done = int(state["step"])
        return self._done


def losses_of(model: nn.Module, samples: Sequence[Sample], device: torch.device) -> dict[str, Tensor]:
    """The parts of a detector's loss on images and their objects, by name."""
    targets = [
        {
            "boxes": to_device(each.boxes, device),
            "labels": to_device(each.labels, device) + 1,
            "masks": to_device(each.masks, device),
        }
        for each in samples
    ]
    losses: dict[str, Tensor] = model([to_device(each.image, device) for each in samples], targets)
    return losses


def optimizer(model: nn.Module, settings: DetectionSettings, *, fused: bool = False) -> torch.optim.Optimizer:
    """SGD or AdamW over all trainable weights; weight decay for all but norms, as in Detectron2."""
    norms = {
        id(weight) for module in model.modules() if isinstance(module, _BatchNorm) for weight in module.parameters()
    }
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in weights if id(weight) not in norms], "weight_decay": settings.weight_decay},
        {"params": [weight for weight in weights if id(weight) in norms], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.base_lr, fused=fused)
    return torch.optim.SGD(groups, lr=settings.base_lr, momentum=settings.momentum, fused=fused)


def learning_rate(settings: DetectionSettings, step: int) -> float:
    """The learning rate of a step, from 0: linear warm-up from base_lr / 1000, divided by 10 at each of `steps`."""
    progress = min(1.0, step / settings.warmup) if settings.warmup else 1.0
    return settings.base_lr * (0.001 + 0.999 * progress) * 0.1 ** bisect_right(settings.steps, step)


def new_detector(job: Job) -> Detector:
    """The detector before training, on the CPU; its new weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.fold(seeding.Purpose.TRANSFER_WEIGHTS, job.settings.seed))
        return build(job.settings, job.depth, job.backbone, len(job.train.classes))


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Turn an out-of-memory error into a UserError that says what needs the memory."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise UserError(f"no memory for {what}: use a smaller batch or smaller images") from None
