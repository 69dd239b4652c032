"""C4's heads: conv5 runs on each region once, shared by boxes and, where there are any, masks."""

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_inference, maskrcnn_loss


class SharedHeads(RoIHeads):
    """torchvision's heads, which would run conv5 on the foreground a second time for the masks."""

    def forward(
        self,
        features: Mapping[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """As in torchvision's class: detections of every image in evaluation, losses in training."""
        if self.training:
            assert targets is not None
            return [], self._losses(features, proposals, targets)
        scores, shifts = self._boxes(self._regions(features, proposals))
        detections = self.postprocess_detections(scores, shifts, proposals, image_shapes)
        parts, (boxes, _, labels) = list(detections), detections
        if self.mask_predictor is not None:
            parts.append(maskrcnn_inference(self.mask_predictor(self._regions(features, boxes)), labels))
        names = ("boxes", "scores", "labels", "masks")[: len(parts)]
        return [dict(zip(names, image, strict=True)) for image in zip(*parts, strict=True)], {}

    def _losses(
        self, features: Mapping[str, Tensor], proposals: list[Tensor], targets: list[dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        proposals, matched, labels, shifts = self.select_training_samples(proposals, targets)
        regions = self._regions(features, proposals)
        classes, boxes = fastrcnn_loss(*self._boxes(regions), labels, shifts)
        losses = {"loss_classifier": classes, "loss_box_reg": boxes}
        if self.mask_predictor is None:
            return losses
        # As numbers, which a GPU is asked for once an image; it would be asked for each use of a mask.
        foreground = [each.nonzero().flatten() for each in labels]
        starts = itertools.accumulate((len(each) for each in labels), initial=0)
        rows = torch.cat([start + each for start, each in zip(starts, foreground, strict=False)])
        losses["loss_mask"] = maskrcnn_loss(
            self.mask_predictor(regions[rows]),
            [each[kept] for each, kept in zip(proposals, foreground, strict=True)],
            [target["masks"] for target in targets],
            [target["labels"] for target in targets],
            [each[kept] for each, kept in zip(matched, foreground, strict=True)],
        )
        return losses

    def _regions(self, features: Mapping[str, Tensor], boxes: list[Tensor]) -> Tensor:
        """conv5 features of boxes, [R, 2048, 7, 7]."""
        regions: Tensor = self.box_head(self.box_roi_pool(features["0"], boxes))
        return regions

    def _boxes(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [R, classes] and box regression [R, classes * 4]."""
        scores, shifts = self.box_predictor(regions.mean((2, 3)))
        return scores, shifts
