"""BatchNorm folded into the convolution before it: in eval mode both are one affine map, and one pass over memory less.

On CPUs MobileNetV2 takes two thirds of the time, ResNets nine tenths (docs/performance.md).
"""

import copy
from collections import Counter, OrderedDict
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from excb.networks.frozen.precision import HalfPrecision

BOUND = 1e-5  # on the distance between outputs with and without BatchNorm, relative to the output's norm


@torch.no_grad()
def without_batchnorm(network: nn.Module, image: Tensor) -> nn.Module:
    """A copy of a network whose BatchNorm layers are part of its convolutions; the network itself where that fails.

    The pairs of layers are those that a pass shows: a BatchNorm that takes the output of one convolution. A network may
    use that output elsewhere, too, so the copy is compared with the network on an image of noise. What is folded
    depends on the network and the image's size alone.

    Args:
        network: [B, C, H, W] -> [B, ...] or whatever it returns, in eval mode and in float32. It is not changed.
        image: [1, C, H, W], whose size and type count.

    Returns:
        A network in eval mode. Its outputs are at most `BOUND` from the network's, relative to their norm.
    """
    if isinstance(network, HalfPrecision):
        return HalfPrecision(without_batchnorm(network.network, image))
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()) or _observed(network):
        return network
    noise = torch.rand(image.shape, generator=torch.Generator().manual_seed(0)).to(image)
    try:
        made = _copied(network)
        _fold(made, _pairs(made, noise))
        # The network's own output, not that of the copy before: it may keep what it sees, or be copied imperfectly.
        expected, found = network(noise), made(noise)
    # Of networks that cannot be copied, or that read their BatchNorm's parts themselves.
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return network
    if not isinstance(expected, Tensor):
        return network
    close = bool((found - expected).norm() <= BOUND * expected.norm())  # false for NaN
    return made if close else network


def _copied(network: nn.Module) -> nn.Module:
    """`copy.deepcopy` in half the time: each module has a dozen dictionaries of hooks, and nearly all are empty."""
    values = (value for module in network.modules() for value in vars(module).values())
    return copy.deepcopy(
        network, {id(each): type(each)() for each in values if type(each) in (dict, OrderedDict) and not each}
    )


def _observed(network: nn.Module) -> bool:
    """Whether hooks or a compiler look at the layers, which the copy would not have."""
    return any(
        module._forward_hooks or module._forward_pre_hooks or getattr(module, "_compiled_call_impl", None)
        for module in network.modules()
    )


def _pairs(network: nn.Module, image: Tensor) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """Convolutions, and the BatchNorm that takes each one's output and nothing else.

    A reader may pass an image more than once: what counts is that a pair is one each time.
    """
    made, used = list[tuple[ref[Tensor], nn.Conv2d]](), Counter[nn.Module]()
    met = Counter[tuple[nn.Conv2d, nn.BatchNorm2d]]()

    def look(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        used[layer] += 1
        if isinstance(layer, nn.Conv2d):
            made.append((ref(output), layer))
        elif isinstance(layer, nn.BatchNorm2d):
            met.update((convolution, layer) for there, convolution in made if there() is inputs[0])

    layers = [each for each in network.modules() if isinstance(each, nn.Conv2d | nn.BatchNorm2d)]
    hooks = [layer.register_forward_hook(look) for layer in layers]
    try:
        network(image)
    finally:
        for hook in hooks:
            hook.remove()
    return [pair for pair, times in met.items() if times == used[pair[0]] == used[pair[1]]]


def _fold(network: nn.Module, pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]]) -> None:
    """Fold layers of a network, in place."""
    places = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children()]
    for convolution, norm in pairs:
        mean, variance = norm.running_mean, norm.running_var
        if mean is None or variance is None:  # it takes those of each batch, so it is no fixed map
            continue
        weight, bias = fuse_conv_bn_weights(
            convolution.weight, convolution.bias, mean, variance, norm.eps, norm.weight, norm.bias
        )
        # In the layout that it has, for which oneDNN chooses its kernels: a product's may be another.
        convolution.weight.data.copy_(weight)
        convolution.bias = bias
        # timm's BatchNorm2d has the activation in itself.
        activation = getattr(norm, "act", None)
        rest = activation if isinstance(activation, nn.Module) else nn.Identity()
        for parent, name, child in places:
            if child is norm:
                setattr(parent, name, rest)
