"""Batches that pass in parts on a CPU, as the size of the network's maps allows."""

from typing import Any

import torch
from torch import Tensor, nn

from excb.networks.frozen.folding import without_batchnorm

TOGETHER = 8  # images that pass at once on a CPU, however large a network's maps are
MAP_BYTES = 2**25  # of the largest map of the images that pass at once on a CPU, for each thread


class InParts:
    """Calls a network on a batch; on a CPU on as many images at once as its maps allow, which needs far less memory.

    The number follows from the network and the images' size alone, so that no row depends on how a set is divided.

    Args:
        network: [B, C, H, W] -> [B, ...], in eval mode when it is called. If `many`, its weights stay as they are.
        many: more than `TOGETHER` images will come, in whatever batches: on a CPU they pass through a copy of the
            network with its BatchNorm folded.
    """

    def __init__(self, network: nn.Module, *, many: bool = False) -> None:
        self._network, self._fold, self._together = network, many, dict[torch.Size, int]()

    def __call__(self, images: Tensor) -> Tensor:
        """The network's output for a batch."""
        if images.device.type != "cpu":
            return self._network(images)  # type: ignore[no-any-return]
        if self._fold:
            self._network, self._fold = without_batchnorm(self._network, images[:1]), False
        if len(images) <= TOGETHER:
            return self._network(images)  # type: ignore[no-any-return]
        size = images.shape[1:]
        if size not in self._together:
            self._together[size] = images_at_once(self._network, images[:1])
        return torch.cat([self._network(part) for part in images.split(self._together[size])])


@torch.no_grad()
def images_at_once(network: nn.Module, image: Tensor) -> int:
    """How many images like this one [1, C, H, W] pass together on a CPU: a power of 2, `TOGETHER` at least."""
    largest = [image.nbytes]

    def look(_layer: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            largest.append(output.nbytes)

    hooks = [layer.register_forward_hook(look) for layer in network.modules() if next(layer.children(), None) is None]
    try:
        if len(hooks) > 1:  # of a single layer, the image itself says enough
            network(image)
    finally:
        for hook in hooks:
            hook.remove()
    fitting = torch.get_num_threads() * MAP_BYTES // max(largest)
    return max(TOGETHER, 1 << fitting.bit_length() - 1 if fitting else 0)
