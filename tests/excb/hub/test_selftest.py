"""Tests of the self-test: noise passes, any change of network or preprocessing does not, nor does a random network."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from excb.errors import UserError
from excb.hub import selftest
from excb.hub.backbone import Backbone, Entry
from excb.hub.catalogue import bundled_folder
from excb.hub.loading import load
from excb.images import photographs
from excb.images.photographs import PhotographError
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing

pytestmark = pytest.mark.usefixtures("one_thread")

RESNET = Architecture("timm:resnet10t", {"channels": [8, 16, 24, 32], "stem_width": 8})
VIT = Architecture("vit_tiny", {"embed_dim": 12, "depth": 2, "num_heads": 2})
PIXELS = Preprocessing(72, 64)
CUT = selftest._patches
every_network = pytest.mark.parametrize("architecture", [RESNET, VIT], ids=lambda architecture: architecture.name)


def new(architecture: Architecture, preprocessing: Preprocessing = PIXELS, seed: int = 0) -> Backbone:
    """A network as first initialised."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = architecture.build()
    return Backbone(network, preprocessing, Entry("here", architecture)).eval()


def moved(architecture: Architecture, preprocessing: Preprocessing = PIXELS, seed: int = 0) -> Backbone:
    """A random network whose norms look trained."""
    backbone, random = new(architecture, preprocessing, seed), torch.Generator().manual_seed(seed)
    for name, tensor in backbone.network.state_dict().items():
        if tensor.ndim == 1:
            spread = 0.3 * torch.randn(tensor.shape, generator=random)
            tensor.copy_(spread if name.endswith(("bias", "mean")) else 1 + spread.abs())
    return backbone


def changed(backbone: Backbone, **preprocessing: Any) -> Backbone:
    """The same network with other preprocessing."""
    return Backbone(backbone.network, replace(backbone.transform, **preprocessing), backbone.entry).eval()


@pytest.fixture(scope="module")
def good() -> Backbone:
    """A trained network: the one that comes with the package."""
    folder = bundled_folder("tiny_grocery")
    assert folder is not None
    return load(folder)


# ---------------------------------------------------------------------------------------------------------------------
# The same features as at export
# ---------------------------------------------------------------------------------------------------------------------


