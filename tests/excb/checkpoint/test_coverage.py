"""Missing, unexpected and misshapen tensors of a file are reported by name, count and likeliest cause."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor

from excb.checkpoint.coverage import CoverageError, Mismatch, blueprint, cover, coverage_error, own, recognise
from excb.checkpoint.layouts import map_file
from excb.errors import UserError
from excb.networks.architecture import Architecture

Tensors = dict[str, Tensor]
RESNET = Architecture("timm:resnet10t", {"channels": [8, 16, 24, 32], "stem_width": 8})
CONV = "layer2.0.conv1.weight"  # [16, 8, 3, 3]
MEAN = "layer2.0.bn1.running_mean"


@pytest.fixture
def tensors() -> Tensors:
    random = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(value.shape, generator=random).to(value.dtype) for name, value in blueprint(RESNET).items()
    }


def refusal(tensors: Tensors, architecture: Architecture = RESNET, **options: Any) -> CoverageError:
    with pytest.raises(CoverageError) as caught:
        map_file(tensors, source=Path("it"), architecture=architecture, **options)
    assert "\n" not in str(caught.value)
    return caught.value


# ---------------------------------------------------------------------------------------------------------------------
# Which tensors
# ---------------------------------------------------------------------------------------------------------------------


def test_one_missing(tensors: Tensors) -> None:
    count = len(tensors)
    del tensors[CONV]
    error = refusal(tensors)
    assert str(error) == (
        f"it does not cover timm:resnet10t's {count} tensors, nothing was loaded: 1 missing ({CONV}); likeliest cause: "
        "the file is incomplete, or --arch is a larger network"
    )
    assert error.rows == [Mismatch("missing", CONV, "", "float32 [16, 8, 3, 3]")]


def test_statistics_count_and_counters_do_not(tensors: Tensors) -> None:
    del tensors[MEAN.replace("running_mean", "num_batches_tracked")]
    assert len(map_file(tensors, source=Path("it"), architecture=RESNET).tensors) == len(tensors) + 1
    del tensors[MEAN]
    assert f"1 missing ({MEAN})" in str(refusal(tensors))


def test_one_too_many(tensors: Tensors) -> None:
    error = refusal(tensors | {"layer5.0.conv1.weight": torch.ones(2, 3)})
    assert "1 unexpected (layer5.0.conv1.weight); likeliest cause: the file holds another network, or more" in str(
        error
    )
    assert error.rows == [Mismatch("unexpected", "layer5.0.conv1.weight", "float32 [2, 3]", "")]


@pytest.mark.parametrize("place", ["encoder_q.extra.weight", "extra.weight"])
def test_one_too_many_in_a_known_layout(tensors: Tensors, place: str) -> None:
    state = {f"module.encoder_q.{name}": value for name, value in tensors.items()}
    state |= {"module.queue": torch.ones(3), "module.encoder_q.fc.0.weight": torch.ones(3)}
    assert map_file({"state_dict": state}, source=Path("it"), architecture=RESNET).facts["layout"] == "moco"
    state[f"module.{place}"] = torch.ones(3)
    error = refusal({"state_dict": state})  # type: ignore[dict-item]
    assert [row.kind for row in error.rows] == ["unexpected"]
    assert f"1 unexpected ({place.removeprefix('encoder_q.')})" in str(error)


@pytest.mark.parametrize(
    ("permuted", "found"),
    [((2, 3, 1, 0), "[3, 3, 8, 16]"), ((1, 0, 2, 3), "[8, 16, 3, 3]"), ((3, 2, 1, 0), "[3, 3, 8, 16]")],
)
def test_one_transposed(tensors: Tensors, permuted: tuple[int, ...], found: str) -> None:
    tensors[CONV] = tensors[CONV].permute(permuted)
    error = refusal(tensors)
    assert f"1 misshapen ({CONV} float32 {found} for float32 [16, 8, 3, 3])" in str(error)
    assert "likeliest cause: transposed kernels, as TensorFlow and JAX store them" in str(error)
    assert error.rows == [Mismatch("misshapen", CONV, f"float32 {found}", "float32 [16, 8, 3, 3]")]


def test_one_of_another_shape(tensors: Tensors) -> None:
    tensors[CONV] = tensors[CONV][:, :4]
    assert "likeliest cause: another network with the same names" in str(refusal(tensors))


def test_long_lists_are_cut_in_the_line_and_whole_in_the_table(tensors: Tensors) -> None:
    lost = [name for name in tensors if name.startswith("layer3.") and not name.endswith("num_batches_tracked")]
    error = refusal({name: value for name, value in tensors.items() if name not in lost} | {"x.y": torch.ones(2)})
    assert f"{len(lost)} missing ({', '.join(lost[:3])}, ...); 1 unexpected (x.y); likeliest cause: wrong" in str(error)
    assert [row.name for row in error.rows if row.kind == "missing"] == lost
    assert len(error.rows) == len(lost) + 1
    assert isinstance(error, UserError)


def test_the_nearest_network_is_told_of(tensors: Tensors) -> None:
    near = {f"a.{name}": value for name, value in tensors.items() if name != CONV}
    far = {f"b.{name}": value for name, value in tensors.items() if not name.startswith("layer3.0")}
    assert f"1 missing ({CONV})" in str(refusal(near | far))


# ---------------------------------------------------------------------------------------------------------------------
# Other causes
# ---------------------------------------------------------------------------------------------------------------------


def hollow(shapes: Tensors) -> Tensors:
    """Tensors of these shapes that take no memory."""
    return {name: torch.zeros((), dtype=value.dtype).expand(value.shape) for name, value in shapes.items()}


def of_timm(name: str, **options: Any) -> Tensors:
    with torch.device("meta"):
        return dict(timm.create_model(name, num_classes=0, **options).state_dict())


@pytest.mark.parametrize("given", ["resnet18", "timm:resnet50d", "vit_small", "timm:convnext_tiny"])
def test_wrong_architecture(given: str) -> None:
    error = refusal(hollow(blueprint(Architecture("resnet34"))), Architecture(given))
    assert str(error).endswith("likeliest cause: wrong --arch: these are tensors of resnet34")


def test_one_architecture_under_two_names_is_not_called_wrong() -> None:
    shapes = hollow(blueprint(Architecture("vit_tiny")))
    del shapes["norm.weight"]
    for name in ("vit_tiny", "timm:vit_tiny_patch16_224", "timm:vit_tiny_patch16_224.augreg_in21k"):
        assert "likeliest cause: the file is incomplete" in str(refusal(shapes, Architecture(name)))


def test_position_embeddings_of_another_image_size() -> None:
    error = refusal(hollow(of_timm("vit_tiny_patch16_384")), Architecture("vit_tiny"))
    assert "1 misshapen (pos_embed float32 [1, 577, 192] for float32 [1, 197, 192])" in str(error)
    assert "a ViT for images of another size" in str(error)


def test_a_wider_network() -> None:
    with torch.device("meta"):
        shapes = torchvision.models.wide_resnet50_2().state_dict()
    with pytest.raises(
        CoverageError, match=r"does not cover resnet50's .*wider or narrower: use excb-zoo import --arch"
    ):
        map_file(hollow(dict(shapes)), source=Path("it"))


# ---------------------------------------------------------------------------------------------------------------------
# Which architecture tensors tell
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vit_tiny", "vit_base"])
def test_architectures_that_tensors_tell(name: str) -> None:
    shapes = blueprint(Architecture(name))
    assert recognise(shapes) == Architecture(name)
    for lost in ("conv1.weight", "layer1.0.conv3.weight", "layer4.1.conv1.weight", "blocks.11.mlp.fc2.weight"):
        assert recognise({key: value for key, value in shapes.items() if key != lost}) == Architecture(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_small_patch8_224", Architecture("vit_small", {"patch_size": 8})),
        ("vit_small_patch32_224", Architecture("vit_small", {"patch_size": 32})),
        ("vit_base_patch16_384", Architecture("vit_base", {"img_size": 384})),
        ("vit_large_patch14_224", Architecture("timm:vit_large_patch16_224", {"patch_size": 14})),
        ("vit_huge_patch14_224", Architecture("timm:vit_huge_patch14_224")),
    ],
)
def test_patches_and_images_of_a_vit_are_told_by_shapes(name: str, expected: Architecture) -> None:
    shapes = of_timm(name)
    assert recognise(shapes) == expected
    assert {n: v.shape for n, v in blueprint(expected).items()} == {n: v.shape for n, v in shapes.items()}


@pytest.mark.parametrize("name", ["resnet50w2", "resnet50w4", "resnet18_cifar", "resnet50_cifar"])
def test_stems_of_resnets_are_told_by_shapes(name: str) -> None:
    assert recognise(blueprint(Architecture(name))) == Architecture(name)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_small_patch16_224", {"init_values": 1.0}),
        ("vit_small_patch16_224", {"patch_size": 10}),
        ("vit_tiny_patch16_224", {"depth": 11}),
        ("vit_tiny_patch16_224", {"in_chans": 1}),
        ("resnet26", {}),
        ("convnext_atto", {}),
    ],
)
def test_architectures_that_tensors_do_not_tell(name: str, options: dict[str, Any]) -> None:
    assert recognise(of_timm(name, **options)) is None


def test_networks_that_cannot_be_built_without_values_are_built_with() -> None:
    with pytest.raises(NotImplementedError), torch.device("meta"):
        torchvision.models.regnet_y_400mf()
    expected = torchvision.models.regnet_y_400mf().state_dict()
    found = blueprint(Architecture("torchvision:regnet_y_400mf"))
    assert found.keys() == {name for name in expected if not name.startswith("fc.")}
    with pytest.raises(UserError, match="no backbone is called 'resnet5'"):
        blueprint(Architecture("resnet5"))


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", [CONV, MEAN])
def test_nan_and_infinity_are_refused(tensors: Tensors, value: float, name: str) -> None:
    tensors[name].view(-1)[-1] = value
    with pytest.raises(UserError, match=rf"it holds NaN or infinity in 1 tensor \({name}\): .*nothing was loaded"):
        map_file(tensors, source=Path("it"), architecture=RESNET)


def test_a_negative_variance_is_refused(tensors: Tensors) -> None:
    variance = MEAN.replace("running_mean", "running_var")
    tensors[variance][3] = 0.0
    assert len(map_file(tensors, source=Path("it"), architecture=RESNET).tensors) == len(tensors)
    tensors[variance][3] = -1e-3
    with pytest.raises(UserError, match=rf"it holds negative variances in 1 tensor \({variance}\): .*nothing was loa"):
        map_file(tensors, source=Path("it"), architecture=RESNET)


def test_what_float32_cannot_hold_is_refused(tensors: Tensors) -> None:
    tensors[CONV] = tensors[CONV].double() * 1e300
    with pytest.raises(UserError, match="NaN or infinity"):
        map_file(tensors, source=Path("it"), architecture=RESNET)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_of_any_width_become_float32(tensors: Tensors, dtype: torch.dtype) -> None:
    cast = {name: value.to(dtype) if value.is_floating_point() else value.int() for name, value in tensors.items()}
    mapped = map_file(cast, source=Path("it"), architecture=RESNET).tensors
    assert {name: value.dtype for name, value in mapped.items()} == {n: v.dtype for n, v in tensors.items()}
    assert all(torch.equal(mapped[name], value.to(tensors[name].dtype)) for name, value in cast.items())


@pytest.mark.parametrize("change", [Tensor.long, Tensor.bool, lambda value: value.to(torch.complex64)])
def test_other_types_are_misshapen(tensors: Tensors, change: Callable[[Tensor], Tensor]) -> None:
    tensors[CONV] = change(tensors[CONV])
    found = str(tensors[CONV].dtype).removeprefix("torch.")
    message = str(refusal(tensors))
    assert f"1 misshapen ({CONV} {found} [16, 8, 3, 3] for float32 [16, 8, 3, 3])" in message
    assert "transposed" not in message


def test_copies_hold_on_to_nothing_of_the_file() -> None:
    whole = torch.arange(24.0).view(2, 3, 4)
    tensors = {"a": whole[0].T, "b": whole[0].T, "c": torch.nn.Parameter(whole[1])}
    wanted = {"c": torch.empty(3, 4), "a": torch.empty(4, 3), "b": torch.empty(4, 3), "n": torch.tensor(1)}
    copies = own(tensors, wanted, source="it")
    assert list(copies) == list(wanted)
    assert torch.equal(copies["a"], whole[0].T)
    assert copies["n"] == 0
    assert len({value.data_ptr() for value in copies.values()}) == 4
    for value in copies.values():
        assert value.is_contiguous()
        assert not value.requires_grad
        assert value.untyped_storage().nbytes() == value.nbytes
        assert value.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()


def test_table_of_three_kinds() -> None:
    wanted = {"a": torch.empty(2, 3), "b": torch.empty(2), "c.num_batches_tracked": torch.zeros((), dtype=torch.long)}
    rows = cover({"b": torch.ones(3), "x.y": torch.ones(1), "fc.weight": torch.ones(1)}, wanted, ["fc."])
    assert rows == [
        Mismatch("missing", "a", "", "float32 [2, 3]"),
        Mismatch("misshapen", "b", "float32 [3]", "float32 [2]"),
        Mismatch("unexpected", "x.y", "float32 [1]", ""),
    ]
    assert cover({"a": wanted["a"], "b": wanted["b"]}, wanted) == []
    message = str(coverage_error(rows, {}, RESNET, expected=3, source="FILE"))
    assert message.startswith(
        "FILE does not cover timm:resnet10t's 3 tensors, nothing was loaded: 1 missing (a); 1 unex"
    )


def test_a_network_without_elements_is_built_without_a_word() -> None:
    shapes = blueprint(Architecture("timm:resnet10t", {"channels": [8, 16, 0, 32], "stem_width": 8}))
    assert any(not value.numel() for value in shapes.values())
