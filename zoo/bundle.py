"""Bundles: checkpoints in one archive for machines without a network, verified before they are installed.

A bundle is a tar archive, uncompressed since weights do not compress: index.json with the sha256 and size of every
file, then NAME/FILE for each.
"""

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from excb.checkpoint import exported
from excb.console import Progressor, Reporter
from excb.errors import UserError
from excb.files import json_text
from excb.files.atomic import new_file
from excb.hub import loading
from excb.hub.catalogue import Checkpoint, find
from excb.remote.home import folder_of, home

INDEX, FORMAT, VERSION = "index.json", "excb-bundle", 1
_INDEX_BYTES, _CHUNK, _MB = 2**24, 2**20, 1_000_000
# The files of a checkpoint's folder: an archive can write nothing else below home().
_FILES = "|".join(map(re.escape, sorted(exported.FILES - {exported.RESULTS, exported.EVAL_RESULTS})))
_FILE = re.compile(rf"{_FILES}|{exported.RESULTS}/[A-Za-z0-9][A-Za-z0-9._-]*\.json")

Index = dict[str, dict[str, dict[str, Any]]]  # checkpoint -> file -> sha256 and size


def bundle(names: Sequence[str], out: Path, reporter: Reporter) -> Path:
    """Write checkpoints into one archive, fetching missing ones first.

    Returns:
        The archive.

    Raises:
        UserError: no such checkpoint, or the archive cannot be written.
    """
    if not (folders := dict(_folder(name) for name in names)):
        raise UserError("name the checkpoints to bundle: `excb-zoo list` shows all names")
    _note_licences(folders, reporter)
    index: Index = {name: {file: _stamp(folder / file) for file in _files(folder)} for name, folder in folders.items()}
    with new_file(out) as temporary:
        _write(index, folders, temporary, reporter)
    return out


