"""Memory of a step by part, before it runs: its operations are traced on fake tensors, which have no values.

Fake tensors are the CPU's: autocast and attention save there what they save on a GPU. The loss head is counted by
formulas, from its letters: V views, G of them global, B images, K clusters, D width.
"""

import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from excb.method import ExCB
from excb.networks.activation_checkpointing import recompute_blocks
from excb.objective.table import LOSSES

from ..recipe import Recipe
from ..step import AUTOCAST
from .flops import FEW, fake_networks, fake_views, loss_of, meta_balancer, value_bytes

NOT_COUNTED = "cuDNN's and cuBLAS's workspaces, the allocator's fragmentation, what torch.compile changes, libraries"
TILE = 64 * 2**20  # bytes of scores that the streaming loss head holds at once on a GPU, at most
# Matrices K x D that it holds at its highest: unit centroids of both networks, the gradient of the student's, and what
# differentiating their normalisation takes.
HEAD_MATRICES = 5
PLAIN = 2  # times the least that whole matrices take: what the plain loss head holds at its highest


@dataclass(frozen=True)
class Memory:
    """Bytes of one process, by part. Not all parts are full at the same moment, so the total is an upper bound."""

    weights: int = field(metadata={"doc": "of the student"})
    gradients: int = field(metadata={"doc": "of the student's weights"})
    optimizer: int = field(metadata={"doc": "its state"})
    teacher: int = field(metadata={"doc": "its weights"})
    buffers: int = field(metadata={"doc": "BatchNorm's statistics and cluster sizes, with a step's copy of them"})
    views: int = field(metadata={"doc": "of a micro-batch, augmented"})
    activations: int = field(metadata={"doc": "of the student, saved for the backward pass"})
    passing: int = field(metadata={"doc": "beside them at most: in the teacher's pass, or in the backward pass"})
    loss_head: int = field(metadata={"doc": "centroids and a tile of scores; if plain, rows x clusters"})

    @property
    def total(self) -> int:
        """All parts."""
        return sum(getattr(self, part.name) for part in fields(self))


def step_memory(recipe: Recipe, images: int) -> Memory:
    """Memory of a step with micro-batches of `images` images.

    Raises:
        UserError: no such backbone, it cannot take views of the recipe's sizes, or has no blocks to recompute.
    """
    width, method = value_bytes(recipe), recipe.method
    balancer = meta_balancer(method)
    fake, model = fake_networks(recipe)
    if recipe.efficiency.checkpointing:
        recompute_blocks(model.student.backbone)
    with fake:
        views = fake_views(recipe, images)
        activations, passing = _pass(model, views, AUTOCAST.get(recipe.efficiency.precision))
        more = (method.clusters - FEW) * method.width
        student, teacher = (
            width * (more + sum(parameter.numel() for parameter in network.parameters()))
            for network in (model.student, model.teacher)
        )
        learned = method.clusters + sum(buffer.numel() for buffer in balancer.buffers())  # s, and the balancer's state
        buffers = sum(buffer.nbytes for buffer in model.buffers()) + width * (learned - FEW)
    count = recipe.views.global_views + recipe.views.local_views
    scores = min(TILE, width * count * images * method.clusters)
    if recipe.efficiency.objective == "plain" or LOSSES[method.loss].probabilities or not balancer.is_affine:
        scores = PLAIN * plain_loss_head(recipe, images)
    states = 2 if recipe.optim.optimizer == "adamw" else int(recipe.optim.momentum > 0)
    return Memory(
        weights=student,
        gradients=student,
        optimizer=states * student,
        teacher=teacher,
        buffers=2 * buffers,
        views=sum(part.nbytes for part in views if part is not None),
        activations=activations,
        passing=passing,
        loss_head=HEAD_MATRICES * width * method.clusters * method.width + scores,
    )


def plain_loss_head(recipe: Recipe, images: int) -> int:
    """Bytes that the loss as printed holds at least, for `images` images.

    These are p_t [G, B, K], log p_s [V, B, K] of projector and predictor, and the gradient of one of the latter.
    """
    views, method = recipe.views, recipe.method
    count = views.global_views + views.local_views
    matrices = views.global_views + (3 if method.predictor else 2) * count
    return value_bytes(recipe) * matrices * images * method.clusters


def _pass(model: ExCB, views: tuple[Tensor, Tensor | None], autocast: torch.dtype | None) -> tuple[int, int]:
    """Bytes saved for the backward pass, and the most that is alive beside them until its end."""
    student = list(model.student.parameters())
    for parameter in student:
        parameter.grad = torch.empty_like(parameter)  # so that gradients of the backward pass are not kept
    gradients = [parameter.grad for parameter in student]
    existing = [*views, *model.parameters(), *model.buffers(), *gradients]
    alive = Alive(tensor.untyped_storage() for tensor in existing if tensor is not None)
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in alive.ignored:
            saved[id(storage)] = storage.nbytes()
        return tensor

    with alive:
        with (
            torch.autocast("cpu", autocast) if autocast is not None else nullcontext(),
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        ):
            loss = loss_of(model, views)
        loss.backward()
    activations = sum(saved.values())
    return activations, max(0, alive.highest - activations)


class Alive(TorchDispatchMode):
    """Count the bytes of tensors created in its block while they are alive, except in the `ignored` storages."""

    def __init__(self, ignored: Iterable[torch.UntypedStorage] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.highest = 0
        self.ignored = {id(storage): storage for storage in ignored}
        self._counted: set[int] = set()

    def __torch_dispatch__(
        self, function: Callable[..., Any], _types: Any, inputs: Any = (), keywords: Any = None
    ) -> Any:
        outputs = function(*inputs, **(keywords or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        return outputs

    def _see(self, storage: torch.UntypedStorage) -> None:
        name, size = id(storage), storage.nbytes()
        if name in self._counted or name in self.ignored:
            return
        self._counted.add(name)
        self.now += size
        self.highest = max(self.highest, self.now)
        weakref.finalize(storage, self._end, name, size)

    def _end(self, name: int, size: int) -> None:
        self._counted.remove(name)
        self.now -= size
