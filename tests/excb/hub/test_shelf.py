"""The shelf: every row's network is built, and a file made with its origin's own names covers it, wholly or not at all.

The names and shapes here are those of the authors' code, written down once more: no weights are here to be read.
"""

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models._hub import save_config_for_hf
from torch import Tensor

from excb.checkpoint import layouts, timm_format
from excb.checkpoint.coverage import CoverageError, blueprint, cover
from excb.checkpoint.layouts import map_file
from excb.hub import catalogue
from excb.hub.catalogue import Checkpoint, checkpoints
from excb.networks.backbone import Uninitialised
from excb.networks.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

NAMES = tomllib.loads(catalogue.BUILT_IN[1].read_text(encoding="utf-8"))
SHELF = {row.name: row for row in checkpoints(Path("no home of the zoo")) if row.name in NAMES}
HUB = "hf-hub:timm/"
MIRRORED = [name for name, row in SHELF.items() if any(place.startswith(HUB) for place in row.locations)]
METRICS = {"linear_top1", "knn_top1", "attentive_probing_top1"}

Shapes = dict[str, tuple[int, ...]]
Contents = dict[str, Any]
# Width and blocks; "ijepa" is its ViT-g.
SIZES = {"s": (384, 12), "b": (768, 12), "l": (1024, 24), "h": (1280, 32), "g": (1536, 40), "ijepa": (1408, 40)}


@cache
def wanted(name: str) -> dict[str, Tensor]:
    """The tensors of a row's network, without values."""
    return blueprint(SHELF[name].architecture)


# ---------------------------------------------------------------------------------------------------------------------
# What each row says
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHELF)
def test_every_row_says_what_it_is_and_claims_no_more(name: str) -> None:
    row = SHELF[name]
    assert row.architecture.name.startswith("timm:") or row.architecture.name == "capi"
    assert {figure.name for figure in row.figures} <= METRICS
    assert all(0 < figure.value < 100 for figure in row.figures)
    assert row.note.endswith("Not loaded here yet." if row.locations else ".")
    assert row.source.startswith("https://github.com/")
    assert row.licence or not row.locations
    assert not row.redistributable or row.licence == "Apache-2.0"
    assert bool(row.terms) == (row.licence == "DINOv3 License")
    assert not row.layout or row.locations
    bilinear = row.method in ("SigLIP 2", "PE-Core") or name in {"mocov3_vitb16", *UNREAD}
    assert row.preprocessing.interpolation == ("bilinear" if bilinear else "bicubic")


UNREAD = ("radio_v25_vitb16", "radio_v25_vitl16")  # of which the authors' preprocessing is not known either


def test_the_encoders_that_people_ask_for_are_there() -> None:
    asked = [f"dinov2_vit{size}14{kind}" for size in "sblg" for kind in ("", "_reg")]
    asked += [f"dinov3_vit{size}16" for size in ("s", "b", "l", "7b")] + ["dinov3_vits16plus", "dinov3_vith16plus"]
    asked += [f"dinov3_convnext_{size}" for size in ("tiny", "small", "base", "large")]
    asked += ["capi_vitl14_in1k", "capi_vitl14_lvd", "franca_vitb14_in21k", "franca_vitl14_in21k"]
    asked += ["mae_vitb16", "mae_vitl16", "mae_vith14", "ijepa_vith14_in1k", "ijepa_vith16_448_in1k"]
    asked += [f"{method}_vit{size}16" for method in ("ibot", "msn") for size in "sbl"]
    asked += ["data2vec_vitb16", "data2vec_vitl16", "siglip2_vitb16", "siglip2_vitl16_256", "siglip2_so400m14"]
    asked += ["pe_core_vitb16", "pe_core_vitl14_336", "pe_core_vitg14_448", "radio_v3_vitb16", "radio_v3_vitl16"]
    asked += ["eva02_vits14", "eva02_vitb14", "eva02_vitl14", "clip_vitb32", "clip_vitb16", "clip_vitl14"]
    asked += ["augreg_vitb16_in21k", "convnext_base_in1k"]
    assert [name for name in asked if name not in SHELF or not SHELF[name].locations] == []


@pytest.mark.parametrize("name", SHELF)
def test_every_network_can_be_built(name: str) -> None:
    assert all(tensor.is_meta for tensor in wanted(name).values())


