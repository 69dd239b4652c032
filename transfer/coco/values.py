"""The values of annotation files, as exporters write them: numbers, flags, boxes and masks, each with its faults."""

import ast
import math
import re
from typing import Any

import numpy as np

from . import faults
from .annotations import Mask, decodable
from .faults import FaultKind
from .run_lengths import run_lengths

_NUMBER = re.compile(r"\s*-?\d{1,18}(\.0*)?\s*")
_FLAGS = {"0": 0, "false": 0, "": 0, "none": 0, "1": 1, "true": 1}


def whole(value: Any) -> int | None:
    """A whole number, also one written as 12.0, "12" or "12.0"; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value.split(".")[0]) if isinstance(value, str) and _NUMBER.fullmatch(value) else None


def crowd_flag(entry: dict[str, Any]) -> tuple[bool, FaultKind | None]:
    """Whether an object is a crowd, and what is wrong with the flag."""
    value = entry.get("iscrowd")
    if value is None:
        return False, faults.CROWD_MISSING
    if isinstance(value, int):
        return bool(value), faults.CROWD_FORM if isinstance(value, bool) else None
    return bool(_FLAGS.get(str(value).strip().lower().removesuffix(".0"), 0)), faults.CROWD_FORM


def box_of(value: Any) -> tuple[float, float, float, float] | None:
    """Left, top, width and height; None if these are not four finite numbers."""
    try:
        # Copy every number: a reference into the parsed file would keep its memory alive.
        left, top, width, height = np.array(value, dtype=np.float64).tolist()
    except (TypeError, ValueError, OverflowError):  # of a whole number that no float holds
        return None
    box = (left, top, width, height)
    return box if all(isinstance(side, float) and math.isfinite(side) for side in box) else None


def area_of(value: Any) -> float | None:
    """A finite number of pixels."""
    try:
        area = float(value) + 0.0
    except (TypeError, ValueError, OverflowError):
        return None
    return area if math.isfinite(area) and not isinstance(value, bool) else None


def mask_of(segmentation: Any, width: int, height: int) -> tuple[Mask, list[FaultKind]]:
    """The mask of an image's object, and what is wrong with it.

    Args:
        segmentation: polygons, or a run-length code.
        width: of the image.
        height: of the image.
    """
    found: list[FaultKind] = []
    if isinstance(segmentation, list) and len(segmentation) == 1 and isinstance(segmentation[0], dict):
        segmentation, found = segmentation[0], [faults.MASK_FORM]
    try:
        if isinstance(segmentation, dict):
            mask, formed = _code(segmentation, width, height)
            return mask, found if formed else [faults.MASK_FORM]
        polygons, formed = _polygons(segmentation or [])
        # pycocotools walks along every edge pixel by pixel and counts in 32 bits, so that far points crash it.
        far = 2 * max(width, height)
        if not all((np.abs(points) <= far).all() for points in polygons):  # also refuses NaN
            return None, [faults.BAD_MASK]
    except (ArithmeticError, KeyError, SyntaxError, TypeError, ValueError):
        return None, [faults.BAD_MASK]
    if not any(map(len, polygons)):
        return None, [faults.NO_MASK]
    kept = tuple(points for points in polygons if decodable(points))
    if not kept:
        return None, [faults.SHORT]
    kinds = [faults.MASK_FORM] * (not formed) + [faults.SHORT_PARTS] * (len(kept) < len(polygons))
    return kept, kinds


def _polygons(parts: list[Any]) -> tuple[list[np.ndarray], bool]:
    """[x0, y0, x1, y1, ...] of each part, and whether they were written so."""
    if not isinstance(parts, list):
        raise TypeError("not a list")
    if parts and isinstance(parts[0], int | float):
        return [np.array(parts, dtype=np.float64)], False
    if len(parts) >= 3 and all(isinstance(part, list) and len(part) == 2 for part in parts):  # one polygon's points
        return [np.array(parts, dtype=np.float64).reshape(-1)], False
    polygons = [np.array(points, dtype=np.float64) for points in parts]
    if all(points.ndim == 1 for points in polygons):
        return polygons, True
    if all(points.ndim == 1 or (points.ndim == 2 and points.shape[1] == 2) for points in polygons):
        return [points.reshape(-1) for points in polygons], False
    raise ValueError("not lists of numbers")


def _code(segmentation: dict[str, Any], width: int, height: int) -> tuple[dict[str, Any], bool]:
    """A run-length code that covers its image exactly, and whether it was written as COCO's."""
    size, counts, formed = [height, width], segmentation["counts"], True
    if [whole(side) for side in segmentation["size"]] != size:
        raise ValueError("of another size")
    if isinstance(counts, str) and counts[:2] in ("b'", 'b"'):  # bytes of pycocotools, written by Python's str
        counts, formed = ast.literal_eval(counts).decode("ascii"), False
    if isinstance(counts, str):
        runs = run_lengths(counts)
    else:
        numbers = [whole(count) for count in counts]
        runs = np.array(numbers, dtype=np.int64)  # raises TypeError for None
        formed = numbers == counts and all(isinstance(count, int) for count in counts)
        counts = numbers
    if (runs < 0).any() or sum(runs.tolist()) != math.prod(size):
        raise ValueError("does not cover its image")
    return {"size": size, "counts": counts}, formed
