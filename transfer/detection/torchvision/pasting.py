"""Detections in the original image: boxes rescaled, masks pasted into their boxes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

THRESHOLD = 0.5  # of a mask's probabilities


def to_original(
    detections: Mapping[str, Tensor], resized: tuple[int, int], original: tuple[int, int]
) -> dict[str, Any]:
    """Map detections of a resized image to the original one; boxes without area are dropped.

    Args:
        detections: `boxes` [D, 4], `labels` [D] from 1, `scores` [D], and `masks` [D, 1, M, M] of probabilities,
            unless the detector has none.
        resized: height and width of the detector's input.
        original: height and width of the original image.

    Returns:
        `boxes` in original pixels, `labels` from 0, `scores`, and `masks` [D, height, width] bool or None, all on
        the CPU.
    """
    boxes, labels, scores = (detections[name].cpu() for name in ("boxes", "labels", "scores"))
    (height, width), (rows, columns) = original, resized
    scale = torch.tensor([width / columns, height / rows])
    boxes = (boxes.float().view(-1, 2, 2) * scale).clamp(min=0).minimum(torch.tensor([width, height])).view(-1, 4)
    kept = (boxes[:, 2:] > boxes[:, :2]).all(1)
    boxes, pasted = boxes[kept], None
    if "masks" in detections:
        pasted = torch.zeros(len(boxes), height, width, dtype=torch.bool)
        for canvas, box, mask in zip(pasted, boxes, detections["masks"].cpu()[kept, 0].float(), strict=True):
            paste(canvas, box, mask)
    return {"boxes": boxes, "labels": labels[kept] - 1, "scores": scores[kept], "masks": pasted}


def paste(canvas: Tensor, box: Tensor, mask: Tensor) -> None:
    """Set the pixels whose centres lie in a mask, with the mask interpolated bilinearly.

    As in Detectron2, the box keeps its fractions of pixels; torchvision's function rounds them.

    Args:
        canvas: [height, width] bool.
        box: [4] left, top, right, bottom.
        mask: [M, M] probabilities.
    """
    height, width = canvas.shape
    left, top, right, bottom = box.tolist()
    rows, columns = slice(int(top), min(height, int(bottom) + 1)), slice(int(left), min(width, int(right) + 1))
    y = (torch.arange(rows.start, rows.stop) + 0.5 - top) / (bottom - top) * 2 - 1
    x = (torch.arange(columns.start, columns.stop) + 0.5 - left) / (right - left) * 2 - 1
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
    values = F.grid_sample(mask[None, None], grid[None], align_corners=False)[0, 0]
    canvas[rows, columns] = values >= THRESHOLD
