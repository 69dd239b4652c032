"""Parameter groups, optimizers, and schedules as pure functions of the step, so that no schedule is stored."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from excb.settings import MethodSettings

from .recipe import AdaptSettings, OptimSettings, cycle


def cosine(start: float, end: float, progress: float) -> float:
    """From `start` at progress 0 to `end` at progress 1 on half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


@dataclass(frozen=True)
class Schedules:
    """Every scheduled value, as a function of the step."""

    optim: OptimSettings
    method: MethodSettings
    steps_per_epoch: int
    adapt: AdaptSettings = field(default_factory=AdaptSettings)
    layers: int = 1  # of the backbone, see `excb.networks.depth`
    average: float = 0.0  # share of the run so far that the teacher averages over; 0: by the method's momenta

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.optim.epochs * self.steps_per_epoch

    def _cycle(self, step: int) -> tuple[int, int]:
        """Steps since the schedules began or began anew, and how many they last."""
        first, last = (epoch * self.steps_per_epoch for epoch in cycle(step / self.steps_per_epoch, self.optim.marks))
        return step - first, last - first

    def _progress(self, step: int) -> float:
        """How far the schedules are: 0 where they begin or begin anew, 1 at their end."""
        done, steps = self._cycle(step)
        return done / steps

    def learning_rate(self, step: int) -> float:
        """Linear warm-up from 0, then a cosine to the floor; both again after each of `optim.restarts`."""
        done, steps = self._cycle(step)
        peak, warmup = self.optim.base_lr * self.optim.batch / 256, min(self._warmup, steps)
        if done < warmup:
            return peak * (done + 1) / warmup
        return cosine(peak, peak * self.optim.lr_floor, (done - warmup) / max(1, steps - warmup))

    @property
    def _warmup(self) -> int:
        """Steps of linear warm-up."""
        return min(round(self.optim.warmup_epochs * self.steps_per_epoch), self.steps)

    def released_at(self, depth: int) -> int:
        """The step from which a layer of the backbone learns: the last layer after the warm-up, the first one last."""
        share = 0.0 if self.layers == 1 else 1 - depth / (self.layers - 1)
        return round((self.adapt.warmup_epochs + share * self.adapt.release_epochs) * self.steps_per_epoch)

    def first_released(self, step: int) -> int:
        """The depth of the first layer of the backbone that learns in this step; `layers` if none does."""
        return next((depth for depth in range(self.layers) if self.released_at(depth) <= step), self.layers)

    def layer_factor(self, depth: int, step: int) -> float:
        """Factor on the learning rate of a layer of the backbone: its decay, and its own warm-up if it was frozen."""
        decayed = self.adapt.layer_decay ** (self.layers - 1 - depth)
        released = self.released_at(depth)
        if released == 0:
            return decayed
        return decayed * min(1.0, max(0, step + 1 - released) / max(1, self._warmup))

    def anchor(self, step: int) -> float:
        """Weight of the anchor; 0 while the whole backbone is frozen, since nothing could move it."""
        if self.first_released(step) == self.layers:
            return 0.0
        return cosine(self.adapt.anchor, self.adapt.anchor_end, self._progress(step))

    def weight_decay(self, step: int) -> float:
        """Weight decay of all weights but centroids."""
        return cosine(self.optim.weight_decay, self.optim.weight_decay_end, self._progress(step))

    def centroid_decay(self, step: int) -> float:
        """Weight decay of the centroids (Sec. 4.1: 1e-3 to 1e-4 on a cosine)."""
        factor = cosine(self.optim.centroid_decay, self.optim.centroid_decay_end, self._progress(step))
        return factor * self.weight_decay(step)

    def teacher_momentum(self, step: int) -> float:
        """Momentum m of the teacher's EMA.

        An average over a share of the run so far fits runs of any length (Karras et al., "Analyzing and Improving the
        Training Dynamics of Diffusion Models", CVPR 2024).
        """
        if self.average:
            return 1 - 1 / max(1.0, self.average * (step + 1))
        return cosine(self.method.teacher_momentum, self.method.teacher_momentum_end, self._progress(step))

    def centroids_frozen(self, step: int) -> bool:
        """Whether the centroids are frozen in this step (DINO's freeze_last_layer)."""
        return step < self.optim.frozen_centroid_epochs * self.steps_per_epoch


