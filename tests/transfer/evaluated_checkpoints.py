"""Checkpoints after an evaluation that did not take place, for tables that set them side by side."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from excb.transfer.every.comparison import EvaluatedCheckpoint
from excb.transfer.every.cost import Cost
from excb.transfer.reporting.predictions import ImageScores, Predictions, Scored
from tests.transfer.result_files import result

FIGURE = "knn_top1_k20"


def evaluated(name: str, scores: Tensor | None, *, figure: str = FIGURE, **changes: Any) -> EvaluatedCheckpoint:
    """One with k-NN, and with detection, which has no score of an image."""
    knn = {} if scores is None else {figure: 100 * float(scores.double().mean())}
    results = {"knn": replace(result(knn, name=name), references={"majority": {figure: 12.5}})} if knn else {}
    results |= {"detection": replace(result({"bbox_AP": 31.0}, protocol="detection"), intervals={})}
    given: dict[str, Any] = {
        "folder": name.replace("/", "-"),
        "architecture": "timm:resnet10t",
        "preprocessing": {"resize": 36, "crop": 32, "interpolation": "bilinear"},
        "cost": Cost(5_400_000, 1_200_000_000, 1234.5, "cpu, 1 thread, batches of 8 images of 32 x 32 pixels"),
        "results": results,
        "paired": {} if scores is None else {"knn": _answers(figure, scores)},
    }
    return EvaluatedCheckpoint(name, **given | changes)


def _answers(figure: str, scores: Tensor) -> Scored:
    """Guesses that are right on these images; or scores, where they are numbers."""
    targets = torch.zeros(len(scores), dtype=torch.int64)
    names = [f"{number}.png" for number in range(len(scores))]
    if scores.dtype != torch.bool:
        return ImageScores(targets, names, ("a", "b"), {figure: scores})
    return Predictions(targets, names, ("a", "b"), {figure.replace("top1", "{}"): (~scores).long()[:, None]})
