"""Outputs of backbones: each kind against the networks' own layers run one by one; images of other sizes."""

from typing import Any, get_args

import pytest
import timm
import torch
from timm.models.convmixer import ConvMixer
from torch import Tensor, nn
from torch.nn import functional

from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.backbone import evaluating
from excb.networks.blocks import Blocks
from excb.networks.outputs import (
    FeatureMap,
    LastClassTokens,
    Output,
    Pyramid,
    output,
    resampled,
    resized_preprocessing,
    sized,
)
from excb.networks.preprocessing import Preprocessing
from tests.run_files import photograph, pictures

pytestmark = pytest.mark.usefixtures("one_thread")

VIT: dict[str, Any] = {"patch_size": 8, "embed_dim": 12, "depth": 4, "num_heads": 2, "img_size": 32}
SWIN: dict[str, Any] = {
    "embed_dim": 8,
    "depths": (1, 1, 1, 1),
    "num_heads": (1, 1, 1, 1),
    "img_size": 64,
    "window_size": 2,
    "drop_path_rate": 0.0,
}
STAGED: dict[str, dict[str, Any]] = {
    "resnet18": {},
    "timm:resnet10t": {},
    "timm:mobilenetv3_small_050": {},
    "timm:convnext_atto": {},
    "timm:swin_tiny_patch4_window7_224": SWIN,
}


def build(name: str, **options: Any) -> Any:
    """A network whose norms are not the identity, in eval mode."""
    torch.manual_seed(0)
    network = Architecture(name, options).build().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.rand_like(parameter))
    return network


def vit(**options: Any) -> Any:
    """A tiny ViT that changes what passes through it by much, and takes images of any size."""
    network = build("timm:vit_tiny_patch16_224", **VIT | options)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network


@pytest.fixture(scope="module", params=STAGED)
def staged(request: pytest.FixtureRequest) -> Any:
    return build(request.param, **STAGED[request.param])


def by_hooks(network: Any, images: Tensor) -> list[Tensor]:
    """The outputs of a network's stages as its own forward pass makes them, with the final norm of Swin's last."""
    if hasattr(network, "feature_info"):
        stages = {entry["reduction"]: network.get_submodule(entry["module"]) for entry in network.feature_info}
    else:
        stages = {4: network.layer1, 8: network.layer2, 16: network.layer3, 32: network.layer4}
    found: dict[int, Tensor] = {}
    handles = [
        stage.register_forward_hook(lambda _module, _inputs, result, stride=stride: found.update({stride: result}))
        for stride, stage in stages.items()
    ]
    with torch.no_grad():
        network(images)
        if "Swin" in type(network).__name__:
            found[32] = network.norm(found[32])
            found = {stride: tensor.permute(0, 3, 1, 2) for stride, tensor in found.items()}
    for handle in handles:
        handle.remove()
    return [found[stride] for stride in (4, 8, 16, 32)]


def tokens_after_blocks(network: Any, images: Tensor) -> list[Tensor]:
    """A ViT's tokens after each block, through the final norm: [B, prefix + patches, D]."""
    states = []
    with torch.no_grad():
        tokens = network.norm_pre(network._pos_embed(network.patch_embed(images)))
        for block in network.blocks:
            tokens = block(tokens)
            states.append(network.norm(tokens))
    return states


def as_map(tokens: Tensor, rows: int, columns: int) -> Tensor:
    """Patch tokens [B, prefix + rows * columns, D] -> [B, D, rows, columns]."""
    return tokens[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))


# ---------------------------------------------------------------------------------------------------------------------
# Networks with stages
# ---------------------------------------------------------------------------------------------------------------------


def test_pyramid_is_the_stages(staged: Any) -> None:
    images = pictures(2, 64)
    pyramid = output(staged, "pyramid")
    with torch.no_grad():
        found = pyramid(images)
    expected = by_hooks(staged, images)
    assert [tuple(level.shape[-2:]) for level in found] == [(16, 16), (8, 8), (4, 4), (2, 2)]
    assert pyramid.strides == (4, 8, 16, 32)
    assert pyramid.width == tuple(level.shape[1] for level in expected)
    for level, stage in zip(found, expected, strict=True):
        torch.testing.assert_close(level, stage)


