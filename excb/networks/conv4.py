"""conv4, a small convolutional network of our own for images of 32 to 64 pixels: it learns in seconds on a CPU."""

from collections.abc import Sequence

from torch import Tensor, nn

from excb.errors import require

# By the stride of the first layer: kernel, stride and pooling of the four convolutions.
STEMS: dict[int, tuple[tuple[int, int, int], ...]] = {
    4: ((4, 4, 1), (3, 2, 1), (3, 1, 1), (3, 2, 1)),  # one cell of the last map sees 16 x 16 pixels in steps
    2: ((3, 2, 1), (3, 1, 2), (3, 1, 2), (3, 1, 1)),  # 8 x 8
    1: ((3, 1, 2), (3, 1, 2), (3, 1, 2), (3, 1, 1)),  # 8 x 8
}


class Conv4(nn.Module):
    """Four convolutions, each with BatchNorm and ReLU, and the mean over the map: [B, C, H, W] -> [B, widths[-1]].

    A ResNet's stem and pooling leave nothing of a 32-pixel image to later layers. This network divides the resolution
    by 16 in all, and keeps 8 x 8 cells after its first layer. With a finer stem it divides it by 8, by max pooling,
    and takes three (`stem=2`) to five times (`stem=1`) the time.

    Args:
        widths: channels of the four layers.
        stem: stride of the first layer in pixels: 4, 2 or 1.
        in_chans: C, channels of the images.

    Raises:
        UserError: `widths` are not four positive numbers, or there is no such stem.
    """

    def __init__(self, widths: Sequence[int] = (24, 48, 96, 256), stem: int = 4, in_chans: int = 3) -> None:
        super().__init__()
        valid = isinstance(widths, list | tuple) and len(widths) == 4
        valid = valid and all(type(width) is int and 0 < width <= 4096 for width in widths)
        require(valid, f"conv4 takes four widths from 1 to 4,096, such as [24, 48, 96, 256], not {widths!r}")
        require(type(stem) is int and stem in STEMS, f"conv4 takes a stem of stride 4, 2 or 1, not {stem!r}")
        inputs, blocks, self.strides = in_chans, [], list[int]()
        for width, (kernel, stride, pooled) in zip(widths, STEMS[stem], strict=True):
            convolution = nn.Conv2d(inputs, width, kernel, stride, padding=(kernel - stride + 1) // 2, bias=False)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            # ReLU commutes with max pooling, and then has a quarter of the values.
            pooling = [nn.MaxPool2d(pooled)] if pooled > 1 else []
            blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(width), *pooling, nn.ReLU(inplace=True)))
            self.strides.append(stride * pooled)
            inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.num_features = inputs

    def forward(self, images: Tensor) -> Tensor:
        """Features of normalised images, 16 pixels or more a side."""
        features: Tensor = self.blocks(images).mean((2, 3))
        return features
