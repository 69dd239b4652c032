"""One optimization step; the only module that deals with precision and gradient accumulation."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from excb import seeding
from excb.distributed.batchnorm import synchronise_batchnorm
from excb.distributed.collectives import all_succeed, mean_over_ranks, world_size
from excb.distributed.machine import triton_obstacle
from excb.distributed.parallel import average_gradients
from excb.errors import UserError, require
from excb.method import Clustered, Distilled, ExCB, Step
from excb.networks.activation_checkpointing import recompute_blocks
from excb.networks.architecture import RGB
from excb.networks.depth import depths, layer_count
from excb.networks.lora import add_lora

from .adapt.anchor import Anchor
from .adapt.release import Release
from .data.augmentation import augment
from .data.batch import ViewBatch
from .data.fused_augmentation import augment_fused
from .distil.interface import Targets
from .optim import (
    Schedules,
    build_optimizer,
    clip_each,
    conditional_step,
    gradient_norms,
    restore_optimizer,
    set_schedules,
)
from .precision import gpu_products, resolved, view_of_one_pixel
from .recipe import Recipe

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The first torch seen to compile recomputed blocks under DistributedDataParallel; earlier ones raised an error.
COMPILES_RECOMPUTED = "2.15"  # torch compares versions, not text
SMALLEST_SCALE = 2.0**-10  # of the fp16 loss: gradients that overflow even at this scale are not finite

# What frozen teachers make of a batch: of its images [B] and their views [v, B, 3, S, S] for each resolution.
TargetSource = Callable[[Tensor, Sequence[Tensor]], list[Targets]]


class NotFiniteError(Exception):
    """A loss or a gradient is NaN or infinite; the message says which. The state is that before the step.

    Args:
        cause: what is not finite.
        step: number of the rejected step, after which none was taken.
    """

    def __init__(self, cause: str, step: int) -> None:
        super().__init__(cause)
        self.step = step


class StepCheck:
    """Whether a step was taken: known on the device at once, on the CPU once the device has reached it.

    Args:
        valid: [] bool, whether this step and all before it were finite.
        norms: [] of every gradient.
    """

    def __init__(self, step: int, valid: Tensor, loss: Tensor, norms: dict[str, Tensor]) -> None:
        self.step, self._loss, self._norms = step, loss, norms
        self._valid, self._computed = valid, None
        if valid.is_cuda:
            self._valid = torch.empty(valid.shape, dtype=valid.dtype, pin_memory=True).copy_(valid, non_blocking=True)
            self._computed = torch.cuda.Event()
            self._computed.record()

    def read(self) -> None:
        """Wait for the step; raise NotFiniteError, on all ranks, if it was rejected."""
        if self._computed is not None:
            self._computed.synchronize()
        if self._valid.numpy():
            return
        mean = float(mean_over_ranks(self._loss.clone()))
        not_finite = [name for name, value in self._norms.items() if not math.isfinite(value)]
        not_finite = not_finite or ["all weights together"]
        rest = f" and {len(not_finite) - 1} more" if len(not_finite) > 1 else ""
        raise NotFiniteError(f"the loss is {mean:.4g}, the gradient of {not_finite[0]}{rest} is not finite", self.step)


class BufferSnapshot:
    """Copies of a model's buffers for a step that may be rejected: BatchNorm updates them in the forward pass."""

    def __init__(self, buffers: list[Tensor]) -> None:
        self._groups = [[one for one in buffers if one.dtype is dtype] for dtype in {one.dtype for one in buffers}]
        self._copies: list[Tensor] = []

    def take(self) -> None:
        """Copy the buffers."""
        self._copies = [_flat(group) for group in self._groups]

    def restore_unless(self, valid: Tensor) -> None:
        """Restore the copies if `valid` [] is false, without a synchronization to find out."""
        for group, copies in zip(self._groups, self._copies, strict=True):
            values = torch.where(valid, _flat(group), copies).split([one.numel() for one in group])
            torch._foreach_copy_(group, [new.view_as(old) for new, old in zip(values, group, strict=True)])


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([one.flatten() for one in tensors])


