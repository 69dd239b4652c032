"""Preprocessing of an image into a network's input: resize, crop, scale to [0, 1], normalise."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from excb.images.pixels import EIGHT_BIT, Pixels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from PIL import Image
    from torch import Tensor

    from excb.images.picture import Picture

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
STRIP = 64  # aspect ratio above which only the middle is resized, because the whole image might take gigabytes

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
CropMode = Literal["center", "squash", "border"]
Corner = Literal["nearest", "down"]
_ADDED = (
    "crop_mode",
    "corner",
    "pixels",
)  # fields that older files have not: left out while they have their usual value


@dataclass(frozen=True)
class Preprocessing:
    """Deterministic preprocessing of evaluation, in pixels. Call it on a PIL image, an array or a file.

    It says all that the evaluation transforms of torchvision, timm and transformers say of square images, and is
    bit-exact with torchvision's and timm's, except that of an image more than `STRIP` times as long as wide only the
    middle is resized before a centre crop, which moves it by less than a pixel.
    """

    resize: int = 256  # side after resizing: the shorter one, both of "squash", the longer one of "border"
    crop: int = 224  # side of the central square that is kept; around a smaller image it is filled up
    mean: tuple[float, ...] = IMAGENET_MEAN  # of the channels, in [0, 1]; as many as there are channels
    std: tuple[float, ...] = IMAGENET_STD  # standard deviations of the channels, in [0, 1]
    interpolation: Interpolation = "bilinear"  # of the resize, antialiased
    # As timm calls them: "center" and "border" keep the image's proportions, "squash" makes it square. "border" fills
    # up with the mean colour, the others with black.
    crop_mode: CropMode = "center"
    # Where the crop's corner lies between two pixels: to "nearest" (half to even) as in torchvision and timm, or "down"
    # as in transformers.
    corner: Corner = "nearest"
    # How stored values become the channels: their number, depth and range, colour space, orientation and background.
    pixels: Pixels = EIGHT_BIT

    def __call__(self, image: "Picture") -> "Tensor":
        """Turn an image into a network's input, float32 [C, crop, crop].

        Args:
            image: a PIL image of any mode and size, uint8 pixels [H, W, C] (or grey [H, W]), or the path of a file.

        Raises:
            UserError: it is something else, or a file that is not a readable image.
        """
        from excb.images.picture import as_channels

        return self._scaled(self.cut(as_channels(image, self.pixels)))

    def with_range(self, text: str) -> "Preprocessing":
        """The same for images of more than 8 bits with values in a range such as "0..4095". Raises UserError."""
        return replace(self, pixels=Pixels.declared(text, self.channels))

    @property
    def channels(self) -> int:
        """C, of the images that the network takes."""
        return len(self.mean)

    def cut(self, image: "Image.Image | np.ndarray") -> "Image.Image | np.ndarray":
        """The square that the network sees, resized but not scaled yet: `crop` x `crop`.

        Args:
            image: RGB, or uint8 [H, W, C] of other channels, each of which is cut as a grey image.
        """
        import numpy as np
        from PIL import Image

        if isinstance(image, Image.Image):
            return self._cut(image, self.mean)
        planes = [self._cut(Image.fromarray(image[..., channel]), [mean]) for channel, mean in enumerate(self.mean)]
        return np.stack([np.asarray(plane) for plane in planes], axis=-1)

    def _cut(self, image: "Image.Image", mean: "Sequence[float]") -> "Image.Image":
        from PIL import Image

        if self.crop_mode == "center":
            image = self._middle(image)
        resized = image.resize(self._size(*image.size), self.resampling)
        left, top = map(self._corner, resized.size)
        if self.crop_mode == "border":
            square = Image.new(image.mode, (self.crop, self.crop), tuple(round(255 * value) for value in mean))
            square.paste(resized, (-left, -top))
            return square
        return resized.crop((left, top, left + self.crop, top + self.crop))  # black beyond the image

    @property
    def resampling(self) -> "Image.Resampling":
        """Pillow's name of the interpolation."""
        from PIL import Image

        return Image.Resampling[self.interpolation.upper()]

    def _middle(self, image: "Image.Image") -> "Image.Image":
        """The image, or of a strip the part around the square that `crop` keeps."""
        short = min(image.size)
        kept = short * max(STRIP, 2 * -(-self.crop // self.resize))
        left, top = (max(0, (side - kept) // 2) for side in image.size)
        return image.crop((left, top, image.width - left, image.height - top)) if left or top else image

    def _size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height after resizing."""
        if self.crop_mode == "squash":
            return self.resize, self.resize
        if self.crop_mode == "border":
            ratio = max(width, height) / self.resize
            return max(1, round(width / ratio)), max(1, round(height / ratio))
        longer = int(self.resize * max(width, height) / min(width, height))
        return (self.resize, longer) if width <= height else (longer, self.resize)

    def _corner(self, side: int) -> int:
        """Where the crop begins on a side of the resized image; below 0 where it is longer than that."""
        spare = side - self.crop
        if self.corner == "down":
            return spare // 2
        return round(spare / 2) if spare > 0 else -(-spare // 2)  # torchvision halves what it pads rounded down

    @cached_property
    def _scaled(self) -> "Callable[[Image.Image | np.ndarray], Tensor]":
        from torchvision import transforms

        return transforms.Compose([transforms.ToTensor(), transforms.Normalize(self.mean, self.std)])

    @property
    def in_words(self) -> str:
        """How the square is made, and of what, for people."""
        side = {"center": "the shorter side", "squash": "both sides", "border": "the longer side"}[self.crop_mode]
        smooth = "" if self.interpolation == "nearest" else ", antialiased"
        filled = ", filled up with the mean colour" if self.crop_mode == "border" else ""
        return (
            f"{side} resized to {self.resize} pixels ({self.interpolation}{smooth}), the central {self.crop} x "
            f"{self.crop} kept{filled}; {self.pixels.in_words}"
        )

    @property
    def in_short(self) -> str:
        """The same for a line: sizes, interpolation, and the crop mode where it is not the usual one."""
        mode = "" if self.crop_mode == "center" else f" {self.crop_mode}"
        return f"resize {self.resize}, crop {self.crop}, {self.interpolation}{mode}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what older files have not is left out while it has its usual value."""
        usual = {name for name in _ADDED if getattr(self, name) == type(self).__dataclass_fields__[name].default}
        values = asdict(self) | {"pixels": self.pixels.to_dict()}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if name not in usual
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Preprocessing":
        """The inverse of `to_dict`."""
        fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        if "pixels" in fields:
            fields["pixels"] = Pixels.from_dict(fields["pixels"])
        return cls(**fields)
