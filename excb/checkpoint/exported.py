"""The folder of one checkpoint: weights as safetensors, timm's config.json with ours inside, a hash of each file."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from excb import ledger
from excb.checkpoint import timm_format
from excb.checkpoint.stored import Stored
from excb.checkpoint.teachers import TEACHERS
from excb.errors import UserError
from excb.files import json_text, records
from excb.files.atomic import new_folder, read_again
from excb.files.foreign import read_text, sha256_of
from excb.files.records import Field, integer, number, optional, record_of, table, text
from excb.files.tensors import read_tensors
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.networks.rules import architecture_from, preprocessing_from
from excb.version import __version__

WEIGHTS, CONFIG = "model.safetensors", "config.json"  # timm's names on the Hugging Face Hub
HEADS, SELFTEST = "excb_head.safetensors", "selftest.safetensors"
CARD, RESULTS, EVAL_RESULTS = "README.md", "results", ".eval_results"  # the last is the hub's own
FILES = frozenset({WEIGHTS, CONFIG, HEADS, SELFTEST, CARD, RESULTS, EVAL_RESULTS})  # all that such a folder may hold

_CONFIG_BYTES = 2**24  # timm's with the names of 21,000 classes has 2 MiB
_table = Field(optional(table), "a table")
_FACTS = {
    "version": Field(text, "text"),
    "network": Field(text, "text"),
    "step": Field(optional(integer), "a whole number"),
    "epoch": Field(optional(number), "a number"),
    "recipe": _table,
    "checkpoint": _table,
    "origin": _table,
    "timm": _table,
    "training": Field(
        optional(
            record_of(
                {"seconds": optional(number), "images": optional(integer), "ledger": optional(ledger.RULE)}
                | dict.fromkeys(("data", "fingerprint"), optional(text)),
                extra=True,
            )
        ),
        "a table of data, images, fingerprint, seconds and ledger",
    ),
    "teachers": TEACHERS,
    "sha256": Field(table, "a table"),
}


def write_exported(
    folder: Path,
    *,
    tensors: Mapping[str, Tensor],
    architecture: Architecture,
    preprocessing: Preprocessing,
    width: int,
    heads: Mapping[str, Tensor] | None = None,
    facts: Mapping[str, Any],
    complete: Callable[[Path], None] = lambda _unfinished: None,
    keep: str = "",
) -> Path:
    """Write a folder that `read` and timm understand; it appears whole, or what was there before stays.

    An older export of the same name is removed with its card and results, which are about other weights.

    Args:
        folder: where to.
        tensors: of the backbone, by torchvision's or timm's names.
        architecture: of the backbone.
        preprocessing: of its images.
        width: D, of its features.
        heads: tensors of everything else, named as in `excb.method.ExCB`.
        facts: the rest of the block "excb", plain values: network, step, epoch, recipe, checkpoint, origin, and of a
            run also training and teachers.
        complete: adds files, such as the self-test's, to the unfinished folder, before hashes are taken.
        keep: refuse to replace an export of other weights, with this advice, as the end of a sentence.

    Returns:
        The folder.

    Raises:
        UserError: it cannot be written, or something is there that is not an export.
    """
    target = folder.resolve()
    check_replaceable(target)
    weights = serialised(tensors)
    if keep:
        refuse_other_weights(target, hashlib.sha256(weights).hexdigest(), advice=keep)
    config = timm_format.config_for(architecture, preprocessing, width)
    with new_folder(target) as unfinished:
        (unfinished / WEIGHTS).write_bytes(weights)
        if heads:
            (unfinished / HEADS).write_bytes(serialised(heads))
        complete(unfinished)
        config["excb"] = dict(facts) | {
            "version": __version__,
            "architecture": {"name": architecture.name, "options": architecture.options},
            "preprocessing": preprocessing.to_dict(),
            "sha256": {file.name: sha256_of(file) for file in sorted(unfinished.glob("*.safetensors"))},
        }
        (unfinished / CONFIG).write_text(json.dumps(config, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        with read_again(target):
            read(unfinished)
            read_part(unfinished, HEADS)
    return folder


def check_replaceable(target: Path) -> None:
    """Check that a path is free, or holds an export that may be replaced. Raises UserError if not."""
    if target.is_dir():
        names = sorted(file.name for file in target.iterdir())
        if others := [name for name in names if name not in FILES]:
            raise UserError(f"cannot write {target}: it holds other files ({others[0]}): name a new folder")
        if names and not _is_ours(target):  # such as a README.md alone, or a network of timm or transformers
            raise UserError(
                f"cannot write {target}: it holds {names[0]}, and `excb-zoo export` did not write it: name a new folder"
            )
    elif target.exists():
        raise UserError(f"cannot write {target}: it is a file, and a folder is needed")


def _is_ours(folder: Path) -> bool:
    """Whether a folder is an export of ours, also one whose config.json is damaged."""
    if (folder / SELFTEST).is_file():
        return True
    if not (folder / CONFIG).is_file():
        return False
    try:
        return "excb" in read_config(folder)
    except UserError:
        return True


def refuse_other_weights(target: Path, digest: str, *, advice: str) -> None:
    """Refuse to replace an export whose weights are others, for it may be their only copy.

    Args:
        target: the folder, which need not exist.
        digest: SHA-256 of the new file of weights.
        advice: what to do, as the end of a sentence.

    Raises:
        UserError: they are others.
    """
    file = target / WEIGHTS
    if file.is_file() and sha256_of(file) != digest:
        raise UserError(f"{target} has other weights: {advice}")


def serialised(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Tensors as the bytes of a safetensors file, which timm takes for PyTorch's; the same whenever these are."""
    from safetensors.torch import save

    # Copies, for safetensors takes neither strides nor tensors that share memory.
    plain = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    contents = save(plain, metadata={"format": "pt", **(metadata or {})})
    size = int.from_bytes(contents[:8], "little")
    # The library writes the entries of the metadata in an order of chance.
    header = json.loads(contents[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + contents[8 + size :]


def read(folder: Path) -> Stored:
    """Read a folder that `write_exported` wrote, or timm's own from the Hugging Face Hub, without its classifier.

    The weights' sha256 is first compared with config.json's; folders of timm and of version 0.1.0 have none. The facts
    are the block "excb" of config.json, or one made of timm's, with its licence in "timm". Heads are not read.

    Raises:
        UserError: a file is missing, damaged or not what it should be.
    """
    config = read_config(folder)
    try:
        block = config["excb"] if "excb" in config else timm_format.block_of(config)
        architecture = architecture_from(block["architecture"])
        preprocessing = preprocessing_from(block["preprocessing"])
        facts_from(block)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, UserError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{folder / CONFIG} was not written by `excb-zoo export` or timm ({reason})") from None
    tensors = _read_tensors(folder / WEIGHTS, config)
    if tensors is None:
        raise UserError(f"{folder} has no {WEIGHTS}: export it again or fetch it again")
    if "excb" not in config:
        dropped = timm_format.classifiers(config["architecture"])
        tensors = {name: value for name, value in tensors.items() if not name.startswith(dropped)}
    return Stored(folder / WEIGHTS, tensors, architecture, preprocessing, facts=block)


def read_part(folder: Path, name: str) -> dict[str, Tensor] | None:
    """Read one of a folder's safetensors files, such as `SELFTEST` or `HEADS`; None if it has no file of that name.

    Raises:
        UserError: it is damaged, or not the one in config.json.
    """
    return _read_tensors(folder / name, read_config(folder))


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json, whoever wrote it.

    Raises:
        UserError: it is missing, or no JSON object.
    """
    file = folder / CONFIG
    try:
        if file.stat().st_size > _CONFIG_BYTES:
            raise UserError(f"{file} is larger than {_CONFIG_BYTES >> 20} MiB: refused")
        config = json_text.parse(read_text(file))
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): name an exported folder") from None
    except ValueError as error:
        raise UserError(f"{file} was not written by `excb-zoo export` or timm ({error})") from None
    if not isinstance(config, dict):
        raise UserError(f"{file} was not written by `excb-zoo export` or timm (it is not a JSON object)")
    return config


def _read_tensors(file: Path, config: dict[str, Any]) -> dict[str, Tensor] | None:
    block = config.get("excb")
    hashes = block.get("sha256") if isinstance(block, dict) else None
    stated = hashes.get(file.name) if isinstance(hashes, dict) else None
    if not file.exists():
        if stated is not None:
            raise UserError(f"{file} is missing, but {CONFIG} lists it: export it again or fetch it again")
        return None
    try:
        if hashes is not None and (actual := sha256_of(file)) != stated:
            raise UserError(
                f"{file} is damaged or another file (sha256 {actual}, but {CONFIG} says {stated}): export it again or "
                "fetch it again"
            )
        return read_tensors(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is damaged ({error}): export it again or fetch it again") from None


def facts_from(block: dict[str, Any]) -> dict[str, Any]:
    """The same block, whose facts of a run are of the kinds that readers count on.

    Raises:
        RecordError: one is not.
    """
    records.check_record(block, _FACTS, what="the file", extra=True)
    return block
