"""The same weights in both engines' C4 networks see the same: they differ in training only."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck

from excb.checkpoint.detectron2_names import detectron2_names
from excb.transfer.detection.setup.samples import Sample
from excb.transfer.detection.setup.settings import settings_for
from excb.transfer.detection.torchvision import model as torchvision_model
from excb.transfer.detection.torchvision.model import RATIOS, SIZES, Detector, build
from excb.transfer.detection.torchvision.pasting import to_original
from tests.transfer.detection.tiny_detector import NarrowResNet, small_networks, tensors

CLASSES = 3
ORIGINAL = (131, 159)  # height and width before resizing


def narrow_resnet50(_depth: int = 50, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> NarrowResNet:
    """As many blocks as Detectron2's ResNet-50."""
    return NarrowResNet(Bottleneck, [3, 4, 6, 3], norm_layer=norm)


def detectron2_state(detector: Detector) -> dict[str, Tensor]:
    """The weights in Detectron2's names and orders: anchors by size first, the background last and without boxes."""
    state = detector.state_dict()
    order = torch.arange(15).view(len(RATIOS), len(SIZES)).T.flatten()
    shift = state["rpn.head.bbox_pred.weight"]
    boxes = {name: state[f"heads.box_predictor.{name}"] for name in ("cls_score.weight", "cls_score.bias")}
    renamed = {
        "proposal_generator.rpn_head.conv.weight": state["rpn.head.conv.0.0.weight"],
        "proposal_generator.rpn_head.conv.bias": state["rpn.head.conv.0.0.bias"],
        "proposal_generator.rpn_head.objectness_logits.weight": state["rpn.head.cls_logits.weight"][order],
        "proposal_generator.rpn_head.objectness_logits.bias": state["rpn.head.cls_logits.bias"][order],
        "proposal_generator.rpn_head.anchor_deltas.weight": shift.view(15, 4, *shift.shape[1:])[order].flatten(0, 1),
        "proposal_generator.rpn_head.anchor_deltas.bias": state["rpn.head.bbox_pred.bias"].view(15, 4)[order].flatten(),
        "roi_heads.box_predictor.cls_score.weight": boxes["cls_score.weight"].roll(-1, 0),
        "roi_heads.box_predictor.cls_score.bias": boxes["cls_score.bias"].roll(-1, 0),
        "roi_heads.box_predictor.bbox_pred.weight": state["heads.box_predictor.bbox_pred.weight"][4:],
        "roi_heads.box_predictor.bbox_pred.bias": state["heads.box_predictor.bbox_pred.bias"][4:],
        "roi_heads.mask_head.deconv.weight": state["heads.mask_predictor.conv5_mask.weight"],
        "roi_heads.mask_head.deconv.bias": state["heads.mask_predictor.conv5_mask.bias"],
        "roi_heads.mask_head.predictor.weight": state["heads.mask_predictor.mask_fcn_logits.weight"][1:],
        "roi_heads.mask_head.predictor.bias": state["heads.mask_predictor.mask_fcn_logits.bias"][1:],
    }
    places = {"body.": "backbone.", "heads.box_head.": "roi_heads."}
    for ours, theirs in places.items():
        part = {name.removeprefix(ours): value for name, value in state.items() if name.startswith(ours)}
        norm = {name: part.pop(name) for name in list(part) if name.startswith("norm.")}
        renamed |= {f"{theirs}{name}": value for name, value in detectron2_names(part).items()}
        renamed |= {f"{theirs}res5.{name}": value for name, value in norm.items()}
    return renamed


@torch.no_grad()
def spread(detector: Detector, image: Tensor) -> None:
    """Scale the new layers so that each gives numbers of variance 1 for an image: many regions, each its own."""

    def scale(layer: nn.Module, _inputs: object, rows: Tensor) -> Tensor:
        layer.get_parameter("weight").div_(rows.std())
        return rows / rows.std()

    new = (detector.rpn.head, detector.heads.box_predictor, detector.heads.mask_predictor)
    layers = [layer for part in new for layer in part.modules() if hasattr(layer, "weight")]
    hooks = [layer.register_forward_hook(scale) for layer in layers]
    for layer in layers:
        nn.init.normal_(layer.get_parameter("weight"))
        nn.init.zeros_(layer.get_parameter("bias"))
    detector([image])
    for hook in hooks:
        hook.remove()


@pytest.mark.detectron2
@pytest.mark.filterwarnings("ignore:torch.meshgrid:UserWarning")  # Detectron2's own call
@pytest.mark.parametrize("options", [{}, {"norm": "FrozenBN", "input_format": "BGR", "stride_in_1x1": True}])
def test_the_same_weights_see_the_same(options: dict[str, object]) -> None:
    from excb.transfer.detection.detectron2 import model as detectron2_model

    settings = settings_for("smoke", options={"rpn_post_test": 30} | options)
    with small_networks(), pytest.MonkeyPatch.context() as patch:
        backbone = tensors(narrow_resnet50())
        patch.setattr(torchvision_model, "detector_resnet", narrow_resnet50)
        ours = build(settings, 50, backbone, CLASSES).eval()
        image = torch.randint(256, (3, 64, 80), dtype=torch.uint8)
        spread(ours, image)
        config = detectron2_model.configuration(settings, depth=50, classes=CLASSES, device=torch.device("cpu"))
        config.MODEL.RESNETS.RES2_OUT_CHANNELS, config.MODEL.RESNETS.WIDTH_PER_GROUP = 32, 8
        theirs = detectron2_model.detector(config, extra_norm=settings.extra_norm, backbone=backbone).eval()
        missing = theirs.load_state_dict(detectron2_state(ours), strict=False)
        assert not missing.unexpected_keys
        assert all("cell_anchors" in name or "num_batches" in name or "pixel" in name for name in missing.missing_keys)

        nothing = (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 64, 80, dtype=torch.bool))
        sample = Sample(image, *nothing, 1, ORIGINAL)
        with torch.no_grad():
            found = to_original(ours([image])[0], (64, 80), ORIGINAL)
            expected = theirs(detectron2_model.inputs([sample], settings, training=False))[0]["instances"]
    assert len(found["boxes"]) == len(expected) > 10
    torch.testing.assert_close(found["scores"], expected.scores, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found["boxes"], expected.pred_boxes.tensor, rtol=1e-3, atol=1e-2)
    assert found["labels"].tolist() == expected.pred_classes.tolist()
    masks = np.stack([found["masks"].numpy(), expected.pred_masks.numpy()])
    assert (masks[0] != masks[1]).mean() < 1e-3
    assert masks.any((2, 3)).sum() > 10
