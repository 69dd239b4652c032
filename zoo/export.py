"""Export a checkpoint's backbone: safetensors and a `config.json` in timm's hub format, without the training state."""

import json
import math
from pathlib import Path
from typing import Any, Literal

from excb import __version__, hub
from excb.backbones import feature_width
from excb.errors import UserError
from excb.results import write_text


def export(source: str, out: Path, *, network: Literal["teacher", "student"] = "teacher") -> Path:
    """Write the backbone that `excb.load(source)` gives into a folder that `excb.load` and timm can read.

    Args:
        source: what `excb.load` takes.
        out: the folder; it is made.
        network: teacher or student.

    Returns:
        The folder.

    Raises:
        UserError: nothing loadable at `source`, or `out` cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    backbone = hub.load(source, network=network)  # building it proves that every tensor has its place
    weights = {name: value.contiguous() for name, value in backbone.network.state_dict().items()}
    temporary = out / f".{hub.WEIGHTS}.tmp"
    try:
        out.mkdir(parents=True, exist_ok=True)
        try:
            save_file(weights, temporary, metadata={"format": "pt"})
            temporary.replace(out / hub.WEIGHTS)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        raise UserError(f"cannot write {out}: {error}") from None
    write_text(json.dumps(_config(backbone), indent=2) + "\n", out / hub.CONFIG)
    return out


def _config(backbone: hub.Backbone) -> dict[str, Any]:
    """timm's fields, so that it needs no code of ours, and ours under `excb`."""
    entry, preprocessing = backbone.entry, backbone.transform
    options = dict(entry.architecture.options) if entry.architecture.timm_name else {}
    if getattr(backbone.network, "dynamic_img_size", False):
        options["dynamic_img_size"] = True  # as we build it: it takes images of other sizes than it was made for
    return {
        "architecture": entry.architecture.timm_name or entry.architecture.name,
        "num_classes": 0,
        "num_features": feature_width(backbone.network),
        "pretrained_cfg": {
            "num_classes": 0,
            "input_size": [3, preprocessing.crop, preprocessing.crop],
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "crop_pct": _crop_share(preprocessing.crop, preprocessing.resize),
            "interpolation": preprocessing.interpolation,
            "crop_mode": "center",
        },
        "model_args": options,
        "excb": {
            "version": __version__,
            "method": "ExCB",
            "architecture": {"name": entry.architecture.name, "options": entry.architecture.options},
            "preprocessing": preprocessing.to_dict(),
            "network": entry.network,
            "step": entry.step,
            "epoch": entry.epoch,
            "recipe": entry.recipe,
        },
    }


def _crop_share(crop: int, resize: int) -> float:
    """The share of the resized side that is kept, such that timm, which rounds crop / share down, resizes to it."""
    share = crop / resize
    return share if math.floor(crop / share) == resize else math.nextafter(share, 0)
