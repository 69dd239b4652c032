"""Checkpoints as read from disk: run folders and files, exported folders, and files of any known foreign layout."""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from excb.checkpoint import run_checkpoint
from excb.checkpoint.layout_heads import NOT_HEADS
from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.networks.rules import architecture_from, preprocessing_from

Which = Literal["teacher", "student"]


@dataclass(frozen=True)
class Stored:
    """A checkpoint as read from disk, not yet built.

    Args:
        file: where the tensors come from.
        tensors: of one backbone, by the names of its architecture.
        architecture: of the backbone.
        preprocessing: of its images.
        heads: projectors, predictor, centroids and sizes, named as in `excb.method.ExCB`; empty where there are none.
        facts: what else is known: network, step, epoch, recipe, layout, the catalogue's row.
        contents: everything in a run's checkpoint; empty otherwise.
    """

    file: Path
    tensors: dict[str, Tensor]
    architecture: Architecture
    preprocessing: Preprocessing
    heads: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    contents: dict[str, Any] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether it holds both networks, centroids and sizes, as a run's checkpoint does."""
        return "model" in self.contents


def read(path: Path, *, network: Which = "teacher", allow: Collection[str] = (), heads: bool = False) -> Stored:
    """Read the checkpoint at a path.

    Args:
        path: a run folder (its newest intact checkpoint), an exported folder, or a file of either or of other code.
        network: of a checkpoint that holds two.
        allow: what a foreign file may need besides tensors and plain values; see `excb.checkpoint.untrusted`.
        heads: read an exported folder's heads as well.

    Raises:
        UserError: nothing there, damaged, or no checkpoint.
    """
    from excb.checkpoint import exported

    if network not in ("teacher", "student"):
        raise UserError(f"network is 'teacher' or 'student', not '{network}'")
    if path.name == exported.WEIGHTS and (path.parent / exported.CONFIG).is_file():
        path = path.parent
    if path.is_dir():
        if (path / exported.CONFIG).is_file():
            return _from_exported(path, network, heads=heads)
        run = (
            path.parent if path.name == run_checkpoint.FOLDER and not (path / run_checkpoint.FOLDER).is_dir() else path
        )
        newest = run_checkpoint.read_newest(
            run, lambda text: warnings.warn(text, stacklevel=6)
        )  # at the call of `load`
        if newest is None:
            raise UserError(f"no checkpoint in {path}: name a run folder, a checkpoint file or an exported folder")
        return _from_run(*newest, network)
    if not path.exists():
        raise UserError(f"no checkpoint {path}: name a run folder, a checkpoint file or an exported folder")
    try:
        return _from_run(path, run_checkpoint.read(path), network)
    except run_checkpoint.DamagedFileError as error:
        raise UserError(f"{error}: use an earlier checkpoint of the run") from None
    except run_checkpoint.ForeignFileError:
        return from_foreign(path, network=network, allow=allow)


def _from_run(file: Path, contents: dict[str, Any], network: Which) -> Stored:
    from excb.checkpoint import exported

    prefix = f"{network}.backbone."
    try:
        model: dict[str, Tensor] = contents["model"]
        if odd := [key for key, value in model.items() if not (isinstance(key, str) and isinstance(value, Tensor))]:
            raise TypeError(f"{odd[0]!r} is no tensor by name")
        facts = exported.facts_from({name: contents.get(name) for name in ("step", "epoch", "recipe")})
        return Stored(
            file,
            {key.removeprefix(prefix): value for key, value in model.items() if key.startswith(prefix)},
            architecture_from(contents["architecture"]),
            preprocessing_from(contents["preprocessing"]),
            {key: value for key, value in model.items() if not key.startswith(NOT_HEADS)},
            {"network": network} | facts,
            contents,
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{file} is no whole checkpoint of a run ({reason}): use another one of the run") from None


def _from_exported(folder: Path, network: Which, *, heads: bool) -> Stored:
    from excb.checkpoint import exported

    folder_contents = exported.read(folder)
    held = folder_contents.facts.get("network", network)
    if held != network and held in ("teacher", "student"):
        raise UserError(f"{folder} holds the {held}, not the {network}: load it from the run folder")
    kept = (exported.read_heads(folder) or {}) if heads else {}
    return Stored(
        folder / exported.WEIGHTS,
        folder_contents.tensors,
        folder_contents.architecture,
        folder_contents.preprocessing,
        kept,
        folder_contents.facts,
    )


def from_foreign(
    file: Path,
    *,
    network: Which = "teacher",
    layout: str | None = None,
    architecture: Architecture | None = None,
    allow: Collection[str] = (),
) -> Stored:
    """Read a file that other code wrote, without running any of it, and map it onto our names.

    Args:
        file: of any layout in `excb.checkpoint.layouts`.
        network: of a file that holds two.
        layout: recognised if None.
        architecture: of the backbone; recognised by the tensors if None.
        allow: what the file may need besides tensors and plain values; see `excb.checkpoint.untrusted`.

    Raises:
        UserError: damaged, would run code, of no known layout, or a tensor of the backbone missing, unexpected or
            misshapen.
    """
    from excb.checkpoint import layouts, untrusted

    contents = untrusted.read(file, allow=allow)
    mapped = layouts.map_file(contents, source=str(file), layout=layout, architecture=architecture, network=network)
    facts = {"network": mapped.network, "layout": mapped.layout}
    return Stored(file, mapped.tensors, mapped.architecture, mapped.preprocessing, mapped.heads, facts)


def load_strictly(module: nn.Module, tensors: Mapping[str, Tensor], *, what: str) -> None:
    """Load tensors into a module, or refuse: every one must be there, expected and of the right shape.

    Raises:
        UserError: naming what is missing, unexpected and misshapen; the module is then unchanged.
    """
    check_fit(module.state_dict(), tensors, what=what)
    module.load_state_dict(dict(tensors))


def check_fit(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], *, what: str) -> None:
    """Compare tensors with those of a network, which may be its blueprint (`excb.checkpoint.coverage.blueprint`).

    Raises:
        UserError: naming what is missing, unexpected and misshapen.
    """
    missing = [name for name in expected if name not in tensors]
    unexpected = [name for name in tensors if name not in expected]
    misshapen = [
        f"{name} {tuple(tensors[name].shape)} for {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if missing or unexpected or misshapen:
        parts = [("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen)]
        listing = "; ".join(f"{len(names)} {kind} ({_few(names)})" for kind, names in parts if names)
        raise UserError(f"{what} does not fit the network, nothing was loaded: {listing}")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
