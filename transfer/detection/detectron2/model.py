"""Detectron2's Mask R-CNN or Faster R-CNN from the settings: configuration, network and its inputs."""

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from excb import seeding
from excb.checkpoint.detectron2_names import detectron2_names
from excb.errors import UserError

from ..setup.samples import Sample
from ..setup.settings import DetectionSettings

with warnings.catch_warnings(action="ignore", category=FutureWarning):  # it uses torch.jit at import
    from detectron2.config import CfgNode, get_cfg
    from detectron2.layers import get_norm
    from detectron2.modeling import build_model
    from detectron2.structures import BitMasks, Boxes, Instances

# Names of a ResNet's tensors in Detectron2: in C4 the last stage belongs to the heads, in FPN the ResNet is nested.
_PLACE = re.compile(r"(?:backbone(?:\.bottom_up)?|roi_heads)\.(?P<name>(?:stem|res[2-5]\.\d+)\..+)")
_PYRAMID = ["p2", "p3", "p4", "p5"]


def configuration(settings: DetectionSettings, *, depth: int, classes: int, device: torch.device) -> CfgNode:
    """Detectron2's configuration of a run; everything not set here keeps Detectron2's default."""
    reverse = settings.input_format == "BGR"  # Detectron2 expects mean and std in the order of the input's channels
    norm = norm_on(settings.norm, device)
    values: dict[str, Any] = {
        # The network
        "MODEL.DEVICE": str(device),
        "MODEL.MASK_ON": settings.masks,
        "MODEL.RESNETS.DEPTH": depth,
        "MODEL.RESNETS.NORM": norm,
        "MODEL.RESNETS.STRIDE_IN_1X1": settings.stride_in_1x1,
        "MODEL.BACKBONE.FREEZE_AT": settings.freeze_at,
        "MODEL.PIXEL_MEAN": list(settings.mean[::-1] if reverse else settings.mean),
        "MODEL.PIXEL_STD": list(settings.std[::-1] if reverse else settings.std),
        "MODEL.ROI_HEADS.NUM_CLASSES": classes,
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": settings.rois,
        "MODEL.ROI_HEADS.NAME": "Res5ROIHeads",  # C4, as in Detectron2's Base-RCNN-C4
        "MODEL.RPN.PRE_NMS_TOPK_TEST": settings.rpn_pre_test,
        "MODEL.RPN.POST_NMS_TOPK_TEST": settings.rpn_post_test,
        **(_fpn(settings, norm) if settings.architecture == "fpn" else {}),
        "TEST.PRECISE_BN.ENABLED": settings.precise_bn,
        "TEST.PRECISE_BN.NUM_ITER": settings.precise_bn_iterations,
        # Images. setup/samples.py reads them; these values document the run.
        "INPUT.FORMAT": settings.input_format,
        "INPUT.MASK_FORMAT": "bitmask",
        "INPUT.MIN_SIZE_TRAIN": settings.min_sizes,
        "INPUT.MAX_SIZE_TRAIN": settings.max_size,
        "INPUT.MIN_SIZE_TEST": settings.test_size,
        "INPUT.MAX_SIZE_TEST": settings.max_size,
        # Training
        "SOLVER.IMS_PER_BATCH": settings.batch,
        "SOLVER.BASE_LR": settings.base_lr,
        "SOLVER.MOMENTUM": settings.momentum,
        "SOLVER.WEIGHT_DECAY": settings.weight_decay,
        "SOLVER.WARMUP_ITERS": settings.warmup,
        "SOLVER.MAX_ITER": settings.iterations,
        "SOLVER.STEPS": tuple(step for step in settings.steps if step < settings.iterations),
        "SOLVER.CHECKPOINT_PERIOD": settings.save_every,
        "SOLVER.AMP.ENABLED": settings.precision == "amp",
        "SEED": settings.seed,
    }
    config = get_cfg()
    config.merge_from_list([part for item in values.items() for part in item])  # refuses unknown names
    return config


def norm_on(norm: str, device: torch.device) -> str:
    """Detectron2's name of the norm on a device: BN for SyncBN on a CPU, which one process trains on."""
    return "BN" if norm == "SyncBN" and device.type == "cpu" else norm


