"""Tar shards for tests: any members, and pictures packed as folders of classes or in WebDataset's layout."""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image


def picture(number: int, side: int = 8, *, kind: str = "jpeg") -> bytes:
    """A coded picture, another one for every number."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a tar, a regular file unless fields say otherwise."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def tar(members: Iterable[tuple[tarfile.TarInfo, bytes]], *, dialect: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar's bytes."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=dialect) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """A tar of regular files."""
    return tar(member(name, content) for name, content in files.items())


def webdataset(keys: Iterable[int], classes: int) -> dict[str, bytes]:
    """Pictures with their class's number beside them."""
    files: dict[str, bytes] = {}
    for key in keys:
        files |= {f"{key:06}.cls": str(key % classes).encode(), f"{key:06}.jpg": picture(key)}
    return files


def pack_folder(folder: Path, shards: Path, *, count: int) -> Path:
    """The files below a folder in so many tars, in the order of their paths."""
    shards.mkdir(parents=True)
    files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    each = -(-len(files) // count)
    for number in range(count):
        part = files[number * each : (number + 1) * each]
        (shards / f"{number:03}.tar").write_bytes(tar_of({name: (folder / name).read_bytes() for name in part}))
    return shards
