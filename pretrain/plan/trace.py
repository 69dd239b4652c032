"""A step's networks traced once on fake tensors: what they launch and keep, for any number of images.

Fake tensors are the CPU's: autocast and attention do there what they do on a GPU. The trace has a number of images that
is prime and no size in a network, so every size says by itself whether it grows with the images.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from excb.networks.activation_checkpointing import recompute_blocks

from ..distil.teachers import Teacher
from ..recipe import Recipe
from ..step import AUTOCAST
from .fakes import fake_networks, fake_targets, fake_views, loss_of, trained

IMAGES = 997  # traced
NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach"}
DEVICE_OF = torch.ops.prim.device.default  # torch asks fake tensors for their device, thousands of times


@dataclass(frozen=True)
class Growth:
    """A size as a polynomial in the number of images."""

    fixed: int = 0
    image: int = 0  # for each image
    pair: int = 0  # for each pair of images, as similarities within a batch

    @classmethod
    def of(cls, size: int) -> "Growth":
        """From a size in a trace of IMAGES."""
        each, rest = divmod(size, IMAGES)
        if rest:
            return cls(fixed=size)
        pairs, rest = divmod(each, IMAGES)
        return cls(image=each) if rest else cls(pair=pairs)

    def __add__(self, other: "Growth") -> "Growth":
        return Growth(self.fixed + other.fixed, self.image + other.image, self.pair + other.pair)

    def __sub__(self, other: "Growth") -> "Growth":
        return Growth(self.fixed - other.fixed, self.image - other.image, self.pair - other.pair)

    def at(self, images: int) -> int:
        """The size for a number of images."""
        return self.fixed + images * (self.image + images * self.pair)


@dataclass(frozen=True)
class Trace:
    """A step of a micro-batch, without views, update and the clusters beyond `fakes.FEW`."""

    forward: int  # operations with kernels, of all networks and the loss
    backward: int
    views: Growth  # bytes
    saved: Growth  # bytes kept for the backward pass
    alive: tuple[Growth, ...]  # bytes alive, whenever a tensor was made
    student: int  # parameters
    trained: int  # those of the student that have gradients, without centroids
    teacher: int
    buffers: int  # bytes
    frozen_teachers: int = 0  # bytes of their weights

    def highest(self, images: int) -> int:
        """The most bytes alive at once."""
        return max((size.at(images) for size in self.alive), default=0)


def trace_step(recipe: Recipe, teachers: Sequence[Teacher] = ()) -> Trace:
    """Trace the step of a recipe; its batch does not matter.

    A queue of similarities makes sizes of rows and images together, which are taken as fixed: too large for fewer
    images than IMAGES.

    Args:
        recipe: the recipe.
        teachers: the frozen ones that its student learns from, on the CPU.

    Raises:
        UserError: no such backbone, it cannot take views of the recipe's sizes, or has no blocks to recompute; or as
            `fake_targets`.
    """
    fake, model = fake_networks(recipe, teachers)
    if recipe.efficiency.checkpointing:
        recompute_blocks(model.student.backbone)
    for parameter in filter(lambda each: each.requires_grad, model.student.parameters()):
        parameter.register_post_accumulate_grad_hook(_forget_gradient)  # what is kept of them is counted by itself
    autocast = AUTOCAST.get(recipe.efficiency.precision)
    with fake:
        views = fake_views(recipe, IMAGES)
        there = [view for view in views if view is not None]
        weights = [each for teacher in teachers for each in tensors_of(teacher.backbone)]
        frozen = [fake.from_tensor(tensor) for tensor in weights]  # kept, so that passes meet these fakes
        existing = [*there, *model.parameters(), *model.buffers(), *frozen]
        saved: dict[int, int] = {}
        recorder = _Recorder(tensor.untyped_storage() for tensor in existing)

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if id(storage) not in recorder.ignored:
                saved[id(storage)] = storage.nbytes()
            return tensor

        with recorder:
            with (
                torch.autocast("cpu", autocast) if autocast is not None else nullcontext(),
                torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
            ):
                loss = loss_of(model, views, fake_targets(recipe, teachers, views))
            forward = recorder.restart()
            loss.backward()
        return Trace(
            forward=forward,
            backward=recorder.restart(),
            views=sum((Growth.of(view.nbytes) for view in there), Growth()),
            saved=sum((Growth.of(size) for size in saved.values()), Growth()),
            alive=tuple(recorder.sizes),
            student=sum(parameter.numel() for parameter in model.student.parameters()),
            trained=trained(model),
            teacher=sum(parameter.numel() for parameter in model.teacher.parameters()),
            buffers=sum(buffer.nbytes for buffer in model.buffers()),
            frozen_teachers=sum(tensor.nbytes for tensor in weights),
        )


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return [*module.parameters(), *module.buffers()]


def _forget_gradient(parameter: Tensor) -> None:
    parameter.grad = None


class Alive(TorchDispatchMode):
    """Count the bytes of tensors created in its block while they are alive, except in the `ignored` storages."""

    def __init__(self, ignored: Iterable[torch.UntypedStorage] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = Growth()
        self.sizes: list[Growth] = []  # whenever a tensor was made
        self.ignored = {id(storage): storage for storage in ignored}
        self._counted: set[int] = set()

    @property
    def highest(self) -> int:
        """The most bytes at once, with the images of the block."""
        return max((size.at(IMAGES) for size in self.sizes), default=0)

    def __torch_dispatch__(
        self, function: Callable[..., Any], _types: Any, inputs: Any = (), keywords: Any = None
    ) -> Any:
        outputs = function(*inputs, **(keywords or {}))
        if function is not DEVICE_OF:
            for tensor in tree_leaves(outputs):
                if isinstance(tensor, Tensor):
                    self._see(tensor.untyped_storage())
        return outputs

    def _see(self, storage: torch.UntypedStorage) -> None:
        name = id(storage)
        if name in self._counted or name in self.ignored:
            return
        self._counted.add(name)
        size = Growth.of(storage.nbytes())
        self.now += size
        self.sizes.append(self.now)
        weakref.finalize(storage, self._end, name, size)

    def _end(self, name: int, size: Growth) -> None:
        self._counted.remove(name)
        self.now -= size


class _Recorder(Alive):
    """Count operations that have kernels, too."""

    def __init__(self, ignored: Iterable[torch.UntypedStorage]) -> None:
        super().__init__(ignored)
        self._launches = 0

    def __torch_dispatch__(
        self, function: Callable[..., Any], _types: Any, inputs: Any = (), keywords: Any = None
    ) -> Any:
        outputs = super().__torch_dispatch__(function, _types, inputs, keywords)
        operation: Any = function
        if operation.namespace == "aten" and not operation.is_view:
            tensors = any(isinstance(leaf, Tensor) for leaf in tree_leaves((inputs, keywords, outputs)))
            self._launches += tensors and operation._schema.name.split("::")[1] not in NO_KERNEL
        return outputs

    def restart(self) -> int:
        """The operations since the start, or since the last call."""
        counted, self._launches = self._launches, 0
        return counted