def _fpn(settings: DetectionSettings, norm: str) -> dict[str, Any]:
    """As in Detectron2's Base-RCNN-FPN. Like MoCo's, the pyramid has the backbone's norm unless that is frozen."""
    stages = ["res2", "res3", "res4", "res5"]
    return {
        "MODEL.BACKBONE.NAME": "build_resnet_fpn_backbone",
        "MODEL.RESNETS.OUT_FEATURES": stages,
        "MODEL.FPN.IN_FEATURES": stages,
        "MODEL.FPN.NORM": "" if norm == "FrozenBN" else norm,
        "MODEL.ANCHOR_GENERATOR.SIZES": [[32], [64], [128], [256], [512]],
        "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": [[0.5, 1.0, 2.0]],
        "MODEL.RPN.IN_FEATURES": [*_PYRAMID, "p6"],
        "MODEL.RPN.PRE_NMS_TOPK_TRAIN": 2000,  # per level
        "MODEL.RPN.PRE_NMS_TOPK_TEST": min(1000, settings.rpn_pre_test),
        "MODEL.RPN.POST_NMS_TOPK_TRAIN": 1000,
        "MODEL.ROI_HEADS.NAME": "StandardROIHeads",
        "MODEL.ROI_HEADS.IN_FEATURES": _PYRAMID,
        "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead",
        "MODEL.ROI_BOX_HEAD.NUM_FC": 2,
        "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 7,
        "MODEL.ROI_MASK_HEAD.NUM_CONV": 4,
        "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": 14,
    }


def detector(config: CfgNode, *, extra_norm: bool, backbone: Mapping[str, Tensor]) -> nn.Module:
    """The network with the pretrained backbone; its new weights depend on the configuration's seed alone.

    Args:
        config: Detectron2's.
        extra_norm: in C4, whether a norm follows the last stage in the heads.
        backbone: a ResNet's tensors in torchvision's names, without a classifier.

    Raises:
        UserError: the backbone does not fit.
    """
    device = torch.device(config.MODEL.DEVICE)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seeding.fold(seeding.Purpose.TRANSFER_WEIGHTS, config.SEED))
        built = build_model(config)
    if extra_norm and config.MODEL.ROI_HEADS.NAME == "Res5ROIHeads":
        # The heads call the stage as a Sequential, so that an appended module gets the last block's output.
        stage = built.roi_heads.res5
        stage.add_module("norm", get_norm(config.MODEL.RESNETS.NORM, stage[-1].out_channels).to(device))
    network: nn.Module = built
    load_backbone(network, backbone)
    return network


@torch.no_grad()
def load_backbone(network: nn.Module, backbone: Mapping[str, Tensor]) -> None:
    """Copy a pretrained ResNet into a network. Every tensor must have exactly one place, and every place a tensor.

    Args:
        network: Detectron2's, C4 or FPN.
        backbone: tensors in torchvision's names, without a classifier.

    Raises:
        UserError: a tensor is left over, missing, of another shape, or not finite; nothing is copied then.
    """
    places = {
        match["name"]: tensor
        for name, tensor in network.state_dict().items()
        if (match := _PLACE.fullmatch(name)) and not name.endswith("num_batches_tracked")
    }
    tensors = detectron2_names(backbone)
    shared = places.keys() & tensors.keys()
    faults = {
        "without a place": tensors.keys() - shared,
        "missing": places.keys() - shared,
        "of another shape": {name for name in shared if tensors[name].shape != places[name].shape},
        "not finite": {name for name in shared if not bool(tensors[name].isfinite().all())},
    }
    if reasons := [f"{len(names)} {what} ({min(names)}, ...)" for what, names in faults.items() if names]:
        raise UserError(
            f"the weights do not fit Detectron2's network ({'; '.join(reasons)}): choose a ResNet-50, -101 or -152"
        )
    for name, place in places.items():
        place.copy_(tensors[name])


def inputs(samples: Sequence[Sample], settings: DetectionSettings, *, training: bool) -> list[dict[str, Any]]:
    """Samples in the format of Detectron2's networks, which return results in each image's original size."""
    batch = []
    for sample in samples:
        image = sample.image.flip(0) if settings.input_format == "BGR" else sample.image
        one: dict[str, Any] = {"image": image, "height": sample.size[0], "width": sample.size[1]}
        if training:
            objects = {"gt_boxes": Boxes(sample.boxes), "gt_classes": sample.labels}
            if settings.masks:
                objects["gt_masks"] = BitMasks(sample.masks)
            one["instances"] = Instances((image.shape[1], image.shape[2]), **objects)
        batch.append(one)
    return batch
