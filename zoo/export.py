"""Export a checkpoint's backbone, without training state, in the formats of other programs."""

import importlib.util
import io
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from excb.checkpoint import exported
from excb.checkpoint.detectron2_names import detectron2_names
from excb.checkpoint.stored import Stored, load_strictly
from excb.errors import UserError, nearest_name
from excb.files.atomic import new_file
from excb.files.foreign import sha256_of
from excb.hub import loading
from excb.hub.backbone import Backbone, Entry
from excb.networks.architecture import RGB, TORCHVISION
from excb.networks.backbone import feature_width, image_channels
from excb.results.replacing import ADVICE, FOLDER_ADVICE, has_content

from .snippet import write_snippet

Format = Literal["excb", "torchvision", "timm", "detectron2", "onnx"]
# The file in a folder that is named in its place.
FILES = {
    "torchvision": "model.safetensors",
    "timm": "model.safetensors",
    "detectron2": "model.pkl",
    "onnx": "model.onnx",
}
WEIGHTS = (".safetensors", ".pth", ".pt")  # ends of files of weights


def export(
    source: str,
    out: Path,
    *,
    network: Literal["teacher", "student"] = "teacher",
    format: Format = "excb",  # noqa: A002
    overwrite: bool = False,
) -> Path:
    """Write the backbone that `excb.load(source)` gives.

    Args:
        source: what `excb.load` takes.
        out: the folder or file to write.
        network: teacher or student.
        format: what to write.

            `out` may name a folder or a file for each of them:

            - "excb": a folder that `excb.load` and timm read, with the heads and s if the source has them, and with
              the self-test of loading.
            - "torchvision": a file that `torchvision.models.NAME()` takes without its classifier; for a ResNet,
              set its `fc` to `torch.nn.Identity()` first.
            - "timm": a file that `timm.create_model(NAME, num_classes=0)` takes.
            - "detectron2": a .pkl for MODEL.WEIGHTS, and beside it a .pkl.yaml with matching settings.
            - "onnx": a file [B, C, crop, crop] "images" -> [B, D] "features", for any B.

            safetensors and ONNX files hold the preprocessing as well, as JSON in their metadata.
        overwrite: replace what `out` has of other weights.

    Returns:
        What was written.

    Raises:
        UserError: nothing loadable at `source`, no such format, one that cannot hold this network, or `out` holds
            something else or cannot be written. An earlier file is then left unchanged.
    """
    return _export(source, out, network=network, format=format, overwrite=overwrite)[0]


def export_with_snippet(
    source: str,
    out: Path,
    *,
    network: Literal["teacher", "student"] = "teacher",
    format: Format = "excb",  # noqa: A002
    overwrite: bool = False,
) -> tuple[Path, str, Path]:
    """As `export`, and write the Python that loads it: what was written, the Python, and its file beside it."""
    written, backbone = _export(source, out, network=network, format=format, overwrite=overwrite)
    code, file = write_snippet(written, format, backbone)
    return written, code, file


def _export(
    source: str,
    out: Path,
    *,
    network: Literal["teacher", "student"],
    format: Format,  # noqa: A002
    overwrite: bool,
) -> tuple[Path, Backbone]:
    """The file or folder that `export` writes, and the backbone."""
    if format not in get_args(Format):
        close = nearest_name(format, get_args(Format))
        raise UserError(f"no format is called '{format}'{close} (formats are {', '.join(get_args(Format))})")
    stored = loading.read(source, network=network, heads=format == "excb")
    built = stored.architecture.build()
    # As `excb.load` does: it proves that every tensor has its place.
    load_strictly(built, stored.tensors, what=f"{stored.file} ({stored.architecture.name})")
    entry = Entry(str(stored.file), stored.architecture, network=str(stored.facts.get("network") or network))
    backbone = Backbone(built, stored.preprocessing, entry).eval()
    if format == "excb":
        folder = out.with_suffix("") if out.suffix in WEIGHTS else out
        return _folder(backbone, stored, folder, keep="" if overwrite else FOLDER_ADVICE), backbone
    out = out if out.suffix and not out.is_dir() else out / FILES[format]
    writers: dict[str, Callable[[Backbone, Path, bool], None]] = {
        "torchvision": _torchvision,
        "timm": _timm,
        "detectron2": _detectron2,
        "onnx": _onnx,
    }
    writers[format](backbone, out, overwrite)
    return out, backbone


def _folder(backbone: Backbone, stored: Stored, out: Path, *, keep: str) -> Path:
    from excb.hub import selftest

    facts: dict[str, Any] = dict.fromkeys(("step", "epoch", "recipe", "checkpoint", "origin")) | stored.facts
    if layout := facts.pop("layout", None):
        digest = sha256_of(stored.file)
        facts["origin"] = {"file": stored.file.name, "sha256": digest, "layout": layout}
    return exported.write_exported(
        out,
        tensors=backbone.network.state_dict(),
        architecture=stored.architecture,
        preprocessing=stored.preprocessing,
        width=feature_width(backbone.network),
        heads=stored.heads,
        facts=facts,
        complete=lambda folder: selftest.write_self_test(folder, backbone),
        keep=keep,
    )


@contextmanager
def _new_export(out: Path, overwrite: bool) -> Iterator[Path]:
    """Give the path of a file to write, as `new_file`; a file of other contents stays, unless it may be replaced."""
    with new_file(out) as temporary:
        yield temporary
        if not overwrite and has_content(out) and sha256_of(out) != sha256_of(temporary):
            raise UserError(f"{out} is there, and holds something else: {ADVICE}")


