"""The cost of a step, counted without computing: parameters, FLOPs, bytes that processes exchange.

Networks pass on fake tensors, which have shapes and no values. The loss head is counted by formulas, from its letters:
V views, G of them global, B images, K clusters, D width; so the networks counted have few clusters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from excb.balancing.interface import Balancer
from excb.method import ExCB, balancer
from excb.networks.backbone import shapes_only
from excb.settings import MethodSettings

from ..distil.table import OBJECTIVES
from ..distil.teachers import Teacher
from ..recipe import Recipe
from .fakes import fake_networks, fake_targets, fake_views, loss_of, trained, value_bytes

PARTS = ("backbone", "projector", "predictor")
HEADS = "distillation"  # the part of a student that learns from frozen teachers


@dataclass(frozen=True)
class Flops:
    """Of one image's views, forward and backward, without what is computed a second time; a multiply-add is two."""

    student: int
    teacher: int  # its pass forward
    loss_head: int
    frozen_teachers: int = 0  # their passes forward, where they see every view

    @property
    def image(self) -> int:
        """All of an image."""
        return self.student + self.teacher + self.loss_head + self.frozen_teachers


@dataclass(frozen=True)
class Communication:
    """Bytes that each process sends in a step, in rings; it receives as many."""

    gradients: int
    batchnorm: int
    sizes: int
    balancing: int  # what balancers other than B exchange
    contrast: int  # rows of all processes, and their gradients
    distillation: int  # frozen teachers' rows of all processes, and sizes of clusters of them
    exchanges: int  # of BatchNorm statistics, one after the other

    @property
    def total(self) -> int:
        """All bytes."""
        return self.gradients + self.batchnorm + self.sizes + self.balancing + self.contrast + self.distillation


@dataclass(frozen=True)
class Counts:
    """Parameters and FLOPs of a recipe's networks."""

    parameters: dict[str, dict[str, int]]  # of "student" and "teacher", by part
    flops: Flops
    norms: tuple[tuple[int, bool], ...]  # every BatchNorm that a pass meets: channels, and whether it is the student's
    trained: int  # parameters of the student that have gradients, centroids with them if they have
    frozen_widths: tuple[int, ...] = ()  # D of every frozen teacher


@dataclass(frozen=True)
class _Passed:
    """FLOPs of a batch that passed, forward and backward."""

    model: ExCB
    norms: list[tuple[int, bool]]  # as in `Counts`
    by_module: dict[str, dict[Any, int]]
    total: int  # with similarities to the few clusters
    frozen_teachers: int

    def of(self, network: str) -> int:
        """Of the parts of student or teacher."""
        return sum(sum(self.by_module.get(f"ExCB.{network}.{part}", {}).values()) for part in PARTS)


def count(recipe: Recipe, teachers: Sequence[Teacher] = ()) -> Counts:
    """Count what a recipe's networks have and do.

    Args:
        recipe: the recipe.
        teachers: the frozen ones that its student learns from, on the CPU.

    Raises:
        UserError: as `fake_networks` and `fake_targets`.
    """
    # A whole batch, since images may be compared with each other; two at least, since BatchNorm refuses one value a
    # channel.
    images = max(2, recipe.optim.batch)
    passed = _passed(recipe, teachers, images)
    student, model = passed.of("student"), passed.model
    if teachers:  # backward, maps belong to no module of the student's: what teachers add is a difference
        alone = _passed(recipe, (), images) if recipe.method.active else None
        student = passed.total if alone is None else alone.of("student") + passed.total - alone.total
    flops = Flops(
        student=student // images,
        teacher=passed.of("teacher") // images,
        loss_head=_loss_head_flops(recipe),
        frozen_teachers=passed.frozen_teachers // images,
    )
    parts, centroids = (*PARTS, HEADS) if teachers else PARTS, recipe.method.clusters * recipe.method.width
    parameters = {
        name: {part: _parameters(getattr(network, part)) for part in parts} | {"centroids": centroids}
        for name, network in (("student", model.student), ("teacher", model.teacher))
    }
    learned = trained(model) + centroids * recipe.method.clustering
    return Counts(parameters, flops, tuple(passed.norms), learned, tuple(each.width for each in teachers))


