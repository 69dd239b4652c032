"""Networks, views and teachers' targets as fake tensors, which have shapes and no values: what is counted passes them.

The loss head is counted by formulas, so these networks have few clusters.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from excb.errors import UserError, first_line
from excb.method import ExCB
from excb.networks.backbone import shapes_only

from ..distil.interface import Targets
from ..distil.teachers import Teacher, ViewTargets
from ..initialise import build_model
from ..recipe import Recipe

FEW = 8  # clusters of fake networks

Views = tuple[Tensor, Tensor | None]


def value_bytes(recipe: Recipe) -> int:
    """Bytes of a weight: autocast keeps weights in float32."""
    return 8 if recipe.efficiency.precision == "fp64" else 4


def value_type(recipe: Recipe) -> torch.dtype:
    """The type of weights and views."""
    return torch.float64 if value_bytes(recipe) == 8 else torch.float32


def fake_networks(recipe: Recipe, teachers: Sequence[Teacher] = ()) -> tuple[FakeTensorMode, ExCB]:
    """Student and teacher with few clusters as fake tensors of the CPU, and the mode that they work in.

    Args:
        recipe: the recipe.
        teachers: frozen ones; the student has a head for each. They may pass the mode's tensors as they are.

    Raises:
        UserError: no such backbone, or it cannot take views of the recipe's sizes.
    """
    # With the pseudo-code's order of updates, a pass would need the values of assignments. Balancers other than B are
    # counted by what they state. The plain loss has no tiles, whose number would depend on the images.
    method = {"clusters": FEW, "sizes_updated": "after_loss", "balancing": "linear"}
    few = recipe.change(method=method, efficiency={"objective": "plain"})
    with shapes_only():
        model = build_model(few, teachers).train()
    if value_bytes(recipe) == 8:
        model.double()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:  # as `to_empty` does, which is slower: it makes fakes of the meta tensors first
        model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"))  # type: ignore[no-untyped-call]
    return fake, model


def fake_views(recipe: Recipe, images: int) -> Views:
    """Views [G, B, C, S, S] and [L, B, C, s, s] of `images` images; call it in the networks' fake mode."""
    views, dtype = recipe.views, value_type(recipe)

    def empty(count: int, side: int) -> Tensor:
        return torch.empty(count, images, recipe.channels, side, side, dtype=dtype)

    local_views = empty(views.local_views, views.local_size) if views.local_views else None
    return empty(views.global_views, views.global_size), local_views


def fake_targets(recipe: Recipe, teachers: Sequence[Teacher], views: Views) -> list[Targets]:
    """The frozen teachers' outputs for fake views, or for images seen before; call it in the fake mode.

    Raises:
        UserError: a teacher cannot see the student's views, or looks at values.
    """
    there, images = [each for each in views if each is not None], views[0].shape[1]
    if recipe.distil.teacher_sees == "image":
        rows = [torch.empty(1, images, each.width, dtype=value_type(recipe)) for each in teachers]
        return [Targets(each) for each in rows]
    source = ViewTargets(
        teachers, recipe.distil, mean=recipe.views.mean, std=recipe.views.std, device=torch.device("cpu")
    )
    with without_values():
        return source(torch.empty(images, dtype=torch.int64), there)


@contextmanager
def without_values() -> Iterator[None]:
    """Raise UserError where a teacher looks at values in the block, which fakes do not have."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            f"what a teacher takes cannot be counted ({first_line(error)}): train without a plan, or name a teacher "
            "whose operations do not depend on values"
        ) from None


def trained(model: ExCB) -> int:
    """Parameters of the student that have gradients, without the centroids, of which fake networks have few."""
    centroids = model.student.centroids.weight
    return sum(each.numel() for each in model.student.parameters() if each.requires_grad and each is not centroids)


def loss_of(model: ExCB, views: Views, targets: Sequence[Targets] = ()) -> Tensor:
    """The loss of fake views."""
    keys = torch.empty(views[0].shape[1], dtype=torch.int64)
    loss: Tensor = model(*views, step_key=0, sample_keys=keys, targets=targets).loss
    return loss
