"""Tests of Detectron2's configuration and network: against its own recipe files, and torchvision's ResNet."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18, resnet50

from excb.errors import UserError
from excb.transfer.detection.setup.settings import DetectionSettings, settings_for

pytest.importorskip("detectron2.modeling", reason="detectron2: not installed")  # quiet about what it imports

import detectron2
from detectron2.config import get_cfg
from detectron2.layers import FrozenBatchNorm2d

from excb.transfer.detection.detectron2.model import configuration, detector, inputs, norm_on
from excb.transfer.detection.setup.samples import Sample

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.detectron2]

CPU, GPU = torch.device("cpu"), torch.device("cuda")
RECIPES = Path(detectron2.__file__).parent / "model_zoo" / "configs" / "COCO-InstanceSegmentation"
SETTINGS = DetectionSettings(mean=(120.0, 110.0, 100.0), std=(60.0, 55.0, 50.0))


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    """A ResNet-50 whose every tensor tells: norms are not identities."""
    random = torch.Generator().manual_seed(3)
    network = resnet50()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            for tensor, low, high in (
                (module.weight.data, 0.5, 1.0),
                (module.bias.data, -0.2, 0.2),
                (module.running_mean, -0.2, 0.2),
                (module.running_var, 0.5, 2.0),
            ):
                tensor.uniform_(low, high, generator=random)
    return network.eval()


def backbone(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in network.state_dict().items() if not name.startswith("fc.")}


def build(settings: DetectionSettings, resnet: nn.Module) -> Any:
    config = configuration(settings, depth=50, classes=4, device=CPU)
    return detector(config, extra_norm=settings.extra_norm, backbone=backbone(resnet)).eval()


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        if hasattr(value, "items"):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = list(value) if isinstance(value, tuple) else value
    return found


def changes(first: Any, second: Any) -> dict[str, Any]:
    """The values in which the second configuration differs."""
    before, after = flat(first), flat(second)
    assert before.keys() == after.keys()
    return {name: value for name, value in after.items() if before[name] != value}


# ---------------------------------------------------------------------------------------------------------------------
# Configuration
# ---------------------------------------------------------------------------------------------------------------------

# The job brings weights and images.
ELSEWHERE = {"MODEL.WEIGHTS": "", "DATASETS.TRAIN": [], "DATASETS.TEST": []}
OURS = {  # documented: what torchvision's networks want, and how images are read
    "MODEL.PIXEL_MEAN": [120.0, 110.0, 100.0],
    "MODEL.PIXEL_STD": [60.0, 55.0, 50.0],
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "INPUT.FORMAT": "RGB",
    "INPUT.MASK_FORMAT": "bitmask",
    "SEED": 0,
}


@pytest.mark.parametrize(("architecture", "name"), [("c4", "C4"), ("fpn", "FPN")])
@pytest.mark.parametrize("schedule", ["1x", "2x"])
def test_stock_recipe_is_detectron2s(architecture: str, name: str, schedule: str) -> None:
    stock = get_cfg()
    stock.merge_from_file(str(RECIPES / f"mask_rcnn_R_50_{name}_1x.yaml"))
    if schedule == "2x":  # Detectron2's model zoo has none: twice the lengths
        stock.merge_from_list(["SOLVER.MAX_ITER", 180_000, "SOLVER.STEPS", (120_000, 160_000)])
    colours = {"mean": SETTINGS.mean, "std": SETTINGS.std}
    settings = settings_for(schedule, "stock", options=colours | {"architecture": architecture})
    found = changes(stock, configuration(settings, depth=50, classes=80, device=GPU))
    assert found == OURS | ELSEWHERE


def test_ssl_recipe_is_the_fields() -> None:
    stock, ssl = (
        configuration(settings_for("1x", recipe), depth=50, classes=80, device=GPU) for recipe in ("stock", "ssl")
    )
    assert changes(stock, ssl) == {
        "MODEL.RESNETS.NORM": "SyncBN",
        "MODEL.BACKBONE.FREEZE_AT": 0,
        "TEST.PRECISE_BN.ENABLED": True,
    }


def test_options_reach_detectron2() -> None:
    settings = replace(
        SETTINGS, batch=4, base_lr=0.005, rois=64, min_sizes=(96, 128), test_size=128, max_size=160, precision="amp"
    )
    found = changes(*(configuration(s, depth=50, classes=80, device=GPU) for s in (SETTINGS, settings)))
    assert found == {
        "SOLVER.IMS_PER_BATCH": 4,
        "SOLVER.BASE_LR": 0.005,
        "SOLVER.AMP.ENABLED": True,
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": 64,
        "INPUT.MIN_SIZE_TRAIN": [96, 128],
        "INPUT.MAX_SIZE_TRAIN": 160,
        "INPUT.MIN_SIZE_TEST": 128,
        "INPUT.MAX_SIZE_TEST": 160,
    }


def test_bgr_reverses_mean_and_deviation() -> None:
    config = configuration(replace(SETTINGS, input_format="BGR"), depth=50, classes=80, device=CPU)
    assert config.MODEL.PIXEL_MEAN == [100.0, 110.0, 120.0]
    assert config.MODEL.PIXEL_STD == [50.0, 55.0, 60.0]


def test_norm_of_a_cpu() -> None:
    assert norm_on("SyncBN", CPU) == "BN", "torch's SyncBN refuses CPUs"
    assert [norm_on(norm, CPU) for norm in ("naiveSyncBN", "BN", "FrozenBN")] == ["naiveSyncBN", "BN", "FrozenBN"]
    assert norm_on("SyncBN", GPU) == "SyncBN"


# ---------------------------------------------------------------------------------------------------------------------
# The backbone in its place
# ---------------------------------------------------------------------------------------------------------------------


def sample(height: int = 90, width: int = 75) -> Sample:
    image = torch.from_numpy(np.random.default_rng(5).integers(0, 256, (3, height, width), dtype=np.uint8))
    nothing = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, height, width, dtype=torch.bool)
    return Sample(image, *nothing, 1, (height, width))


def stages(resnet: Any, image: Tensor) -> list[Tensor]:
    """Features of torchvision's network after layer3 and layer4, with its own normalisation of colours."""
    scale = (image.float() / 255)[None]
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) / 255 for values in (SETTINGS.mean, SETTINGS.std))
    rows = resnet.maxpool(resnet.relu(resnet.bn1(resnet.conv1((scale - mean) / std))))
    third = resnet.layer3(resnet.layer2(resnet.layer1(rows)))
    return [third, resnet.layer4(third)]


