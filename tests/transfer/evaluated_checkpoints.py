"""Checkpoints after an evaluation that did not take place, for tables that set them side by side."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from excb.transfer.every.comparison import EvaluatedCheckpoint
from excb.transfer.every.cost import Cost
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
        "scores": {"knn": {figure: scores}} if scores is not None else {},
    }
    return EvaluatedCheckpoint(name, **given | changes)
