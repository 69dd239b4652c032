"""Detections as COCO's results, their file, and their average precision by COCO's own evaluation."""

import contextlib
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from excb.errors import UserError
from excb.files.atomic import write_text

from .annotations import CocoSet
from .codes import encoded

# The field's figures: IoU from 0.5 to 0.95, at 0.5, at 0.75; objects of all sizes, 100 detections per image.
THRESHOLDS = {"AP": slice(None), "AP50": slice(0, 1), "AP75": slice(5, 6)}
KINDS = ("bbox", "segm")


@dataclass(frozen=True)
class CocoScores:
    """Average precisions in percent."""

    figures: dict[str, float]  # bbox_AP, bbox_AP50, bbox_AP75, and segm_AP, segm_AP50, segm_AP75 where there are masks
    per_class: dict[str, dict[str, float | None]]  # bbox_AP and segm_AP by class name; None for classes without objects


def as_results(
    images: CocoSet, image_id: int, *, boxes: Tensor, labels: Tensor, scores: Tensor, masks: Tensor | None
) -> list[dict[str, Any]]:
    """One image's detections as COCO's result dicts, with the set's own category ids.

    Args:
        images: the set.
        image_id: the set's own.
        boxes: [N, 4] left, top, right, bottom in pixels of the original image.
        labels: [N], from 0.
        scores: [N].
        masks: [N, height, width] bool, of the original image's size; None for boxes alone.
    """
    results: list[dict[str, Any]] = [
        {
            "image_id": image_id,
            "category_id": images.category_ids[label],
            "bbox": [left, top, right - left, bottom - top],
            "score": score,
        }
        for (left, top, right, bottom), label, score in zip(
            boxes.tolist(), labels.tolist(), scores.tolist(), strict=True
        )
    ]
    for result, mask in zip(results, masks.cpu().numpy(), strict=True) if masks is not None else ():
        result["segmentation"] = encoded(mask)
    return results


def write_predictions(predictions: Sequence[dict[str, Any]], file: Path) -> dict[str, str]:
    """Write results for COCO's tools to load, atomically.

    Returns:
        Name and sha256 of the file, as `Result.predictions` has them.

    Raises:
        UserError: the file cannot be written.
    """
    text = json.dumps(list(predictions), allow_nan=False)
    write_text(text, file)
    return {"file": file.name, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def score(images: CocoSet, predictions: Sequence[dict[str, Any]]) -> CocoScores:
    """Average precision of predictions, by pycocotools.

    Raises:
        UserError: the set has no object to detect.
    """
    figures: dict[str, float] = {}
    per_class: dict[str, dict[str, float | None]] = {}
    for kind in KINDS if images.masks else KINDS[:1]:
        precision = _precision(images, predictions, kind)
        for name, thresholds in THRESHOLDS.items():
            value = _mean(precision[thresholds])
            if value is None:
                raise UserError(f"{images.listed_in} has no object to detect: average precision is not defined")
            figures[f"{kind}_{name}"] = value
        per_class[f"{kind}_AP"] = dict(zip(images.classes, map(_mean, np.moveaxis(precision, -1, 0)), strict=True))
    return CocoScores(figures, per_class)


def _precision(images: CocoSet, predictions: Sequence[dict[str, Any]], kind: str) -> np.ndarray:
    """[10 IoU thresholds, 101 recalls, C classes], -1 for classes without objects."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        truth, detections = COCO(), COCO()
        truth.dataset = images.ground_truth()
        truth.createIndex()
        if predictions:
            # pycocotools takes an object's area from its box if there is one, also when it scores masks.
            unused = "bbox" if kind == "segm" else "segmentation"
            detections = truth.loadRes([{k: v for k, v in entry.items() if k != unused} for entry in predictions])
        else:
            detections.dataset = truth.dataset | {"annotations": []}
            detections.createIndex()
        evaluation = COCOeval(truth, detections, kind)
        evaluation.evaluate()
        evaluation.accumulate()
    all_sizes, most_detections = 0, -1  # indices of the last two axes
    return np.asarray(evaluation.eval["precision"][..., all_sizes, most_detections])


def _mean(precision: np.ndarray) -> float | None:
    """Mean in percent over the defined entries; None if there are none."""
    defined = precision[precision > -1]
    return 100 * float(defined.mean()) if defined.size else None
