"""The reading side of the zoo: `load` gives any checkpoint's backbone, every tensor matched or refused."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from excb import checkpoint
from excb.backbones import Architecture, feature_width
from excb.errors import UserError
from excb.preprocessing import Preprocessing

WEIGHTS, CONFIG = "model.safetensors", "config.json"  # of an exported folder: timm's names on the Hugging Face Hub


@dataclass(frozen=True)
class Entry:
    """What is known of a loaded checkpoint.

    Args:
        source: the file the weights came from.
        architecture: what was built.
        network: which of ExCB's two networks it is; the paper evaluates the teacher.
        step: optimization steps done.
        epoch: epochs done.
        recipe: every option it was trained with, by section; empty where unknown.
    """

    source: str
    architecture: Architecture
    network: str = "teacher"
    step: int | None = None
    epoch: float | None = None
    recipe: dict[str, Any] = field(default_factory=dict)


class Backbone(nn.Module):
    """A loaded backbone: images [B, 3, H, W] -> features [B, `width`].

    Attributes:
        network: the plain torchvision or timm module.
        transform: preprocessing of the checkpoint, PIL image -> [3, H, W].
        entry: where it comes from and how it was trained.
        width: D, the features' width.
    """

    def __init__(self, network: nn.Module, transform: Preprocessing, entry: Entry) -> None:
        super().__init__()
        self.network, self.transform, self.entry = network, transform, entry
        self.width = feature_width(network)

    def forward(self, images: Tensor) -> Tensor:
        """Features of normalised images (see `transform`)."""
        features: Tensor = self.network(images)
        return features


@dataclass(frozen=True)
class Stored:
    """A checkpoint as read from disk, not yet built: tensors by name, and what they are."""

    file: Path
    tensors: dict[str, Tensor]
    architecture: Architecture
    preprocessing: Preprocessing
    contents: dict[str, Any]  # of a run checkpoint, with both networks; of an exported folder, its metadata

    @property
    def full(self) -> bool:
        """Whether it holds both networks, centroids and sizes."""
        return "model" in self.contents


def load(path: str | Path, *, network: Literal["teacher", "student"] = "teacher") -> Backbone:
    """Load a checkpoint's backbone in eval mode, on the CPU.

    Args:
        path: a run folder (its newest intact checkpoint), a checkpoint file, or an exported folder.
        network: the EMA teacher, which the paper evaluates, or the student. Exported folders hold one of them.

    Raises:
        UserError: nothing there, not a checkpoint, or any tensor missing, unexpected or misshapen.
    """
    stored = read(path, network=network)
    backbone = stored.architecture.build()
    load_strictly(backbone, stored.tensors, what=f"{stored.file} ({stored.architecture.name})")
    contents = stored.contents
    entry = Entry(
        source=str(stored.file),
        architecture=stored.architecture,
        network=contents.get("network", network),
        step=contents.get("step"),
        epoch=contents.get("epoch"),
        recipe=contents.get("recipe", {}),
    )
    return Backbone(backbone, stored.preprocessing, entry).eval()


def read(path: str | Path, *, network: str = "teacher") -> Stored:
    """Read what `path` names, as `load` does, without building it.

    Raises:
        UserError: nothing there, damaged, or not a checkpoint.
    """
    path = Path(path)
    if network not in ("teacher", "student"):
        raise UserError(f"network is 'teacher' or 'student', not '{network}'")
    if path.is_dir():
        if (path / CONFIG).is_file() and (path / WEIGHTS).is_file():
            return _read_exported(path, network)
        run = path.parent if path.name == checkpoint.FOLDER and not (path / checkpoint.FOLDER).is_dir() else path
        found = checkpoint.read_newest(run, lambda text: warnings.warn(text, stacklevel=5))  # where `load` is called
        if found is None:
            raise UserError(f"no checkpoint in {path}: name a run folder, a checkpoint file or an exported folder")
        return _from_run(*found, network)
    if path.name == WEIGHTS and (path.parent / CONFIG).is_file():
        return _read_exported(path.parent, network)
    if not path.exists():
        raise UserError(f"no checkpoint {path}: name a run folder, a checkpoint file or an exported folder")
    try:
        return _from_run(path, checkpoint.read(path), network)
    except checkpoint.DamagedFileError as error:
        raise UserError(f"{error}: use an earlier checkpoint of the run") from None


def _from_run(file: Path, contents: dict[str, Any], network: str) -> Stored:
    prefix = f"{network}.backbone."
    tensors = {key.removeprefix(prefix): value for key, value in contents["model"].items() if key.startswith(prefix)}
    return Stored(
        file,
        tensors,
        Architecture(**contents["architecture"]),
        Preprocessing.from_dict(contents["preprocessing"]),
        contents,
    )


def _read_exported(folder: Path, network: str) -> Stored:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        metadata = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["excb"]
        architecture = Architecture(**metadata["architecture"])
        preprocessing = Preprocessing.from_dict(metadata["preprocessing"])
        tensors = load_file(folder / WEIGHTS)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / CONFIG} was not written by `excb-zoo export` ({error})") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{folder / WEIGHTS} is damaged ({error}): export it again") from None
    if metadata.get("network", network) != network:
        raise UserError(f"{folder} holds the {metadata['network']}, not the {network}: load it from the run folder")
    return Stored(folder / WEIGHTS, tensors, architecture, preprocessing, metadata)


def load_strictly(module: nn.Module, tensors: Mapping[str, Tensor], *, what: str) -> None:
    """Load tensors into a module, or refuse: every one must be there, expected and of the right shape.

    Raises:
        UserError: naming what is missing, unexpected and misshapen; the module is then unchanged.
    """
    expected = module.state_dict()
    missing = [name for name in expected if name not in tensors]
    unexpected = [name for name in tensors if name not in expected]
    misshapen = [
        f"{name} {tuple(tensors[name].shape)} for {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if missing or unexpected or misshapen:
        parts = [("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen)]
        found = "; ".join(f"{len(names)} {kind} ({_few(names)})" for kind, names in parts if names)
        raise UserError(f"{what} does not fit the network, nothing was loaded: {found}")
    module.load_state_dict(dict(tensors))


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
