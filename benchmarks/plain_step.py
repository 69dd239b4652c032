"""A training step and loader as published codes write them, the baseline of `benchmarks.whole_step`.

Eager, every matrix of rows x clusters, one product of probabilities for each pair of views, the teacher's average and
clipping weight by weight, views by torchvision's PIL transforms. Weights, optimizer and schedules are ours.
"""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.input_pipeline import published
from excb import seeding
from excb.images.image_set import ImageSet
from excb.method import ExCB, balancing, batch_sizes, pair_weights, unit
from excb.networks.drop_path import drop_path_keys
from excb.pretrain.optim import set_schedules
from excb.pretrain.plan.speed import build_trainer
from excb.pretrain.recipe import Recipe
from excb.pretrain.step import AUTOCAST


class Plain:
    """The step as published codes write it, in the default settings of the method.

    Args:
        recipe: the recipe.
        device: where to train.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        eager = {"compile": False, "channels_last": False, "checkpointing": False, "fused": False}
        trainer = build_trainer(recipe.change(efficiency=eager), device)
        self._recipe, self._device, self._schedules = recipe, device, trainer.schedules
        self._model, self._optimizer = trainer.model, trainer.optimizer
        self._autocast = AUTOCAST.get(recipe.efficiency.precision)

    def step(self, batch: object, number: int) -> float:
        """Train on normalised views, a list of [B, 3, S, S]."""
        assert isinstance(batch, list)
        views = [view.to(self._device, non_blocking=True) for view in batch]
        set_schedules(self._optimizer, self._schedules, number)
        self._optimizer.zero_grad()
        with torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None):
            loss, winners = self._loss(views, number)
        loss.backward()
        for name, parameter in self._model.student.named_parameters():
            clip = self._recipe.optim.clip
            if clip is not None and parameter.grad is not None:
                factor = clip / (parameter.grad.norm(2) + 1e-6)
                if factor < 1:
                    parameter.grad.mul_(factor)
            if name == "centroids.weight" and self._schedules.centroids_frozen(number):
                parameter.grad = None
        self._optimizer.step()
        self._update(winners, self._schedules.teacher_momentum(number))
        return float(loss.detach())

    def _loss(self, views: list[Tensor], number: int) -> tuple[Tensor, Tensor]:
        """Eq. 7 in the default settings, pair by pair, and the hard assignments."""
        student, teacher, settings = self._model.student, self._model.teacher, self._model.settings
        globals_, count = self._recipe.views.global_views, len(views)
        samples = torch.arange(len(views[0]), device=self._device)
        features = []
        for same in (range(globals_), range(globals_, count)):
            if same:
                with drop_path_keys(student.backbone, samples, same):
                    features.append(student.backbone(torch.cat([views[view] for view in same])))
        h = student.projector(torch.cat(features))
        g = student.predictor(h) if student.predictor is not None else h
        centroids = student.centroids()
        with torch.no_grad():
            z = unit(teacher.projector(teacher.backbone(torch.cat(views[:globals_])))) @ teacher.centroids().T
            noise = seeding.uniform(seeding.fold(number), torch.arange(settings.clusters, device=self._device))
            scale, offset = balancing(self._model.sizes, empty_weight=0.001 * noise)
            p = torch.softmax((z * scale + offset) / settings.teacher_temperature, 1)
        rows = globals_ * len(views[0])
        scores = torch.cat([unit(h[:rows]) @ centroids.T, unit(h[rows:]) @ centroids.detach().T])
        log_h = torch.log_softmax(scores / settings.student_temperature, 1).chunk(count)
        log_g = torch.log_softmax(unit(g) @ centroids.detach().T / settings.student_temperature, 1).chunk(count)
        loss = torch.zeros((), device=self._device)
        weights = pair_weights(globals_, count - globals_, reduction=settings.loss_reduction)
        for half, logs in zip(weights, (log_h, log_g), strict=True):
            for (t, target), (s, log) in itertools.product(enumerate(p.chunk(globals_)), enumerate(logs)):
                if half[t, s]:
                    loss = loss - float(half[t, s]) * (target * log).sum(1).mean()
        return loss, p.argmax(1)

    @torch.no_grad()
    def _update(self, winners: Tensor, momentum: float) -> None:
        """Sizes and teacher, weight by weight."""
        model: ExCB = self._model
        share = batch_sizes(winners, model.settings.clusters, model.sizes.dtype)
        model.sizes.mul_(model.settings.sizes_momentum).add_(share, alpha=1 - model.settings.sizes_momentum)
        student = dict(model.student.named_parameters())
        for name, weight in model.teacher.named_parameters():
            weight.mul_(momentum).add_(student[name], alpha=1 - momentum)


class PlainViews(Dataset[list[Tensor]]):
    """torchvision's transforms of PIL images."""

    def __init__(self, images: ImageSet, recipe: Recipe) -> None:
        self._count, self._views = len(images), published(images, recipe.views, pillow_blur=True)

    def __len__(self) -> int:
        """Number of images."""
        return self._count

    def __getitem__(self, index: int) -> list[Tensor]:
        """All views of an image."""
        views = self._views(index, 0)
        assert isinstance(views, list)
        return views


def plain_batches(recipe: Recipe, images: ImageSet, workers: int, device: torch.device) -> Iterator[object]:
    """Lists of views [B, 3, S, S] without end."""
    batches = DataLoader(
        PlainViews(images, recipe),
        batch_size=recipe.optim.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=workers > 0,
    )
    return itertools.chain.from_iterable(itertools.repeat(batches))
