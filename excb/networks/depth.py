"""The order of a backbone's layers, from the image to the features, for learning rates and freezing by depth."""

from collections.abc import Iterator
from typing import Any

from torch import nn

Name = str


def depths(network: nn.Module) -> dict[Name, int]:
    """The depth of every parameter and buffer, by its name: 0 for those of the first layer.

    A layer is a block, residual or transformer, or what stands before or after all blocks. timm says what the layers of
    its networks are: there a final norm belongs to the last block. In other networks, each member of a sequence of
    modules is a layer, and what stands between two sequences is one.

    Args:
        network: a backbone without classifier.

    Returns:
        By name, a number from 0 to the number of layers - 1; there is no gap.
    """
    matcher: Any = getattr(network, "group_matcher", None)
    if matcher is not None:
        from timm.models import group_parameters

        order: dict[Name, int] = group_parameters(network, matcher(coarse=False), reverse=True)
    else:
        layers = list(_layers(network, ""))
        names = [name for name, _ in network.named_parameters()]
        order = {name: next(i for i, layer in enumerate(layers) if name.startswith(layer)) for name in names}
    numbered = {depth: number for number, depth in enumerate(sorted(set(order.values())))}
    of_parameters = {name: numbered[depth] for name, depth in order.items()}
    return of_parameters | {name: _beside(name, of_parameters) for name, _ in network.named_buffers()}


def _beside(name: Name, order: dict[Name, int]) -> int:
    """The depth of a buffer: that of the parameters of its module, or of the smallest part around it that has any."""
    place = name
    while place:
        place = place.rpartition(".")[0]
        if near := [depth for other, depth in order.items() if other.startswith(f"{place}." if place else "")]:
            return max(near)
    return 0


def layer_count(order: dict[Name, int]) -> int:
    """Number of layers of a network with these depths."""
    return 1 + max(order.values(), default=-1)


def _layers(module: nn.Module, prefix: str) -> Iterator[tuple[Name, ...]]:
    """The layers of a module in order, each as the beginnings of its tensors' names.

    The members of a sequence are a layer each; modules and tensors between two sequences are one together.
    """
    between = tuple(f"{prefix}{name}" for name, _ in module.named_parameters(recurse=False))
    for name, child in module.named_children():
        place = f"{prefix}{name}."
        if isinstance(child, nn.Sequential | nn.ModuleList):
            if between:
                yield between
                between = ()
            yield from ((f"{place}{member}.",) for member, _ in child.named_children())
        elif any(isinstance(part, nn.Sequential | nn.ModuleList) for part in child.children()):
            inside = list(_layers(child, place))
            yield (*between, *inside[0])  # what the part itself holds comes with what was before it
            yield from inside[1:]
            between = ()
        else:
            between += (place,)
    if between:
        yield between
