"""timm's own models with their published weights and preprocessing, by "timm:NAME"."""

import math
from pathlib import Path

from torch import nn

from excb.checkpoint.stored import Stored
from excb.console import Reporter
from excb.errors import UserError, first_line, require
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.remote.hf_repository import kept_copy

PREFIX = "timm:"


def read(name: str) -> Stored:
    """One of timm's models, "timm:NAME", without its classifier.

    Where timm squashes or pads images (`crop_mode`), the central crop of the same size is taken instead.

    Raises:
        UserError: there is no such model, it has no published weights, they cannot be fetched, or its images are not
            square RGB.
    """
    import timm

    architecture, model = Architecture(name), name.removeprefix(PREFIX)
    try:
        cfg = timm.models.get_pretrained_cfg(model)
        copy = kept_copy(cfg.hf_hub_id, Reporter()) if cfg is not None and cfg.hf_hub_id else None
        overlay = None if copy is None else {"file": str(copy), "custom_load": False}
        published = timm.create_model(model, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay)
    except (OSError, RuntimeError, ValueError, LookupError) as error:
        if not timm.is_model(model):
            architecture.build()  # refuses, and says which name is meant
        raise UserError(
            f"no published weights for {name} ({first_line(error)}): check the name and the connection, or fetch the "
            "model once where there is one and copy timm's cache"
        ) from None
    tensors, preprocessing = dict(published.state_dict()), _preprocessing(name, published)
    return Stored(Path(name), tensors, architecture, preprocessing, facts={"network": "pretrained"})


def _preprocessing(name: str, network: nn.Module) -> Preprocessing:
    import timm

    data = timm.data.resolve_model_data_config(network)
    channels, height, width = data["input_size"]
    require(
        channels == 3 and height == width and data["interpolation"] in ("bilinear", "bicubic"),
        f"{name} takes images of {channels} x {height} x {width} ({data['interpolation']}): only square RGB images, "
        "resized bilinear or bicubic, are supported",
    )
    resize = math.floor(height / data["crop_pct"])
    return Preprocessing(resize, height, tuple(data["mean"]), tuple(data["std"]), data["interpolation"])
