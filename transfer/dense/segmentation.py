"""From scores of patches to predicted masks and their areas.

Letters: C classes, h x w patches of a view.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from excb.distributed.collectives import all_succeed, gather_objects, rank, world_size
from excb.errors import UserError

from .layouts.masks import IGNORED
from .patches.features import Grid, Patches
from .patches.geometry import Box
from .patches.metrics import Areas, areas_of, confusion_of, stacked
from .patches.views import Views

QUERIES = 2**18  # most patches that are classified at once
_AT_ONCE = 2**24  # upsampled scores: 64 MiB
Upsampling = Literal["bilinear", "nearest"]
_MODES = {"bilinear": "bilinear", "nearest": "nearest-exact"}
MaskSize = Literal["original", "input"]


@dataclass(frozen=True)
class Scoring:
    """Where and how predictions are compared with masks."""

    mask_size: MaskSize = "original"  # the mask's own pixels, or those of the network's input
    upsampling: Upsampling = "bilinear"  # of scores to that size


def predicted(scores: Tensor, boxes: Sequence[Box], height: int, width: int, upsampling: Upsampling) -> np.ndarray:
    """The class of every pixel of an image: that of the highest score, added up where views overlap.

    Args:
        scores: [views, C, h, w].
        boxes: of the views in the image.
        height: of the image.
        width: likewise.
        upsampling: of scores.

    Returns:
        [height, width] int16; `IGNORED` where there is no view. Of equal scores the first class counts.
    """
    classes, best = np.full((height, width), IGNORED, np.int16), torch.full((height, width), -torch.inf)
    covered = torch.zeros(height, width, dtype=torch.bool)
    for left, top, right, bottom in boxes:
        covered[top:bottom, left:right] = True
    step = max(1, _AT_ONCE // (height * width))
    corners = False if upsampling == "bilinear" else None
    for start in range(0, scores.shape[1], step):
        block = scores[:, start : start + step]
        canvas = torch.zeros(block.shape[1], height, width)
        for view, (left, top, right, bottom) in zip(block, boxes, strict=True):
            size = (bottom - top, right - left)
            canvas[:, top:bottom, left:right] += F.interpolate(
                view[None], size, mode=_MODES[upsampling], align_corners=corners
            )[0]
        highest, which = canvas.max(0)
        better = (covered & (highest > best)).numpy()
        classes[better] = (start + which.numpy()[better]).astype(np.int16)
        best = torch.maximum(best, highest)
    return classes


class _Scored(NamedTuple):
    """One image: its areas, [3, C], and where they are asked for its predicted mask and confusions."""

    areas: np.ndarray
    mask: np.ndarray | None
    confusion: np.ndarray | None


def segment(
    views: Views,
    patches: Patches,
    grid: Grid,
    classify: Callable[[Tensor], Tensor],
    scoring: Scoring,
    *,
    keep: Collection[int] = (),
    confusions: bool = False,
    progress: Callable[[int], None] = lambda _images: None,
) -> tuple[Areas, dict[int, np.ndarray]]:
    """Predict all masks of a set; all ranks call this.

    Args:
        views: of the test images.
        patches: theirs.
        grid: of a view.
        classify: patches [Q, D] -> scores [Q, C]; all ranks call it together.
        scoring: where predictions are compared with masks.
        keep: images whose predicted masks are returned.
        confusions: whether the areas hold what was predicted as what.
        progress: called with numbers of images.

    Returns:
        The areas of all images, and the predicted masks of those to keep, on all ranks.

    Raises:
        UserError: a mask cannot be used, or none has a pixel of a class.
    """
    found: dict[int, _Scored] = {}
    for block in _blocks(views, grid.patches):
        first, last = views.of(block.start).start, views.of(block.stop - 1).stop
        scores = classify(torch.cat([patches.view(view) for view in range(first, last)]))
        maps = scores.view(last - first, grid.height, grid.width, -1).permute(0, 3, 1, 2)

        def mine(block: range = block, first: int = first, maps: Tensor = maps) -> dict[int, _Scored]:
            own = {}
            for image in block[rank() :: world_size()]:
                numbers = views.of(image)
                mask, true = _masks(views, image, maps[numbers.start - first : numbers.stop - first], scoring)
                pairs = confusion_of(mask, true, maps.shape[1]) if confusions else None
                own[image] = _Scored(areas_of(mask, true, maps.shape[1]), mask if image in keep else None, pairs)
            return own

        for part in gather_objects(all_succeed(mine)):
            found |= part
        progress(len(block))
    scored = [found[image] for image in range(len(views.images))]
    if not any(one.areas[-1].any() for one in scored):
        raise UserError.on_all_ranks(f"no test image of {views.root} has a pixel of a class: check the masks")
    masks = {image: one.mask for image, one in enumerate(scored) if one.mask is not None}
    pairs = [one.confusion for one in scored if one.confusion is not None]
    return stacked([one.areas for one in scored], pairs or None), masks


def _masks(views: Views, image: int, maps: Tensor, scoring: Scoring) -> tuple[np.ndarray, np.ndarray]:
    """The predicted and the true mask of an image, of one size."""
    if scoring.mask_size == "input":
        side = views.geometry.side
        return predicted(maps, [(0, 0, side, side)], side, side, scoring.upsampling), views.mask(views.of(image).start)
    true = views.images.mask(image)
    height, width = true.shape
    return predicted(maps, views.boxes(image), height, width, scoring.upsampling), true


def _blocks(views: Views, patches: int) -> list[range]:
    """Consecutive images whose views have at most `QUERIES` patches together, at least one image each."""
    blocks, start = [], 0
    for image in range(1, len(views.images) + 1):
        complete = image == len(views.images)
        if complete or (views.of(image).stop - views.of(start).start) * patches > QUERIES:
            blocks.append(range(start, image))
            start = image
    return blocks
