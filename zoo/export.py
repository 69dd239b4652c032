"""Export a checkpoint's backbone: safetensors and a `config.json` in timm's hub format, without the training state."""

import json
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
    from safetensors.torch import save_file

    backbone = hub.load(source, network=network)  # building it proves that every tensor has its place
    weights = {name: value.contiguous() for name, value in backbone.network.state_dict().items()}
    temporary = out / f".{hub.WEIGHTS}.tmp"
    try:
        out.mkdir(parents=True, exist_ok=True)
        save_file(weights, temporary, metadata={"format": "pt"})
        temporary.replace(out / hub.WEIGHTS)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error}") from None
    write_text(json.dumps(_config(backbone), indent=2) + "\n", out / hub.CONFIG)
    return out


def _config(backbone: hub.Backbone) -> dict[str, Any]:
    """timm's fields, so that it needs no code of ours, and ours under `excb`."""
    entry, preprocessing = backbone.entry, backbone.transform
    return {
        "architecture": entry.architecture.timm_name or entry.architecture.name,
        "num_classes": 0,
        "num_features": feature_width(backbone.network),
        "pretrained_cfg": {
            "num_classes": 0,
            "input_size": [3, preprocessing.crop, preprocessing.crop],
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "crop_pct": preprocessing.crop / preprocessing.resize,
            "interpolation": preprocessing.interpolation,
            "crop_mode": "center",
        },
        "model_args": entry.architecture.options,
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
