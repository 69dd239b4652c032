"""Preprocessing of an image into a network's input: resize, centre crop, scale to [0, 1], normalise."""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL.Image import Image
    from torch import Tensor

    from excb.images.picture import Picture

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
STRIP = 64  # aspect ratio above which only the middle is resized, because the whole image might take gigabytes


@dataclass(frozen=True)
class Preprocessing:
    """Deterministic preprocessing of evaluation, in pixels. Call it on a PIL image, an array or a file.

    It is bit-exact with torchvision's `Resize` and `CenterCrop`, except that of an image more than `STRIP` times as
    long as wide only the middle is resized, which moves it by less than a pixel.
    """

    resize: int = 256  # the shorter side after resizing
    crop: int = 224  # side of the central square that is kept
    mean: tuple[float, float, float] = IMAGENET_MEAN  # of the channels, in [0, 1]
    std: tuple[float, float, float] = IMAGENET_STD  # standard deviations of the channels, in [0, 1]
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  # of the resize, antialiased

    def __call__(self, image: "Picture") -> "Tensor":
        """Turn an image into a network's input, float32 [3, crop, crop].

        Args:
            image: a PIL image of any mode and size, uint8 pixels [H, W, 3] (or grey [H, W]), or the path of a file.

        Raises:
            UserError: it is something else, or a file that is not a readable image.
        """
        from excb.images.picture import as_rgb

        return self._scaled(self.cut(as_rgb(image)))

    def cut(self, image: "Image") -> "Image":
        """The central square of an RGB image that the network sees, resized but not scaled yet: `crop` x `crop`."""
        return self._square(self._middle(image))

    def _middle(self, image: "Image") -> "Image":
        """The image, or of a strip the part around the square that `crop` keeps."""
        short = min(image.size)
        kept = short * max(STRIP, 2 * -(-self.crop // self.resize))
        left, top = (max(0, (side - kept) // 2) for side in image.size)
        return image.crop((left, top, image.width - left, image.height - top)) if left or top else image

    @cached_property
    def _square(self) -> "Callable[[Image], Image]":
        from torchvision import transforms

        resize = transforms.Resize(self.resize, transforms.InterpolationMode(self.interpolation))
        return transforms.Compose([resize, transforms.CenterCrop(self.crop)])

    @cached_property
    def _scaled(self) -> "Callable[[Image], Tensor]":
        from torchvision import transforms

        return transforms.Compose([transforms.ToTensor(), transforms.Normalize(self.mean, self.std)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Preprocessing":
        """The inverse of `to_dict`."""
        fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        return cls(**fields)
