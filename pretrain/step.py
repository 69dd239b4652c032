"""One optimization step; the only file that knows of precision and accumulation."""

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from excb import seeding
from excb.distributed.batchnorm import synchronise_batchnorm
from excb.distributed.collectives import all_succeed, mean_over_ranks
from excb.distributed.parallel import average_gradients
from excb.method import ExCB, Step
from excb.networks.activation_checkpointing import recompute_blocks

from .data.augmentation import augment
from .data.loader import Batch
from .optim import Schedules, clip_each, conditional_step, gradient_norms, restore_optimizer, set_schedules
from .recipe import Recipe

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
SMALLEST_SCALE = 2.0**-10  # of fp16's loss: below it, gradients overflow whatever the scale


class NotFiniteError(Exception):
    """A loss or a gradient is NaN or infinite; the message says which. Everything is as before that step.

    Args:
        cause: what is not finite.
        step: the number of the step that was refused, and after which none was taken.
    """

    def __init__(self, cause: str, step: int) -> None:
        super().__init__(cause)
        self.step = step


class StepCheck:
    """Whether a step was taken: known on the device at once, here once the device has come so far.

    Args:
        step: its number.
        going: [] bool, whether it and all before it may stay.
        loss: [].
        norms: [] of every gradient.
    """

    def __init__(self, step: int, going: Tensor, loss: Tensor, norms: dict[str, Tensor]) -> None:
        self.step, self._loss, self._norms = step, loss, norms
        self._going, self._arrived = going, None
        if going.is_cuda:
            self._going = torch.empty(going.shape, dtype=going.dtype, pin_memory=True).copy_(going, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> None:
        """Wait for the step; raise NotFiniteError, in all processes alike, if it was refused."""
        if self._arrived is not None:
            self._arrived.synchronize()
        if self._going.numpy():
            return
        mean = float(mean_over_ranks(self._loss.clone()))
        wrong = [name for name, value in self._norms.items() if not math.isfinite(value)] or ["all weights together"]
        rest = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise NotFiniteError(f"the loss is {mean:.4g}, the gradient of {wrong[0]}{rest} is not finite", self.step)


class BufferSnapshot:
    """Copies of a model's buffers, for a step that turns out to be refused: BatchNorm's move in the forward pass.

    Args:
        buffers: at least one.
    """

    def __init__(self, buffers: list[Tensor]) -> None:
        self._kinds = [[one for one in buffers if one.dtype is dtype] for dtype in {one.dtype for one in buffers}]
        self._kept: list[Tensor] = []

    def keep(self) -> None:
        """Copy what is there now."""
        self._kept = [_flat(kind) for kind in self._kinds]

    def restore_unless(self, going: Tensor) -> None:
        """Take the copies back where `going` [] is false; nothing waits to learn whether it is."""
        for kind, kept in zip(self._kinds, self._kept, strict=True):
            chosen = torch.where(going, _flat(kind), kept).split([one.numel() for one in kind])
            torch._foreach_copy_(kind, [new.view_as(old) for new, old in zip(chosen, kind, strict=True)])


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([one.flatten() for one in tensors])


def prepare(model: ExCB, recipe: Recipe, device: torch.device) -> ExCB:
    """Move a new model where it trains, and fit it to precision, memory and processes; its state stays the same.

    Raises:
        UserError: the backbone has no blocks to recompute; in all processes alike.
    """
    efficiency = recipe.efficiency
    if efficiency.checkpointing:
        all_succeed(lambda: recompute_blocks(model.student.backbone))
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
        self._before = BufferSnapshot(list(model.buffers()))
        self._going = torch.ones((), dtype=torch.bool, device=device)  # no step was refused so far
        self._verdict: StepCheck | None = None  # of the newest step

    def views(self, crops: Tensor | None, parameters: Tensor | None) -> Tensor | None:
        """Augment crops [V, B, S, S, 3] into views [V, B, 3, S, S] on the device."""
        if crops is None or parameters is None:
            return None
        moved = crops.flatten(0, 1).to(self.device, non_blocking=True)
        rows = augment(moved, parameters.flatten(0, 1), self.recipe.views).to(self._dtype)
        return rows.view(*crops.shape[:2], *rows.shape[1:])

    def step(self, batch: Batch, step: int) -> tuple[Step, Tensor]:
        """Train on one batch: loss, gradient, optimizer, sizes and teacher.

        A step whose gradient is not finite is refused where it is computed: it and all after it change nothing. This
        is told one step later, so that a GPU always has work while this process waits; `synchronize` reports it now.

        Args:
            batch: this process's views.
            step: the step's number, from 0; with the recipe's seed it names every random choice outside the views.

        Returns:
            What the method returned for this process's images, and the norm [] of the whole batch's gradient.

        Raises:
            NotFiniteError: the step before was refused; in all processes alike.
        """
        self._before.keep()
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
        norm = torch.linalg.vector_norm(torch.stack(list(norms.values())))
        finite = norm.isfinite()
        self._going = self._going & (finite | self._overflowed(output.loss))
        if self.recipe.optim.clip is not None:
            clip_each(self.model.student, norms, self.recipe.optim.clip)
        if self.schedules.centroids_frozen(step):
            self.model.student.centroids.weight.grad = None  # no gradient: no decay and no momentum either
        conditional_step(self.optimizer, finite & self._going)
        self.scaler.update()
        momentum = 1 - self._going.double() * (1 - self.schedules.teacher_momentum(step))  # 1: the teacher stays
        self.model.update(output.counted, momentum, output.balance)
        self._before.restore_unless(self._going)
        before, self._verdict = self._verdict, StepCheck(step, self._going, output.loss, norms)
        if before is not None:
            before.read()
        return output, norm

    def synchronize(self) -> None:
        """Wait for the newest step; raise NotFiniteError, in all processes alike, if it was refused."""
        if self._verdict is not None:
            self._verdict.read()
            self._verdict = None

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
                global_views, local_views, step_key=seeding.fold(seed, step), sample_keys=names
            )
        return output

    def _overflowed(self, loss: Tensor) -> Tensor:
        """Whether [] a gradient that is not finite is fp16's: the scaler leaves the step out and lowers its scale."""
        if not self.scaler.is_enabled():
            return torch.zeros_like(self._going)
        scale = self.scaler.scale(torch.ones_like(loss))
        return mean_over_ranks(loss.clone()).isfinite() & (scale > SMALLEST_SCALE)

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
