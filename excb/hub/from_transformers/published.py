"""The networks of DINOv2 and DINOv3 as transformers' repositories have them: which of these a folder is a copy of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from excb.checkpoint import exported
from excb.checkpoint.stored import Stored
from excb.networks.from_transformers import families
from excb.networks.preprocessing import Preprocessing

# The image processors that the conversions of transformers write.
_DINOV2 = Preprocessing(256, 224, interpolation="bicubic", corner="down")
_DINOV3 = Preprocessing(224, 224, interpolation="bilinear", crop_mode="squash")


def _dinov2(kind: str, name: str) -> dict[str, tuple[str, Preprocessing, dict[str, Any]]]:
    sizes = {"small": (384, 12), "base": (768, 12), "large": (1024, 24), "giant": (1536, 40)}
    usual = {"patch_size": 14, "image_size": 518}
    return {
        f"facebook/{name}-{size}": (
            kind,
            _DINOV2,
            usual | {"hidden_size": width, "num_hidden_layers": depth, "use_swiglu_ffn": size == "giant"},
        )
        for size, (width, depth) in sizes.items()
    }


def _dinov3() -> dict[str, tuple[str, Preprocessing, dict[str, Any]]]:
    vits = {
        "vits16": (384, 12, False),
        "vits16plus": (384, 12, True),
        "vitb16": (768, 12, False),
        "vitl16": (1024, 24, False),
        "vith16plus": (1280, 32, True),
        "vit7b16": (4096, 40, True),
    }
    stages = {
        "tiny": ([3, 3, 9, 3], [96, 192, 384, 768]),
        "small": ([3, 3, 27, 3], [96, 192, 384, 768]),
        "base": ([3, 3, 27, 3], [128, 256, 512, 1024]),
        "large": ([3, 3, 27, 3], [192, 384, 768, 1536]),
    }
    usual = {"patch_size": 16, "num_register_tokens": 4}
    return {
        f"facebook/dinov3-{size}-pretrain-lvd1689m": (
            "dinov3_vit",
            _DINOV3,
            usual | {"hidden_size": width, "num_hidden_layers": depth, "use_gated_mlp": gated},
        )
        for size, (width, depth, gated) in vits.items()
    } | {
        f"facebook/dinov3-convnext-{size}-pretrain-lvd1689m": (
            "dinov3_convnext",
            _DINOV3,
            {"depths": depths, "hidden_sizes": widths},
        )
        for size, (depths, widths) in stages.items()
    }


# Of each repository the type of its network, the preprocessing that it states, and options that no other one has.
REPOSITORIES: dict[str, tuple[str, Preprocessing, dict[str, Any]]] = {
    **_dinov2("dinov2", "dinov2"),
    **_dinov2("dinov2_with_registers", "dinov2-with-registers"),
    **_dinov3(),
}


def published_at(folder: Path, stored: Stored) -> str | None:
    """The repository that a folder of transformers copies, "USER/NAME"; None of all others.

    Nothing in a file says whose weights it holds. A folder is taken for a copy if it holds the bare encoder of one of
    `REPOSITORIES`, with the image processor that is published there. Who trains such a network further keeps the type,
    but has a head, other images or another processor.

    Args:
        folder: as `excb.hub.from_transformers.models.saved_folder` has it.
        stored: what was read there, as its own files state it.
    """
    kind = stored.architecture.name.removeprefix(families.PREFIX)
    if kind not in families.FAMILIES or exported.read_config(folder).get("architectures") != [
        families.FAMILIES[kind].model
    ]:
        return None
    for name, (theirs, prepared, options) in REPOSITORIES.items():
        if (theirs, prepared) == (kind, stored.preprocessing) and _agree(options, stored.architecture.options):
            return name
    return None


def _agree(wanted: Mapping[str, Any], stated: Mapping[str, Any]) -> bool:
    return all(stated.get(name) == value for name, value in wanted.items())