def unbundle(file: Path, reporter: Reporter) -> list[str]:
    """Install the checkpoints of a bundle, so that `excb.load` finds them by name.

    Nothing is installed unless the whole archive matches its index. Checkpoints that exist with the same files are left
    unchanged.

    Returns:
        The names of its checkpoints.

    Raises:
        UserError: it is not a bundle, is damaged or altered, another checkpoint has one of its names, or the folder
            cannot be written.
    """
    staging = home() / f".{uuid.uuid4().hex[:8]}.tmp"
    try:
        with _opened(file) as archive:
            index = _read_index(archive, file)
            members = dict(_checked_members(archive, index, file))
            wanted = {name for name, files in index.items() if not _is_installed(name, files)}
            try:
                total = sum(stamp["size"] for files in index.values() for stamp in files.values())
                with reporter.progress("checking, MB", -(-total // _MB)) as bar:
                    for path, member in members.items():
                        name, _, part = path.partition("/")
                        place = staging / name / part if name in wanted else None
                        _extract(archive, member, place, index[name][part]["sha256"], bar, source=f"{path} in {file}")
                for name in sorted(wanted):
                    _check_export(staging / name, name, file)
                for name in sorted(wanted):
                    (staging / name).rename(folder_of(name))
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot unpack {file} under {home()}: {error}") from None
    return list(index)


def _folder(name: str) -> tuple[str, Path]:
    """A checkpoint's own name, as NAME may be an alias, and its exported folder, fetched first if needed."""
    folder, row = loading.obtain(name), find(name)
    if row is None or not (folder / exported.CONFIG).is_file():
        raise UserError(f"'{name}' is not in the catalogue: `excb-zoo list` shows all, `excb-zoo import` adds one")
    folder_of(row.name)
    exported.read(folder)  # verifies its weights
    return row.name, folder


def _files(folder: Path) -> list[str]:
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in paths if _FILE.fullmatch(path))


def _stamp(file: Path) -> dict[str, Any]:
    return {"sha256": exported.sha256_of(file), "size": file.stat().st_size}


def _note_licences(folders: dict[str, Path], reporter: Reporter) -> None:
    closed = []
    for name, folder in folders.items():
        row = exported.read_config(folder).get("excb", {}).get("checkpoint")
        checkpoint = Checkpoint.from_dict(row) if row else None
        if checkpoint is not None and checkpoint.source != "own run" and not checkpoint.redistributable:
            closed.append(f"{name} ({checkpoint.licence or 'no licence stated'})")
    if closed:
        reporter.note(f"for your own machines only, their licences forbid passing them on: {', '.join(closed)}")


def _write(index: Index, folders: dict[str, Path], file: Path, reporter: Reporter) -> None:
    head = json.dumps({"format": FORMAT, "version": VERSION, "checkpoints": index}, indent=1).encode()
    total = sum(stamp["size"] for files in index.values() for stamp in files.values())
    with tarfile.open(file, "w") as archive, reporter.progress("bundling, MB", -(-total // _MB)) as bar:
        archive.addfile(_member(INDEX, len(head)), io.BytesIO(head))
        for name, files in index.items():
            for path, stamp in files.items():
                with (folders[name] / path).open("rb") as source:
                    archive.addfile(_member(f"{name}/{path}", stamp["size"]), source)
                bar.advance(stamp["size"] // _MB)


def _member(path: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)  # without owner and time: equal checkpoints make equal bundles
    member.size = size
    return member


@contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        stream = file.open("rb")
    except OSError as error:
        raise UserError(f"cannot read the bundle {file}: {error.strerror}") from None
    with stream:
        try:
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                yield archive
        except (tarfile.TarError, ArithmeticError, EOFError, LookupError, ValueError) as error:  # all by tarfile
            raise UserError(f"{file} is not a bundle, or is damaged ({error}): copy it again") from None


def _read_index(archive: tarfile.TarFile, file: Path) -> Index:
    """The index, which is the first member. UserError if there is none, or it lists files that no checkpoint has."""
    if (member := archive.next()) is None or member.name != INDEX or not _regular(member) or member.size > _INDEX_BYTES:
        raise UserError(f"{file} is not a bundle: it does not begin with {INDEX}")
    stream = archive.extractfile(member)
    assert stream is not None
    try:
        values = json_text.parse(stream.read())
        index: Index = values["checkpoints"]
        if (values["format"], values["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {values['format']} {values['version']}, not {FORMAT} {VERSION}")
        for name, files in index.items():
            folder_of(name)
            for path, stamp in files.items():
                if not _FILE.fullmatch(path):
                    raise ValueError(f"{name} with a file {path!r}")
                if not re.fullmatch(r"[0-9a-f]{64}", stamp["sha256"]) or type(stamp["size"]) is not int:
                    raise ValueError(f"no sha256 and size of {name}/{path}")
    except (AttributeError, KeyError, RecursionError, TypeError, UserError, ValueError) as error:
        raise UserError(f"the index of {file} is not one that `excb-zoo bundle` writes ({error})") from None
    return index


def _checked_members(archive: tarfile.TarFile, index: Index, file: Path) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """Every member but the index, by its name, once it is known to be what the index says."""
    listed = {f"{name}/{path}": stamp["size"] for name, files in index.items() for path, stamp in files.items()}
    left = dict(listed)
    while (member := archive.next()) is not None:
        path = member.name
        if path not in listed:
            raise UserError(f"{file} holds {path!r}, which its index does not list: refused")
        if not _regular(member):
            raise UserError(f"{path} in {file} is not a regular file: refused")
        if path not in left:
            raise UserError(f"{file} holds {path} twice: refused")
        if member.size != left.pop(path):
            raise UserError(f"{path} in {file} has {member.size} bytes, not {listed[path]}: copy the bundle again")
        yield path, member
    if left:
        raise UserError(f"{file} lacks {next(iter(left))}: copy the bundle again")


def _regular(member: tarfile.TarInfo) -> bool:
    """Whether it is a regular file: no link, device, folder, or sparse file."""
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse() and member.size >= 0


def _is_installed(name: str, files: dict[str, dict[str, Any]]) -> bool:
    """Whether a checkpoint with exactly these files is installed. UserError if another one has that name."""
    folder = folder_of(name)
    if not folder.exists():
        return False
    if {path: _stamp(folder / path) for path in _files(folder)} != files:
        raise UserError(f"{folder} holds other files than the bundle's {name}: move it away first")
    return True


def _extract(
    archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path | None, sha256: str, bar: Progressor, *, source: str
) -> None:
    """Read a member, check it, and write it to `place` if that is not None."""
    stream = archive.extractfile(member)
    assert stream is not None
    digest, done = hashlib.sha256(), 0
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
    with stream, place.open("xb") if place is not None else io.BytesIO() as target:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            if place is not None:
                target.write(chunk)
            bar.advance((done + len(chunk)) // _MB - done // _MB)
            done += len(chunk)
        if place is not None:
            target.flush()
            os.fsync(target.fileno())
    if digest.hexdigest() != sha256:
        raise UserError(f"{source} is damaged (sha256 {digest.hexdigest()}, not {sha256}): copy the bundle again")


def _check_export(folder: Path, name: str, file: Path) -> None:
    """Refuse what `excb.load` could not read."""
    try:
        exported.read(folder)
        exported.read_part(folder, exported.HEADS)
    except UserError as error:
        reason = str(error).replace(str(folder), name)
        raise UserError(f"{name} in {file} is not a checkpoint: {reason}") from None
