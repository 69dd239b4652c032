"""Augmentation of whole batches of crops on any device, every row by its own parameters.

The results are those of torchvision's functions in floating point, to 5e-6 for each operation and 5e-5 for whole views,
except for values at solarization's threshold. Operations work plane by plane and in place, to make few passes over
memory, and never branch on single values, which would cost more than all the arithmetic.

On a CPU the side of the images decides whether they are augmented together or one by one, never their number: an
image's view is the same in a batch of any size.

Images of other than three channels have no colours: saturation, hue and grey leave them as they are, and contrast is
around the mean of all channels.

Letters: R rows, C channels, S side in pixels, P parameters per row.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from excb.distributed.machine import to_device

from ..recipe import ViewSettings

ORDERS = np.array(list(itertools.permutations(range(4))))  # of brightness, contrast, saturation, hue
SOLARIZE_FROM = 128 / 255
GREY = (0.2989, 0.587, 0.114)  # ITU-R 601-2 luma, as torchvision
NO_WEIGHT = 1e-12  # smaller weights of a blur become 0: products with them would be denormal, which is ten times slower
TILE = 64  # rows or columns that a blur computes at once
# On a CPU: images up to this side are augmented together, since a call costs more than its arithmetic, and so many
# pixels at a time, which stay in the cache. Measured with benchmarks/augmentation.py.
SMALL_SIDE, PIXELS_AT_ONCE = 64, 2**18
# Columns of a row of parameters.
FLIP, JITTER, ORDER, BRIGHTNESS, CONTRAST, SATURATION, HUE, GREYED, SIGMA, SOLARIZE = range(10)
PARAMETERS = 10
RGB, PLANES = 3, 6  # channels of colour images, and planes that the hue takes

# One number for each of P parameters: for one row a float, for R rows a tensor [R, 1, 1, 1].
Numbers = Sequence[float] | Tensor
# Changes images [R, C, S, S] in place by their parameters; the planes [R, PLANES or C, S, S] are scratch memory.
Operation = Callable[[Tensor, Numbers, Tensor], object]


def augment(crops: Tensor, parameters: Tensor, settings: ViewSettings) -> Tensor:
    """Augment and normalise crops, every row by its own parameters.

    Args:
        crops: uint8 [R, S, S, C], on the device to work on.
        parameters: float32 [R, P], on the CPU, so that selecting the rows of an operation does not wait for a GPU.
        settings: the recipe's views.

    Returns:
        float32 [R, C, S, S], channels-last in memory.
    """
    crops = crops.permute(0, 3, 1, 2)
    views = torch.empty(crops.shape, device=crops.device, memory_format=torch.channels_last)
    mean, std = to_device(torch.tensor([settings.mean, settings.std]), crops.device)[..., None, None]
    on_cpu = in_chunks if crops.shape[2] <= SMALL_SIDE else one_by_one
    apply = on_cpu if crops.device.type == "cpu" else together
    for rows, images in apply(crops, parameters, settings.blur_kernel):
        views[rows] = images.sub_(mean).div_(std)
    return views


def one_by_one(crops: Tensor, parameters: Tensor, kernel: int) -> Iterator[tuple[slice, Tensor]]:
    """Apply all operations to one image, then to the next: each stays in the CPU cache.

    Args:
        crops: uint8 [R, C, S, S].
        parameters: float32 [R, P].
        kernel: side of the blur's kernel.

    Yields:
        Rows and their augmented images, float32 [rows, C, S, S] in [0, 1], valid until the next iteration.
    """
    operations, mask = _operations(kernel, crops.shape[1]), _mask(parameters.numpy())
    images = torch.empty(1, *crops.shape[1:])
    planes = torch.empty(1, max(PLANES, crops.shape[1]), *crops.shape[2:])
    for row, numbers in enumerate(parameters.tolist()):
        rows = slice(row, row + 1)
        images.copy_(crops[rows].flip(3) if numbers[FLIP] else crops[rows]).div_(255)
        for number in mask[row].nonzero()[0]:
            operations[number](images, numbers, planes)
        yield rows, images


def together(crops: Tensor, parameters: Tensor, kernel: int) -> Iterator[tuple[slice, Tensor]]:
    """Apply one operation to all images that need it, then the next: fills a GPU without synchronizing with it.

    Arguments and yields are those of `one_by_one`.
    """
    mask = np.concatenate([parameters[:, [FLIP]].numpy() > 0, _mask(parameters.numpy())], axis=1)
    rows = to_device(torch.from_numpy(mask.T.nonzero()[1]), crops.device).split(mask.sum(0).tolist())
    on_device = to_device(parameters, crops.device)
    images = crops.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
    images[rows[0]] = images[rows[0]].flip(3)
    channels, side = crops.shape[1:3]
    for operation, selected in zip(_operations(kernel, channels), rows[1:], strict=True):
        if len(selected):
            some = images[selected]
            planes = some.new_empty(len(some), max(PLANES, channels), side, side)
            operation(some, on_device[selected].T[..., None, None, None], planes)
            images[selected] = some
    yield slice(None), images


def in_chunks(crops: Tensor, parameters: Tensor, kernel: int) -> Iterator[tuple[slice, Tensor]]:
    """Apply `together` to as many images at a time as a CPU's cache holds.

    Arguments and yields are those of `one_by_one`.
    """
    count = max(1, PIXELS_AT_ONCE // (crops.shape[2] * crops.shape[3]))
    for start in range(0, len(crops), count):
        rows = slice(start, start + count)
        for _, images in together(crops[rows], parameters[rows], kernel):
            yield rows, images


def _operations(kernel: int, channels: int) -> list[Operation]:
    """All operations but the flip. The first 16 are the jitter: each row takes one from each group of four."""

    def blur(images: Tensor, numbers: Numbers, _: Tensor) -> None:
        images.copy_(gaussian_blur(images, torch.as_tensor(numbers[SIGMA]).view(-1), kernel))

    if channels != RGB:
        return [*4 * [_brightness, _contrast, _unchanged, _unchanged], _unchanged, blur, _solarize]
    return [*4 * [_brightness, _contrast, _saturation, _hue], _fade, blur, _solarize]


def _mask(parameters: np.ndarray) -> np.ndarray:
    """Which of `_operations` apply to each row, bool [R, 19]."""
    order = ORDERS[parameters[:, ORDER].astype(int)]
    jitter = (order[:, :, None] == np.arange(4)) & (parameters[:, JITTER] > 0)[:, None, None]
    return np.concatenate([jitter.reshape(-1, 16), parameters[:, [GREYED, SIGMA, SOLARIZE]] > 0], axis=1)


def _unchanged(_images: Tensor, _numbers: Numbers, _planes: Tensor) -> None:
    """An operation on colours, of images that have none."""


def _grey(images: Tensor, out: Tensor | None = None) -> Tensor:
    """Images [R, C, ...] -> [R, 1, ...]."""
    if images.shape[1] != RGB:
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    return torch.mul(red, GREY[0], out=out).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])


def _brightness(images: Tensor, numbers: Numbers, _: Tensor) -> None:
    images.mul_(numbers[BRIGHTNESS]).clamp_(0, 1)


def _contrast(images: Tensor, numbers: Numbers, _: Tensor) -> None:
    mean = _grey(images.mean((2, 3), keepdim=True))
    images.mul_(numbers[CONTRAST]).add_(mean.mul_(1 - numbers[CONTRAST])).clamp_(0, 1)


def _saturation(images: Tensor, numbers: Numbers, planes: Tensor) -> None:
    grey = _grey(images, out=planes[:, :1])
    images.mul_(numbers[SATURATION]).add_(grey.mul_(1 - numbers[SATURATION])).clamp_(0, 1)


def _hue(images: Tensor, numbers: Numbers, planes: Tensor) -> None:
    """Rotate the hue by a share of a full turn, in HSV.

    Hues are angles in sixths of a turn, from red at 0 to cyan at 3 or -3, multiplied by the chroma to avoid a division.
    A channel is high where its own hue is at most 1 away, low from 2 on, and linear in between.
    """
    red, green, blue = images.split(1, dim=1)
    high, low, chroma, double, hue, rest = planes.split(1, dim=1)
    torch.maximum(torch.maximum(red, green, out=high), blue, out=high)
    torch.minimum(torch.minimum(red, green, out=low), blue, out=low)
    torch.sub(high, low, out=chroma)
    torch.mul(chroma, 2, out=double)
    torch.add(green, blue, out=hue).sub_(red).add_(high).sub_(low, alpha=2).copysign_(torch.sub(green, blue, out=rest))
    low.sub_(chroma)
    for number, plane in enumerate((red, green, blue)):
        own = (2 * number - 6 * numbers[HUE] + 3) % 6 - 3  # the channel's own hue, relative to the rotated one
        # At distance d, | |d| - 3 | is 3 minus the smaller angle.
        torch.sub(hue, torch.mul(chroma, own, out=rest), out=plane).abs_().sub_(chroma, alpha=3).abs_()
        plane.clamp_(chroma, double).add_(low)


def _fade(images: Tensor, _: Numbers, planes: Tensor) -> None:
    images.copy_(_grey(images, out=planes[:, :1]).expand_as(images))


def _solarize(images: Tensor, _: Numbers, planes: Tensor) -> None:
    above = torch.ge(images, SOLARIZE_FROM, out=planes[:, : images.shape[1]])
    torch.sub(above, images, out=images).abs_()  # |1 - x| where x is above, |0 - x| elsewhere


def gaussian_blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Gaussian blur with each row's own sigma, as torchvision: separable, reflected at the borders.

    Args:
        images: [R, C, S, S].
        sigma: in pixels, [R].
        kernel: side of the kernel, odd; clipped on small images to what reflection allows.
    """
    side = images.shape[-1]
    half = min(kernel // 2, side - 1)
    offsets = torch.arange(-half, half + 1, device=sigma.device, dtype=sigma.dtype)
    weights = torch.exp(-0.5 * (offsets / sigma.view(-1, 1)).square())
    weights *= weights > NO_WEIGHT
    weights /= weights.sum(1, keepdim=True)
    # A band matrix [R, TILE, TILE + 2 half] computes TILE pixels of a row from those around them.
    band = F.pad(weights, (TILE - 1, TILE - 1)).unfold(1, TILE + 2 * half, 1).flip(1)[:, None]
    tiles = [(start, min(TILE, side - start)) for start in range(0, side, TILE)]
    bands = [(slice(start, start + size + 2 * half), band[..., :size, : size + 2 * half]) for start, size in tiles]
    images = F.pad(images, (half, half, half, half), mode="reflect")
    images = torch.cat([band @ images[..., around, :] for around, band in bands], 2)
    return torch.cat([images[..., around] @ band.mT for around, band in bands], 3)
