"""The detector's parts against torchvision's own networks, and against what its heads are meant to compute."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck
from torchvision.ops import FrozenBatchNorm2d

from excb.errors import UserError
from excb.transfer.detection.setup.settings import DetectionSettings, settings_for
from excb.transfer.detection.torchvision import model
from excb.transfer.detection.torchvision.model import Detector, build
from tests.transfer.detection.tiny_detector import images, narrow, small_networks, targets, tensors

CLASSES = 3
RESNET = model.detector_resnet


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with small_networks():
        yield


@pytest.fixture
def backbone() -> dict[str, Tensor]:
    return tensors(narrow(50))


def settings(**options: Any) -> DetectionSettings:
    return settings_for("smoke", options={"rois": 8, "rpn_post_test": 20} | options)


# ---------------------------------------------------------------------------------------------------------------------
# The backbone
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["SyncBN", "FrozenBN"])
@pytest.mark.parametrize("input_format", ["RGB", "BGR"])
def test_features_are_torchvisions(backbone: dict[str, Tensor], norm: str, input_format: str) -> None:
    detector = build(settings(norm=norm, input_format=input_format, mean=(10.0, 20.0, 30.0)), 50, backbone, CLASSES)
    image = torch.randint(256, (3, 64, 96), dtype=torch.uint8)
    features = detector.eval().body(detector.batch([image]).tensors)

    plain = narrow(50).eval()
    plain.load_state_dict(backbone, strict=False)
    rows = (image - torch.tensor([10.0, 20, 30]).view(3, 1, 1)) / torch.tensor([58.395, 57.12, 57.375]).view(3, 1, 1)
    rows = (rows.flip(0) if input_format == "BGR" else rows)[None]
    for name in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3"):
        rows = getattr(plain, name)(rows)
    torch.testing.assert_close(features, rows, rtol=1e-5, atol=1e-5)
    regions = torch.randn(2, 128, 14, 14)
    torch.testing.assert_close(detector.heads.box_head.layer4(regions), plain.layer4(regions), rtol=1e-5, atol=1e-5)
    assert detector.heads.box_head(regions).shape == (2, 256, 7, 7)


def test_images_are_padded_and_never_resized() -> None:
    detector = build(settings(), 50, tensors(narrow(50)), CLASSES)
    batch = detector.batch(images())
    assert batch.tensors.shape == (2, 3, 64, 96)
    assert batch.image_sizes == [(64, 80), (50, 96)]
    assert not batch.tensors[0, :, :, 80:].any()
    assert not batch.tensors[1, :, 50:].any()


@pytest.mark.parametrize("architecture", ["c4", "fpn"])
def test_every_tensor_finds_its_place(backbone: dict[str, Tensor], architecture: str) -> None:
    detector = build(settings(architecture=architecture), 50, backbone, CLASSES)
    state = list(detector.state_dict().items())
    for name, value in backbone.items():
        if not name.endswith("num_batches_tracked"):
            places = [place for place, other in state if place.endswith(f".{name}") and torch.equal(other, value)]
            assert len(places) == 1, name


def test_a_resnet_50_is_a_resnet_50(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    monkeypatch.setattr(model, "detector_resnet", RESNET)
    with torch.device("meta"):
        ours, theirs = model.detector_resnet(50, nn.BatchNorm2d), torchvision.models.resnet50(weights=None)
    shapes = {name: value.shape for name, value in theirs.state_dict().items()}
    assert {name: value.shape for name, value in ours.state_dict().items()} == shapes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer3.0.bn2.running_var": None}, "no tensor 'layer3.0.bn2.running_var': it is not a torchvision ResNet-50"),
        (
            {"layer3.0.conv2.weight": torch.zeros(3)},
            r"'layer3.0.conv2.weight' has shape \(3,\), torchvision's ResNet-50",
        ),
        ({"layer5.0.conv1.weight": torch.zeros(3)}, "'layer5.0.conv1.weight' has no place"),
    ],
)
def test_foreign_tensors_are_refused(backbone: dict[str, Tensor], change: dict[str, Any], words: str) -> None:
    changed = {name: value for name, value in (backbone | change).items() if value is not None}
    with pytest.raises(UserError, match=words):
        build(settings(), 50, changed, CLASSES)


def test_strides_in_the_first_convolution(backbone: dict[str, Tensor]) -> None:
    detector = build(settings(stride_in_1x1=True), 50, backbone, CLASSES)
    first = [block for block in detector.modules() if isinstance(block, Bottleneck)]
    assert [(block.conv1.stride, block.conv2.stride) for block in first] == [
        ((1, 1), (1, 1)),
        *[((2, 2), (1, 1))] * 3,
    ]
    assert detector.eval().body(torch.zeros(1, 3, 64, 96)).shape == (1, 128, 4, 6)


# ---------------------------------------------------------------------------------------------------------------------
# Norms, and what is frozen
# ---------------------------------------------------------------------------------------------------------------------


def norms(detector: Detector, kind: type[nn.Module]) -> set[str]:
    """The stages that hold such norms."""
    found = {name for name, module in detector.named_modules() if isinstance(module, kind)}
    return {next(part for part in name.split(".") if part.startswith(("bn", "layer", "norm", "fpn"))) for name in found}


def test_norms_follow_the_settings(backbone: dict[str, Tensor]) -> None:
    everywhere = {"bn1", "layer1", "layer2", "layer3", "layer4"}
    detector = build(settings(), 50, backbone, CLASSES)
    assert norms(detector, nn.BatchNorm2d) == everywhere | {"norm"}
    assert norms(detector, FrozenBatchNorm2d) == set()
    detector = build(settings(norm="FrozenBN", extra_norm=False), 50, backbone, CLASSES)
    assert norms(detector, nn.BatchNorm2d) == set()
    assert norms(detector, FrozenBatchNorm2d) == everywhere
    assert norms(build(settings(architecture="fpn"), 50, backbone, CLASSES), nn.BatchNorm2d) == everywhere | {"fpn"}


@pytest.mark.parametrize(
    ("architecture", "freeze_at"), [("c4", 0), ("c4", 1), ("c4", 2), ("c4", 5), ("fpn", 3), ("fpn", 5)]
)
def test_frozen_stages_stay_as_they_are(backbone: dict[str, Tensor], architecture: str, freeze_at: int) -> None:
    detector = build(settings(architecture=architecture, freeze_at=freeze_at), 50, backbone, CLASSES).train()
    before = {name: value.clone() for name, value in detector.state_dict().items()}
    sum(detector(images(), targets()).values()).backward()
    with torch.no_grad():
        for weight in detector.parameters():
            if weight.requires_grad:
                assert weight.grad is not None
                weight.sub_(weight.sign() + 0.1)
    stages = (("body.conv1", "body.bn1"), ("layer1",), ("layer2",), ("layer3",), ("layer4",))
    frozen = [name for stage in stages[: min(freeze_at, 4) if architecture == "c4" else freeze_at] for name in stage]
    for name, value in detector.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            inside = name.replace("body.body.", "body.")
            is_frozen = any(inside.startswith(part) or f".{part}." in inside for part in frozen)
            assert torch.equal(value, before[name]) == is_frozen, name


# ---------------------------------------------------------------------------------------------------------------------
# Heads
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["c4", "fpn"])
def test_new_heads_know_nothing(backbone: dict[str, Tensor], architecture: str) -> None:
    losses = build(settings(architecture=architecture), 50, backbone, CLASSES).train()(images(), targets())
    assert losses.keys() == {
        "loss_objectness",
        "loss_rpn_box_reg",
        "loss_classifier",
        "loss_box_reg",
        "loss_mask",
    }
    assert float(losses["loss_mask"].detach()) == pytest.approx(math.log(2), abs=0.05)
    assert float(losses["loss_classifier"].detach()) == pytest.approx(math.log(CLASSES + 1), abs=0.2)


@pytest.mark.parametrize("architecture", ["c4", "fpn"])
def test_detections_lie_in_their_images(backbone: dict[str, Tensor], architecture: str) -> None:
    detector = build(settings(architecture=architecture), 50, backbone, CLASSES).eval()
    with torch.no_grad():
        detections = detector(images())
    for found, image in zip(detections, images(), strict=True):
        boxes, labels, scores, masks = (found[name] for name in ("boxes", "labels", "scores", "masks"))
        assert len(boxes) == len(labels) == len(scores) == len(masks) > 0
        assert ((boxes >= 0) & (boxes <= torch.tensor(image.shape[:0:-1]).repeat(2))).all()
        assert set(labels.tolist()) <= {1, 2, 3}
        assert ((scores > 0.05) & (scores <= 1)).all()
        assert masks.shape[1:] == ((1, 14, 14) if architecture == "c4" else (1, 28, 28))
        assert ((masks >= 0) & (masks <= 1)).all()


@pytest.mark.parametrize("architecture", ["c4", "fpn"])
def test_images_without_objects_have_losses(backbone: dict[str, Tensor], architecture: str) -> None:
    """Such an image is left out of training, but the last object may go where an image is cut or resized."""
    detector = build(settings(architecture=architecture), 50, backbone, CLASSES).train()
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    empty = [nothing | {"masks": torch.zeros(0, *image.shape[1:], dtype=torch.bool)} for image in images()]
    losses = detector(images(), empty)
    sum(losses.values()).backward()
    figures = {name: float(value.detach()) for name, value in losses.items()}
    assert figures["loss_mask"] == figures["loss_box_reg"] == 0
    assert figures["loss_objectness"] > 0


def test_anchors_lie_on_the_strides(backbone: dict[str, Tensor]) -> None:
    """An image whose sides no stride divides: 15 anchors a cell in C4, 3 in FPN, cells as far apart as the stride."""
    image = torch.zeros(3, 70, 90, dtype=torch.uint8)
    for architecture, cells, each, strides in (
        ("c4", (30,), 15, (16,)),
        ("fpn", (1024, 256, 64, 16, 4), 3, (4, 8, 16, 32, 64)),
    ):
        detector = build(settings(architecture=architecture), 50, backbone, CLASSES).eval()
        batch = detector.batch([image])
        features = detector.body(batch.tensors)
        levels = list(features.values()) if isinstance(features, dict) else [features]
        anchors = detector.rpn.anchor_generator(batch, levels)[0].split([each * count for count in cells])
        for rows, stride in zip(anchors, strides, strict=True):
            assert (rows[each] - rows[0]).tolist() == pytest.approx([stride, 0, stride, 0], abs=1e-4)
        sides = torch.cat([(rows[:each, 2:] - rows[:each, :2]).prod(1).sqrt() for rows in anchors])
        # In every ratio as large as the square.
        expected = torch.tensor([32.0, 64, 128, 256, 512]).repeat_interleave(3)
        torch.testing.assert_close(sides.sort().values, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("architecture", ["c4", "fpn"])
def test_boxes_alone_have_torchvisions_losses_without_that_of_masks(
    backbone: dict[str, Tensor], architecture: str
) -> None:
    """The same weights and sampled regions give the same losses of boxes, whether masks are learned beside them."""
    losses = {}
    both = build(settings(architecture=architecture), 50, backbone, CLASSES)
    for masks in (True, False):
        detector = build(settings(architecture=architecture, masks=masks), 50, backbone, CLASSES)
        assert (detector.heads.mask_predictor is None) is not masks
        detector.load_state_dict(both.state_dict(), strict=masks)
        torch.manual_seed(0)  # of the sampled regions
        pictures = [torch.full((3, 64, 80), 90, dtype=torch.uint8), torch.full((3, 50, 96), 30, dtype=torch.uint8)]
        losses[masks] = detector.train()(pictures, targets())
    assert losses[True].keys() - losses[False].keys() == {"loss_mask"}
    for name, loss in losses[False].items():
        torch.testing.assert_close(loss, losses[True][name])
    found = build(settings(architecture=architecture, masks=False), 50, backbone, CLASSES).eval()(images())
    assert set(found[0]) == {"boxes", "labels", "scores"}
