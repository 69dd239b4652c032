"""From images of three channels to others: the weights of a network's first layer, as timm adapts them."""

from collections.abc import Mapping

from torch import Tensor

from excb.errors import UserError
from excb.networks.architecture import RGB


def adapted_weights(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], channels: int, *, what: str
) -> dict[str, Tensor]:
    """Tensors of a network of RGB images, for the same network of images with other channels.

    Its first convolution sums the weights of red, green and blue for one channel. For others it repeats them in turn,
    times 3 / C, so that equal channels give what grey images gave (`timm.models.adapt_input_conv`).

    Args:
        tensors: of the network of RGB images.
        wanted: of the other network, by the same names; only their shapes count.
        channels: C, of its images.
        what: the checkpoint, for messages.

    Raises:
        UserError: the layer that sees the images is not a convolution of three channels.
    """
    from timm.models import adapt_input_conv

    first = [name for name, value in wanted.items() if name in tensors and tensors[name].shape != value.shape]
    for name in first:
        old, new = tensors[name].shape, wanted[name].shape
        if len(old) != 4 or old[1] != RGB or new != (old[0], channels, *old[2:]):
            raise UserError(
                f"{what} cannot be adapted from {RGB} channels to {channels}: {name} is {list(old)}, and {list(new)} "
                "is needed; choose another network"
            )
    return dict(tensors) | {name: adapt_input_conv(channels, tensors[name]) for name in first}
