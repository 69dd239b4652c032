"""Every block of a ViT, or every stage of another network, in one pass: maps, class tokens and the network's output."""

import inspect
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from excb.networks.outputs import Maps


class BlockOutput(NamedTuple):
    """The output of a block: patches or cells as a map, and the class token where there is one."""

    map: Tensor  # [B, D, h, w]
    class_token: Tensor | None  # [B, D]


class Blocks(Maps):
    """A network that returns what each of its blocks makes, beside its own pooled features.

    Blocks of a ViT are those of its transformer, each through the final norm, as DINO evaluates them. Stages of another
    network are the maps that it offers: torchvision's ResNets, timm's networks and conv4 have them.

    Args:
        network: gives maps.

    Raises:
        UserError: the network gives no maps.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        steps = getattr(network, "forward_intermediates", None)
        prefix = steps is not None and "return_prefix_tokens" in inspect.signature(steps).parameters
        self.has_class_token = prefix and getattr(network, "cls_token", None) is not None

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self.stages)

    def forward(self, images: Tensor) -> tuple[list[BlockOutput], Tensor]:
        """The outputs of all blocks, the first one first, and what the network itself returns [B, D].

        Args:
            images: [B, 3, H, W], normalised.
        """
        network: Any = self.network
        numbers = [stage.index for stage in self.stages]
        if not hasattr(network, "forward_intermediates"):
            maps = self.maps(images, numbers)
            return [BlockOutput(each, None) for each in maps], maps[-1].mean((2, 3))
        tokens = {"return_prefix_tokens": True} if self.has_class_token else {}
        final, outputs = network.forward_intermediates(
            images, indices=numbers, norm=self._norm, output_fmt="NCHW", **tokens
        )
        own = cast("Tensor", network.forward_head(final))
        if self.has_class_token:
            return [BlockOutput(patches, prefix[:, 0]) for patches, prefix in outputs], own
        return [BlockOutput(each, None) for each in outputs], own