def build_optimizer(
    student: nn.Module, settings: OptimSettings, *, fused: bool = True, depths: Mapping[str, int] | None = None
) -> Optimizer:
    """The optimizer with three groups: weights, parameters without decay (biases and 1-D ones), centroids.

    Args:
        student: whose parameters are trained.
        settings: which optimizer, and its momentum.
        fused: one kernel updates all tensors; otherwise they are updated list by list (torch's foreach).
        depths: of the backbone's parameters, which then have groups of their own, two for each depth. Those that never
            learn are in none.
    """
    groups: dict[tuple[str, int | None], list[nn.Parameter]] = {
        (kind, None): [] for kind in ("weights", "no_decay", "centroids")
    }
    for name, parameter in student.named_parameters():
        kind = "centroids" if name == "centroids.weight" else "no_decay" if parameter.ndim <= 1 else "weights"
        depth = None
        if depths is not None and name.startswith("backbone."):
            if not parameter.requires_grad:  # what low-rank updates leave as it is
                continue
            depth = depths[name.removeprefix("backbone.")]
        groups.setdefault((kind, depth), []).append(parameter)
    parameters: list[dict[str, Any]] = [
        {"params": members, "name": kind} | ({} if depth is None else {"depth": depth})
        for (kind, depth), members in groups.items()
    ]
    if settings.optimizer == "adamw":
        betas = settings.momentum, 0.999
        return AdamW(parameters, lr=0.0, betas=betas, weight_decay=0.0, fused=fused, foreach=not fused)
    sgd = SGD(parameters, lr=0.0, momentum=settings.momentum, weight_decay=0.0, fused=fused, foreach=not fused)
    if settings.momentum:
        # As after a first step. If the first step were skipped, the fused kernel would leave these buffers unwritten.
        trained = {id(parameter) for members in groups.values() for parameter in members}
        for parameter in student.parameters():
            if id(parameter) in trained:
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def conditional_step(optimizer: Optimizer, taken: Tensor) -> None:
    """Take the optimizer's step if `taken` [] is true. Only an optimizer that is not fused waits for its value."""
    if optimizer.defaults["fused"]:
        # This is how torch's GradScaler makes a fused optimizer skip a step.
        optimizer.found_inf = (~taken).float()  # type: ignore[attr-defined]
        optimizer.step()
    elif taken:
        optimizer.step()


def restore_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load an optimizer's `state_dict`, except how updates run and how tensors are laid out in memory."""
    own = [{name: group[name] for name in ("fused", "foreach")} for group in optimizer.param_groups]
    groups = [saved | how for saved, how in zip(state["param_groups"], own, strict=True)]
    optimizer.load_state_dict(state | {"param_groups": groups})
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if value.shape == parameter.shape:  # a fused kernel wants them laid out alike; channels_last may be new
                values[name] = torch.empty_like(parameter).copy_(value)


def set_schedules(optimizer: Optimizer, schedules: Schedules, step: int) -> None:
    """Set learning rate and weight decay of every group for one step."""
    decay = {"weights": schedules.weight_decay(step), "no_decay": 0.0, "centroids": schedules.centroid_decay(step)}
    for group in optimizer.param_groups:
        factor = schedules.layer_factor(group["depth"], step) if "depth" in group else 1.0
        group["lr"] = factor * schedules.learning_rate(step)
        group["weight_decay"] = decay[group["name"]]


@torch.no_grad()
def gradient_norms(student: nn.Module) -> dict[str, Tensor]:
    """The norm [] of every parameter's gradient, by the parameter's name."""
    gradients = {name: value.grad for name, value in student.named_parameters() if value.grad is not None}
    norms: tuple[Tensor, ...] = torch._foreach_norm(list(gradients.values()))
    return dict(zip(gradients, norms, strict=True))


@torch.no_grad()
def clip_each(student: nn.Module, norms: dict[str, Tensor], largest: float) -> None:
    """Scale down the gradient of every parameter tensor whose norm exceeds `largest` (DINO's clipping)."""
    gradients = [value.grad for name, value in student.named_parameters() if name in norms and value.grad is not None]
    factors = (largest / (torch.stack(list(norms.values())) + 1e-6)).clamp_(max=1)
    torch._foreach_mul_(gradients, list(factors.unbind()))
