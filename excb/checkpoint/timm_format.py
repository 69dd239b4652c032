"""timm's `config.json` of the Hugging Face Hub: written so that timm builds our networks, and read in our terms."""

import math
from typing import Any, get_args

from excb.errors import require
from excb.networks.architecture import CHANNELS, RGB, Architecture
from excb.networks.backbone import shapes_only
from excb.networks.preprocessing import CropMode, Interpolation, Preprocessing

# What is kept of timm's own files besides the network and its inputs.
_FACTS = ("tag", "num_classes", "license", "description", "origin_url", "paper_name", "paper_ids", "notes")


def config_for(architecture: Architecture, preprocessing: Preprocessing, width: int) -> dict[str, Any]:
    """The fields from which `timm.create_model` builds the same network, and timm's transforms give it the same inputs.

    Args:
        architecture: of the backbone; timm's ResNets have torchvision's names for their tensors. Of torchvision's other
            networks timm says that it has none of that name.
        preprocessing: of its images.
        width: D, of its features.
    """
    from timm.models import get_pretrained_cfg

    name = architecture.timm_name or architecture.name
    cfg = get_pretrained_cfg(name)
    return {
        "architecture": name,
        "num_classes": 0,
        "num_features": width,
        "pretrained_cfg": {
            "num_classes": 0,
            "input_size": [architecture.channels, preprocessing.crop, preprocessing.crop],
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "crop_pct": _crop_share(preprocessing.crop, preprocessing.resize),
            "interpolation": preprocessing.interpolation,
            "crop_mode": preprocessing.crop_mode,
            # For who asks timm for a classifier of their own, or for other input channels.
            "classifier": cfg.classifier if cfg else None,
            "first_conv": cfg.first_conv if cfg else None,
        },
        "model_args": model_args(architecture),
    }


def model_args(architecture: Architecture) -> dict[str, Any]:
    """The arguments with which `timm.create_model` builds the network that `Architecture.build` does."""
    from timm.models import VisionTransformer, get_pretrained_cfg

    if architecture.timm_name is None:
        return {CHANNELS: architecture.channels} if architecture.channels != RGB else {}
    with shapes_only():
        network = architecture.build()
    stated: dict[str, Any] = {}
    if getattr(network, "dynamic_img_size", False):
        # timm always antialiases: it refuses images of another size rather than interpolate otherwise than in training.
        stated["dynamic_img_size"] = architecture.positions != "dino"
    if (cfg := get_pretrained_cfg(architecture.timm_name)) and cfg.fixed_input_size:
        stated["img_size"] = cfg.input_size[1]  # timm would take the side in `input_size`, or a default of its own
    if isinstance(network, VisionTransformer):
        blocks: Any = network.blocks
        # No tensor's shape shows it: a ViT with another number of heads would take the weights too, and be wrong.
        stated["num_heads"] = blocks[0].attn.num_heads
    return stated | architecture.foreign_options


def _crop_share(crop: int, resize: int) -> float:
    """The share of the resized side that is kept, such that timm, which rounds crop / share down, resizes to it."""
    share = crop / resize
    return share if math.floor(crop / share) == resize else math.nextafter(share, 0)


def block_of(config: dict[str, Any]) -> dict[str, Any]:
    """The block "excb" that a `config.json` of timm's would have: what `timm.create_model("hf-hub:...")` makes of it.

    Raises:
        ArithmeticError, AttributeError, KeyError, TypeError, ValueError: it is none of timm's, or of a network that
            does not take square RGB images.
        UserError: timm states no one way to prepare its images.
    """
    from timm.data import resolve_data_config
    from timm.models import get_pretrained_cfg, is_model

    published = config.get("pretrained_cfg", config)  # timm's older files are flat
    name = config["architecture"]
    if not isinstance(name, str) or not is_model(name):
        raise ValueError(f"this timm has no model {name!r}")
    name = name.partition(".")[0]
    options = {key: value for key, value in (config.get("model_args") or {}).items() if key != "num_classes"}
    channels, height, width = published.get("input_size") or (3, 224, 224)
    channels = options.pop("in_chans", None) or channels
    # As timm does: only position embeddings that do not follow the image have a size.
    follows = options.get("dynamic_img_size") or options.get("strict_img_size") is False
    if published.get("fixed_input_size") and not follows:
        if size := options.get("img_size"):
            height, width = (size, size) if isinstance(size, int) else size
        cfg = get_pretrained_cfg(name)
        if cfg is None or tuple(cfg.input_size[1:]) != (height, width):
            options["img_size"] = height
    if options.get("dynamic_img_size"):
        del options["dynamic_img_size"]  # `Architecture.build` always asks for it
    if channels != 3 or width != height:
        raise ValueError(f"its images are {channels} x {height} x {width}, not square and RGB")
    data = resolve_data_config(pretrained_cfg=published | {"input_size": (channels, height, width)})
    return {
        "architecture": {"name": f"timm:{name}", "options": options},
        "preprocessing": preprocessing_of(f"timm:{name}", data).to_dict(),
        "network": "pretrained",
        "timm": {key: published[key] for key in _FACTS if published.get(key)},
    }


def published_preprocessing(architecture: Architecture) -> Preprocessing | None:
    """The preprocessing that timm's configuration of one of its networks states; None where timm has none.

    Args:
        architecture: one of timm's; the option `img_size` is the side of its images.

    Raises:
        UserError: the network's images are not square RGB, or timm states no one way to prepare them.
    """
    from timm.data import resolve_data_config
    from timm.models import get_pretrained_cfg

    cfg = get_pretrained_cfg(architecture.timm_name or architecture.name)
    if cfg is None:
        return None
    side = architecture.options.get("img_size")
    stated = {"img_size": side} if type(side) is int else {}
    return preprocessing_of(architecture.name, resolve_data_config(stated, pretrained_cfg=cfg.to_dict()))


def preprocessing_of(name: str, data: dict[str, Any]) -> Preprocessing:
    """The preprocessing in what timm's `resolve_data_config` gives. Raises as `published_preprocessing`."""
    channels, height, width = data["input_size"]
    require(
        channels == 3 and height == width,
        f"{name} takes images of {channels} x {height} x {width}: only square RGB images are supported",
    )
    # "random" is of training: timm draws one for every image, or refuses it.
    for what, known in (("interpolation", get_args(Interpolation)), ("crop_mode", get_args(CropMode))):
        require(data[what] in known, f"{name} has the {what} {data[what]!r}: evaluation needs {', '.join(known)}")
    return Preprocessing(
        math.floor(height / data["crop_pct"]),
        height,
        tuple(data["mean"]),
        tuple(data["std"]),
        data["interpolation"],
        data["crop_mode"],
    )


def classifiers(name: str) -> tuple[str, ...]:
    """How the names of the tensors of an architecture's classifiers begin, such as ("fc.",)."""
    from timm.models import get_pretrained_cfg

    cfg = get_pretrained_cfg(name.partition(".")[0])
    names = (cfg.classifier if cfg else None) or ()
    return tuple(f"{layer}." for layer in ((names,) if isinstance(names, str) else names))
