"""Multi-crop views: the box of an image that each view shows, its pixels, and the parameters of its augmentation.

The RNG key of a view is (seed, epoch, sample, view). Its whole augmentation is one row of parameters, drawn where the
image is read and applied where the network runs (`augmentation`). The distributions are those of torchvision's
transforms as BYOL and DINO use them: crop, flip, colour jitter, grey, blur, solarize, normalise.

Letters: S side in pixels, P parameters per row.
"""

import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from excb import seeding
from excb.images.random_crops import BOX_DRAWS, Box, crop_box

from ..recipe import ViewSettings, cycle
from .augmentation import (
    BRIGHTNESS,
    CONTRAST,
    FLIP,
    GREYED,
    HUE,
    JITTER,
    ORDER,
    ORDERS,
    PARAMETERS,
    SATURATION,
    SIGMA,
    SOLARIZE,
)


class ViewMaker:
    """Draws and cuts the views of one image.

    Args:
        epochs: length of the run; the scale of the crops may depend on it.
        restarts: epochs after which the scale begins anew.
    """

    def __init__(self, settings: ViewSettings, *, seed: int, epochs: int, restarts: tuple[int, ...] = ()) -> None:
        self._settings, self._seed, self._marks = settings, seed, (0, *restarts, epochs)
        self._random = seeding.generator(0)
        self._fresh: Any = self._random.bit_generator.state

    def cut(
        self,
        image: Image.Image | np.ndarray,
        *,
        epoch: int,
        sample: int,
        views: range,
        size: tuple[int, int] | None = None,
    ) -> list[np.ndarray]:
        """Cut some of an image's views.

        Args:
            image: RGB, or pixels [H, W, C] uint8.
            epoch: the epoch.
            sample: the image's index in its set.
            views: which views; 0 to G - 1 are the global ones, the local ones follow.
            size: width and height of the full image if `image` was decoded at a reduced size (see `shrink`); edges of
                crops are rounded to its pixels.

        Returns:
            Crops [views, S, S, C] uint8 and parameters [views, P] float32: of the global views among `views`, if any,
            then of the local ones, if any.
        """
        pixels = np.asarray(image)
        width, height = size or (pixels.shape[1], pixels.shape[0])
        divisor = 2 ** round(math.log2(width / pixels.shape[1]))  # rounded, because the last pixel may stand for fewer
        # All are drawn before any is cut, which keeps the code of each in the instruction cache.
        drawn = {view: self._draw((width, height), epoch, sample, view) for view in views}
        arrays: list[np.ndarray] = []
        for selected in self._kinds(views):
            side = self._side(selected[0])
            crops = np.empty((len(selected), side, side, pixels.shape[2]), np.uint8)
            for row, view in enumerate(selected):
                left, top, right, bottom = (round(edge / divisor) for edge in drawn[view][0])
                crops[row] = resize(pixels[top:bottom, left:right], side, self._settings.interpolation)
            arrays += [crops, np.array([drawn[view][1] for view in selected], np.float32)]
        return arrays

    def plan(
        self, size: tuple[int, int], *, epoch: int, sample: int, views: range
    ) -> tuple[list[Box], list[np.ndarray]]:
        """The views of an image of this width and height, for who cuts them elsewhere.

        Returns:
            The box of every view, and what `cut` returns without any crop: [views, 0, S, S, 3] and parameters.
        """
        drawn = {view: self._draw(size, epoch, sample, view) for view in views}
        arrays: list[np.ndarray] = []
        for selected in self._kinds(views):
            side = self._side(selected[0])
            rows = np.array([drawn[view][1] for view in selected], np.float32)
            arrays += [np.empty((len(selected), 0, side, side, 3), np.uint8), rows]
        return [box for box, _ in drawn.values()], arrays

    def _kinds(self, views: range) -> list[list[int]]:
        """The global ones of some views, and the local ones, where there are any."""
        count = self._settings.global_views
        kinds = [view for view in views if view < count], [view for view in views if view >= count]
        return [kind for kind in kinds if kind]

    def shrink(self, size: tuple[int, int], *, epoch: int, sample: int) -> int:
        """The divisor, 1, 2, 4 or 8, by which an image of this width and height can be decoded smaller.

        No view's crop is upsampled for it.
        """
        settings = self._settings
        if min(size) < 2 * settings.global_size:
            return 1  # as most images of ImageNet: boxes need not be drawn
        shares = [
            min(right - left, bottom - top) / self._side(view)
            for view in range(settings.global_views + settings.local_views)
            for left, top, right, bottom in [self._draw(size, epoch, sample, view)[0]]
        ]
        return next((divisor for divisor in (8, 4, 2) if divisor <= min(shares)), 1)

    def _side(self, view: int) -> int:
        return self._settings.global_size if view < self._settings.global_views else self._settings.local_size

    def _draw(self, size: tuple[int, int], epoch: int, sample: int, view: int) -> tuple[Box, list[float]]:
        """A view's box in an image of this size, and its row of parameters."""
        settings = self._settings
        first, last = cycle(epoch, self._marks)
        scales = settings.scales(epoch - first, last - first)[0 if view < settings.global_views else 1]
        # What `seeding.generator` returns for this key. Constructing it would take five times as long.
        self._fresh["state"]["key"][0] = seeding.fold(seeding.Purpose.VIEW, self._seed, epoch, sample, view)
        self._random.bit_generator.state = self._fresh
        draws = self._random.random(BOX_DRAWS + PARAMETERS + 1).tolist()
        box = crop_box(size, scales, settings.ratio, draws[:BOX_DRAWS])
        return box, self._parameters(draws[BOX_DRAWS:], view)

    def _parameters(self, draws: list[float], view: int) -> list[float]:
        settings = self._settings
        is_global = view < settings.global_views
        blur = settings.blur[view % 2] if is_global else settings.blur_local
        solarize = settings.solarize[view % 2] if is_global else 0.0
        low, high = settings.blur_sigma
        row = [0.0] * PARAMETERS
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


def resize(pixels: np.ndarray, side: int, interpolation: str) -> np.ndarray:
    """Pixels [H, W, C] uint8 at [side, side, C], antialiased.

    Pillow's algorithm in vector instructions, four times as fast. Its weights have fewer bits: on photographs, less
    than 1 % of the values differ from Pillow's by 1 of 255, and hardly any by 2.
    """
    # A writable copy, as torch requires, whose batch dimension makes torch treat it as channels-last: no transpose.
    rows = torch.from_numpy(pixels[None].copy().transpose(0, 3, 1, 2))
    resized = F.interpolate(rows, (side, side), mode=interpolation, antialias=True)[0].permute(1, 2, 0)
    pixels_resized: np.ndarray = resized.numpy()
    return pixels_resized