# ---------------------------------------------------------------------------------------------------------------------
# The hub's repositories of timm
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MIRRORED)
def test_timms_repository_covers_the_network(name: str, tmp_path: Path) -> None:
    """timm itself writes the config, and names the tensors of the network that it publishes, with its classifier."""
    row = SHELF[name]
    place = next(place for place in row.locations if place.startswith(HUB))
    tag = place.removeprefix(HUB)
    published = timm.get_pretrained_cfg(tag)
    assert published is not None
    assert f"timm/{tag}" == published.hf_hub_id
    with torch.device("meta"), Uninitialised():  # whose initial values would take most of the time
        network = timm.create_model(tag)
    config = save_config_for_hf(network, str(tmp_path / "config.json")) or json.loads(
        (tmp_path / "config.json").read_text(encoding="utf-8")
    )
    timm_format.block_of(config)  # raises where it cannot be read
    dropped = timm_format.classifiers(config["architecture"])
    tensors = {key: value for key, value in network.state_dict().items() if not key.startswith(dropped)}
    assert cover(tensors, wanted(name)) == []


@pytest.mark.parametrize("name", MIRRORED)
def test_preprocessing_is_timms_or_the_authors(name: str) -> None:
    row = SHELF[name]
    tag = next(place for place in row.locations if place.startswith(HUB)).removeprefix(HUB)
    cfg = timm.get_pretrained_cfg(tag)
    assert cfg is not None
    assert row.preprocessing.mean == tuple(cfg.mean)
    assert row.preprocessing.std == tuple(cfg.std)
    if row.method in ("DINOv2", "DINOv3", "MAE", "DINO"):  # whose evaluation takes 224 pixels of 256
        assert row.preprocessing == Preprocessing(interpolation="bicubic")
    elif row.method == "CLIP":  # which resizes to its own size
        assert row.preprocessing == replace(timms(cfg), resize=224)
    elif row.method in ("SigLIP", "SigLIP 2", "PE-Core"):  # which resize without regard to proportions
        side = cfg.input_size[1]
        own = replace(timms(cfg), resize=side, crop_mode="squash", interpolation="bilinear")
        assert row.preprocessing == (replace(own, interpolation="bicubic") if row.method == "SigLIP" else own)
    else:
        assert row.preprocessing == timms(cfg)


def timms(cfg: Any) -> Preprocessing:
    """The preprocessing of one of timm's configurations."""
    side, mean, std = cfg.input_size[1], tuple(cfg.mean), tuple(cfg.std)
    return Preprocessing(int(side / cfg.crop_pct), side, mean, std, cfg.interpolation, cfg.crop_mode)


def test_clip_has_the_activation_that_it_was_trained_with() -> None:
    for name in ("clip_vitb32", "clip_vitb16", "clip_vitl14"):
        with torch.device("meta"):
            network = SHELF[name].architecture.build()
        assert {type(block.mlp.act).__name__ for block in network.blocks} == {"QuickGELU"}  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------------------------------
# The authors' own files
# ---------------------------------------------------------------------------------------------------------------------


