"""Run checkpoints on disk: written atomically, read without running any code, checked byte by byte.

A checkpoint is one dictionary of tensors and plain values, saved by torch as a zip archive. The archive's own checksums
find truncated and altered files; `weights_only=True` keeps a file from running code.
"""

import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from excb.checkpoint.untrusted import REFUSALS, check_contents, repeated
from excb.errors import UserError, first_line
from excb.files.atomic import new_file
from excb.files.foreign import TooLargeError, open_file

FORMAT = "excb-run"
VERSION = 1
FOLDER = "checkpoints"
_NAME = re.compile(r"step-(\d+)\.pt")


class DamagedFileError(Exception):
    """A checkpoint file that is truncated or altered; the message says how."""


class ForeignFileError(UserError):
    """A file that is not a run checkpoint of this package."""


def write_run_checkpoint(contents: dict[str, Any], file: Path) -> None:
    """Write a checkpoint so that at any moment, also after a power cut, `file` is absent, the old or the new one.

    Args:
        contents: tensors and plain values; `format` and `version` are added.
        file: where to; its folder is made.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    import torch

    with new_file(file, advice="earlier checkpoints are untouched") as temporary, temporary.open("wb") as stream:
        try:
            torch.save({"format": FORMAT, "version": VERSION} | contents, stream)
        except RuntimeError as error:
            # After an OSError, such as a full disk, torch may fail as well and hide it behind many lines.
            hidden = error.__context__
            raise hidden if isinstance(hidden, OSError) else OSError(first_line(error)) from None


def read_run_checkpoint(file: Path) -> dict[str, Any]:
    """Read a run checkpoint onto the CPU.

    Raises:
        DamagedFileError: the file is truncated or altered.
        ForeignFileError: the file would run code, or is not a run checkpoint of this package.
        UserError: the file is missing.
    """
    import torch

    if not file.is_file():
        raise UserError(f"no checkpoint file {file}")
    _check(file)
    try:
        # Given a path, torch would look at its suffix first. Its warnings of odd files are nothing a user could fix.
        with warnings.catch_warnings(action="ignore"), open_file(file) as stream:
            contents = torch.load(stream, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ForeignFileError(f"{file} holds more than tensors and plain values and could run code: refused") from None
    except REFUSALS as error:
        raise DamagedFileError(f"{file} is damaged ({first_line(error)})") from None
    if reason := repeated(contents):
        raise ForeignFileError(f"{file} {reason}")
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise ForeignFileError(f"{file} is not a run checkpoint of excb: expected a file that excb-pretrain wrote")
    version = contents.get("version")
    if not isinstance(version, int):
        raise DamagedFileError(f"{file} is damaged (version {version!r})")
    if version > VERSION:
        raise UserError(f"{file} was written by a newer excb: upgrade with `pip install -U excb`")
    return contents


def _check(file: Path) -> None:
    """Raise DamagedFileError unless all that torch reads of a file is as torch wrote it, UserError if torch did not."""
    ours = False
    try:
        ours = _starts_like_ours(file)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            ours = any(entry.filename.startswith("archive/") for entry in entries)
            # Checksums cover data only: an entry that claims to be a folder would be read as whatever is in memory.
            if odd := [e.filename for e in entries if e.compress_type or e.flag_bits & 1 or e.external_attr]:
                raise zipfile.BadZipFile(f"entry {odd[0]}")
            check_contents(file, archive)
    except TooLargeError as error:
        raise ForeignFileError(f"{file}: {error}") from None
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError) as error:
        if isinstance(error, PermissionError):
            raise UserError(f"cannot read {file} ({error.strerror}): let it be read, then start again") from None
        if ours:
            raise DamagedFileError(f"{file} is damaged ({error})") from None
    if not ours:
        raise ForeignFileError(f"{file} is not a checkpoint of excb: expected a file that excb-pretrain wrote")


def _starts_like_ours(file: Path) -> bool:
    """Whether a file starts as torch's do, or is cut short before, or holds the zeros that a power cut may leave."""
    with open_file(file) as stream:
        return b"PK\x03\x04".startswith(stream.read(4).rstrip(b"\0"))


def step_of(file: Path) -> int:
    """The step in a checkpoint's name."""
    match = _NAME.fullmatch(file.name)
    assert match is not None
    return int(match[1])


def name_of(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step-{step}.pt"


def is_name(name: str) -> bool:
    """Whether a file of this name is a run's checkpoint."""
    return _NAME.fullmatch(name) is not None


def in_run(run: Path) -> list[Path]:
    """The checkpoint files of a run folder, newest first."""
    return among(run / FOLDER)


def among(folder: Path) -> list[Path]:
    """The checkpoint files right in a folder, newest first; none where there is no such folder."""
    return [file for file in _named(folder) if file.is_file()]


def no_files(run: Path) -> list[Path]:
    """Paths in a run folder that have a checkpoint's name and are not files: folders, pipes, broken links."""
    return [place for place in _named(run / FOLDER) if not place.is_file()]


def _named(folder: Path) -> list[Path]:
    try:  # not glob, to which a folder that cannot be read is an empty one
        return sorted((file for file in folder.iterdir() if is_name(file.name)), key=step_of, reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_in_run(file: Path) -> dict[str, Any]:
    """Read a checkpoint by its file name. Raises DamagedFileError if it is of another step than the name says."""
    contents = read_run_checkpoint(file)
    if (step := contents.get("step")) != step_of(file):
        raise DamagedFileError(f"{file} is damaged (it holds step {ascii(step)[:40]}, not the step of its name)")
    return contents


def evaluated_name(contents: dict[str, Any]) -> str | None:
    """The name of the checkpoint that is loaded in place of a run's newest one, which has these contents.

    It is the best one of a run that is measured against the network it started from; None for the newest one itself.
    """
    step = contents.get("evaluated_step")
    return name_of(step) if isinstance(step, int) and 0 <= step != contents.get("step") else None


def read_newest(run: Path, warn: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
    """Read a run folder's newest intact checkpoint; damaged ones are reported through `warn` and skipped.

    So is what has the name of another step, or a checkpoint's name without being a file.

    Returns:
        The file and its contents, or None where the run has no checkpoint yet.

    Raises:
        UserError: there are checkpoints, but none is intact.
    """
    files = in_run(run)
    for place in no_files(run):
        warn(f"{place} is not a file, and passed over")
    for file in files:
        try:
            return file, read_in_run(file)
        except DamagedFileError as error:
            warn(f"{error}; trying the one before")
    if files:
        raise UserError(f"every checkpoint in {run / FOLDER} is damaged: move that folder away to start over")
    return None
