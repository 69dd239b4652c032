"""Folders of the zoo's checkpoints, downloads and their hashes, and of the cache."""

import json
import os
import re
from pathlib import Path

from excb.errors import UserError
from excb.files import json_text, records
from excb.files.atomic import lock_of, locked, write_text
from excb.files.foreign import read_bytes

VARIABLE = "EXCB_HOME"
DOWNLOADS = "downloads"
HASHES, CATALOGUE = "hashes.json", "catalogue.toml"
# No checkpoint can have these names.
OURS = (DOWNLOADS, HASHES, CATALOGUE, *(lock_of(Path(name)).name for name in (HASHES, CATALOGUE)))
_ENTRIES = records.table_of(
    records.record_of({"sha256": records.text, "size": records.count}, required=["sha256"], extra=True)
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def home() -> Path:
    """The zoo's folder, which need not exist yet: $EXCB_HOME, else excb in $XDG_DATA_HOME, else ~/.local/share/excb.

    Raises:
        UserError: it is below the home of nobody.
    """
    if own := os.environ.get(VARIABLE):
        return expanded(own, VARIABLE)
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    # By its standard, a relative XDG_DATA_HOME is invalid and must be ignored.
    return (data if data.is_absolute() else expanded("~/.local/share", VARIABLE)) / "excb"


def cache_root() -> Path:
    """The folder for what can be computed again: $EXCB_CACHE, else `excb` in the user's folder for caches.

    Raises:
        UserError: it is below the home of nobody.
    """
    if cache := os.environ.get("EXCB_CACHE"):
        return expanded(cache, "EXCB_CACHE")
    return Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache", "EXCB_CACHE")) / "excb"


def expanded(folder: str, variable: str) -> Path:
    """A folder, with ~ as the user's home. Raises UserError if there is no such home: `variable` can name a folder."""
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        whose = folder.partition("/")[0]
        raise UserError(
            f"{folder}: this machine knows no home folder for {whose}: name a folder in {variable}"
        ) from None


def folder_of(name: str) -> Path:
    """The folder of the checkpoint `name`, even if it does not exist. Raises UserError for unsafe or reserved names."""
    if not _NAME.fullmatch(name) or len(name) > 128:
        raise UserError(
            f"{name!r} is not a name for a checkpoint: letters, digits, '.', '_' and '-', a letter or digit first"
        )
    if name in OURS:
        raise UserError(f"{name!r} is not a name for a checkpoint: the zoo keeps something else in {home() / name}")
    return home() / name


def recorded(url: str) -> str | None:
    """The recorded sha256 of the file at `url`, if any. Raises UserError if the record cannot be read."""
    entry = _hashes().get(url)
    return None if entry is None else str(entry["sha256"])


def addresses_with(sha256: str) -> set[str]:
    """The addresses of all files with a recorded sha256. Raises UserError if the record cannot be read."""
    return {url for url, entry in _hashes().items() if entry["sha256"] == sha256}


def record_hash(url: str, sha256: str, size: int) -> None:
    """Record, or replace, sha256 (hexadecimal) and size (bytes) of the file at `url`. Raises UserError if it cannot."""
    file, advice = home() / HASHES, f"name a folder elsewhere in {VARIABLE}"
    with locked(file, advice=advice):  # downloads that end at once keep all records
        hashes = _hashes() | {url: {"sha256": sha256, "size": size}}
        write_text(json.dumps(hashes, indent=2, sort_keys=True) + "\n", file, advice=advice)


def _hashes() -> dict[str, dict[str, str | int]]:
    file = home() / HASHES
    try:
        hashes = json_text.parse(read_bytes(file))
        if _ENTRIES(hashes) is not None:
            raise ValueError("not a table of hashes by address")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read {file} ({error})") from None
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}): fix it, or delete it to trust new downloads") from None
    return dict(hashes)