def test_what_is_stored_is_what_one_image_after_another_gives() -> None:
    backbone = moved(RESNET)
    found = selftest.expected(backbone)
    assert found.keys() == {"photographs", "network", "colours", "features"}
    for index, name in enumerate(("astronaut", "cat", "coffee", "motorcycle")):
        picture = photographs.photograph(name)
        pixels = np.array(picture)
        assert bytes(found["photographs"][index].tolist()) == hashlib.sha256(pixels.tobytes()).digest()
        image = backbone.transform(picture)
        width, height = picture.size
        chosen = [[pixels[row * height // 64, column * width // 64] for column in range(64)] for row in range(64)]
        plain = torch.from_numpy((np.array(chosen, np.float32) - 128) / 64).permute(2, 0, 1)
        with torch.no_grad():
            torch.testing.assert_close(found["features"][index], backbone.network(image[None])[0])
            torch.testing.assert_close(found["network"][index], backbone.network(plain[None])[0])
        areas = torch.stack([area.mean((1, 2)) for row in image.split(16, 1) for area in row.split(16, 2)], 1)
        torch.testing.assert_close(found["colours"][index].flatten(1), areas)


@every_network
def test_a_network_that_is_written_and_read_passes(tmp_path: Path, architecture: Architecture) -> None:
    selftest.write_self_test(tmp_path, moved(architecture))
    assert [file.name for file in tmp_path.iterdir()] == ["selftest.safetensors"]
    stored = load_file(tmp_path / "selftest.safetensors")
    torch.set_num_threads(2)
    try:
        selftest.check_self_test(moved(architecture), stored)
    finally:
        torch.set_num_threads(1)


def test_whatever_a_backbone_returns_its_pooled_features_count() -> None:
    backbone = moved(RESNET)
    maps = Backbone(backbone.network, PIXELS, backbone.entry, features="map").eval()
    selftest.check_self_test(maps, selftest.expected(backbone))


def transposed(network: nn.Module) -> None:
    kernel = network.get_parameter("layer3.0.conv1.weight").data
    kernel.copy_(kernel.transpose(2, 3).clone())


def one_bit(network: nn.Module) -> None:
    """The lowest bit of the exponent of one weight: it is doubled or halved."""
    kernel = network.get_parameter("layer2.0.conv1.weight").data
    where = np.unravel_index(int(kernel.abs().argmax()), kernel.shape)
    kernel.view(torch.int32)[where] ^= 1 << 23


def one_statistic(network: nn.Module) -> None:
    network.get_buffer("layer4.0.bn2.running_var")[3] *= 1.5


@pytest.mark.parametrize("change", [transposed, one_bit, one_statistic])
def test_a_changed_tensor_is_found(change: Callable[[nn.Module], None]) -> None:
    backbone = moved(RESNET)
    stored = selftest.expected(backbone)
    selftest.check_self_test(backbone, stored)
    change(backbone.network)
    with pytest.raises(UserError, match=r"^the network computes something else"):
        selftest.check_self_test(backbone, stored)


def test_another_number_of_heads_is_found() -> None:
    """All shapes stay the same; attention must not be as even as in a new network."""
    backbone = moved(VIT)
    for name, weight in backbone.network.named_parameters():
        if name.endswith("qkv.weight"):
            weight.data.mul_(10)
    other = moved(Architecture(VIT.name, VIT.options | {"num_heads": 3}))
    other.network.load_state_dict(backbone.network.state_dict())
    with pytest.raises(UserError, match=r"^the network computes something else"):
        selftest.check_self_test(other, selftest.expected(backbone))


@pytest.mark.parametrize(
    "preprocessing",
    [
        {"std": (0.228, 0.224, 0.225)},
        {"std": (0.225, 0.224, 0.229)},
        {"mean": (0.484, 0.456, 0.406)},
        {"mean": (0.406, 0.456, 0.485)},
        {"interpolation": "bicubic"},
        {"resize": 73},
        {"resize": 64},
    ],
    ids=str,
)
def test_other_preprocessing_is_found(good: Backbone, preprocessing: dict[str, Any]) -> None:
    backbone = changed(good, resize=72, crop=64)
    with pytest.raises(UserError, match=r"^images are prepared differently"):
        selftest.check_self_test(changed(backbone, **preprocessing), selftest.expected(backbone))


def test_a_grey_level_here_and_there_is_not_a_difference(good: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another machine's rounding might give it: one value in five hundred is one level off."""
    stored = selftest.expected(good)
    exact = Preprocessing.__call__
    random = torch.Generator().manual_seed(0)

    def rounded(self: Preprocessing, image: Image.Image) -> Tensor:
        inputs = exact(self, image)
        off = (torch.rand(inputs.shape, generator=random) < 0.002) * (
            torch.randn(inputs.shape, generator=random)
        ).sign()
        return inputs + off / 255 / torch.tensor(self.std).view(3, 1, 1)

    monkeypatch.setattr(Preprocessing, "__call__", rounded)
    assert not torch.equal(selftest.expected(good)["features"], stored["features"])
    selftest.check_self_test(good, stored)


def test_other_photographs_leave_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = moved(RESNET)
    stored = selftest.expected(backbone)
    real = photographs.photograph

    def brighter(name: str) -> Image.Image:
        return real(name).point(lambda value: value ^ 1)

    monkeypatch.setattr(selftest, "photograph", brighter)
    with pytest.raises(PhotographError, match="photographs changed: cannot tell"):
        selftest.check_self_test(backbone, stored)


def test_a_self_test_of_another_network_or_version_is_refused() -> None:
    stored = selftest.expected(moved(RESNET))
    wider = moved(Architecture(RESNET.name, RESNET.options | {"channels": [8, 16, 24, 40]}))
    odd: list[dict[str, Tensor]] = [
        {},
        {name: value for name, value in stored.items() if name != "colours"},
        stored | {"features": stored["features"].double()},
    ]
    for backbone, values in [(wider, stored), *((moved(RESNET), values) for values in odd)]:
        with pytest.raises(UserError, match="another width or to another version"):
            selftest.check_self_test(backbone, values)


@pytest.mark.parametrize("part", ["network", "colours", "features"])
def test_what_is_no_number_never_passes(part: str) -> None:
    backbone = moved(RESNET)
    stored = selftest.expected(backbone)
    stored[part] = stored[part].clone().index_fill_(0, torch.tensor([1]), float("nan"))
    with pytest.raises(UserError, match=f"{part}: nan from what was stored"):
        selftest.check_self_test(backbone, stored)


def test_a_network_that_gives_zeros_is_equal_to_itself() -> None:
    backbone = moved(RESNET)
    for tensor in backbone.network.state_dict().values():
        tensor.zero_()
    selftest.check_self_test(backbone, selftest.expected(backbone))


# ---------------------------------------------------------------------------------------------------------------------
# Trained, or as first initialised
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches of each size are cut once for all tests: that takes longer than the small networks."""
    monkeypatch.setattr(selftest, "_patches", lambda backbone, altered: patches(backbone.transform, altered))


@cache
def patches(preprocessing: Preprocessing, altered: bool) -> tuple[Tensor, Tensor]:
    return CUT(moved(RESNET, preprocessing), altered=altered)


@pytest.mark.usefixtures("cut_once")
def test_a_trained_network_passes_and_leaves_no_trace(good: Backbone) -> None:
    before = {name: value.clone() for name, value in good.network.state_dict().items()}
    state = torch.get_rng_state()
    selftest.check_trained(good)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in good.modules())
    assert all(torch.equal(value, before[name]) for name, value in good.network.state_dict().items())


@every_network
def test_a_network_as_first_initialised_is_refused(architecture: Architecture) -> None:
    with pytest.raises(UserError, match="as first initialised"):
        selftest.check_trained(new(architecture))


def test_statistics_of_images_alone_are_no_training() -> None:
    backbone = new(RESNET)
    selftest._recompute_statistics(
        backbone.network, torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    )
    assert backbone.network.get_buffer("bn1.running_mean").any()
    with pytest.raises(UserError, match="as first initialised"):
        selftest.check_trained(backbone)


def test_norms_alone_without_statistics_are_no_training() -> None:
    backbone = moved(RESNET)
    for name, value in backbone.network.state_dict().items():
        if "running" in name:
            value.fill_(float(name.endswith("var")))
    with pytest.raises(UserError, match="as first initialised"):
        selftest.check_trained(backbone)


@pytest.mark.usefixtures("cut_once")
@every_network
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_random_network_is_refused_however_its_norms_and_scales_are(
    architecture: Architecture, seed: int, scale: float
) -> None:
    backbone = moved(architecture, Preprocessing(32, 32), seed)
    for weight in backbone.network.parameters():
        weight.data.mul_(scale)
    selftest._recompute_statistics(backbone.network, selftest._patches(backbone, altered=True)[0])
    with pytest.raises(UserError, match="hardly better than random"):
        selftest.check_trained(backbone)


@pytest.mark.usefixtures("cut_once")
def test_a_trained_network_with_its_weights_shuffled_is_refused(good: Backbone) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(50)
        shuffled = Backbone(selftest._shuffled(good.network), good.transform, good.entry).eval()
    weights, others = good.network.state_dict(), shuffled.network.state_dict()
    assert all(torch.equal(weights[name].flatten().sort()[0], others[name].flatten().sort()[0]) for name in weights)
    selftest._recompute_statistics(shuffled.network, selftest._patches(shuffled, altered=True)[0])
    with pytest.raises(UserError, match="hardly better than random"):
        selftest.check_trained(shuffled)


@pytest.mark.usefixtures("cut_once")
@pytest.mark.parametrize(("best", "passes"), [(49.9, True), (50.1, False)])
@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("altered", [True, False])
def test_the_best_of_six_random_networks_counts(
    monkeypatch: pytest.MonkeyPatch, best: float, passes: bool, place: int, altered: bool
) -> None:
    """With other colours or as they are: the other patches show nothing here."""
    random = [20.0] * 6
    random[place] = best
    pairs = [(60.0, 30.0), *((each, 30.0) for each in random)]
    figures = iter([figure for pair in pairs for figure in (pair if altered else pair[::-1])])
    judged: list[nn.Module] = []

    def accuracy(network: nn.Module, *_images: Tensor) -> float:
        judged.append(network)
        return next(figures)

    monkeypatch.setattr(selftest, "_accuracy", accuracy)
    backbone = moved(RESNET, Preprocessing(32, 32))
    if passes:
        selftest.check_trained(backbone)
        assert len(judged) == 14
        assert len({id(network) for network in judged}) == 7
        assert judged[0] is backbone.network
    else:
        with pytest.raises(UserError, match=r"60\.0( % of patches, a random network| and) 50\.1 %"):
            selftest.check_trained(backbone)


@pytest.mark.usefixtures("cut_once")
def test_features_that_are_no_numbers_are_refused() -> None:
    broken = moved(RESNET, Preprocessing(32, 32))
    next(broken.network.parameters()).data.fill_(float("nan"))
    with pytest.raises(UserError, match="hardly better than random"):
        selftest.check_trained(broken)


@pytest.mark.parametrize(("crop", "patch", "side"), [(32, 16, 32), (224, 16, 64), (224, 14, 56)])
def test_patches_are_judged_at_a_size_that_the_network_takes(crop: int, patch: int, side: int) -> None:
    vit = Architecture(VIT.name, VIT.options | {"patch_size": patch, "img_size": crop})
    bank, queries = selftest._patches(moved(vit, Preprocessing(crop, crop)), altered=True)
    classes = len(photographs.PHOTOGRAPHS)
    assert bank.shape == (classes * selftest.BANK, 3, side, side)
    assert queries.shape == (classes * selftest.QUERIES, 3, side, side)
