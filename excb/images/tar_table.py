"""What a tar holds: name, place, size and label of every image in it, found by its headers in one pass."""

import tarfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO

from excb.errors import UserError
from excb.files import json_text
from excb.images.decoding import DAMAGE
from excb.images.image_set import EXTENSIONS

MOST_BYTES = 2**30  # of an image: it is read as a whole
LABEL_BYTES = 2**20  # of a .cls or .json file at most
LABEL_FIELDS = ("label", "cls", "class")  # of a .json file
BLOCK = tarfile.BLOCKSIZE
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ\0": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\x04\x22\x4d\x18": ("lz4", "unlz4"),
}


@dataclass
class TarTable:
    """The images of a tar in their order, and what was passed over by kind."""

    names: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)  # of the .cls or .json file beside each, if there is one
    skipped: Counter[str] = field(default_factory=Counter)


def read_table(stream: IO[bytes], place: str) -> TarTable:
    """Find the images in an uncompressed tar of any dialect.

    An image is a regular file with an image's extension; hidden files are passed over. Its label is in KEY.cls, or in
    the field "label", "cls" or "class" of KEY.json (WebDataset's layout: the key ends at the first dot of the file's
    name). What no image set needs is passed over and counted: links and devices, sparse files, names that are
    absolute, hold `..` or control characters, files of more than 1 GiB or of less than nothing, and all but the last of
    equal names, as unpacking would.

    Args:
        stream: at the beginning of the tar; it can seek.
        place: its name for messages.

    Raises:
        UserError: it is compressed, no tar, damaged, or cut.
    """
    try:
        return _read(stream, place)
    except (*DAMAGE, tarfile.TarError, RecursionError) as error:
        raise _damaged(place, f"{type(error).__name__}: {error}") from None


def _read(stream: IO[bytes], place: str) -> TarTable:
    _refuse_compressed(stream, place)
    found: dict[str, tuple[int, int]] = {}
    labels: dict[str, str | None] = {}
    skipped: Counter[str] = Counter()
    last = -1
    with tarfile.open(fileobj=stream, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
            if member.offset <= last:
                raise _damaged(place, f"the header at byte {last:,} leads back")
            last = member.offset
            if member.isdir():
                continue
            if kind := _unwanted(member):
                skipped[kind] += 1
                continue
            name = PurePosixPath(member.name).as_posix()
            if any(part.startswith(".") for part in name.split("/")):
                continue
            suffix = name.lower().rpartition(".")[2]
            if f".{suffix}" in EXTENSIONS:
                skipped["repeated names"] += name in found
                found[name] = (member.offset_data, member.size)
            elif suffix in ("cls", "json") and member.size <= LABEL_BYTES:
                stream.seek(member.offset_data)
                _add_label(labels, name, stream.read(member.size))
        end = tar.offset
    _check_end(stream, end, place)
    return TarTable(
        list(found),
        [offset for offset, _ in found.values()],
        [size for _, size in found.values()],
        [labels.get(_key(name)) for name in found],
        +skipped,
    )


def _refuse_compressed(stream: IO[bytes], place: str) -> None:
    head = stream.read(6)
    for magic, (kind, command) in _COMPRESSED.items():
        if head.startswith(magic):
            raise UserError(
                f"{place} is compressed ({kind}), so that no image in it can be read by itself: unpack it to a plain "
                f".tar with `{command}` (images hardly shrink)"
            )
    stream.seek(0)


def _unwanted(member: tarfile.TarInfo) -> str | None:
    """The kind of a member that is not to be read."""
    if member.issym() or member.islnk():
        return "links"
    if not member.isreg():
        return "devices and other special files"
    if member.issparse():
        return "sparse files"
    if not 0 <= member.size <= MOST_BYTES:  # to read a negative number of bytes would be to read all that follows
        return "files of more than 1 GiB" if member.size > 0 else "files of negative size"
    parts = member.name.split("/")
    if not parts[0] or ".." in parts or any(ord(letter) < 32 or letter == "\x7f" for letter in member.name):
        return "names that lead elsewhere"
    return None


def _key(name: str) -> str:
    """WebDataset's: all up to the first dot of the file's name."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _add_label(labels: dict[str, str | None], name: str, content: bytes) -> None:
    """Take the label of a .cls file, or of a .json file where there is no .cls file."""
    key = _key(name)
    if name.lower().endswith(".cls"):
        labels[key] = _label(content.decode(errors="replace"))
        return
    try:
        values = json_text.parse(content)
    except ValueError:
        return
    if isinstance(values, dict) and key not in labels:
        texts = (values[name] for name in LABEL_FIELDS if isinstance(values.get(name), (int, str)))
        if (text := next(texts, None)) is not None:
            labels[key] = _label(str(text))


def _label(text: str) -> str | None:
    """A class's name or number; below zero is how test sets say that there is none."""
    text = " ".join(text.split())
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal():
        return None if text.startswith("-") else text.lstrip("0") or "0"
    return text or None


def _check_end(stream: IO[bytes], end: int, place: str) -> None:
    """Refuse a tar that does not end in zeros: `tarfile` takes a damaged header for the end."""
    stream.seek(end)
    if len(stream.read(BLOCK)) < BLOCK:
        raise _damaged(place, "the mark of its end is missing")
    stream.seek(end)
    while block := stream.read(2**20):
        if block.count(0) < len(block):
            raise _damaged(place, f"it has data after byte {end:,}, where it should end")


def _damaged(place: str, why: str) -> UserError:
    return UserError(f"{place} is not a complete tar file ({why}): copy it again, or create it again")
