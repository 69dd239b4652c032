"""Multi-crop views: each image is cropped by itself, then all rows of a batch are augmented together on any device.

Every random number is named by (seed, epoch, sample, view); a view's whole augmentation is one row of parameters, drawn
where the image is read and applied where the network runs. The distributions are those of torchvision's transforms as
BYOL and DINO use them: crop, flip, colour jitter, grey, blur, solarize, normalise.

Letters: R rows, S side in pixels, P parameters per row.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from excb import seeding

from .recipes import ViewSettings

CROP_ATTEMPTS = 10  # torchvision's RandomResizedCrop gives up after as many and crops the centre
ORDERS = torch.tensor(list(itertools.permutations(range(4))))  # of brightness, contrast, saturation, hue
SOLARIZE_FROM = 128 / 255
GREY = (0.2989, 0.587, 0.114)  # ITU-R 601-2 luma, as torchvision
# Columns of a row of parameters.
FLIP, JITTER, ORDER, BRIGHTNESS, CONTRAST, SATURATION, HUE, GREYED, SIGMA, SOLARIZE = range(10)
PARAMETERS = 10

Operation = Callable[[Tensor, Tensor], Tensor]  # rows [R, 3, S, S] and their parameters [R, P] -> rows


class ViewMaker:
    """Draws and cuts the views of one image.

    Args:
        settings: the recipe's views.
        seed: the run's seed.
        epochs: length of the run, which the crops' scale may follow.
    """

    def __init__(self, settings: ViewSettings, *, seed: int, epochs: int) -> None:
        self._settings, self._seed, self._epochs = settings, seed, epochs
        self._filter = Image.Resampling[settings.interpolation.upper()]

    def cut(self, image: Image.Image, *, epoch: int, sample: int, views: range) -> tuple[np.ndarray, np.ndarray]:
        """Cut some of an image's views.

        Args:
            image: RGB.
            epoch: the epoch.
            sample: the image's index in its set.
            views: which views, all global or all local; the global ones are 0 to G - 1.

        Returns:
            Crops [len(views), S, S, 3] uint8 and their parameters [len(views), P] float32.
        """
        settings = self._settings
        is_global = views.start < settings.global_views
        size = settings.global_size if is_global else settings.local_size
        scales = settings.scales(epoch, self._epochs)[0 if is_global else 1]
        crops = np.empty((len(views), size, size, 3), np.uint8)
        parameters = np.empty((len(views), PARAMETERS), np.float32)
        for row, view in enumerate(views):
            draws = seeding.generator(seeding.Purpose.VIEW, self._seed, epoch, sample, view).random(
                2 * CROP_ATTEMPTS + 2 + PARAMETERS + 1
            )
            box = crop_box(image.size, scales, settings.ratio, draws[: 2 * CROP_ATTEMPTS + 2])
            crops[row] = np.asarray(image.crop(box).resize((size, size), self._filter))
            parameters[row] = self._parameters(draws[2 * CROP_ATTEMPTS + 2 :], view)
        return crops, parameters

    def _parameters(self, draws: np.ndarray, view: int) -> np.ndarray:
        """One row of parameters from uniform numbers, each with its own meaning."""
        settings = self._settings
        is_global = view < settings.global_views
        blur = settings.blur[view % 2] if is_global else settings.blur_local
        solarize = settings.solarize[view % 2] if is_global else 0.0
        low, high = settings.blur_sigma
        row = np.empty(PARAMETERS)
        row[FLIP] = draws[FLIP] < settings.flip
        row[JITTER] = draws[JITTER] < settings.jitter
        row[ORDER] = math.floor(draws[ORDER] * len(ORDERS))
        row[BRIGHTNESS] = 1 + settings.brightness * (2 * draws[BRIGHTNESS] - 1)
        row[CONTRAST] = 1 + settings.contrast * (2 * draws[CONTRAST] - 1)
        row[SATURATION] = 1 + settings.saturation * (2 * draws[SATURATION] - 1)
        row[HUE] = settings.hue * (2 * draws[HUE] - 1)
        row[GREYED] = draws[GREYED] < settings.grey
        row[SIGMA] = (low + (high - low) * draws[PARAMETERS]) if draws[SIGMA] < blur else 0
        row[SOLARIZE] = draws[SOLARIZE] < solarize
        return row


def crop_box(
    size: tuple[int, int], scales: tuple[float, float], ratios: tuple[float, float], draws: np.ndarray
) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop as a function of uniform numbers: (left, top, right, bottom) in pixels.

    Args:
        size: width and height of the image.
        scales: smallest and largest share of the image's area.
        ratios: smallest and largest width by height; drawn uniformly in the logarithm.
        draws: two numbers for each attempt, then two for the place.
    """
    width, height = size
    low, high = math.log(ratios[0]), math.log(ratios[1])
    for share, shape in zip(draws[:-2:2], draws[1:-2:2], strict=True):
        area = width * height * (scales[0] + (scales[1] - scales[0]) * share)
        ratio = math.exp(low + (high - low) * shape)
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = math.floor(draws[-2] * (width - w + 1)), math.floor(draws[-1] * (height - h + 1))
            return left, top, left + w, top + h
    w, h = width, height
    if width / height < ratios[0]:
        h = max(1, round(width / ratios[0]))
    elif width / height > ratios[1]:
        w = max(1, round(height * ratios[1]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


# ---------------------------------------------------------------------------------------------------------------------
# Augmentation of whole batches
# ---------------------------------------------------------------------------------------------------------------------


def augment(crops: Tensor, parameters: Tensor, settings: ViewSettings) -> Tensor:
    """Augment and normalise crops, every row by its own parameters.

    Args:
        crops: uint8 [R, S, S, 3], on the device to work on.
        parameters: float32 [R, P], on the CPU: which rows an operation touches is decided without waiting for a GPU.
        settings: the recipe's views.

    Returns:
        float32 [R, 3, S, S], channels-last in memory.
    """
    images = crops.permute(0, 3, 1, 2).float() / 255
    images = _on_rows(images, parameters[:, FLIP] > 0, lambda rows, _: rows.flip(3), parameters)
    images = _jitter(images, parameters)
    images = _on_rows(images, parameters[:, GREYED] > 0, lambda rows, _: _grey(rows).expand_as(rows), parameters)
    images = _on_rows(
        images,
        parameters[:, SIGMA] > 0,
        lambda rows, p: gaussian_blur(rows, p[:, SIGMA], settings.blur_kernel),
        parameters,
    )
    images = _on_rows(
        images,
        parameters[:, SOLARIZE] > 0,
        lambda rows, _: torch.where(rows >= SOLARIZE_FROM, 1 - rows, rows),
        parameters,
    )
    mean, std = (torch.tensor(values, device=images.device).view(3, 1, 1) for values in (settings.mean, settings.std))
    return (images - mean) / std


def _on_rows(images: Tensor, where: Tensor, operation: Operation, parameters: Tensor) -> Tensor:
    """Apply an operation, in place, to the rows where it is wanted."""
    rows = where.nonzero().squeeze(1)
    if len(rows):
        index = rows.to(images.device, non_blocking=True)
        images[index] = operation(images[index], parameters[rows].to(images.device, non_blocking=True))
    return images


def _jitter(images: Tensor, parameters: Tensor) -> Tensor:
    """torchvision's ColorJitter: four adjustments in each row's own order."""
    order = ORDERS[parameters[:, ORDER].long()]
    wanted = parameters[:, JITTER] > 0
    for place in range(4):
        for number, adjust in enumerate((_brightness, _contrast, _saturation, _hue)):
            images = _on_rows(images, wanted & (order[:, place] == number), adjust, parameters)
    return images


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue).unsqueeze(1)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(other.expand_as(images), images, factor.view(-1, 1, 1, 1)).clamp_(0, 1)


def _brightness(images: Tensor, p: Tensor) -> Tensor:
    return (images * p[:, BRIGHTNESS].view(-1, 1, 1, 1)).clamp_(0, 1)


def _contrast(images: Tensor, p: Tensor) -> Tensor:
    return _blend(images, _grey(images).mean((2, 3), keepdim=True), p[:, CONTRAST])


def _saturation(images: Tensor, p: Tensor) -> Tensor:
    return _blend(images, _grey(images), p[:, SATURATION])


def _hue(images: Tensor, p: Tensor) -> Tensor:
    """Turn the hue by a share of a full turn, in HSV."""
    red, green, blue = images.unbind(1)
    value, low = images.amax(1), images.amin(1)
    chroma = value - low
    safe = torch.where(chroma == 0, 1, chroma)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = hue + 6 * p[:, HUE].view(-1, 1, 1)
    # A channel is value - chroma * clamp(min(k, 4 - k), 0, 1) with k = (n + hue) mod 6 and n = 5, 3, 1.
    turned = torch.stack([hue + 5, hue + 3, hue + 1], dim=1).remainder_(6)
    return value.unsqueeze(1) - chroma.unsqueeze(1) * torch.minimum(turned, 4 - turned).clamp_(0, 1)


def gaussian_blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Gaussian blur with each row's own sigma, as torchvision: separable, reflected at the borders.

    Args:
        images: [R, 3, S, S].
        sigma: in pixels, [R].
        kernel: side of the kernel, odd; cut to what reflection allows on small images.
    """
    rows, channels, size, _ = images.shape
    half = min(kernel // 2, size - 1)
    offsets = torch.arange(-half, half + 1, device=images.device, dtype=images.dtype)
    weights = torch.softmax(-0.5 * (offsets / sigma.view(-1, 1)).square(), dim=1).repeat_interleave(channels, 0)
    padded = F.pad(images, (half, half, half, half), mode="reflect").reshape(1, rows * channels, size + 2 * half, -1)
    blurred = F.conv2d(padded, weights[:, None, :, None], groups=rows * channels)
    return F.conv2d(blurred, weights[:, None, None, :], groups=rows * channels).view(rows, channels, size, size)