def vit(size: str, patch: int = 16, side: int = 224, *, token: bool = True, hidden: int = 0) -> Shapes:
    """The tensors of a ViT as DINO's code names them, and all that followed it."""
    width, depth = SIZES[size]
    hidden = hidden or 4 * width
    embeddings = (side // patch) ** 2 + token
    shapes: Shapes = {"cls_token": (1, 1, width)} if token else {}
    shapes |= {"pos_embed": (1, embeddings, width), "patch_embed.proj.weight": (width, 3, patch, patch)}
    shapes |= {"patch_embed.proj.bias": (width,), "norm.weight": (width,), "norm.bias": (width,)}
    for index in range(depth):
        for part, outputs, inputs in (
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.fc1", hidden, width),
            ("mlp.fc2", width, hidden),
        ):
            shapes |= {f"blocks.{index}.{part}.weight": (outputs, inputs), f"blocks.{index}.{part}.bias": (outputs,)}
        for part in ("norm1", "norm2"):
            shapes |= {f"blocks.{index}.{part}.weight": (width,), f"blocks.{index}.{part}.bias": (width,)}
    return shapes


def dinov2(size: str, *, side: int = 518, registers: int = 0, gated: bool = False) -> Shapes:
    """As facebookresearch/dinov2 names them; `gated` of its giant, and of every size of Franca's."""
    shapes, (width, depth) = vit(size, 14, side), SIZES[size]
    shapes["mask_token"] = (1, width)
    if registers:
        shapes["register_tokens"] = (1, registers, width)
    for index in range(depth):
        shapes |= {f"blocks.{index}.ls1.gamma": (width,), f"blocks.{index}.ls2.gamma": (width,)}
        if gated:
            hidden = (4 * width * 2 // 3 + 7) // 8 * 8
            shapes = {name: shape for name, shape in shapes.items() if not name.startswith(f"blocks.{index}.mlp.")}
            mlp = {"w12.weight": (2 * hidden, width), "w12.bias": (2 * hidden,)}
            mlp |= {"w3.weight": (width, hidden), "w3.bias": (width,)}
            shapes |= {f"blocks.{index}.mlp.{part}": shape for part, shape in mlp.items()}
    return shapes


def franca(size: str, side: int) -> Contents:
    """As Franca's trainer saves its teacher: blocks in four chunks, heads beside the backbone."""
    depth = SIZES[size][1]

    def chunked(name: str) -> str:
        return re.sub(r"^blocks\.(\d+)\.", lambda found: f"blocks.{int(found[1]) * 4 // depth}.{found[1]}.", name)

    backbone = {f"backbone.{chunked(name)}": shape for name, shape in dinov2(size, side=side, gated=True).items()}
    return {"teacher": file(backbone | {"dino_head.mlp.0.weight": (8, 8), "ibot_head.mlp.0.weight": (8, 8)})}


def capi() -> Contents:
    """As facebookresearch/capi names them, with its predictor of 12 blocks."""
    shapes: Shapes = {"mask_token": (1, 1024), "registers": (1, 16, 1024)}
    shapes |= {"patch_embed.weight": (1024, 3, 14, 14), "patch_embed.bias": (1024,)}
    for network, depth in (("encoder", 24), ("decoder", 12)):
        for index in range(depth):
            block = f"{network}.blocks.{index}"
            shapes |= {f"{block}.residual{part}.norm.weight": (1024,) for part in (1, 2)}
            shapes |= {f"{block}.residual1.fn.{p}.weight": (1024, 1024) for p in ("q_proj", "k_proj", "v_proj", "proj")}
            shapes[f"{block}.residual1.fn.rope.freqs"] = (2, 64)
            shapes |= {
                f"{block}.residual2.fn.fc1.weight": (4096, 1024),
                f"{block}.residual2.fn.fc2.weight": (1024, 4096),
            }
    return dict(file({f"backbone.{name}": shape for name, shape in shapes.items()}))


def ijepa(size: str, patch: int, side: int, hidden: int = 0) -> Contents:
    """As facebookresearch/ijepa saves a run: two encoders without a class token, wrapped, and a predictor."""
    encoder = {f"module.{name}": shape for name, shape in vit(size, patch, side, token=False, hidden=hidden).items()}
    predictor = file({"module.mask_token": (1, 1, 384), "module.predictor_embed.weight": (384, SIZES[size][0])})
    return {"encoder": file(encoder), "target_encoder": file(encoder), "predictor": predictor, "opt": {}, "epoch": 1}


def msn(size: str) -> Contents:
    """As facebookresearch/msn saves a run: two encoders with their projection, wrapped, and prototypes."""
    width = SIZES[size][0]
    projection: Shapes = {"fc.fc1.weight": (2048, width), "fc.fc1.bias": (2048,), "fc.bn1.running_mean": (2048,)}
    encoder = {f"module.{name}": shape for name, shape in (vit(size) | projection).items()}
    prototypes = torch.zeros(()).expand(1024, 256)
    return {"encoder": file(encoder), "target_encoder": file(encoder), "prototypes": prototypes, "opt": {}, "epoch": 1}


def data2vec(size: str) -> Contents:
    """As facebookresearch/data2vec_vision names them, after BEiT: one table of relative positions for all blocks."""
    width, depth = SIZES[size]
    shapes = vit(size)
    del shapes["pos_embed"]
    shapes |= {"mask_token": (1, 1, width), "lm_head.weight": (width, width), "lm_head.bias": (width,)}
    shapes |= {"rel_pos_bias.relative_position_bias_table": (27 * 27 + 3, width // 64)}
    shapes |= {"rel_pos_bias.relative_position_index": (197, 197)}
    for index in range(depth):
        del shapes[f"blocks.{index}.attn.qkv.bias"]
        shapes |= {f"blocks.{index}.attn.{part}_bias": (width,) for part in "qv"}
        shapes |= {f"blocks.{index}.gamma_{part}": (width,) for part in (1, 2)}
    return {"model": file(shapes), "optimizer": {}, "epoch": 799, "scaler": {}, "args": None}


def mocov3(size: str) -> Contents:
    head: Shapes = {"head.0.weight": (4096, SIZES[size][0])}
    encoders = {f"module.{kind}_encoder.{n}": s for kind in ("base", "momentum") for n, s in (vit(size) | head).items()}
    return {"epoch": 300, "arch": "vit_base", "state_dict": file(encoders | {"module.predictor.0.weight": (8, 8)})}


def file(shapes: Shapes) -> dict[str, Tensor]:
    """Tensors that take no memory: each is one number, seen many times."""
    return {name: torch.zeros(()).expand(shape) for name, shape in shapes.items()}


ORIGINALS: dict[str, Callable[[], Contents]] = {
    **{f"dinov2_vit{s}14": lambda s=s: dict(file(dinov2(s, gated=s == "g"))) for s in "sblg"},  # type: ignore[misc]
    **{
        f"dinov2_vit{s}14_reg": lambda s=s: dict(file(dinov2(s, registers=4, gated=s == "g")))  # type: ignore[misc]
        for s in "sblg"
    },
    **{f"capi_vitl14_{data}": capi for data in ("p205", "lvd", "in22k", "in1k")},
    "franca_vitb14_in21k": lambda: franca("b", 518),
    "franca_vitl14_in21k": lambda: franca("l", 224),
    "franca_vitl14_laion": lambda: franca("l", 224),
    "franca_vitg14_in21k": lambda: franca("g", 224),
    "franca_vitg14_laion": lambda: franca("g", 224),
    "mae_vitb16": lambda: {"model": file(vit("b"))},
    "mae_vitl16": lambda: {"model": file(vit("l"))},
    "mae_vith14": lambda: {"model": file(vit("h", 14))},
    "ijepa_vith14_in1k": lambda: ijepa("h", 14, 224),
    "ijepa_vith14_in22k": lambda: ijepa("h", 14, 224),
    "ijepa_vith16_448_in1k": lambda: ijepa("h", 16, 448),
    "ijepa_vitg16_in22k": lambda: ijepa("ijepa", 16, 224, hidden=6144),
    **{f"ibot_vit{s}16": lambda s=s: {"state_dict": file(vit(s))} for s in "sbl"},  # type: ignore[misc]
    **{f"ibot_vit{s}16_rand": lambda s=s: {"state_dict": file(vit(s))} for s in "bl"},  # type: ignore[misc]
    **{f"msn_vit{s}16": lambda s=s: msn(s) for s in "sbl"},  # type: ignore[misc]
    "data2vec_vitb16": lambda: data2vec("b"),
    "data2vec_vitl16": lambda: data2vec("l"),
    "dino_vitb16": lambda: dict(file(vit("b"))),
    "mocov3_vitb16": lambda: mocov3("b"),
}


def mapped(row: Checkpoint, contents: Contents, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The tensors of a file as the row says, without the copies that an import makes: some would take gigabytes."""
    monkeypatch.setattr(layouts, "own", lambda tensors, names, *, source: {name: tensors[name] for name in names})
    monkeypatch.setattr(layouts, "blueprint", lambda _: wanted(row.name))
    return dict(
        map_file(
            contents, source=Path("original.pth"), layout=row.layout, architecture=row.architecture, exact=True
        ).tensors
    )


def test_every_file_of_the_authors_is_here() -> None:
    addressed = {name for name, row in SHELF.items() if any(place.startswith("https://") for place in row.locations)}
    assert addressed | {"franca_vitg14_in21k", "franca_vitg14_laion"} == ORIGINALS.keys()
    assert {name for name, row in SHELF.items() if row.locations} == addressed | set(MIRRORED)


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_file_made_with_the_originals_names_covers_the_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = mapped(SHELF[name], ORIGINALS[name](), monkeypatch)
    assert {key: value.shape for key, value in tensors.items()} == {k: value.shape for k, value in wanted(name).items()}


@pytest.mark.parametrize("name", ["dinov2_vits14_reg", "capi_vitl14_in1k", "franca_vitb14_in21k", "msn_vits16"])
def test_a_file_that_lacks_a_tensor_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = ORIGINALS[name]()
    inner: Contents = contents.get("target_encoder") or contents.get("teacher") or contents
    inner.pop(next(key for key in inner if re.search(r"blocks\.(\d\.)?3\..*fc2|blocks\.\d\.3\..*w3", key)))
    with pytest.raises(CoverageError, match="1 missing"):
        mapped(SHELF[name], contents, monkeypatch)


def test_metas_files_of_dinov3_cover_the_rows_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come by e-mail, and are imported: their names lead to the networks of the rows."""
    for size, name in (("s", "dinov3_vits16"), ("b", "dinov3_vitb16"), ("l", "dinov3_vitl16")):
        width, depth = SIZES[size]
        shapes = vit(size)
        del shapes["pos_embed"]
        shapes |= {"mask_token": (1, width), "storage_tokens": (1, 4, width)}
        for index in range(depth):
            shapes |= {f"blocks.{index}.ls{part}.gamma": (width,) for part in (1, 2)}
            shapes[f"blocks.{index}.attn.qkv.bias_mask"] = (3 * width,)
        contents: Contents = dict(file(shapes)) | {"rope_embed.periods": 100 ** (torch.arange(16) / 16)}
        monkeypatch.setattr(layouts, "own", lambda tensors, _, *, source: tensors)
        found = map_file(contents, source=Path("original.pth"))
        assert found.architecture == SHELF[name].architecture


def test_means_are_imagenets_where_the_authors_files_are_read() -> None:
    for name in ORIGINALS:
        assert (SHELF[name].preprocessing.mean, SHELF[name].preprocessing.std) == (IMAGENET_MEAN, IMAGENET_STD)