def _passed(recipe: Recipe, teachers: Sequence[Teacher], images: int) -> _Passed:
    fake, model = fake_networks(recipe, teachers)
    norms: list[tuple[int, bool]] = []

    def met(norm: nn.Module, _inputs: Any, _output: Any) -> None:
        assert isinstance(norm, _BatchNorm)
        norms.append((norm.num_features, torch.is_grad_enabled()))

    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.register_forward_hook(met)
    # Attention in parts: the backward pass of the whole would compute similarities a second time.
    with fake, sdpa_kernel(SDPBackend.MATH):
        views = fake_views(recipe, images)
        with FlopCounterMode(display=False) as frozen:
            targets = fake_targets(recipe, teachers, views)
        with FlopCounterMode(display=False) as counter:
            loss_of(model, views, targets).backward()
    by_module = counter.get_flop_counts()
    return _Passed(model, norms, by_module, counter.get_total_flops(), frozen.get_total_flops())


def _parameters(module: nn.Module | None) -> int:
    return sum(parameter.numel() for parameter in module.parameters()) if module is not None else 0


def _loss_head_flops(recipe: Recipe) -> int:
    """Of one image: similarities of teacher and student, the gradient of the student's rows, that of centroids.

    The contrastive term has similarities with the whole batch's global views, and the gradients of both sides; BYOL's
    with the teacher's views of the same image, and the student's gradients.
    """
    views, method = recipe.views, recipe.method
    count = views.global_views + views.local_views
    pairs = count * views.global_views * method.width
    other = 6 * pairs * recipe.optim.batch * bool(method.contrast) + 4 * pairs * bool(method.regression)
    if not method.clustering:
        return other
    projected = count if method.projector_on_local else views.global_views
    moving = count if method.centroid_gradient_from_local else views.global_views
    student = projected + (count if method.predictor else 0)
    teacher = views.global_views * (1 + meta_balancer(method).passes)
    return other + 2 * (teacher + 2 * student + moving) * method.clusters * method.width


def meta_balancer(settings: MethodSettings) -> Balancer:
    """The recipe's balancer without memory for its state."""
    with shapes_only():
        return balancer(settings)


def communication(recipe: Recipe, counts: Counts, processes: int) -> Communication:
    """The bytes that processes exchange in a step.

    BatchNorm gathers mean, variance and count at once, and sums two numbers a channel in the backward pass.

    Args:
        recipe: the recipe.
        counts: what its networks have.
        processes: how many.
    """
    width, accumulate = value_bytes(recipe), recipe.efficiency.accumulate
    around = 2 * (processes - 1) / processes  # what a sum over all sends, as a share of its size
    norms = counts.norms if processes > 1 else ()
    gathered = sum(width * (2 * channels + 1) for channels, _ in norms) * (processes - 1)
    batchnorm = gathered + sum(width * 2 * channels for channels, student in norms if student) * around
    method, distil = recipe.method, recipe.distil
    sums = meta_balancer(method).exchanges * method.clustering
    rows = width * recipe.views.global_views * recipe.optim.batch * method.width if method.contrast else 0
    passes = sum(1 + student for _, student in norms)
    whole_batch = sum(OBJECTIVES[name].whole_batch for name in distil.weights)
    taught = width * recipe.optim.batch * sum(counts.frozen_widths) * whole_batch * (1 + bool(distil.queue))
    clusters = width * distil.clusters * len(counts.frozen_widths) * bool(distil.assignments)
    return Communication(
        gradients=round(around * width * counts.trained),
        batchnorm=round(accumulate * batchnorm),
        sizes=round(around * width * method.clusters) * method.clustering,
        balancing=round(around * width * method.clusters * sums),
        contrast=round((around + (processes - 1) / processes) * rows),
        distillation=round((processes - 1) / processes * taught + around * clusters),
        exchanges=accumulate * passes,
    )
