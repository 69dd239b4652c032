"""One optimization step; the only file that knows of precision and accumulation."""

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from excb import seeding
from excb.backbones import recompute_blocks
from excb.collectives import mean_over_ranks, together
from excb.method import ExCB, Step
from excb.parallel import average_gradients, synchronise_batchnorm

from .data import Batch
from .optim import Schedules, clip_each, gradient_norms, restore_optimizer, set_schedules
from .recipes import Recipe
from .views import augment

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
SMALLEST_SCALE = 2.0**-10  # of fp16's loss: below it, gradients overflow whatever the scale


class NotFiniteError(Exception):
    """A loss or a gradient is NaN or infinite; the message says which. Weights are as before the step."""


def prepare(model: ExCB, recipe: Recipe, device: torch.device) -> ExCB:
    """Move a new model where it trains, and fit it to precision, memory and processes; its state stays the same.

    Raises:
        UserError: the backbone has no blocks to recompute; in all processes alike.
    """
    efficiency = recipe.efficiency
    if efficiency.checkpointing:
        together(lambda: recompute_blocks(model.student.backbone))
    model.to(device, torch.float64 if efficiency.precision == "fp64" else None)
    if efficiency.channels_last:
        model.to(memory_format=torch.channels_last)
    synchronise_batchnorm(model, device)
    if efficiency.compile:
        # In place, so that names stay; each shape is a graph: one for global views, one for local ones.
        for network in (model.student, model.teacher):
            network.backbone.compile(dynamic=False)
    return model.train()


class Trainer:
    """What a step moves: the method and its optimizer.

    Args:
        model: student, teacher and sizes, on the device.
        optimizer: of the student.
        schedules: values that follow the step.
        recipe: the run's recipe.
        device: where the networks are.
    """

    def __init__(
        self, model: ExCB, optimizer: Optimizer, schedules: Schedules, recipe: Recipe, device: torch.device
    ) -> None:
        self.model, self.optimizer, self.schedules = model, optimizer, schedules
        self.recipe, self.device = recipe, device
        self._parallel = average_gradients(model)
        precision = recipe.efficiency.precision
        self._dtype = torch.float64 if precision == "fp64" else torch.float32
        self._autocast = AUTOCAST.get(precision)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        # BatchNorm's statistics move in the forward pass already: copies, for a step that must not be taken.
        self._buffers = list(model.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]

    def views(self, crops: Tensor | None, parameters: Tensor | None) -> Tensor | None:
        """Augment crops [V, B, S, S, 3] into views [V, B, 3, S, S] on the device."""
        if crops is None or parameters is None:
            return None
        moved = crops.flatten(0, 1).to(self.device, non_blocking=True)
        rows = augment(moved, parameters.flatten(0, 1), self.recipe.views).to(self._dtype)
        return rows.view(*crops.shape[:2], *rows.shape[1:])

    def step(self, batch: Batch, step: int) -> tuple[Step, float]:
        """Train on one batch: loss, gradient, optimizer, sizes and teacher.

        Args:
            batch: this process's views.
            step: the step's number, from 0; with the recipe's seed it names every random choice outside the views.

        Returns:
            What the method returned for this process's images, and the norm of the whole batch's gradient.

        Raises:
            NotFiniteError: in all processes alike, before anything has moved.
        """
        torch._foreach_copy_(self._before, self._buffers)
        set_schedules(self.optimizer, self.schedules, step)
        self.optimizer.zero_grad(set_to_none=True)
        parts = batch.split(self.recipe.efficiency.accumulate)
        outputs = []
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last or self._parallel is None else self._parallel.no_sync():
                output = self._forward(part, step)
                self.scaler.scale(output.loss / len(parts)).backward()
            outputs.append(output)
        output = join(outputs)
        self.scaler.unscale_(self.optimizer)
        norms = gradient_norms(self.model.student)
        # The only place where a GPU is waited for: the step must be refused before anything moves.
        norm = float(torch.linalg.vector_norm(torch.stack(list(norms.values()))))
        self._check(output.loss, norms, norm)
        if self.recipe.optim.clip is not None:
            clip_each(self.model.student, norms, self.recipe.optim.clip)
        if self.schedules.centroids_frozen(step):
            self.model.student.centroids.weight.grad = None  # no gradient: no decay and no momentum either
        if math.isfinite(norm):  # else fp16 overflowed, and SGD's fused kernel would start from momenta never written
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.model.update(output.counted, self.schedules.teacher_momentum(step), output.balance)
        return output, norm

    def _forward(self, part: Batch, step: int) -> Step:
        """The loss of a micro-batch."""
        seed, epoch = self.recipe.run.seed, step // self.schedules.steps_per_epoch
        # Dropout in a backbone of timm's draws from torch's generator: make that a function of the step, too, and of
        # the images' place in the batch.
        torch.manual_seed(seeding.fold(seeding.Purpose.STEP, seed, step, part.position))
        global_views = self.views(part.global_crops, part.global_parameters)
        local_views = self.views(part.local_crops, part.local_parameters)
        names = seeding.fold_tensor(
            seeding.fold(seeding.Purpose.DROP_PATH, seed, epoch), part.samples.to(self.device, non_blocking=True)
        )
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            output: Step = (self._parallel or self.model)(
                global_views, local_views, step_name=seeding.fold(seed, step), sample_names=names
            )
        return output

    def _check(self, loss: Tensor, norms: dict[str, Tensor], norm: float) -> None:
        """Raise NotFiniteError unless the step may be taken. Gradients are those of all processes, so all agree."""
        if math.isfinite(norm):
            return
        mean = float(mean_over_ranks(loss.detach().clone()))
        if self.scaler.is_enabled() and math.isfinite(mean) and self.scaler.get_scale() > SMALLEST_SCALE:
            return  # fp16 overflowed: the scaler leaves the step out and lowers its scale
        torch._foreach_copy_(self._buffers, self._before)
        wrong = [name for name, value in norms.items() if not math.isfinite(value)] or ["all weights together"]
        rest = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise NotFiniteError(f"the loss is {mean:.4g}, the gradient of {wrong[0]}{rest} is not finite")

    def state(self) -> dict[str, Any]:
        """What `restore` goes on from, besides the model."""
        return {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`; the loss scale of fp16 starts anew where the run had another precision."""
        restore_optimizer(self.optimizer, state["optimizer"])
        if self.scaler.is_enabled() and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])


def join(parts: list[Step]) -> Step:
    """The output for a batch from those of its equal micro-batches, without gradients."""
    balance = [part.balance for part in parts if part.balance is not None]
    return Step(
        torch.stack([part.loss.detach() for part in parts]).mean(),
        torch.cat([part.winners for part in parts], dim=1),
        torch.cat([part.counted for part in parts], dim=1),
        torch.stack([part.confidence for part in parts]).mean(),
        torch.stack([part.agreement for part in parts]).mean(),
        torch.stack(balance).mean(0) if balance else None,
    )