def test_map_is_the_last_stage(staged: Any) -> None:
    images = pictures(2, 64)
    reader = output(staged, "map")
    with torch.no_grad():
        found = reader(images)
    torch.testing.assert_close(found, by_hooks(staged, images)[-1])
    assert reader.strides == (32,)
    assert reader.width == found.shape[1]


def test_network_that_knows_no_final_norm() -> None:
    network = build("timm:hiera_tiny_224", embed_dim=8, num_heads=1, stages=(1, 1, 1, 1))
    with torch.no_grad():
        levels = output(network, "pyramid")(pictures(1, 224))
    assert [tuple(level.shape[1:]) for level in levels] == [(8, 56, 56), (16, 28, 28), (32, 14, 14), (64, 7, 7)]


def test_pool_is_what_the_network_returns(staged: Any) -> None:
    images = pictures(2, 64)
    reader = output(staged, "pool")
    with torch.no_grad():
        found = reader(images)
        assert torch.equal(found, staged(images))
    assert found.shape == (2, reader.width)
    assert reader.strides == ()


@pytest.mark.parametrize("name", ["resnet18", "timm:resnet10t", "timm:swin_tiny_patch4_window7_224"])
def test_mean_of_the_map_is_the_pooled_feature(name: str) -> None:
    network = build(name, **STAGED[name])
    with torch.no_grad():
        found = output(network, "map")(pictures(2, 64)).mean((2, 3))
        torch.testing.assert_close(found, network(pictures(2, 64)))