def _check_suffix(out: Path, *suffixes: str) -> None:
    if out.suffix not in suffixes:
        raise UserError(f"cannot write {out}: its name must end in {' or '.join(suffixes)} for this format")


def _check_network(supported: bool, backbone: Backbone, program: str) -> None:
    if not supported:
        name = backbone.entry.architecture.name
        raise UserError(f"{program} has no {name}: choose another --format; excb and onnx take every network")


def _check_rgb(backbone: Backbone, program: str) -> None:
    if (channels := image_channels(backbone.network)) != RGB:
        raise UserError(
            f"{program} builds networks of images of {RGB} channels, and this one takes {channels}: choose --format "
            "excb, timm or onnx"
        )


def _preprocessing(backbone: Backbone) -> dict[str, str]:
    return {"preprocessing": json.dumps(backbone.transform.to_dict())}


def _torchvision(backbone: Backbone, out: Path, overwrite: bool) -> None:
    name = backbone.entry.architecture.name
    _check_network(name in TORCHVISION or name.startswith("torchvision:"), backbone, "torchvision")
    _check_rgb(backbone, "torchvision")
    _write_state(backbone, out, overwrite)


def _timm(backbone: Backbone, out: Path, overwrite: bool) -> None:
    architecture = backbone.entry.architecture
    _check_network(architecture.timm_name is not None or architecture.name in TORCHVISION, backbone, "timm")
    if architecture.positions == "dino" and _interpolates(backbone):
        raise UserError(
            f"timm does not interpolate position embeddings as DINO does, which images of {backbone.transform.crop} "
            "pixels need: choose --format excb or onnx"
        )
    _write_state(backbone, out, overwrite)  # ResNets have the same tensor names in torchvision and timm


def _interpolates(backbone: Backbone) -> bool:
    """Whether the position embeddings of a ViT are of another size than that of its images."""
    embedding: Any = backbone.network.patch_embed
    return tuple(embedding.img_size) != (backbone.transform.crop, backbone.transform.crop)


def _write_state(backbone: Backbone, out: Path, overwrite: bool) -> None:
    _check_suffix(out, *WEIGHTS)
    state = backbone.network.state_dict()
    if out.suffix == ".safetensors":
        contents = exported.serialised(state, _preprocessing(backbone))
    else:
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        contents = buffer.getvalue()
    with _new_export(out, overwrite) as temporary:
        temporary.write_bytes(contents)


class _ArrayPickler(pickle.Pickler):
    """Writes arrays that any NumPy reads. NumPy 2 itself refers to modules that NumPy 1 lacks."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return np.ndarray, (value.shape, value.dtype.str, bytearray(value.tobytes()))
        return NotImplemented


def _detectron2(backbone: Backbone, out: Path, overwrite: bool) -> None:
    _check_network(backbone.entry.architecture.name in TORCHVISION, backbone, "Detectron2")
    _check_rgb(backbone, "Detectron2")
    _check_suffix(out, ".pkl")
    tensors = detectron2_names(backbone.network.state_dict())
    buffer = io.BytesIO()
    _ArrayPickler(buffer, protocol=4).dump(
        {
            "model": {name: value.numpy() for name, value in tensors.items()},
            "__author__": "excb",
            "matching_heuristics": True,  # match names by their suffixes, for any backbone
        }
    )
    yaml = out.with_suffix(".pkl.yaml")
    with _new_export(yaml, overwrite) as settings, _new_export(out, overwrite) as temporary:
        settings.write_text(_detectron2_settings(backbone, out.name), encoding="utf-8")
        temporary.write_bytes(buffer.getvalue())


def _detectron2_settings(backbone: Backbone, name: str) -> str:
    """Settings that the weights need and their file cannot hold, for `cfg.merge_from_file`."""
    mean, std = (
        [round(255 * share, 4) for share in shares] for shares in (backbone.transform.mean, backbone.transform.std)
    )
    depth = int(backbone.entry.architecture.name.removeprefix("resnet"))
    return f"""\
# Detectron2's settings that belong to the weights in {name}: merge them last, and set MODEL.WEIGHTS to that file.
INPUT:
  FORMAT: RGB
MODEL:
  PIXEL_MEAN: {mean}
  PIXEL_STD: {std}
  RESNETS:
    DEPTH: {depth}
    RES2_OUT_CHANNELS: {64 if depth < 50 else 256}
    STRIDE_IN_1X1: false
"""


def _onnx(backbone: Backbone, out: Path, overwrite: bool) -> None:
    _check_suffix(out, ".onnx")
    if missing := [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]:
        raise UserError(f"--format onnx needs {' and '.join(missing)}: pip install onnx onnxscript")
    checker: Any = importlib.import_module("onnx.checker")
    side, channels = backbone.transform.crop, image_channels(backbone.network)
    try:
        program = torch.onnx.export(
            backbone.network,
            (torch.zeros(2, channels, side, side),),  # a batch of one would be exported as a constant
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"ONNX cannot hold {backbone.entry.architecture.name} ({reason}): choose another format"
        ) from None
    assert program is not None
    shape = program.model.graph.inputs[0].shape
    if shape is not None and isinstance(shape[0], int):  # of the example, as where Python took its length
        raise UserError(f"ONNX cannot hold {backbone.entry.architecture.name} for any batch: choose another format")
    program.model.metadata_props.update(_preprocessing(backbone))
    with _new_export(out, overwrite) as temporary:
        program.save(temporary)
        checker.check_model(temporary, full_check=True)
