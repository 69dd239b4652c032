"""conv4, a small convolutional network of our own for images of 32 to 64 pixels: it learns in seconds on a CPU."""

from collections.abc import Sequence

from torch import Tensor, nn

from excb.errors import require

KERNELS, STRIDES = (4, 3, 3, 3), (4, 2, 1, 2)  # one cell of the last map sees 16 x 16 pixels in steps


class Conv4(nn.Module):
    """Four convolutions, each with BatchNorm and ReLU, and the mean over the map: [B, 3, H, W] -> [B, widths[-1]].

    A ResNet's stem and pooling leave nothing of a 32-pixel image to later layers. This network divides the resolution
    by 16 in all, and keeps 8 x 8 cells after its first layer.

    Args:
        widths: channels of the four layers.

    Raises:
        UserError: `widths` are not four positive numbers.
    """

    def __init__(self, widths: Sequence[int] = (24, 48, 96, 256)) -> None:
        super().__init__()
        valid = isinstance(widths, list | tuple) and len(widths) == 4
        valid = valid and all(type(width) is int and 0 < width <= 4096 for width in widths)
        require(valid, f"conv4 takes four widths from 1 to 4,096, such as [24, 48, 96, 256], not {widths!r}")
        inputs, blocks = 3, []
        for width, kernel, stride in zip(widths, KERNELS, STRIDES, strict=True):
            convolution = nn.Conv2d(inputs, width, kernel, stride, padding=(kernel - stride + 1) // 2, bias=False)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True)))
            inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.num_features = inputs

    def forward(self, images: Tensor) -> Tensor:
        """Features of normalised images, 16 pixels or more a side."""
        features: Tensor = self.blocks(images).mean((2, 3))
        return features