def deviation(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


@torch.no_grad()
@pytest.mark.parametrize("norm", ["SyncBN", "naiveSyncBN", "BN", "FrozenBN"])
def test_c4_features_are_torchvisions(resnet: nn.Module, norm: Any) -> None:
    settings = replace(SETTINGS, norm=norm)
    network = build(settings, resnet)
    images = network.preprocess_image(inputs([sample()], settings, training=False))
    third, fourth = stages(resnet, sample().image)
    found = network.backbone(images.tensor)["res4"]
    assert deviation(found, third) < 1e-4
    assert deviation(network.roi_heads.res5[:3](found), fourth) < 1e-4


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:torch.meshgrid")  # how Detectron2 calls it, of its anchors
def test_fpn_features_are_torchvisions(resnet: nn.Module) -> None:
    settings = replace(SETTINGS, architecture="fpn")
    network = build(settings, resnet)
    images = network.preprocess_image(inputs([sample(96, 64)], settings, training=False))  # FPN pads to 32
    third, fourth = stages(resnet, sample(96, 64).image)
    found = network.backbone.bottom_up(images.tensor)
    assert deviation(found["res4"], third) < 1e-4
    assert deviation(found["res5"], fourth) < 1e-4
    assert isinstance(network.backbone.fpn_output2.norm, nn.BatchNorm2d)
    assert network(inputs([sample(96, 64)], settings, training=False))[0]["instances"].image_size == (96, 64)


@torch.no_grad()
def test_stride_in_the_first_convolution_gives_other_features(resnet: nn.Module) -> None:
    """The option changes the features of torchvision's weights, which are made for the stride in the 3x3."""
    settings = replace(SETTINGS, stride_in_1x1=True)
    network = build(settings, resnet)
    images = network.preprocess_image(inputs([sample()], settings, training=False))
    assert deviation(network.backbone(images.tensor)["res4"], stages(resnet, sample().image)[0]) > 0.1


@torch.no_grad()
def test_bgr_is_the_same_image(resnet: nn.Module) -> None:
    """A first convolution for BGR, with the images in BGR, is the network for RGB."""
    settings = replace(SETTINGS, input_format="BGR")
    tensors = backbone(resnet)
    tensors["conv1.weight"] = tensors["conv1.weight"].flip(1)
    config = configuration(settings, depth=50, classes=4, device=CPU)
    network: Any = detector(config, extra_norm=True, backbone=tensors).eval()
    images = network.preprocess_image(inputs([sample()], settings, training=False))
    assert deviation(network.backbone(images.tensor)["res4"], stages(resnet, sample().image)[0]) < 1e-4


@pytest.mark.parametrize(("norm", "kind"), [("BN", nn.BatchNorm2d), ("FrozenBN", FrozenBatchNorm2d)])
def test_extra_norm_follows_the_last_block(resnet: nn.Module, norm: Any, kind: type) -> None:
    stage = build(replace(SETTINGS, norm=norm), resnet).roi_heads.res5
    assert [name for name, _ in stage.named_children()] == ["0", "1", "2", "norm"]
    assert stage.norm.weight.shape == (2048,)
    assert isinstance(stage.norm, kind)
    without = build(replace(SETTINGS, norm=norm, extra_norm=False), resnet).roi_heads.res5
    assert len(without) == 3


def test_frozen_stages(resnet: nn.Module) -> None:
    network = build(replace(SETTINGS, freeze_at=2), resnet)
    for part, frozen in ((network.backbone.stem, True), (network.backbone.res2, True), (network.backbone.res3, False)):
        assert {weight.requires_grad for weight in part.parameters()} == {not frozen}
        norms = [m for m in part.modules() if isinstance(m, (nn.BatchNorm2d, FrozenBatchNorm2d))]
        assert {isinstance(module, FrozenBatchNorm2d) for module in norms} == {frozen}
    whole = build(replace(SETTINGS, freeze_at=0), resnet)
    assert all(weight.requires_grad for weight in whole.parameters())
    stock = build(replace(SETTINGS, norm="FrozenBN"), resnet)
    assert not [module for module in stock.modules() if isinstance(module, nn.BatchNorm2d)]


def test_new_weights_are_named_by_the_seed(resnet: nn.Module) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(SETTINGS, resnet).state_dict()
    assert torch.equal(torch.get_rng_state(), before), "random numbers elsewhere stay what they were"
    torch.manual_seed(2)
    again, other = (build(replace(SETTINGS, seed=seed), resnet).state_dict() for seed in (0, 1))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    name = "proposal_generator.rpn_head.conv.weight"
    assert not torch.equal(first[name], other[name])


def test_weights_that_do_not_fit(resnet: nn.Module) -> None:
    config = configuration(SETTINGS, depth=50, classes=4, device=CPU)
    fitting = backbone(resnet)
    missing = {name: tensor for name, tensor in fitting.items() if name != "layer4.2.bn3.running_var"}
    left_over = fitting | {"layer3.6.conv1.weight": torch.zeros(256, 1024, 1, 1)}
    shape = fitting | {"conv1.weight": torch.zeros(64, 3, 3, 3)}
    broken = fitting | {"bn1.bias": torch.full((64,), float("nan"))}
    for tensors, fault in (
        (missing, r"1 missing \(res5.2.conv3.norm.running_var, ...\)"),
        (left_over, r"1 without a place \(res4.6.conv1.weight, ...\)"),
        (shape, r"1 of another shape \(stem.conv1.weight, ...\)"),
        (broken, r"1 not finite \(stem.conv1.norm.bias, ...\)"),
        (backbone(resnet18()), "choose a ResNet-50"),
        ({"blocks.0.attn.qkv.weight": torch.zeros(1)}, "is not a tensor of a torchvision ResNet"),
    ):
        with pytest.raises(UserError, match=fault) as error:
            detector(config, extra_norm=True, backbone=tensors)
        assert len(str(error.value).splitlines()) == 1
