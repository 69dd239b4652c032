"""Changes that make a copy of an image: cropped, saved again, mirrored, resized, recoloured."""

import io

import numpy as np
from PIL import Image, ImageEnhance, ImageOps


def cropped(image: Image.Image, random: np.random.Generator, sides: tuple[float, float]) -> Image.Image:
    """A window at random with the image's aspect ratio, whose sides are a share of the image's between two bounds."""
    side = random.uniform(*sides)
    width, height = (max(1, round(side * each)) for each in image.size)
    left, top = random.integers(image.width - width + 1), random.integers(image.height - height + 1)
    return image.crop((int(left), int(top), int(left) + width, int(top) + height))


def recompressed(image: Image.Image, random: np.random.Generator, quality: tuple[int, int]) -> Image.Image:
    """The image after saving it as JPEG, at a quality between two bounds."""
    coded = io.BytesIO()
    image.save(coded, "JPEG", quality=int(random.integers(*quality, endpoint=True)))
    return Image.open(coded).convert(image.mode)


def mirror_image(image: Image.Image) -> Image.Image:
    """The image, left and right exchanged."""
    return ImageOps.mirror(image)


def made_smaller(image: Image.Image, random: np.random.Generator, sides: tuple[float, float]) -> Image.Image:
    """The image made smaller, its sides a share of what they were between two bounds."""
    side = random.uniform(*sides)
    width, height = (max(1, round(side * each)) for each in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def recoloured(image: Image.Image, random: np.random.Generator, strength: float) -> Image.Image:
    """The image with brightness, contrast and saturation each multiplied by 1 - strength to 1 + strength."""
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = enhance(image).enhance(random.uniform(1 - strength, 1 + strength))
    return image
