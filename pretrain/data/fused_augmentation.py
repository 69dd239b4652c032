"""Augmentation by our Triton kernels, for CUDA: two launches and a blur, however many operations there are.

Importing this file needs no Triton.
"""

import numpy as np
import torch
from torch import Tensor

from excb.distributed.machine import current_device, to_device

from ..recipe import ViewSettings
from .augmentation import (
    BRIGHTNESS,
    CONTRAST,
    FLIP,
    GREYED,
    HUE,
    JITTER,
    ORDER,
    ORDERS,
    SATURATION,
    SIGMA,
    SOLARIZE,
    SOLARIZE_FROM,
    gaussian_blur,
)

BLOCK = 1024  # pixels that a program holds at a time
WARPS = 8


def augment_fused(crops: Tensor, parameters: Tensor, settings: ViewSettings) -> Tensor:
    """`pretrain.data.augmentation.augment`, in few launches and few passes over memory.

    Args:
        crops: uint8 [R, S, S, 3], on the device.
        parameters: float32 [R, P], on the CPU.
        settings: the recipe's views.

    Returns:
        float32 [R, 3, S, S], channels-last in memory.
    """
    from . import augmentation_kernels as kernels

    count, side = crops.shape[:2]
    area, crops, device = side * side, crops.contiguous(), crops.device
    given = parameters.numpy()
    numbers = to_device(torch.from_numpy(_numbers(given)), device)
    images = torch.empty(count, 3, side, side, device=device)
    views = torch.empty(count, 3, side, side, device=device, memory_format=torch.channels_last)
    if not count:
        return views
    with current_device(device):
        kernels.colour_kernel[(count,)](crops, numbers, images, area, SIDE=side, BLOCK=BLOCK, num_warps=WARPS)
    blurred = (given[:, SIGMA] > 0).nonzero()[0]
    if len(blurred):
        rows = to_device(torch.from_numpy(blurred), device)
        sigma = to_device(torch.from_numpy(given[blurred, SIGMA]), device)
        images[rows] = gaussian_blur(images[rows], sigma, settings.blur_kernel)
    with current_device(device):
        kernels.finish_kernel[count, -(-area // BLOCK)](
            images, numbers, views, area, SOLARIZE_FROM, *settings.mean, *settings.std, BLOCK=BLOCK, num_warps=WARPS
        )
    return views


def _numbers(parameters: np.ndarray) -> np.ndarray:
    """The parameters of each row for the kernels, float32 [R, 13]; their columns are in `augmentation_kernels`."""
    order = np.where(parameters[:, [JITTER]] > 0, ORDERS[parameters[:, ORDER].astype(int)], -1)
    own = (2 * np.arange(3, dtype=np.float32) - 6 * parameters[:, [HUE]] + 3) % 6 - 3
    kept = parameters[:, [BRIGHTNESS, CONTRAST, SATURATION]]
    flags = parameters[:, [GREYED, SOLARIZE]]
    return np.concatenate([parameters[:, [FLIP]], order, kept, own, flags], axis=1, dtype=np.float32)
