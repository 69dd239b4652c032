"""How the torchvision engine trains: one step after another, each a function of the seed and its number."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from excb import seeding
from excb.console import Reporter
from excb.distributed.batchnorm import synchronise_batchnorm
from excb.distributed.collectives import all_succeed, mean_over_ranks, rank
from excb.distributed.parallel import average_gradients
from excb.distributed.signals import StopRequest
from excb.errors import UserError

from ..core.job import Job
from ..core.samples import Sample
from ..core.settings import DetectionSettings
from .model import Detector, build


class Training:
    """What a step moves: a detector and its optimizer.

    Args:
        job: the run.

    Raises:
        UserError: the settings cannot run here, or the backbone is of another network.
    """

    def __init__(self, job: Job) -> None:
        settings = job.settings
        amp = settings.precision == "amp"
        if amp and job.device.type == "cpu":
            raise UserError.on_all_ranks("precision=amp needs a GPU: choose fp32")
        model = new_detector(job).to(job.device)
        if settings.norm in ("SyncBN", "naiveSyncBN"):
            synchronise_batchnorm(model, job.device)
        self.model, self._job, self._done = model.train(), job, 0
        self._parallel = average_gradients(model)
        self.optimizer = optimizer(model, settings)
        self._scaler = torch.amp.GradScaler(job.device.type, enabled=amp)
        self._autocast = torch.autocast(job.device.type, torch.float16 if amp else None, enabled=amp)

    def step(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        """Take one step on all processes' images together.

        Args:
            samples: this process's images.
            step: its number from 0, which names with the seed what is drawn in it.

        Returns:
            The `loss` and its parts, means over the processes.

        Raises:
            UserError: the loss is not finite (no weight has moved then), or memory does not suffice.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self._job.settings, step)
        self.optimizer.zero_grad()
        with memory_for(f"{len(samples)} images at once"):
            losses = self._losses(samples, step)
            loss = torch.stack(list(losses.values())).sum()
            self._scaler.scale(loss).backward()
        means = mean_over_ranks(torch.stack([loss, *losses.values()]).detach().float()).tolist()
        if not math.isfinite(means[0]):
            raise UserError.on_all_ranks(
                f"training diverged in step {step + 1} of {self._job.settings.iterations}: lower base_lr, or lengthen "
                "warmup",
            )
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self._done = step + 1
        return dict(zip(["loss", *losses], means, strict=True))

    def _losses(self, samples: Sequence[Sample], step: int) -> dict[str, Tensor]:
        """The parts of the loss, by name."""
        # Regions and anchors are drawn by torch's generator: make that a function of the step.
        torch.manual_seed(seeding.fold(seeding.Purpose.STEP, self._job.settings.seed, step, rank()))
        model = self.model if self._parallel is None or not torch.is_grad_enabled() else self._parallel
        with self._autocast:
            return losses_of(model, samples, self._job.device)

    @torch.no_grad()
    def measure_batchnorm(self, batches: Iterator[Sequence[Sample]], stop: StopRequest, reporter: Reporter) -> bool:
        """Give BatchNorm the mean statistics of the next batches ("precise BN"; Wu and Johnson, 2021).

        Returns:
            Whether it was done; else a signal asked to stop.
        """
        layers = [module for module in self.model.modules() if isinstance(module, _BatchNorm)]
        count = self._job.settings.precise_bn_iterations
        if not layers or not count:
            return True
        momenta = [layer.momentum for layer in layers]
        for layer in layers:
            layer.momentum = 1.0  # what runs is then the newest batch's statistics
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
        """What `restore` goes on from."""
        return {
            "step": self._done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> int:
        """Go on from a state, and return the number of steps done."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        self._done = int(state["step"])
        return self._done


def losses_of(model: nn.Module, samples: Sequence[Sample], device: torch.device) -> dict[str, Tensor]:
    """What a detector in training makes of images and their objects: the parts of the loss, by name."""
    targets = [
        {"boxes": each.boxes.to(device), "labels": each.labels.to(device) + 1, "masks": each.masks.to(device)}
        for each in samples
    ]
    losses: dict[str, Tensor] = model([each.image.to(device) for each in samples], targets)
    return losses


def optimizer(model: nn.Module, settings: DetectionSettings) -> torch.optim.Optimizer:
    """SGD or AdamW over all that is trained; norms have no weight decay, biases have, as in Detectron2."""
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
        return torch.optim.AdamW(groups, lr=settings.base_lr)
    return torch.optim.SGD(groups, lr=settings.base_lr, momentum=settings.momentum)


def learning_rate(settings: DetectionSettings, step: int) -> float:
    """The rate of one step, counted from 0: linear from a thousandth, then a tenth at each of `steps`."""
    share = min(1.0, step / settings.warmup) if settings.warmup else 1.0
    return settings.base_lr * (0.001 + 0.999 * share) * 0.1 ** bisect_right(settings.steps, step)


def new_detector(job: Job) -> Detector:
    """The detector before training, on the CPU; its new weights are named by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.fold(seeding.Purpose.TRANSFER_WEIGHTS, job.settings.seed))
        return build(job.settings, job.depth, job.backbone, len(job.train.classes))


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Turn a lack of memory into one line."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise UserError(f"{what} do not fit into memory: choose a smaller batch, or smaller images") from None
