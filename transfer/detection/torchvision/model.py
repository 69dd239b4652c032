"""Mask R-CNN or Faster R-CNN on a ResNet, from torchvision's parts, as close to Detectron2's as they allow."""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign, RoIAlign

from excb.errors import UserError

from ..setup.settings import DetectionSettings
from .heads import SharedHeads

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}  # of each stage, by depth
STAGES = (("conv1", "bn1"), ("layer1",), ("layer2",), ("layer3",), ("layer4",))  # as `freeze_at` counts them
SIZES, RATIOS = (32, 64, 128, 256, 512), (0.5, 1.0, 2.0)  # of anchors
C4_STRIDE = 16


class Detector(nn.Module):
    """A detector: images to losses in training, to detections in evaluation.

    Args:
        body: normalised images [B, 3, H, W] to features, by name of the level.
        rpn: features to proposals.
        heads: proposals to classes, boxes and masks.
        settings: of the run, for mean, std and order of channels.
        divisor: sides of batches are padded to multiples of it, so that every level's stride is exact.
    """

    def __init__(
        self, body: nn.Module, rpn: RegionProposalNetwork, heads: RoIHeads, settings: DetectionSettings, divisor: int
    ) -> None:
        super().__init__()
        self.body, self.rpn, self.heads, self.divisor = body, rpn, heads, divisor
        self._bgr = settings.input_format == "BGR"
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(settings, name)).view(3, 1, 1), persistent=False)

    def forward(self, images: Sequence[Tensor], targets: list[dict[str, Tensor]] | None = None) -> object:
        """Losses by name in training, otherwise detections of every image.

        Args:
            images: RGB, uint8 [3, H, W] each, already resized.
            targets: in training, `boxes` [N, 4], `labels` [N] from 1 (0 is background) and `masks` [N, H, W] of each.

        Returns:
            Scalars by name; or for each image `boxes` [D, 4] in its pixels, `labels` [D] from 1, `scores` [D] and,
            with masks, `masks` [D, 1, M, M], probabilities over the box.
        """
        batch = self.batch(images)
        levels = self.body(batch.tensors)
        levels = levels if isinstance(levels, dict) else {"0": levels}
        # Anchors get the features' dtype, and half precision would shift them by pixels in large images.
        features = OrderedDict((name, level.float()) for name, level in levels.items())
        proposals, proposal_losses = self.rpn(batch, features, targets)
        detections, losses = self.heads(features, proposals, batch.image_sizes, targets)
        return proposal_losses | losses if self.training else detections

    def batch(self, images: Sequence[Tensor]) -> ImageList:
        """Normalise images and pad them at the right and the bottom to one tensor [B, 3, H, W]."""
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        height, width = (-(-max(side) // self.divisor) * self.divisor for side in zip(*sizes, strict=True))
        rows = self.get_buffer("mean").new_zeros(len(images), 3, height, width)
        for row, image, (h, w) in zip(rows, images, sizes, strict=True):
            row[:, :h, :w] = (image.to(rows) - self.get_buffer("mean")) / self.get_buffer("std")
        return ImageList(rows.flip(1) if self._bgr else rows, sizes)


def build(settings: DetectionSettings, depth: int, backbone: Mapping[str, Tensor], classes: int) -> Detector:
    """A detector with a pretrained backbone and new heads, initialised with torch's generator.

    Args:
        settings: of the network.
        depth: of the ResNet.
        backbone: its tensors in torchvision's names, without a classifier.
        classes: without background.

    Raises:
        UserError: the tensors are not those of this ResNet.
    """
    norm = FrozenBatchNorm2d if settings.norm == "FrozenBN" else nn.BatchNorm2d
    network = detector_resnet(depth, norm)
    load_resnet(network, depth, backbone)
    if settings.stride_in_1x1:
        _stride_first(network)
    c4 = settings.architecture == "c4"
    for name in [name for stage in STAGES[: settings.freeze_at] for name in stage]:
        if not (c4 and name == "layer4"):  # conv5 is in C4's head, which Detectron2 never freezes
            setattr(network, name, frozen_norms(getattr(network, name)).requires_grad_(False))
    return (_c4 if c4 else _fpn)(network, settings, norm, classes)


def detector_resnet(depth: int, norm: Callable[[int], nn.Module]) -> ResNet:
    """A new ResNet."""
    return ResNet(Bottleneck, list(BLOCKS[depth]), norm_layer=norm)


def load_resnet(network: ResNet, depth: int, backbone: Mapping[str, Tensor]) -> None:
    """Load a ResNet's weights.

    Raises:
        UserError: a tensor is missing, has another shape, or has no place.
    """
    counts = "num_batches_tracked"  # frozen norms have none, and nothing uses it
    expected = {name: value for name, value in network.state_dict().items() if not name.startswith("fc.")}
    tensors = {name: value for name, value in backbone.items() if not name.endswith(counts)}
    for name, value in expected.items():
        if name.endswith(counts):
            continue
        if name not in tensors:
            raise UserError(f"the checkpoint's backbone has no tensor '{name}': it is not a torchvision ResNet-{depth}")
        if tensors[name].shape != value.shape:
            raise UserError(
                f"the checkpoint's '{name}' has shape {tuple(tensors[name].shape)}, torchvision's ResNet-{depth} "
                f"{tuple(value.shape)}: choose a checkpoint of that network"
            )
    if unknown := [name for name in tensors if name not in expected]:
        raise UserError(f"the checkpoint's '{unknown[0]}' has no place in torchvision's ResNet-{depth}")
    network.load_state_dict(tensors, strict=False)


def _stride_first(network: ResNet) -> None:
    """Move the strides of conv3 to conv5 from the 3x3 convolution to the 1x1 before it."""
    for stage in (network.layer2, network.layer3, network.layer4):
        block = stage[0]
        assert isinstance(block, Bottleneck)
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride


def frozen_norms(module: nn.Module) -> nn.Module:
    """A module with frozen norms in place of BatchNorm, with the same values."""
    if isinstance(module, nn.BatchNorm2d):
        frozen = FrozenBatchNorm2d(module.num_features, module.eps)
        frozen.load_state_dict(module.state_dict())
        return frozen
    for name, child in module.named_children():
        setattr(module, name, frozen_norms(child))
    return module


def _c4(network: ResNet, settings: DetectionSettings, norm: Callable[[int], nn.Module], classes: int) -> Detector:
    """Proposals and regions on conv4, conv5 in the head."""
    names = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3")
    body = nn.Sequential(OrderedDict((name, getattr(network, name)) for name in names))
    middle, width = _width(network.layer3), _width(network.layer4)
    head = nn.Sequential(OrderedDict(layer4=network.layer4))
    if settings.extra_norm:
        head.add_module("norm", norm(width))
    heads = SharedHeads(  # type: ignore[no-untyped-call]
        # Any number of samples in a bin, and half a pixel's shift: Detectron2's ROIAlignV2.
        RoIAlign(14, spatial_scale=1 / C4_STRIDE, sampling_ratio=0, aligned=True),
        head,
        FastRCNNPredictor(width, classes + 1),
        mask_predictor=MaskRCNNPredictor(width, 256, classes + 1) if settings.masks else None,
        **_head_options(settings),
    )
    rpn = _rpn(settings, middle, [SIZES], pre=12_000, post=2000, pre_test=settings.rpn_pre_test)
    return _initialised(Detector(body, rpn, heads, settings, C4_STRIDE))


def _fpn(network: ResNet, settings: DetectionSettings, norm: Callable[[int], nn.Module], classes: int) -> Detector:
    """A feature pyramid, two linear layers for boxes, four convolutions for masks."""
    levels = {f"layer{number}": str(number - 1) for number in (1, 2, 3, 4)}
    widths = [_width(getattr(network, name)) for name in levels]
    in_pyramid = None if settings.norm == "FrozenBN" else norm  # as MoCo's authors, whose heads have none
    body = BackboneWithFPN(network, levels, widths, 256, norm_layer=in_pyramid)
    align = partial(MultiScaleRoIAlign, list(levels.values()), sampling_ratio=0)
    heads = RoIHeads(
        align(7),
        TwoMLPHead(256 * 7 * 7, 1024),
        FastRCNNPredictor(1024, classes + 1),
        **(_pyramid_masks(align(14), classes) if settings.masks else {}),
        **_head_options(settings),
    )
    sizes = [(size,) for size in SIZES]
    rpn = _rpn(settings, 256, sizes, pre=2000, post=1000, pre_test=min(1000, settings.rpn_pre_test))
    return _initialised(Detector(body, rpn, heads, settings, 64))


def _pyramid_masks(pool: nn.Module, classes: int) -> dict[str, nn.Module]:
    return {
        "mask_roi_pool": pool,
        "mask_head": MaskRCNNHeads(256, (256,) * 4, 1),
        "mask_predictor": MaskRCNNPredictor(256, 256, classes + 1),
    }


def _width(stage: nn.Module) -> int:
    """Output channels of a stage."""
    return [module for module in stage.modules() if isinstance(module, nn.Conv2d)][-1].out_channels


def _anchors(sizes: Sequence[tuple[int, ...]]) -> AnchorGenerator:
    """Anchors of each level's sizes, with fractions of pixels as in Detectron2: torchvision rounds its own."""
    generator = AnchorGenerator(tuple(sizes), (RATIOS,) * len(sizes))
    generator.cell_anchors = [
        torch.tensor([[-size / r, -size * r, size / r, size * r] for r in map(math.sqrt, RATIOS) for size in level]) / 2
        for level in sizes
    ]
    return generator


def _rpn(
    settings: DetectionSettings, width: int, sizes: Sequence[tuple[int, ...]], *, pre: int, post: int, pre_test: int
) -> RegionProposalNetwork:
    """The region proposal network: in training NMS gets `pre` boxes of each level and keeps `post` of all levels."""
    anchors = _anchors(sizes)
    return RegionProposalNetwork(
        anchors,
        RPNHead(width, anchors.num_anchors_per_location()[0]),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=256,
        positive_fraction=0.5,
        pre_nms_top_n={"training": pre, "testing": pre_test},
        post_nms_top_n={"training": post, "testing": settings.rpn_post_test},
        nms_thresh=0.7,
    )


def _head_options(settings: DetectionSettings) -> dict[str, Any]:
    """Options that the heads of both architectures share."""
    return {
        "fg_iou_thresh": 0.5,
        "bg_iou_thresh": 0.5,
        "batch_size_per_image": settings.rois,
        "positive_fraction": 0.25,
        "bbox_reg_weights": (10.0, 10.0, 5.0, 5.0),
        "score_thresh": 0.05,
        "nms_thresh": 0.5,
        "detections_per_img": 100,
    }


def _initialised(detector: Detector) -> Detector:
    """Initialise the last layers as Detectron2 does; torchvision's defaults are larger."""
    boxes, masks = detector.heads.box_predictor, detector.heads.mask_predictor
    layers = [(boxes.cls_score, 0.01), (boxes.bbox_pred, 0.001)]
    if masks is not None:
        layers.append((masks.mask_fcn_logits, 0.001))
        nn.init.zeros_(masks.conv5_mask.bias)
    for layer, std in layers:
        nn.init.normal_(layer.weight, std=std)
        nn.init.zeros_(layer.bias)
    return detector