def prepare_model(model: ExCB, recipe: Recipe, device: torch.device) -> ExCB:
    """Move a new model to its device, and apply precision, checkpointing, SyncBatchNorm and compilation to it.

    Raises:
        UserError: the backbone has no blocks to recompute, views are too small for bf16 on a CPU, or this torch cannot
            compile what is asked for; raised on all ranks.
    """
    efficiency = recipe.efficiency
    if efficiency.compile and efficiency.checkpointing and world_size() > 1 and torch.__version__ < COMPILES_RECOMPUTED:
        raise UserError.on_all_ranks(
            f"torch {torch.__version__} may not compile recomputed blocks in several processes: install torch 2.15 or "
            "newer, or switch off efficiency.compile or efficiency.checkpointing"
        )
    if device.type == "cpu" and efficiency.precision == "bf16":
        all_succeed(lambda: _refuse_one_pixel(model, recipe))
    if efficiency.checkpointing:
        all_succeed(lambda: recompute_blocks(model.student.backbone))
    model.to(device, torch.float64 if efficiency.precision == "fp64" else None)
    if efficiency.channels_last:
        model.to(memory_format=torch.channels_last)
    synchronise_batchnorm(model)
    if efficiency.compile:
        # In place, which keeps the names in the state dict. Global and local views have different shapes: two graphs.
        for network in (model.student, model.teacher):
            network.backbone.compile(dynamic=False)
    return model.train()


def trainer_for(
    model: ExCB, recipe: Recipe, device: torch.device, *, steps_per_epoch: int, targets: TargetSource | None = None
) -> "Trainer":
    """The trainer of a run.

    Args:
        model: new, with the weights that the run starts from; it is prepared here (`prepare_model`).
        recipe: of the run.
        device: where this rank trains.
        steps_per_epoch: of the run.
        targets: of the frozen teachers; None without any.

    Raises:
        UserError: as `prepare_model`; or the backbone takes no low-rank updates, or peft is not installed.
    """
    recipe = resolved(recipe, device)
    adapt, order, release = recipe.adapt, None, None
    anchor = Anchor(model.teacher.backbone) if adapt.anchored else None
    if adapt.lora_rank:
        seed = seeding.fold(seeding.Purpose.WEIGHTS, recipe.run.seed, 1)
        all_succeed(lambda: add_lora(model.student.backbone, adapt.lora_rank, seed=seed))
    model = prepare_model(model, recipe, device)
    average = 0.0 if recipe.method.needs_teacher or not recipe.distil.active else recipe.distil.average
    schedules = Schedules(recipe.optim, recipe.method, steps_per_epoch, adapt, average=average)
    if adapt.active:
        order = depths(model.student.backbone)
        schedules = replace(schedules, layers=layer_count(order))
        release = Release(model, order, frozen_statistics=adapt.frozen_statistics)
    if anchor is not None:
        anchor.to(device, torch.float64 if recipe.efficiency.precision == "fp64" else None)
    optimizer = build_optimizer(model.student, recipe.optim, fused=recipe.efficiency.fused, depths=order)
    return Trainer(model, optimizer, schedules, recipe, device, release=release, anchor=anchor, targets=targets)


def _refuse_one_pixel(model: ExCB, recipe: Recipe) -> None:
    size = view_of_one_pixel(model.teacher.backbone, recipe)
    require(
        size is None,
        f"efficiency.precision=bf16 gives wrong numbers on CPUs where a strided convolution sees one pixel, as in "
        f"{recipe.model.backbone} with views of {size} pixels (a fault of torch's oneDNN): choose larger views, or set "
        "efficiency.precision=auto",
    )


