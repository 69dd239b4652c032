"""The Python that loads an exported backbone, for every format; written beside it."""

from pathlib import Path

from excb.checkpoint.timm_format import model_args
from excb.files.atomic import write_text
from excb.hub.backbone import Backbone
from excb.networks.architecture import Architecture

SUFFIX = ".load.py"  # of the file beside an export


def write_snippet(written: Path, kind: str, backbone: Backbone) -> tuple[str, Path]:
    """Write what loads an export, and return it with its file.

    Args:
        written: what `export` returned.
        kind: the format, as in `export`.
        backbone: what was exported.

    Raises:
        UserError: it cannot be written.
    """
    file = written.with_name((written.name if written.is_dir() else written.stem) + SUFFIX)
    code = snippet(written, kind, backbone)
    write_text(code, file)
    return code, file


def snippet(written: Path, kind: str, backbone: Backbone) -> str:
    """The Python that loads an export; arguments as in `write_snippet`."""
    architecture, prepared = backbone.entry.architecture, backbone.transform
    path = repr(str(written.absolute()))
    images = (
        f"# Images: {prepared.in_words}.\n"
        f"# Scale to [0, 1], subtract {list(prepared.mean)}, divide by {list(prepared.std)}.\n"
    )
    if kind == "excb":
        network = "" if backbone.entry.network == "teacher" else f", network={backbone.entry.network!r}"
        return f"import excb\n\nbackbone = excb.load({path}{network})  # backbone.transform prepares an image\n"
    if kind == "timm":
        return images + _timm(path, architecture)
    if kind == "torchvision":
        return images + _torchvision(path, written.suffix, architecture)
    if kind == "detectron2":
        return (
            "from detectron2.config import get_cfg\n\ncfg = get_cfg()  # and your own settings\n"
            f"cfg.merge_from_file({str(written.absolute()) + '.yaml'!r})\ncfg.MODEL.WEIGHTS = {path}\n"
        )
    return (
        f"{images}import onnxruntime\n\nsession = onnxruntime.InferenceSession({path})\n"
        'features = lambda images: session.run(None, {"images": images})[0]  # [B, C, S, S] float32 -> [B, D]\n'
    )


def _timm(path: str, architecture: Architecture) -> str:
    options = "".join(f", {option}={value!r}" for option, value in model_args(architecture).items())
    name = architecture.timm_name or architecture.name  # a ResNet, which has the same tensors in torchvision and timm
    arguments = f"{name!r}, num_classes=0, checkpoint_path={path}{options}"
    return f"import timm\n\nbackbone = timm.create_model({arguments}).eval()\n"


def _torchvision(path: str, suffix: str, architecture: Architecture) -> str:
    reader = "load_file" if suffix == ".safetensors" else "torch.load"
    line = "from safetensors.torch import load_file\n" if reader == "load_file" else ""
    name = architecture.name.removeprefix("torchvision:")
    load = f"backbone.load_state_dict({reader}({path}), strict=False)  # all but its classifier\n"
    if not architecture.name.startswith("torchvision:"):
        load = f"backbone.fc = torch.nn.Identity()\nbackbone.load_state_dict({reader}({path}))\n"
    return f"import torch\nimport torchvision\n{line}\nbackbone = torchvision.models.get_model({name!r}).eval()\n{load}"