@pytest.mark.parametrize(
    "name", ["mobilenet_v2", "efficientnet_b0", "regnet_y_400mf", "shufflenet_v2_x0_5", "mnasnet0_5"]
)
def test_torchvisions_networks_have_maps(name: str) -> None:
    network = build(f"torchvision:{name}")
    generator = torch.random.get_rng_state()
    maps = Blocks(network.train())
    assert torch.equal(torch.random.get_rng_state(), generator)
    images = pictures(2, 64)[..., :48, :]
    with torch.no_grad():
        blocks, own = maps.eval()(images)
        expected = network(images)
    torch.testing.assert_close(own, expected)
    torch.testing.assert_close(blocks[-1].map.mean((2, 3)), expected)
    for block, stage in zip(blocks, maps.stages, strict=True):
        sides = (-(-48 // stage.stride), -(-64 // stage.stride))
        assert block.map.shape == (2, stage.width, *sides)
    assert output(network, "pyramid").strides == (4, 8, 16, 32)


def test_maps_need_no_mode_and_no_precision() -> None:
    network = build("torchvision:mobilenet_v2").bfloat16().train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert output(network, "map").width == 1280
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training


def test_widths_of_bottlenecks() -> None:
    network = Architecture("resnet50").build()
    assert output(network, "pyramid").width == (256, 512, 1024, 2048)
    assert output(network, "map").width == 2048


@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_sizes_are_rounded_up(name: str) -> None:
    network = vit() if name == "vit" else build(name)
    with torch.no_grad():
        levels = output(network, "pyramid")(torch.randn(1, 3, 72, 40))
    assert [tuple(level.shape[-2:]) for level in levels] == [(18, 10), (9, 5), (5, 3), (3, 2)]


def test_sizes_are_rounded_up_between_strides_and_patches() -> None:
    with torch.no_grad():
        levels = output(vit(patch_size=14), "pyramid")(torch.randn(1, 3, 42, 70))
    assert [tuple(level.shape[-2:]) for level in levels] == [(11, 18), (6, 9), (3, 5), (2, 3)]


def test_convnext_rounds_sizes_down() -> None:
    with torch.no_grad():
        levels = output(build("timm:convnext_atto"), "pyramid")(torch.randn(1, 3, 72, 40))
    assert [tuple(level.shape[-2:]) for level in levels] == [(18, 10), (9, 5), (4, 2), (2, 1)]


# ---------------------------------------------------------------------------------------------------------------------
# ViTs
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg", "fc_norm": False}]
)
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 24)])
def test_map_of_a_vit_is_its_patch_tokens(options: dict[str, Any], height: int, width: int) -> None:
    network, images = vit(**options), torch.randn(2, 3, height, width)
    reader = output(network, "map")
    with torch.no_grad():
        found = reader(images)
        by_timm = network.forward_features(images)
    assert found.shape == (2, 12, height // 8, width // 8)
    torch.testing.assert_close(found, as_map(by_timm, height // 8, width // 8))
    torch.testing.assert_close(found, as_map(tokens_after_blocks(network, images)[-1], height // 8, width // 8))
    assert (reader.width, reader.strides) == (12, (8,))


@pytest.mark.parametrize(("depth", "blocks"), [(4, (0, 1, 2, 3)), (6, (1, 2, 4, 5)), (8, (1, 3, 5, 7))])
def test_pyramid_of_a_vit_are_the_tokens_after_each_quarter(depth: int, blocks: tuple[int, ...]) -> None:
    network, images = vit(depth=depth, reg_tokens=1), torch.randn(2, 3, 64, 32)
    pyramid = output(network, "pyramid")
    with torch.no_grad():
        found = pyramid(images)
    states = tokens_after_blocks(network, images)
    expected = [as_map(states[block], 8, 4) for block in blocks]
    assert (pyramid.width, pyramid.strides) == ((12, 12, 12, 12), (4, 8, 16, 32))
    # Bilinear at twice the resolution: in each direction three quarters of the nearer patch and one of the farther.
    corner = expected[0][..., :2, :2]
    mixed = torch.einsum("bdij,i,j->bd", corner, torch.tensor([0.25, 0.75]), torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(found[0][..., 2, 2], mixed)
    torch.testing.assert_close(found[1], expected[1])
    torch.testing.assert_close(found[2], expected[2].unflatten(2, (4, 2)).unflatten(4, (2, 2)).mean((3, 5)))
    torch.testing.assert_close(found[3], expected[3].unflatten(2, (2, 4)).unflatten(4, (1, 4)).mean((3, 5)))


def ruler(patch: int, **options: Any) -> Any:
    """A ViT whose patch tokens are the patch's centre: of images whose pixels hold their place."""
    network = vit(**{"patch_size": patch, "img_size": 4 * patch} | options)
    network.blocks = nn.Sequential(*[nn.Identity()] * 4)
    network.norm = nn.Identity()
    with torch.no_grad():
        network.pos_embed.zero_()
        network.patch_embed.proj.bias.zero_()
        network.patch_embed.proj.weight.fill_(1 / (3 * patch**2))
    return network


@pytest.mark.parametrize("patch", [4, 8, 14, 16, 32])
def test_maps_of_a_vit_lie_where_their_strides_say(patch: int) -> None:
    side = 32 * patch // (2 if patch % 2 == 0 else 1)  # both strides and patches divide it
    places = torch.arange(side) + 0.5
    with torch.no_grad():
        levels = output(ruler(patch), "pyramid")(places.expand(1, 3, side, side))
    for level, stride in zip(levels, (4, 8, 16, 32), strict=True):
        assert level.shape[-2:] == (side // stride, side // stride)
        centres = stride * (torch.arange(side // stride) + 0.5)
        within = (centres >= 2 * patch) & (centres <= side - 2 * patch)
        assert within.any()
        torch.testing.assert_close(level[0, 0, 0][within], centres[within], rtol=0, atol=1.0 if patch == 14 else 1e-3)
        torch.testing.assert_close(level[0, 0, -1], level[0, 0, 0])


def test_every_patch_counts_in_coarse_maps() -> None:
    stripes = (torch.arange(16 * 14) // 14 % 2).float()  # of one patch, where the coarsest map has seven for sixteen
    with torch.no_grad():
        coarsest = output(ruler(14), "pyramid")(stripes.expand(1, 3, 224, 224))[-1]
    assert coarsest.shape == (1, 12, 7, 7)
    torch.testing.assert_close(coarsest, torch.full_like(coarsest, 0.5), rtol=0, atol=0.2)


def test_coarse_maps_of_a_vit_are_means_of_the_patches_there_are() -> None:
    places = torch.arange(40) + 0.5
    with torch.no_grad():
        levels = output(ruler(8), "pyramid")(places.expand(1, 3, 16, 40))
    torch.testing.assert_close(levels[2][0, 0], torch.tensor([[8.0, 24.0, 36.0]]))
    torch.testing.assert_close(levels[3][0, 0], torch.tensor([[16.0, 36.0]]))


def test_images_that_timm_pads() -> None:
    network = vit(dynamic_img_pad=True)
    images = torch.randn(1, 3, 18, 36)
    padded = functional.pad(images, (0, 4, 0, 6))
    with torch.no_grad():
        found, expected = output(network, "pyramid")(images), output(vit(), "pyramid")(padded)
        assert output(network, "map")(images).shape == (1, 12, 3, 5)
    assert [tuple(level.shape[-2:]) for level in found] == [(5, 9), (3, 5), (2, 3), (1, 2)]
    for level, whole in zip(found, expected, strict=True):
        torch.testing.assert_close(level, whole[..., : level.shape[-2], : level.shape[-1]])


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2}, {"depth": 6}])
@pytest.mark.parametrize("side", [32, 40])
def test_class_tokens_of_the_last_four_blocks(options: dict[str, Any], side: int) -> None:
    network, images = vit(**options), pictures(3, side)
    reader = output(network, "last4")
    with torch.no_grad():
        found = reader(images)
        torch.testing.assert_close(found[:, -12:], network(images))  # the pooled features of such a ViT
    states = tokens_after_blocks(network, images)
    torch.testing.assert_close(found, torch.cat([tokens[:, 0] for tokens in states[-4:]], dim=1))
    assert (reader.width, reader.strides) == (found.shape[1], ()) == (48, ())


# ---------------------------------------------------------------------------------------------------------------------
# Training, and what is refused
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in (*STAGED, "vit") for kind in get_args(Output) if kind != "last4" or name == "vit"],
)
def test_gradients_pass(name: str, kind: Output) -> None:
    network = (vit() if name == "vit" else build(name, **STAGED[name])).train()
    reader, images = output(network, kind).train(), pictures(2, 64).requires_grad_()
    result = reader(images)
    sum(level.square().mean() for level in (result if kind == "pyramid" else [result])).backward()
    assert images.grad is not None
    assert images.grad.abs().max() > 0
    first = next(weight for weight in network.parameters() if weight.ndim == 4)
    assert first.grad.abs().max() > 0


@pytest.mark.parametrize("kind", ["pool", "map", "pyramid"])
def test_mode_and_weights_are_the_networks(kind: Output) -> None:
    network = build("resnet18")
    reader = output(network, kind)
    before = network.bn1.running_mean.clone()
    with evaluating(reader):
        reader(pictures(2, 64))
    assert torch.equal(network.bn1.running_mean, before)
    reader.train()(pictures(2, 64))
    assert network.bn1.training
    assert not torch.equal(network.bn1.running_mean, before)
    assert {id(weight) for weight in reader.parameters()} == {id(weight) for weight in network.parameters()}


def test_kind_that_does_not_exist() -> None:
    kind: Any = "pooled"
    with pytest.raises(UserError, match="features are pool, last4, map, pyramid, not 'pooled'"):
        output(vit(), kind)


def test_other_networks_have_no_class_tokens() -> None:
    with pytest.raises(UserError, match="only ViTs have class tokens, and this ResNet has none"):
        LastClassTokens(build("resnet18"))
    with pytest.raises(UserError, match="and this VisionTransformer has none"):
        LastClassTokens(vit(class_token=False, global_pool="avg"))
    with pytest.raises(UserError, match="and this Cait has none"):  # it has, but not in the blocks of its patches
        LastClassTokens(build("timm:cait_xxs24_224", embed_dim=24, num_heads=2, depth=4))
    with pytest.raises(UserError, match="this ViT has 3 blocks: the class tokens of its last 4 are needed"):
        LastClassTokens(vit(depth=3))


def test_networks_without_a_pyramid() -> None:
    with pytest.raises(UserError, match="this ViT has 3 blocks: a pyramid needs four"):
        Pyramid(vit(depth=3))
    dilated = build("timm:resnet10t", output_stride=8)
    with pytest.raises(UserError, match="this ResNet has none of 16, 32: choose 'map' or 'pool'"):
        Pyramid(dilated)
    assert FeatureMap(dilated).strides == (8,)
    with pytest.raises(UserError, match="and this Levit has none of 4, 8"):
        Pyramid(build("timm:levit_256d", embed_dim=(8, 8, 8), key_dim=4, num_heads=(1, 1, 1), depth=(1, 1, 1)))


@pytest.mark.parametrize("kind", ["map", "pyramid"])
def test_networks_without_maps(kind: Output) -> None:
    mixer = ConvMixer(dim=8, depth=1, kernel_size=3, num_classes=0)
    for network in (nn.Sequential(nn.Flatten()), mixer, vit(patch_size=(8, 16))):
        with pytest.raises(UserError, match=f"this {type(network).__name__} gives no maps .*: choose 'pool'"):
            output(network, kind)


# ---------------------------------------------------------------------------------------------------------------------
# Position embeddings
# ---------------------------------------------------------------------------------------------------------------------

PREFIXES: list[dict[str, Any]] = [
    {},
    {"reg_tokens": 2},
    {"no_embed_class": True},
    {"class_token": False, "global_pool": "avg"},
]


@pytest.mark.parametrize("options", PREFIXES)
@pytest.mark.parametrize("size", [16, 48, (24, 64)])
def test_features_are_those_of_a_network_that_follows_the_image(options: dict[str, Any], size: Any) -> None:
    small, other = vit(**options), vit(**options | {"img_size": size})
    tensors = small.state_dict()
    before = tensors["pos_embed"].clone()
    other.load_state_dict(resampled(tensors, other), strict=True)
    assert torch.equal(tensors["pos_embed"], before)
    images = torch.randn(2, 3, *((size, size) if isinstance(size, int) else size))
    with torch.no_grad():
        torch.testing.assert_close(other(images), small(images))


@pytest.mark.parametrize("size", [32, (16, 64)])
def test_nothing_changes_at_the_native_size(size: Any) -> None:
    network = vit(img_size=size)
    tensors = network.state_dict()
    found = resampled(tensors, vit(img_size=size))
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_embeddings_of_images_that_are_not_square() -> None:
    wide, network = vit(img_size=(16, 64)), vit(img_size=32)
    tensors = wide.state_dict()  # as many patches as the square network has
    found = resampled(tensors, network, img_size=[16, 64])["pos_embed"]
    by_hand = functional.interpolate(
        tensors["pos_embed"][:, 1:].unflatten(1, (2, 8)).permute(0, 3, 1, 2), (4, 4), mode="bicubic", antialias=True
    )
    torch.testing.assert_close(found[:, 1:].unflatten(1, (4, 4)), by_hand.permute(0, 2, 3, 1))
    assert torch.equal(resampled(tensors, network)["pos_embed"], tensors["pos_embed"])  # for who does not say
    assert torch.equal(found[:, :1], tensors["pos_embed"][:, :1])  # the class token's
    back = resampled(tensors, vit(img_size=(16, 64)), img_size=(16, 64))
    assert torch.equal(back["pos_embed"], tensors["pos_embed"])


@pytest.mark.parametrize("cells", [5, 8, 32])
def test_constant_embedding_stays_and_a_ramp_stays_a_ramp(cells: int) -> None:
    network, prefix = vit(img_size=8 * cells), torch.full((1, 1, 12), 100.0)
    ramp = torch.arange(16.0).view(1, 1, 16, 1).expand(1, 16, 16, 12).flatten(1, 2)
    constant = resampled({"pos_embed": torch.cat([prefix, torch.full((1, 256, 12), 3.0)], 1)}, network)["pos_embed"]
    torch.testing.assert_close(constant[:, 1:], torch.full((1, cells**2, 12), 3.0))
    found = resampled({"pos_embed": torch.cat([prefix, ramp], 1)}, network)["pos_embed"]
    assert torch.equal(found[:, :1], prefix)
    columns = found[0, 1:].unflatten(0, (cells, cells))[0, :, 0]
    centres = 16 / cells * (torch.arange(cells) + 0.5) - 0.5
    reach = 2 * max(1, 16 / cells)  # of the filter: nearer to an edge it is cut off
    inside = (centres >= reach) & (centres <= 15 - reach)
    assert inside.any()
    torch.testing.assert_close(columns[inside], centres[inside], rtol=0, atol=0.02)


def test_type_of_the_embeddings_is_kept() -> None:
    tensors = vit().half().state_dict()
    found = resampled(tensors, vit(img_size=48))["pos_embed"]
    assert (found.dtype, found.shape) == (torch.float16, (1, 37, 12))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {}),
        ("timm:swin_tiny_patch4_window7_224", SWIN),
        ("timm:vit_relpos_small_patch16_224", {"embed_dim": 12, "num_heads": 2, "depth": 1}),
    ],
)
def test_networks_without_embeddings_keep_all(name: str, options: dict[str, Any]) -> None:
    network = build(name, **options)
    tensors = network.state_dict()
    found = resampled(tensors, network)
    assert found.keys() == tensors.keys()
    assert all(found[name] is tensors[name] for name in tensors)
    assert resampled({}, vit()) == {}  # what is missing or of another kind is for the loader to say
    flat = torch.zeros(17, 12)
    assert resampled({"pos_embed": flat}, vit(img_size=48))["pos_embed"] is flat


@pytest.mark.parametrize(
    ("tokens", "img_size", "words"),
    [
        (16, None, r"16 position embeddings are not those of 3 x 3 patches and 1 other tokens"),
        (0, None, r"0 position embeddings are not those of 0 x 0 patches"),
        (1, None, r"1 position embeddings are not those of 0 x 0 patches"),
        (17, (16, 32), r"17 position embeddings are not those of 2 x 4 patches"),
        (17, 24, r"17 position embeddings are not those of 3 x 3 patches"),
    ],
)
def test_embeddings_of_no_known_grid_are_refused(tokens: int, img_size: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        resampled({"pos_embed": torch.zeros(1, tokens, 12)}, vit(), img_size=img_size)


# ---------------------------------------------------------------------------------------------------------------------
# Architecture and preprocessing of another size
# ---------------------------------------------------------------------------------------------------------------------


def test_vits_are_built_for_the_size() -> None:
    tiny = Architecture("timm:vit_tiny_patch16_224", VIT)
    found = sized(tiny, 48)
    assert found == Architecture("timm:vit_tiny_patch16_224", VIT | {"img_size": 48})
    assert tiny.options["img_size"] == 32
    network: Any = found.build()
    assert network.patch_embed.grid_size == (6, 6)
    short = sized(Architecture("vit_tiny", {"embed_dim": 12, "depth": 1, "num_heads": 2}), 96)
    assert short.options["img_size"] == 96


def test_swin_is_built_for_the_size_and_takes_its_weights() -> None:
    architecture = Architecture("timm:swin_tiny_patch4_window7_224", SWIN)
    other = sized(architecture, 96).build()
    other.load_state_dict(resampled(architecture.build().state_dict(), other), strict=True)
    assert other(pictures(1, 96)).shape == (1, 64)


@pytest.mark.parametrize("name", ["resnet18", "timm:resnet10t", "timm:mobilenetv3_small_050"])
def test_networks_that_take_any_size_stay(name: str) -> None:
    assert sized(Architecture(name), 57) == Architecture(name)


def test_sizes_that_cannot_be() -> None:
    tiny = Architecture("timm:vit_tiny_patch16_224", VIT)
    with pytest.raises(UserError, match=r"50 is not a multiple of the patches' 8 x 8 pixels of timm.*choose 48"):
        sized(tiny, 50)
    with pytest.raises(UserError, match=r"is not a multiple of the patches' 8 x 16 pixels"):
        sized(Architecture(tiny.name, VIT | {"patch_size": (8, 16)}), 40)
    for size in (0, -8, 32.0, "32", True):
        wrong: Any = size
        with pytest.raises(UserError, match="img_size is a side in pixels, not"):
            sized(tiny, wrong)


def test_asking_for_a_size_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    sized(Architecture("timm:vit_tiny_patch16_224", VIT), 48)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (224, 224), (64, 48)])
@pytest.mark.parametrize("size", [96, 384, 448])
def test_preprocessing_keeps_its_proportion_as_timm_does(resize: int, crop: int, size: int) -> None:
    usual = Preprocessing(resize, crop, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic")
    found = resized_preprocessing(usual, size)
    by_timm: Any = timm.data.create_transform(size, crop_pct=crop / resize, crop_mode="center")
    assert found == Preprocessing(by_timm.transforms[0].size, size, usual.mean, usual.std, "bicubic")


def test_resized_preprocessing_crops_to_the_size() -> None:
    usual = Preprocessing()
    assert usual(photograph()).shape == (3, 224, 224)  # its pipeline is built, and must not go along
    assert resized_preprocessing(usual, 96)(photograph()).shape == (3, 96, 96)
