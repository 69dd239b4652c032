"""Read the checkpoint at a path: a run folder or file, an exported folder, or a file of any known foreign layout."""

import re
import warnings
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from excb.checkpoint import exported, run_checkpoint, untrusted
from excb.checkpoint.coverage import check_values
from excb.checkpoint.layout_table import NOT_HEADS
from excb.checkpoint.layouts import map_file
from excb.checkpoint.stored import Stored, Which
from excb.errors import UserError, nearest_path
from excb.networks.lora import folded
from excb.networks.rules import architecture_from, preprocessing_from
from excb.results.result import folder_name


def read(path: Path, *, network: Which = "teacher", allow: Collection[str] = (), heads: bool = False) -> Stored:
    """Read the checkpoint at a path.

    Args:
        path: a run folder (its newest intact checkpoint, or the one that this names as the best), an exported folder,
            or a file of either or of other code.
        network: of a checkpoint that holds two.
        allow: what a foreign file may need besides tensors and plain values; see `excb.checkpoint.untrusted`.
        heads: read an exported folder's heads as well.

    Raises:
        UserError: nothing there, damaged, with values that no network has, or no checkpoint.
    """
    stored = _read(path, network, allow=allow, heads=heads)
    check_values(stored.tensors | stored.heads, source=str(stored.file))
    return stored


def require_path(path: Path) -> None:
    """Raise UserError where nothing is at a path."""
    if not path.exists():
        hub = f"; the Hugging Face Hub's is hf-hub:{path}" if re.fullmatch(r"[\w-]+/[\w.-]+", str(path)) else ""
        raise UserError(
            f"no checkpoint {path}: name a run folder, a checkpoint file or an exported folder{nearest_path(path)}{hub}"
        )


def _read(path: Path, network: Which, *, allow: Collection[str], heads: bool) -> Stored:
    if network not in ("teacher", "student"):
        raise UserError(f"network is 'teacher' or 'student', not '{network}'")
    if path.name == exported.WEIGHTS and (path.parent / exported.CONFIG).is_file():
        path = path.parent
    if path.is_dir():
        if (path / exported.CONFIG).is_file():
            return _from_exported(path, network, heads=heads)
        inside = path.name == run_checkpoint.FOLDER and not (path / run_checkpoint.FOLDER).is_dir()
        run = path.parent if inside else path
        newest = run_checkpoint.read_newest(
            run,
            lambda text: warnings.warn(text, stacklevel=7),  # at the call of `load`
        )
        if newest is None:
            raise UserError(f"no checkpoint in {path}: name a run folder, a checkpoint file or an exported folder")
        return _from_run(*_evaluated(*newest), network)
    require_path(path)
    try:
        return _from_run(path, run_checkpoint.read_run_checkpoint(path), network)
    except run_checkpoint.DamagedFileError as error:
        raise UserError(f"{error}: use an earlier checkpoint of the run") from None
    except run_checkpoint.ForeignFileError:
        return map_file(untrusted.read_untrusted(path, allow=allow), source=path, network=network)


def _evaluated(file: Path, contents: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The checkpoint that is loaded in place of a run's newest one, or that one, where there is none or none intact."""
    if (name := run_checkpoint.evaluated_name(contents)) is None:
        return file, contents
    better = file.with_name(name)
    try:
        return better, run_checkpoint.read_in_run(better)
    except (run_checkpoint.DamagedFileError, UserError) as error:
        warnings.warn(f"{error}; its best checkpoint cannot be used, the newest one is", stacklevel=7)
        return file, contents


def _from_run(file: Path, contents: dict[str, Any], network: Which) -> Stored:
    prefix = f"{network}.backbone."
    try:
        model: dict[str, Tensor] = contents["model"]
        if odd := [key for key, value in model.items() if not (isinstance(key, str) and isinstance(value, Tensor))]:
            raise TypeError(f"{odd[0]!r} is not a tensor by name")
        facts = exported.facts_from(
            {name: contents.get(name) for name in ("step", "epoch", "recipe")} | _training(contents)
        )
        return Stored(
            file,
            folded({key.removeprefix(prefix): value for key, value in model.items() if key.startswith(prefix)}),
            architecture_from(contents["architecture"]),
            preprocessing_from(contents["preprocessing"]),
            {key: value for key, value in model.items() if not key.startswith(NOT_HEADS)}
            if _heads_learn(facts)
            else {},
            {"network": network} | facts,
            contents,
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{file} is not a whole checkpoint of a run ({reason}): use another one of the run") from None


def _heads_learn(facts: dict[str, Any]) -> bool:
    """Whether a run trains projector or centroids: a student that learns from frozen teachers alone does not."""
    recipe = facts.get("recipe") or {}
    method = recipe.get("method") if isinstance(recipe, dict) else None
    if not isinstance(method, dict):
        return True
    return bool(method.get("clustering", True) or method.get("contrast") or method.get("regression"))


def _training(contents: dict[str, Any]) -> dict[str, Any]:
    """The training data of a run: its images, and the teachers of a distilled one."""
    facts: dict[str, Any] = {}
    if data := contents.get("data"):
        root = data.get("root")
        facts["training"] = {
            "data": folder_name(root) if isinstance(root, str) else root,
            "images": data.get("images"),
            "fingerprint": data.get("fingerprint"),
            "seconds": contents.get("seconds"),
            **({"ledger": data["ledger"]} if data.get("ledger") else {}),
        }
    if teachers := contents.get("teachers"):
        facts["teachers"] = teachers
    return facts


def _from_exported(folder: Path, network: Which, *, heads: bool) -> Stored:
    checkpoint = exported.read(folder)
    stated = checkpoint.facts.get("network", network)
    if stated != network and stated in ("teacher", "student"):
        raise UserError(
            f"{folder} holds the {stated} alone: load that one (network={stated!r}, or --network {stated}), or the run"
        )
    return replace(checkpoint, heads=exported.read_part(folder, exported.HEADS) or {}) if heads else checkpoint
