"""The cost of a step, counted without computing: parameters, FLOPs, bytes that processes exchange.

Networks pass on fake tensors, which have shapes and no values. The loss head is counted by formulas, from its letters:
V views, G of them global, B images, K clusters, D width; so the networks counted have few clusters.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from excb.balancing.interface import Balancer
from excb.method import ExCB, balancer
from excb.settings import MethodSettings

from ..initialise import build_model
from ..recipe import Recipe

FEW = 8  # clusters of fake networks
PARTS = ("backbone", "projector", "predictor")


@dataclass(frozen=True)
class Flops:
    """Of one image's views, forward and backward, without what is computed a second time; a multiply-add is two."""

    student: int
    teacher: int  # its pass forward
    loss_head: int

    @property
    def image(self) -> int:
        """All of an image."""
        return self.student + self.teacher + self.loss_head


@dataclass(frozen=True)
class Communication:
    """Bytes that each process sends in a step, in rings; it receives as many."""

    gradients: int
    batchnorm: int
    sizes: int
    balancing: int  # what balancers other than B exchange
    contrast: int  # rows of all processes, and their gradients
    exchanges: int  # of BatchNorm statistics, one after the other

    @property
    def total(self) -> int:
        """All bytes."""
        return self.gradients + self.batchnorm + self.sizes + self.balancing + self.contrast


@dataclass(frozen=True)
class Counts:
    """What a recipe's networks have and do."""

    parameters: dict[str, dict[str, int]]  # of "student" and "teacher", by part
    flops: Flops
    norms: tuple[tuple[int, bool], ...]  # every BatchNorm that a pass meets: channels, and whether it is the student's


def value_bytes(recipe: Recipe) -> int:
    """Bytes of a weight: autocast keeps weights in float32."""
    return 8 if recipe.efficiency.precision == "fp64" else 4


def fake_networks(recipe: Recipe) -> tuple[FakeTensorMode, ExCB]:
    """Student and teacher with few clusters as fake tensors of the CPU, and the mode that they work in.

    Raises:
        UserError: no such backbone, or it cannot take views of the recipe's sizes.
    """
    # With the pseudo-code's order of updates, a pass would need the values of assignments. Balancers other than B are
    # counted by what they state. The plain loss has no tiles, whose number would depend on the images.
    method = {"clusters": FEW, "sizes_updated": "after_loss", "balancing": "linear"}
    few = recipe.change(method=method, efficiency={"objective": "plain"})
    with torch.device("meta"):
        model = build_model(few).train()
    if value_bytes(recipe) == 8:
        model.double()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:  # as `to_empty` does, which is slower: it makes fakes of the meta tensors first
        model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"))  # type: ignore[no-untyped-call]
    return fake, model


def fake_views(recipe: Recipe, images: int) -> tuple[Tensor, Tensor | None]:
    """Views [G, B, 3, S, S] and [L, B, 3, s, s] of `images` images; call it in the networks' fake mode."""
    views, dtype = recipe.views, torch.float64 if value_bytes(recipe) == 8 else torch.float32

    def empty(count: int, side: int) -> Tensor:
        return torch.empty(count, images, 3, side, side, dtype=dtype)

    local_views = empty(views.local_views, views.local_size) if views.local_views else None
    return empty(views.global_views, views.global_size), local_views


def loss_of(model: ExCB, views: tuple[Tensor, Tensor | None]) -> Tensor:
    """The loss of fake views."""
    loss: Tensor = model(*views, step_key=0, sample_keys=torch.empty(views[0].shape[1], dtype=torch.int64)).loss
    return loss


def count(recipe: Recipe) -> Counts:
    """Count what a recipe's networks have and do.

    Raises:
        UserError: as `fake_networks`.
    """
    fake, model = fake_networks(recipe)
    norms: list[tuple[int, bool]] = []

    def met(norm: nn.Module, _inputs: Any, _output: Any) -> None:
        assert isinstance(norm, _BatchNorm)
        norms.append((norm.num_features, torch.is_grad_enabled()))

    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.register_forward_hook(met)
    # Attention in parts: the backward pass of the whole would compute similarities a second time. Two images, since
    # BatchNorm refuses one value a channel; FLOPs are proportional to images.
    with fake, sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss_of(model, fake_views(recipe, 2)).backward()
    of_modules = counter.get_flop_counts()

    def of_network(name: str) -> int:
        return sum(sum(of_modules.get(f"ExCB.{name}.{part}", {}).values()) for part in PARTS) // 2

    flops = Flops(of_network("student"), of_network("teacher"), _loss_head_flops(recipe))
    centroids = {"centroids": recipe.method.clusters * recipe.method.width}
    parameters = {
        name: {part: _parameters(getattr(network, part)) for part in PARTS} | centroids
        for name, network in (("student", model.student), ("teacher", model.teacher))
    }
    return Counts(parameters, flops, tuple(norms))


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
    with torch.device("meta"):
        return balancer(settings)


def communication(recipe: Recipe, counts: Counts, processes: int) -> Communication:
    """What processes exchange in a step.

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
    method, student = recipe.method, dict(counts.parameters["student"])
    if not method.clustering:
        student.pop("centroids", None)  # they are not trained
    sums = meta_balancer(method).exchanges * method.clustering
    rows = width * recipe.views.global_views * recipe.optim.batch * method.width if method.contrast else 0
    passes = sum(1 + student for _, student in norms)
    return Communication(
        gradients=round(around * width * sum(student.values())),
        batchnorm=round(accumulate * batchnorm),
        sizes=round(around * width * method.clusters) * method.clustering,
        balancing=round(around * width * method.clusters * sums),
        contrast=round((around + (processes - 1) / processes) * rows),
        exchanges=accumulate * passes,
    )
