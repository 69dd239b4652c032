"""Tar shards of anybody: hostile members and headers, damaged bytes, and indexes that somebody forged."""

import io
import json
import os
import tarfile
from functools import cache, partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from excb.images.decoding import BrokenImageError
from excb.images.shards import open_shards
from excb.images.tars.index import FOLDER
from excb.remote.home import cache_root
from tests.excb.images.shard_files import member, picture, tar
from tests.fuzz import hostile
from tests.fuzz.guard import Guard
from tests.fuzz.lane import fuzz

KIND = "shards"
DIALECTS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
TYPES = (
    *(tarfile.REGTYPE, tarfile.REGTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE),
    *(tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE, b"V", b"X"),
)
PAX = (
    "path",
    "size",
    "linkpath",
    "GNU.sparse.map",
    "GNU.sparse.major",
    "GNU.sparse.size",
    "mtime",
    "hdrcharset",
    "uid",
)
labels = st.one_of(hostile.names, hostile.numbers.map(str), st.just('{"label": 3}'), st.just('{"cls": "\\ud800"}'))


@st.composite
def tars(draw: st.DrawFn) -> bytes:
    """A tar of pictures and of members that no unpacking program should take."""
    members = []
    for number in range(draw(st.integers(1, 5))):
        name = draw(st.one_of(st.sampled_from((f"a/{number}.jpg", f"b/{number}.png", f"{number}.jpg")), hostile.names))
        fields: dict[str, Any] = {"type": draw(st.sampled_from(TYPES)), "linkname": draw(hostile.names)}
        if draw(st.booleans()):
            fields["pax_headers"] = {
                draw(st.sampled_from(PAX)): draw(st.one_of(hostile.names, hostile.numbers.map(str)))
            }
        members.append(member(name, picture(number), **fields))
        if draw(st.booleans()):
            ending = draw(st.sampled_from(("cls", "json")))
            members.append(member(f"a/{number}.{ending}", draw(labels).encode("utf-8", "replace")))
    try:
        content = tar(members, dialect=draw(st.sampled_from(DIALECTS)))
    except (ValueError, OverflowError, UnicodeError):  # no dialect has such a name
        content = valid()
    match draw(st.integers(0, 4)):
        case 0:
            return draw(hostile.damaged(content))
        case 1:
            return sized(content, draw(st.sampled_from((-1, -512, 2**33, 2**62, 2**40 + 512, 10))))
    return content


@cache
def valid() -> bytes:
    return tar(member(f"{'ab'[number % 2]}/{number}.jpg", picture(number)) for number in range(4))


def sized(content: bytes, size: int) -> bytes:
    """The same tar whose first member states another size, in the binary form that holds any number."""
    header = bytearray(content[:512])
    header[124:136] = (size & (2**95 - 1) | 2**95).to_bytes(12, "big")
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + content[512:]


@fuzz(
    KIND,
    inputs=110,
    contents=st.lists(tars(), min_size=1, max_size=2),
    name=st.sampled_from(("0.tar", "\x1b[2J.tar", "0.tar.gz")),
)
def test_shards(guard: Guard, contents: list[bytes], name: str) -> None:
    for number, content in enumerate(contents):
        (guard.folder / f"{number}{name}").write_bytes(content)
    if len(name) > 6:
        os.mkfifo(guard.folder / "pipe.tar")
    images = guard.run(lambda: open_shards(str(guard.folder)))
    if images is None:
        return
    assert guard.run(lambda: images.fingerprint)
    for index in range(len(images)):
        assert ".." not in images.paths[index].split("/")
        guard.run(partial(images.open, index), declared=(BrokenImageError,))


META = {"stamps": ["1 2"], "label_names": ["a"], "skipped": [{}]}
NUMBERS = st.sampled_from((-1, 0, 1, 511, 512, 2**31, 2**62, -(2**62)))


@fuzz(
    KIND,
    inputs=80,
    meta=hostile.json_text(META),
    changed=st.sampled_from(("offsets", "sizes", "labels", "counts", "names", "bytes", "bytes", "meta")),
    numbers=st.lists(NUMBERS, min_size=4, max_size=4),
    flip=st.integers(0, 2000),
)
def test_forged_indexes(guard: Guard, meta: bytes, changed: str, numbers: list[int], flip: int) -> None:
    """An index in the cache that says other things of the same shards."""
    shards = guard.folder / "shards"
    shards.mkdir()
    (shards / "0.tar").write_bytes(valid())
    assert len(open_shards(str(shards))) == 4
    (file,) = (cache_root() / FOLDER).glob("*.npz")
    with np.load(file) as stored:
        arrays = {name: stored[name] for name in stored.files}
    if changed == "bytes":
        data = bytearray(file.read_bytes())
        data[flip % len(data)] ^= 1 << (flip % 8)
        file.write_bytes(data)
    else:
        known = json.loads(arrays["meta"].tobytes())
        if changed == "meta":
            arrays["meta"] = np.frombuffer(meta.replace(b'"1 2"', json.dumps(known["stamps"][0]).encode()), np.uint8)
        elif changed == "names":
            arrays["names"] = np.frombuffer(b"../x.jpg\0/etc/passwd\0" + b"\xff\0" + b"\0", np.uint8)
        elif changed == "counts":
            arrays["counts"] = np.array(numbers[:1])
        else:
            arrays[changed] = np.array(numbers)
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        file.write_bytes(stream.getvalue())
    images = guard.run(lambda: open_shards(str(shards)))
    for index in range(len(images) if images is not None else 0):
        guard.run(partial(images.open, index), declared=(BrokenImageError,))