class Trainer:
    """Takes steps: holds the method, its optimizer and its schedules.

    Args:
        model: prepared (`prepare_model`).
        optimizer: of the student's parameters.
        schedules: of learning rates and all else that depends on the step.
        recipe: of the run, with its precision resolved (`precision.resolved`).
        device: of the model.
        release: of the backbone's layers; None where all learn from the first step.
        anchor: to the start's features, on the device; None for none.
        targets: of the frozen teachers; None without any.
    """

    def __init__(
        self,
        model: ExCB,
        optimizer: Optimizer,
        schedules: Schedules,
        recipe: Recipe,
        device: torch.device,
        *,
        release: Release | None = None,
        anchor: Anchor | None = None,
        targets: TargetSource | None = None,
    ) -> None:
        self.model, self.optimizer, self.schedules = model, optimizer, schedules
        self.recipe, self.device, self.anchor, self._release = recipe, device, anchor, release
        self._targets = targets
        if release is not None:  # before k-means, which must see the frozen backbone
            release.apply(schedules.first_released(0))
        self._parallel = self._averaging()
        # The kernels know three channels.
        fused = recipe.efficiency.fused and recipe.channels == RGB and not triton_obstacle(device)
        self._augment = augment_fused if fused else augment
        precision = recipe.efficiency.precision
        assert precision != "auto"
        self._dtype = torch.float64 if precision == "fp64" else torch.float32
        self._autocast = AUTOCAST.get(precision)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self._buffers = BufferSnapshot(list(model.buffers()))
        self._valid = torch.ones((), dtype=torch.bool, device=device)  # no step was rejected so far
        self._check: StepCheck | None = None  # of the newest step

    def _averaging(self) -> DistributedDataParallel | None:
        efficiency = self.recipe.efficiency
        return average_gradients(
            self.model,
            compression=efficiency.compression,
            static_graph=efficiency.static_graph,
            bucket_mb=efficiency.bucket_mb,
        )

    def views(self, crops: Tensor | None, parameters: Tensor | None) -> Tensor | None:
        """Augment crops [V, B, S, S, C] into views [V, B, C, S, S] on the device."""
        if crops is None or parameters is None:
            return None
        moved = crops.flatten(0, 1).to(self.device, non_blocking=True)
        rows = self._augment(moved, parameters.flatten(0, 1), self.recipe.views).to(self._dtype)
        return rows.view(*crops.shape[:2], *rows.shape[1:])

    def step(self, batch: ViewBatch, step: int) -> tuple[Step, Tensor]:
        """Train on one batch: loss, gradient, optimizer, sizes and teacher.

        A step whose gradient is not finite is rejected on the device: it and all later steps change nothing. The error
        is raised one step later, so that the GPU is never idle while the CPU waits for it. `synchronize` raises it now.

        Args:
            batch: this rank's views.
            step: the step's number, from 0; with the recipe's seed it keys all random numbers outside the views.

        Returns:
            The method's output for this rank's images, and the norm [] of the whole batch's gradient.

        Raises:
            NotFiniteError: the previous step was rejected; raised on all ranks.
        """
        with gpu_products(self.recipe.efficiency, self.device):
            return self._step(batch, step)

    def _step(self, batch: ViewBatch, step: int) -> tuple[Step, Tensor]:
        self._buffers.take()
        set_schedules(self.optimizer, self.schedules, step)
        self.model.balancer.set_progress(step / self.schedules.steps)
        self.optimizer.zero_grad(set_to_none=True)
        if self._release is not None and self._release.apply(self.schedules.first_released(step)):
            self._parallel = self._averaging()  # it expects gradients of what learns, and of nothing else
        parts = batch.split(self.recipe.efficiency.accumulate)
        outputs = []
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last or self._parallel is None else self._parallel.no_sync():
                output = self._forward(part, step)
                loss = output.loss
                if output.anchor is not None:
                    loss = loss + self.schedules.anchor(step) * output.anchor
                self.scaler.scale(loss / len(parts)).backward()
            outputs.append(output)
        output = join_microbatches(outputs)
        self.scaler.unscale_(self.optimizer)
        norms = gradient_norms(self.model.student)
        norm = torch.linalg.vector_norm(torch.stack(list(norms.values())))
        finite = norm.isfinite()
        self._valid = self._valid & (finite | self._overflowed(output.loss))
        if self.recipe.optim.clip is not None:
            clip_each(self.model.student, norms, self.recipe.optim.clip)
        if self.schedules.centroids_frozen(step):
            self.model.student.centroids.weight.grad = None  # no gradient: no decay and no momentum either
        conditional_step(self.optimizer, finite & self._valid)
        self.scaler.update()
        # A momentum of 1 leaves the teacher unchanged.
        momentum = 1 - self._valid.double() * (1 - self.schedules.teacher_momentum(step))
        self.model.update(output.clusters, momentum, output.distilled)
        self._buffers.restore_unless(self._valid)
        previous, self._check = self._check, StepCheck(step, self._valid, output.loss, norms)
        if previous is not None:
            previous.read()
        return output, norm

    def synchronize(self) -> None:
        """Wait for the newest step; raise NotFiniteError, on all ranks, if it was rejected."""
        if self._check is not None:
            self._check.read()
            self._check = None

    def _forward(self, part: ViewBatch, step: int) -> Step:
        seed, epoch = self.recipe.run.seed, step // self.schedules.steps_per_epoch
        # Dropout in timm's backbones draws from torch's generator: make it a function of the step and of the images'
        # position in the batch.
        torch.manual_seed(seeding.fold(seeding.Purpose.STEP, seed, step, part.position))
        global_views = self.views(part.global_crops, part.global_parameters)
        local_views = self.views(part.local_crops, part.local_parameters)
        keys = seeding.fold_tensor(
            seeding.fold(seeding.Purpose.DROP_PATH, seed, epoch), part.samples.to(self.device, non_blocking=True)
        )
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            there = [views for views in (global_views, local_views) if views is not None]
            targets = [] if self._targets is None else self._targets(part.used, there)
            output: Step = (self._parallel or self.model)(
                global_views, local_views, step_key=seeding.fold(seed, step), sample_keys=keys, targets=targets
            )
            anchor = None
            if self.anchor is not None and self.schedules.anchor(step) > 0:
                assert output.features is not None
                assert global_views is not None
                anchor = self.anchor.distance(output.features, global_views)
        return replace(output, features=None, anchor=anchor)

    def _overflowed(self, loss: Tensor) -> Tensor:
        """Whether [] a non-finite gradient is an fp16 overflow: the scaler skips that step and lowers its scale."""
        if not self.scaler.is_enabled():
            return torch.zeros_like(self._valid)
        scale = self.scaler.scale(torch.ones_like(loss))
        return mean_over_ranks(loss.clone()).isfinite() & (scale > SMALLEST_SCALE)

    def state(self) -> dict[str, Any]:
        """State of optimizer and scaler, and the start's backbone of a run that is anchored to it, for `restore`."""
        state = {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}
        return state | ({} if self.anchor is None else {"anchor": state_tensors(self.anchor)})

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from `state`; the loss scale of fp16 starts at its default if the run had another precision before."""
        restore_optimizer(self.optimizer, state["optimizer"])
        if self.anchor is not None:
            self.anchor.load_state_dict(state["anchor"])
        if self.scaler.is_enabled() and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])


def join_microbatches(parts: list[Step]) -> Step:
    """The output for a batch from those of its equal micro-batches, without gradients."""
    contrast = [part.contrast.detach() for part in parts if part.contrast is not None]
    regression = [part.regression.detach() for part in parts if part.regression is not None]
    clusters = [part.clusters for part in parts if part.clusters is not None]
    anchor = [part.anchor.detach() for part in parts if part.anchor is not None]
    distilled = [part.distilled for part in parts if part.distilled is not None]
    return Step(
        torch.stack([part.loss.detach() for part in parts]).mean(),
        _join_clusters(clusters) if clusters else None,
        torch.stack(contrast).mean() if contrast else None,
        torch.stack(regression).mean() if regression else None,
        anchor=torch.stack(anchor).mean() if anchor else None,
        distilled=_join_distilled(distilled) if distilled else None,
    )


def _join_distilled(parts: list[Distilled]) -> Distilled:
    return Distilled(
        torch.stack([part.loss.detach() for part in parts]).mean(),
        {name: torch.stack([part.terms[name].detach() for part in parts]).mean() for name in parts[0].terms},
        {name: torch.cat([part.pending[name] for part in parts]) for name in parts[0].pending},
    )


def _join_clusters(parts: list[Clustered]) -> Clustered:
    balance = [part.balance for part in parts if part.balance is not None]
    return Clustered(
        torch.stack([part.loss.detach() for part in parts]).mean(),
        torch.cat([part.winners for part in parts], dim=1),
        torch.cat([part.counted for part in parts], dim=1),
        torch.stack([part.confidence for part in parts]).mean(),
        torch.stack([part.agreement for part in parts]).mean(),
        torch.cat([part.raw_winners for part in parts], dim=1),
        torch.stack(balance).mean(0) if balance else None,
    )


def state_tensors(model: nn.Module) -> dict[str, Any]:
    """A module's state dict on the CPU, contiguous, for a checkpoint."""
    return {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
