"""The table of a tar's images: name, offset, size and label, read from its headers in one pass."""

import tarfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO

from excb.errors import UserError
from excb.files import json_text
from excb.images.formats.known import DAMAGE, HEAD, Kind, extension_of, kind_of_extension, kind_of_head

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
    """The images of a tar in their order, and how many members of each kind were skipped."""

    names: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)  # from the .cls or .json file beside each image, if any
    skipped: Counter[str] = field(default_factory=Counter)


def read_table(stream: IO[bytes], place: str) -> TarTable:
    """Find the images in an uncompressed tar of any dialect.

    An image is a regular file with an image's extension, or with the first bytes of one where that says nothing. Its
    label is in KEY.cls, or in the field "label", "cls" or "class" of KEY.json (WebDataset's layout: the key ends at the
    first dot of the file's name). Hidden files are skipped. Skipped and counted are links, devices, sparse files, names
    that are absolute or contain `..` or control characters, files above 1 GiB or of negative size, and all but the last
    of equal names, as unpacking would do.

    Raises:
        UserError: it is compressed, not a tar, damaged, or truncated.
    """
    try:
        return _read(stream, place)
    except (*DAMAGE, tarfile.TarError, RecursionError) as error:
        raise _damaged(place, f"{type(error).__name__}: {error}") from None


def _read(stream: IO[bytes], place: str) -> TarTable:
    _refuse_compressed(stream, place)
    images: dict[str, tuple[int, int]] = {}  # offset and size by name
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
                skipped["hidden files"] += 1
                continue
            extension = extension_of(name)
            if extension in (".cls", ".json") and member.size <= LABEL_BYTES:
                stream.seek(member.offset_data)
                _add_label(labels, name, stream.read(member.size))
            elif _is_image(stream, member, extension):
                skipped["repeated names"] += name in images
                images[name] = (member.offset_data, member.size)
            else:
                skipped[extension or "without extension"] += 1
        _check_end(stream, tar.offset, place)
    return TarTable(
        list(images),
        [offset for offset, _ in images.values()],
        [size for _, size in images.values()],
        [labels.get(_key(name)) for name in images],
        +skipped,
    )


def _is_image(stream: IO[bytes], member: tarfile.TarInfo, extension: str) -> bool:
    """Whether a member is an image that can be opened here: by its extension, else by its first bytes."""
    kind = kind_of_extension(extension)
    if kind is Kind.UNKNOWN:
        stream.seek(member.offset_data)
        kind = kind_of_head(stream.read(min(HEAD, member.size)))
    return kind in (Kind.IMAGE, Kind.ARRAY)


def _refuse_compressed(stream: IO[bytes], place: str) -> None:
    head = stream.read(6)
    for magic, (kind, command) in _COMPRESSED.items():
        if head.startswith(magic):
            raise UserError(
                f"{place} is compressed ({kind}), so its images cannot be read one by one: unpack it to a plain .tar "
                f"with `{command}` (images hardly shrink)"
            )
    stream.seek(0)


def _unwanted(member: tarfile.TarInfo) -> str | None:
    """Why a member is skipped, or None if it is read."""
    if member.issym() or member.islnk():
        return "links"
    if not member.isreg():
        return "special files, such as devices"
    if member.issparse():
        return "sparse files"
    if not 0 <= member.size <= MOST_BYTES:  # reading a negative number of bytes would read the rest of the file
        return "files of more than 1 GiB" if member.size > 0 else "files of negative size"
    parts = member.name.split("/")
    if not parts[0] or ".." in parts or any(ord(letter) < 32 or letter == "\x7f" for letter in member.name):
        return "names that lead elsewhere"
    return None


def _key(name: str) -> str:
    """WebDataset's key: the path up to the first dot of the file's name."""
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
    """A class's name or number. Negative numbers are not labels: test sets use them."""
    text = " ".join(text.split())
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal():
        return None if text.startswith("-") else text.lstrip("0") or "0"
    return text or None


def _check_end(stream: IO[bytes], end: int, place: str) -> None:
    """Refuse a tar that does not end in zeros, because `tarfile` takes a damaged header for the end."""
    stream.seek(end)
    if len(stream.read(BLOCK)) < BLOCK:
        raise _damaged(place, "the mark of its end is missing")
    stream.seek(end)
    while block := stream.read(2**20):
        if block.count(0) < len(block):
            raise _damaged(place, f"it has data after byte {end:,}, where it should end")


def _damaged(place: str, why: str) -> UserError:
    return UserError(f"{place} is not a complete tar file ({why}): copy it again, or create it again")
