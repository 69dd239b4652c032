"""JPEGs decoded and cropped on the GPU by nvJPEG (`efficiency.decoder=nvjpeg`): worker processes only read files.

nvJPEG is not libjpeg: its pixels differ from the other decoders' by rounding. Views show the same boxes, and
augmentations have the same parameters.
"""

import io
import warnings
from dataclasses import replace

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from excb.console import plural
from excb.distributed.machine import to_device
from excb.errors import UserError, first_line
from excb.images.image_set import CodedImages
from excb.images.random_crops import Box
from excb.networks.architecture import RGB

from ..recipe import Recipe
from .batch import ViewBatch, collate
from .loader import TrainingViews

INSTEAD = "set efficiency.decoder=auto"
TOGETHER = 32  # images that are on the GPU whole, at most: one of 12 megapixels takes 36 MB


def require_decoder(recipe: Recipe, device: torch.device) -> None:
    """Refuse `efficiency.decoder=nvjpeg` where it cannot run.

    Raises:
        UserError: there is no GPU, or this torchvision cannot decode on it.
    """
    if recipe.efficiency.decoder != "nvjpeg":
        return
    if recipe.channels != RGB:
        raise UserError(
            f"efficiency.decoder=nvjpeg decodes JPEGs in RGB, not {plural(recipe.channels, 'channel')}: {INSTEAD}"
        )
    if device.type != "cuda":
        raise UserError(f"efficiency.decoder=nvjpeg decodes on a GPU, and this run is on the CPU: {INSTEAD}")
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    try:
        decode([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)], device)
    except (ImportError, RuntimeError) as error:
        raise UserError(f"this torchvision cannot decode on the GPU ({first_line(error)}): {INSTEAD}") from None


class GpuDecoder:
    """Adds the crops of the JPEGs that are not decoded yet to a batch.

    A file that nvJPEG refuses is decoded on the CPU, or replaced, as without it.

    Args:
        recipe: of the run.
        images: its images.
        device: where crops are made.
    """

    def __init__(self, recipe: Recipe, images: CodedImages, device: torch.device) -> None:
        self._settings, self._device = recipe.views, device
        self._on_cpu = TrainingViews(images, recipe.change(efficiency={"decoder": "auto"}))

    @torch.no_grad()
    def __call__(self, batch: ViewBatch) -> ViewBatch:
        """The batch with all crops [views, B, S, S, 3] on the GPU."""
        jpegs = batch.jpegs
        if jpegs is None:
            return batch
        files, cut = list(jpegs.content.split(jpegs.lengths)), list[list[Tensor] | None]()
        for first in range(0, len(files), TOGETHER):
            images = self._decoded(files[first : first + TOGETHER])
            cut += map(self._views, images, jpegs.boxes[first : first + TOGETHER])
        waiting = {row for row, _ in jpegs.refs}
        there = [row for row in range(len(batch.samples)) if row not in waiting]  # cut by the workers
        kinds = [[crops] for crops in batch.crops]
        used, broken = batch.used.clone(), list(batch.broken)
        for (row, ref), file, views in zip(jpegs.refs, files, cut, strict=True):
            if views is None:
                item = self._on_cpu[ref._replace(content=file.numpy().tobytes())]
                for parts, made_here in zip(kinds, collate([item]).crops, strict=True):
                    parts.append(made_here)
                there.append(row)
                used[row] = item.used
                broken += item.broken
        made = [row for (row, _), views in zip(jpegs.refs, cut, strict=True) if views is not None]
        order = to_device(torch.tensor(there + made).argsort(), self._device)
        whole = list[Tensor]()
        for kind, parts in enumerate(kinds):
            every = [to_device(part, self._device) for part in parts if part.numel()]
            if ready := [views[kind] for views in cut if views is not None]:
                every.append(torch.stack(ready, 1).round_().clamp_(0, 255).to(torch.uint8))
            whole.append(torch.cat(every, 1).index_select(1, order))
        return replace(
            batch,
            global_crops=whole[0],
            local_crops=whole[1] if len(whole) > 1 else None,
            used=used,
            broken=broken,
            jpegs=None,
        )

    def _decoded(self, files: list[Tensor]) -> list[Tensor | None]:
        """Images [3, H, W] uint8 on the GPU; None for those that nvJPEG refuses."""
        try:
            return [*decode(files, self._device)]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # of any of them
            return [self._alone(file) for file in files]

    def _alone(self, file: Tensor) -> Tensor | None:
        try:
            return decode([file], self._device)[0]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return None

    def _views(self, image: Tensor | None, boxes: list[Box]) -> list[Tensor] | None:
        """Global and local views [views, S, S, 3] of an image, float32; None where they cannot be made here."""
        if image is None:
            return None
        settings, values = self._settings, image[None].float()
        kinds = [boxes[: settings.global_views], boxes[settings.global_views :]]
        sides = [settings.global_size, settings.local_size]
        try:
            return [
                torch.cat([self._resized(values, box, side) for box in kind]).permute(0, 2, 3, 1)
                for kind, side in zip(kinds, sides, strict=True)
                if kind
            ]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # a crop so much larger than its view that the kernel has no room for its weights
            return None

    def _resized(self, values: Tensor, box: Box, side: int) -> Tensor:
        left, top, right, bottom = box
        crop = values[..., top:bottom, left:right]
        return F.interpolate(crop, (side, side), mode=self._settings.interpolation, antialias=True)


def decode(files: list[Tensor], device: torch.device) -> list[Tensor]:
    """RGB images [3, H, W] uint8 of JPEG files, on a GPU by nvJPEG. Raises RuntimeError for a damaged one."""
    from torchvision.io import ImageReadMode, decode_jpeg  # here, as in `excb.images.jpeg`

    with warnings.catch_warnings(action="ignore"):  # torchvision plans to move decoding elsewhere
        return list(decode_jpeg(files, mode=ImageReadMode.RGB, device=device))
