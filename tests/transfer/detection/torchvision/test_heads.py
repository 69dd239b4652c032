"""C4's heads against torchvision's own class."""

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import RoIHeads

from excb.transfer.detection.setup.settings import settings_for
from excb.transfer.detection.torchvision.model import build
from tests.transfer.detection.tiny_detector import narrow, small_networks, targets, tensors


def test_shared_heads_are_torchvisions_applied_once() -> None:
    """With frozen norms, a second pass through conv5 for the masks alone gives the same: so torchvision does it."""
    torch.manual_seed(0)
    with small_networks():
        settings = settings_for("smoke", options={"norm": "FrozenBN", "rois": 8})
        ours = build(settings, 50, tensors(narrow(50)), 3).heads

    class Pooled(nn.Module):
        def forward(self, features: Any, boxes: list[Tensor], _sizes: Any) -> Any:
            return ours.box_roi_pool(features["0"], boxes)

    class Mean(nn.Module):
        def forward(self, regions: Tensor) -> Any:
            return ours.box_predictor(regions.mean((2, 3)))

    options = {"fg_iou_thresh": 0.5, "bg_iou_thresh": 0.5, "batch_size_per_image": 8, "positive_fraction": 0.25}
    theirs = RoIHeads(
        Pooled(),
        ours.box_head,
        Mean(),
        **options,
        bbox_reg_weights=None,
        score_thresh=0.05,
        nms_thresh=0.5,
        detections_per_img=100,
        mask_roi_pool=Pooled(),
        mask_head=ours.box_head,
        mask_predictor=ours.mask_predictor,
    )
    nn.init.normal_(ours.box_predictor.cls_score.weight, std=0.3)
    features = {"0": torch.randn(2, 128, 4, 6)}
    boxes = [torch.rand(30, 4) * 20 + torch.tensor([0.0, 0, 25, 25]) for _ in range(2)]
    for training in (True, False):
        results = []
        for heads in (ours.train(training), theirs.train(training)):
            torch.manual_seed(1)
            results.append(heads(features, list(boxes), [(64, 80), (50, 96)], targets() if training else None))
        (found, losses), (expected, expected_losses) = results
        torch.testing.assert_close(losses, expected_losses)
        torch.testing.assert_close(found, expected)
    assert len(found[0]["boxes"]) > 3
