"""One optimization step; the only file that knows of precision."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from excb import seeding
from excb.method import ExCB, Step

from .data import Batch
from .optim import Schedules, clip_each, set_schedules
from .recipes import Recipe
from .views import augment


@dataclass(frozen=True)
class Trainer:
    """What a step moves: the method and its optimizer.

    Args:
        model: student, teacher and sizes.
        optimizer: of the student.
        schedules: values that follow the step.
        recipe: the run's recipe.
        device: where the networks are.
    """

    model: ExCB
    optimizer: Optimizer
    schedules: Schedules
    recipe: Recipe
    device: torch.device

    def views(self, crops: Tensor | None, parameters: Tensor | None) -> Tensor | None:
        """Augment crops [V, B, S, S, 3] into views [V, B, 3, S, S] on the device."""
        if crops is None or parameters is None:
            return None
        moved = crops.flatten(0, 1).to(self.device, non_blocking=True)
        rows = augment(moved, parameters.flatten(0, 1), self.recipe.views)
        return rows.view(*crops.shape[:2], *rows.shape[1:])

    def step(self, batch: Batch, step: int) -> Step:
        """Train on one batch: loss, gradient, optimizer, sizes and teacher.

        Args:
            batch: the views.
            step: the step's number, from 0; with the recipe's seed it names every random choice outside the views.
        """
        seed, epoch = self.recipe.run.seed, step // self.schedules.steps_per_epoch
        # Dropout in a backbone of timm's draws from torch's generator: make that a function of the step too.
        torch.manual_seed(seeding.fold(seeding.Purpose.STEP, seed, step))
        set_schedules(self.optimizer, self.schedules, step)
        global_views = self.views(batch.global_crops, batch.global_parameters)
        assert global_views is not None
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.efficiency.precision == "bf16"):
            output: Step = self.model(
                global_views,
                self.views(batch.local_crops, batch.local_parameters),
                step_name=seeding.fold(seed, step),
                sample_names=seeding.fold_tensor(
                    seeding.fold(seeding.Purpose.DROP_PATH, seed, epoch), batch.samples.to(self.device)
                ),
            )
        self.optimizer.zero_grad(set_to_none=True)
        output.loss.backward()
        if self.recipe.optim.clip is not None:
            clip_each(self.model.student, self.recipe.optim.clip)
        if self.schedules.centroids_frozen(step):
            self.model.student.centroids.weight.grad = None  # no gradient: no decay and no momentum either
        self.optimizer.step()
        self.model.update(output.counted, self.schedules.teacher_momentum(step))
        return output
