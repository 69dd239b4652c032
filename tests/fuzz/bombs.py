"""Small files that state large contents, in every format that is read here, and what reading them takes.

Run: python -m tests.fuzz.bombs; it prints a line for each file. Linux only.
"""

import gzip
import io
import json
import os
import pickle
import re
import shutil
import sqlite3
import struct
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

import excb
from excb.checkpoint.untrusted import read_untrusted
from excb.errors import UserError
from excb.files import bands, csv_text, json_text, npy, tensors, toml
from excb.files.foreign import VARIABLE, read_bytes
from excb.files.parquet import read_parquet
from excb.images import digests
from excb.images.decoding import BrokenImageError, open_image
from excb.images.formats.plugins import JXL, RAW
from excb.images.tars.table import read_table
from excb.sources.label_files import LabelTable
from excb.transfer.coco.reading import open_coco
from excb.transfer.instances.layouts.plain_pickle import read_pickle
from excb.transfer.published.registry import claims
from tests import png_files
from tests.excb.images.formats.test_known import write_dng
from tests.excb.images.shard_files import member, tar
from tests.fuzz import guard
from tests.transfer.tiny_coco import write_coco

LIMIT = 0.01  # GB
TIMES = 10  # this many times the limit may be taken
ONE = struct.pack("<II", 1, 1)  # pixel
STATED = 300_000_000  # bytes that a file claims, or that a reader that follows all it says would take
REFUSED = (UserError, ValueError, OSError, BrokenImageError)
MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."  # torch's files before version 1.6
SIZED = b"\x80\x02cbuiltins\nbytearray\n" + b"J" + struct.pack("<i", STATED) + b"\x85R."


class Bomb(NamedTuple):
    """A file, and the function that reads it.

    Attributes:
        make: its bytes.
        read: called with its path.
        refused: whether it must be; else it is within the limits.
        cheap: whether it is made and read in a moment.
        suffix: of its name.
    """

    make: Callable[[], bytes]
    read: Callable[[Path], Any]
    refused: bool = True
    cheap: bool = False
    suffix: str = ""


# ---------------------------------------------------------------------------------------------------------------------
# Images
# ---------------------------------------------------------------------------------------------------------------------


def png(width: int, height: int, mode: int = 2) -> bytes:
    """A PNG of zeros, compressed, without having them in memory at once."""
    packer, row = zlib.compressobj(1), bytes(1 + width * (3 if mode == 2 else 1))
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return png_files.png(png_files.header(width, height, 8, mode), data)


def png_header(width: int, height: int) -> bytes:
    """A PNG of one pixel that claims other sides."""
    return png(1, 1).replace(png(1, 1)[8:33], png_files.header(width, height, 8, 2))


def png_text() -> bytes:
    """A PNG of one pixel with a text that unpacks to much."""
    whole = png(1, 1)
    return whole[:33] + png_files.chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(STATED), 9)) + whole[33:]


def picture(kind: str, side: int, **options: Any) -> bytes:
    """A black square in one of Pillow's formats."""
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    if kind == "JXL":
        pytest.importorskip(JXL.module)
        JXL.register()
    stream = io.BytesIO()
    Image.new("RGB", (side, side)).save(stream, kind, **options)
    return stream.getvalue()


def tiff(tags: dict[int, int | tuple[int, ...]], data: bytes, *, place: int) -> bytes:
    """A TIFF of 16-bit tags, whose data stand at its end.

    Args:
        tags: their values; a tuple stands outside the table.
        data: of its one part.
        place: the tag that says where the part begins; the one after it, or two later, says how long it is.
    """
    tags = dict(sorted((tags | {place: 0}).items()))
    end = 8 + 2 + 12 * len(tags) + 4
    outside, lines = b"", []
    for tag, value in tags.items():
        if isinstance(value, tuple):
            lines.append(struct.pack("<HHII", tag, 3, len(value), end + len(outside)))
            outside += struct.pack(f"<{len(value)}H", *value)
        else:
            lines.append(struct.pack("<HHII", tag, 4, 1, value))
    at = list(tags).index(place)
    lines[at] = struct.pack("<HHII", place, 4, 1, end + len(outside))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(lines) + bytes(4) + outside + data


def zeros(size: int) -> bytes:
    """So many zeros, deflated, without having them in memory at once."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(2**20)) for _ in range(size >> 20)) + packer.flush()


def tiff_tile() -> bytes:
    """A TIFF of 16 x 16 pixels in one large tile."""
    data = zeros(2**28)
    sides = {256: 16, 257: 16, 322: 2**14, 323: 2**14}
    return tiff({**sides, 258: 8, 259: 8, 262: 1, 277: 1, 325: len(data)}, data, place=324)


def tiff_bands(side: int) -> bytes:
    """A TIFF of five channels of zeros."""
    tifffile = pytest.importorskip("tifffile")
    stream = io.BytesIO()
    form = {"photometric": "minisblack", "planarconfig": "contig", "compression": "zlib"}
    tifffile.imwrite(stream, np.zeros((side, side, 5), np.uint16), **form)
    return stream.getvalue()


def tiff_strip() -> bytes:
    """A TIFF of 10 x 10 pixels and five channels, whose one strip unpacks to much."""
    pytest.importorskip("tifffile")
    data = zeros(STATED)
    several = {258: (16,) * 5, 338: (0,) * 4, 339: (1,) * 5}
    sides = {256: 10, 257: 10, 278: 10}
    return tiff({**sides, **several, 259: 8, 262: 1, 277: 5, 279: len(data), 284: 1}, data, place=273)


def fits() -> bytes:
    """A FITS of 10 x 10 pixels in a gzip that unpacks to much."""
    first = {"SIMPLE": "T", "BITPIX": 8, "NAXIS": 0}
    table = {"BITPIX": 8, "NAXIS": 2, "NAXIS1": 8, "NAXIS2": 1, "PCOUNT": 0, "GCOUNT": 1, "TFIELDS": 1, "ZIMAGE": "T"}
    tiles = {"ZBITPIX": 8, "ZNAXIS": 2, "ZNAXIS1": 10, "ZNAXIS2": 10, "ZTILE1": 10, "ZTILE2": 10}

    def header(values: dict[str, Any], *texts: str) -> bytes:
        cards = [*texts, *(f"{name:<8}= {value:>20}" for name, value in values.items()), "END"]
        return "".join(card.ljust(80) for card in cards).encode().ljust(2880)

    extension = header(table | tiles, "XTENSION= 'BINTABLE'", "ZCMPTYPE= 'GZIP_1  '")
    return header(first) + extension + struct.pack(">II", 1, 0) + gzip.compress(bytes(STATED), 9)


def camera_file(side: int) -> bytes:
    """A camera's mosaic of zeros."""
    pytest.importorskip(RAW.module)
    stream = io.BytesIO()
    write_dng(pytest.importorskip("tifffile"), stream, np.zeros((side, side), np.uint16))
    return stream.getvalue()


# ---------------------------------------------------------------------------------------------------------------------
# Arrays, tables and archives
# ---------------------------------------------------------------------------------------------------------------------


def npz() -> bytes:
    """Zeros, compressed."""
    stream = io.BytesIO()
    np.savez_compressed(stream, vectors=np.zeros(STATED // 4, np.float32))
    return stream.getvalue()


def npy_header() -> bytes:
    """The header of an array that is not there."""
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "<f4", "fortran_order": False, "shape": (STATED,)})
    return array.getvalue()


def npz_of_a_forged_header() -> bytes:
    """The same in an archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("vectors.npy", npy_header())
    return stream.getvalue()


def npz_of_one_part(times: int = 300) -> bytes:
    """An archive whose many entries are the same bytes."""
    stream = io.BytesIO()
    np.save(stream, np.zeros(STATED // times, np.uint8))
    body, name = stream.getvalue(), b"a.npy"
    sizes = struct.pack("<LLLHH", zlib.crc32(body), len(body), len(body), len(name), 0)
    local = struct.pack("<4sBBHHHH", b"PK\x03\x04", 20, 0, 0, 0, 0, 0x21) + sizes + name
    entry = struct.pack("<4s4B4H", b"PK\x01\x02", 20, 0, 20, 0, 0, 0, 0, 0x21) + sizes + bytes(14) + name
    directory, begins = entry * times, len(local) + len(body)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, times, times, len(directory), begins, 0)
    return local + body + directory + end


def parquet(columns: Callable[[Any], dict[str, Any]], **options: Any) -> bytes:
    """A table of columns that are made with pyarrow."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as format_

    stream = io.BytesIO()
    format_.write_table(pyarrow.table(columns(pyarrow)), stream, compression="zstd", **options)
    return stream.getvalue()


def repeated_text(pyarrow: Any) -> dict[str, Any]:
    """300 rows that are the same text of a megabyte."""
    rows = pyarrow.array(np.zeros(STATED // 1_000_000, np.int32))
    return {"path": pyarrow.DictionaryArray.from_arrays(rows, pyarrow.array(["x" * 1_000_000]))}


def shorter_text(pyarrow: Any) -> dict[str, Any]:
    """3,000 rows that are the same text, so short that some rows of it fit the limit."""
    return {"path": pyarrow.array(["x" * 100_000] * (STATED // 100_000))}


def long_texts(pyarrow: Any) -> dict[str, Any]:
    """300 rows of a megabyte that differ from the row before by nothing."""
    return {"path": pyarrow.array(["x" * 1_000_000] * (STATED // 1_000_000))}


def empty_lists(pyarrow: Any) -> dict[str, Any]:
    """Rows without a list, of which each would be of as many numbers."""
    return {"vector": pyarrow.array([None] * 750, pyarrow.list_(pyarrow.float32(), STATED // 750 // 4))}


def many_columns(pyarrow: Any) -> dict[str, Any]:
    """Columns of no rows."""
    return {f"{number:x}": pyarrow.array([], pyarrow.int8()) for number in range(5_000)}


def safetensors() -> bytes:
    """The header of tensors that are not there."""
    header = json.dumps({"a": {"dtype": "F32", "shape": [STATED], "data_offsets": [0, 4 * STATED]}}).encode()
    return struct.pack("<Q", len(header)) + header


def safetensors_of_names() -> bytes:
    """A header of empty tensors."""
    entry = '"{:x}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    header = ("{" + ",".join(entry.format(number) for number in range(200_000)) + "}").encode()
    return struct.pack("<Q", len(header)) + header


def torch_archive() -> bytes:
    """A tensor that repeats one number."""
    import torch

    stream = io.BytesIO()
    torch.save({"a": torch.zeros(1).expand(STATED)}, stream)
    return stream.getvalue()


def archived(packed: bytes) -> bytes:
    """A pickle in an archive like torch's."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in (("data.pkl", packed), ("version", b"3\n"), ("byteorder", b"little")):
            archive.writestr(f"archive/{name}", data)
    return stream.getvalue()


def nested_keys(depth: int = 60) -> bytes:
    """A pickle of a dictionary, whose one key is tuples that hold each other twice: its hash takes for ever."""
    steps = b"".join(b"h" + bytes([level]) + b"\x86q" + bytes([level + 1]) for level in range(depth))
    return b"\x80\x02})q\x00" + steps + b"K\x01s."


def containers(opcode: bytes, count: int = 1_000_000) -> bytes:
    """A pickle of empty containers."""
    return b"\x80\x04](" + opcode * count + b"e."


def forged_tar() -> bytes:
    """A tar whose one member claims to be larger than it is."""
    whole = bytearray(tar([member("a.json", b"{}")]))
    whole[124:136] = f"{2**19:011o}\0".encode()
    whole[148:156] = b" " * 8
    whole[148:156] = f"{sum(whole[:512]):06o}\0 ".encode()
    return bytes(whole)


def endless_view() -> bytes:
    """A database with a view of endless rows in place of its table."""
    row = "SELECT 'a' stamp, 'k' kind, x'00' digest"
    rows = f"WITH RECURSIVE t AS ({row} UNION ALL SELECT * FROM t) SELECT * FROM t"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a"
        with sqlite3.connect(file) as table:
            table.execute(f"CREATE VIEW digests AS {rows}")
        table.close()
        return file.read_bytes()


def recalled(file: Path) -> None:
    """Look for a digest in a database; a table that is refused is deleted."""
    places = pytest.MonkeyPatch()
    places.setattr(digests, "table_file", lambda: file)
    try:
        digests._recall("k", ["a"])
    finally:
        places.undo()
    if not file.exists():
        raise ValueError("deleted")


# ---------------------------------------------------------------------------------------------------------------------
# Annotations
# ---------------------------------------------------------------------------------------------------------------------


def large_masks() -> bytes:
    """Annotations of an image that is said to be large, with a mask in a few characters."""
    side = 46_000
    image = {"id": 1, "file_name": "1.jpg", "width": side, "height": side}
    mask = {"size": [side, side], "counts": [0, side * side]}
    box = {"bbox": [0, 0, side, side], "area": side * side, "iscrowd": 0, "category_id": 1, "image_id": 1}
    marked = [box | {"id": number, "segmentation": mask} for number in range(1, 4)]
    return json.dumps({"images": [image], "annotations": marked, "categories": [{"id": 1, "name": "a"}]}).encode()


def annotated(file: Path) -> None:
    """Read annotations in a small set, with all of its masks."""
    folder = file.parent / "coco"
    shutil.rmtree(folder, ignore_errors=True)
    write_coco(folder, train=2, val=1)
    (folder / "annotations" / "instances_train2017.json").write_bytes(file.read_bytes())
    for images in open_coco(folder, check_all=True):
        for entry in images.images:
            for each in entry.annotations:
                if each.trainable:
                    each.mask_at(np.array((0.5, 0.5)), 40, 50, flip=False)


def parsed(file: Path) -> Any:
    """A JSON file's values."""
    return json_text.parse(read_bytes(file))


def labelled(file: Path) -> LabelTable:
    """A table of labels."""
    return LabelTable.read(file, file.parent)


def table_of_tar(file: Path) -> Any:
    """The table of a shard."""
    with file.open("rb") as stream:
        return read_table(stream, "a.tar")


def vectors(pyarrow: Any) -> dict[str, Any]:
    """A column of zeros."""
    return {"path": pyarrow.array(np.zeros(STATED // 8))}


DIFFERENCES: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"path": "DELTA_BYTE_ARRAY"}}
NEWLINES = b"path,label\n" + b"\n" * 3_000_000
BOMBS: dict[str, Bomb] = {
    "bytes": Bomb(lambda: bytes(20_000_000), read_bytes, cheap=True),
    "JSON, lists": Bomb(lambda: b"[" + b"[]," * 3_000_000 + b"0]", parsed),
    "JSON, tables": Bomb(lambda: b"[" + b"{}," * 2_000_000 + b"0]", parsed),
    "JSON, within": Bomb(lambda: b"[" + b"[]," * 500_000 + b"0]", parsed, refused=False),
    "TOML, keys": Bomb(lambda: "\n".join(f"{n:x}=1" for n in range(150_000)).encode(), toml.read_toml, refused=False),
    "TOML, a dotted key": Bomb(lambda: b".".join([b"a"] * 100_000) + b"=1", toml.read_toml, cheap=True),
    "TOML, claims": Bomb(lambda: b"a=[" + b"[]," * 300_000 + b"]", lambda file: claims([file])),
    "CSV, empty lines": Bomb(lambda: NEWLINES, labelled, cheap=True),
    "CSV, cells": Bomb(lambda: b"path,label\n" + b"," * 9_000_000, labelled, cheap=True),
    "CSV, within": Bomb(lambda: b"path,label\n" + b"a,b\n" * 250_000, labelled, refused=False),
    "list": Bomb(lambda: b"ab\n" * 2_000_000, csv_text.read_listing, cheap=True),
    ".npy, forged": Bomb(npy_header, npy.mapped_npy, cheap=True, suffix=".npy"),
    ".npz": Bomb(npz, npy.read_npz, suffix=".npz"),
    ".npz, forged": Bomb(npz_of_a_forged_header, npy.read_npz, cheap=True, suffix=".npz"),
    ".npz, entries that overlap": Bomb(npz_of_one_part, npy.read_npz, cheap=True, suffix=".npz"),
    "embeddings .npz": Bomb(npz, excb.Embeddings.load, suffix=".npz"),
    "Parquet, zeros": Bomb(lambda: parquet(vectors, use_dictionary=False), read_parquet, cheap=True),
    "Parquet, a dictionary": Bomb(lambda: parquet(repeated_text), read_parquet, cheap=True),
    "Parquet, a dictionary unsaid": Bomb(lambda: parquet(repeated_text, store_schema=False), read_parquet, cheap=True),
    "Parquet, texts read here": Bomb(lambda: parquet(shorter_text), read_parquet, cheap=True),
    "Parquet, texts of differences": Bomb(lambda: parquet(long_texts, **DIFFERENCES), read_parquet, cheap=True),
    "Parquet, lists of nothing": Bomb(lambda: parquet(empty_lists), read_parquet, cheap=True),
    "Parquet, a schema": Bomb(lambda: parquet(many_columns), read_parquet),
    "safetensors, forged": Bomb(safetensors, tensors.read_tensors, cheap=True, suffix=".safetensors"),
    "safetensors, names": Bomb(safetensors_of_names, tensors.read_tensors, suffix=".safetensors"),
    "checkpoint, a repeated number": Bomb(torch_archive, read_untrusted, cheap=True),
    "checkpoint, a bytearray": Bomb(lambda: archived(SIZED), read_untrusted, cheap=True),
    "checkpoint before torch 1.6, a bytearray": Bomb(lambda: MAGIC + SIZED, read_untrusted, cheap=True),
    "checkpoint, nested keys": Bomb(lambda: archived(nested_keys()), read_untrusted, cheap=True),
    "checkpoint, dictionaries": Bomb(lambda: archived(containers(b"}")), read_untrusted, cheap=True),
    "checkpoint .safetensors, forged": Bomb(safetensors, read_untrusted, cheap=True, suffix=".safetensors"),
    "ground truth, references": Bomb(
        lambda: pickle.dumps([np.arange(5_000)] * 50_000, protocol=2), read_pickle, cheap=True
    ),
    "ground truth, sets": Bomb(lambda: containers(b"\x8f"), read_pickle, cheap=True),
    "ground truth, nested keys": Bomb(nested_keys, read_pickle, cheap=True),
    "tar, forged": Bomb(forged_tar, table_of_tar, cheap=True),
    "SQLite, an endless view": Bomb(endless_view, recalled, cheap=True),
    "annotations, a large image": Bomb(large_masks, annotated, cheap=True),
    "PNG": Bomb(lambda: png(5_000, 5_000), open_image),
    "PNG, within": Bomb(lambda: png(1_500, 1_500), open_image, refused=False),
    "PNG, one channel": Bomb(lambda: png(20_000, 5_000, mode=0), open_image),
    "PNG, forged": Bomb(lambda: png_header(100_000, 100_000), open_image, cheap=True),
    "PNG, a text": Bomb(png_text, open_image),
    "WebP": Bomb(lambda: picture("WEBP", 4_000), open_image),
    "WebP, within": Bomb(lambda: picture("WEBP", 1_500), open_image, refused=False),
    "TIFF": Bomb(lambda: picture("TIFF", 5_000, compression="tiff_deflate"), open_image),
    "TIFF, within": Bomb(lambda: picture("TIFF", 1_500, compression="tiff_deflate"), open_image, refused=False),
    "TIFF, a large tile": Bomb(tiff_tile, open_image),
    "TIFF of bands": Bomb(lambda: tiff_bands(3_000), bands.read_bands),
    "TIFF of bands, a large strip": Bomb(tiff_strip, bands.read_bands),
    "JPEG": Bomb(lambda: picture("JPEG", 5_000), open_image),
    "JPEG, within": Bomb(lambda: picture("JPEG", 1_500), open_image, refused=False),
    "JPEG 2000": Bomb(lambda: picture("JPEG2000", 3_000), open_image),
    "JPEG 2000, within": Bomb(lambda: picture("JPEG2000", 1_500), open_image, refused=False),
    "AVIF": Bomb(lambda: picture("AVIF", 3_000, speed=10), open_image),
    "AVIF, within": Bomb(lambda: picture("AVIF", 1_500, speed=10), open_image, refused=False),
    "HEIC": Bomb(lambda: picture("HEIF", 3_000), open_image),
    "HEIC, within": Bomb(lambda: picture("HEIF", 1_500), open_image, refused=False),
    "JPEG XL": Bomb(lambda: picture("JXL", 3_000), open_image),
    "JPEG XL, within": Bomb(lambda: picture("JXL", 1_500), open_image, refused=False),
    "camera file": Bomb(lambda: camera_file(3_000), open_image, suffix=".dng"),
    "camera file, within": Bomb(lambda: camera_file(1_200), open_image, refused=False, suffix=".dng"),
    "FITS, a gzip": Bomb(fits, open_image, refused=False),
    "GIF": Bomb(lambda: picture("GIF", 5_000), open_image),
    "BMP, forged": Bomb(lambda: picture("BMP", 1).replace(ONE, struct.pack("<II", 50_000, 50_000), 1), open_image),
}


def taken(name: str, file: Path) -> tuple[int, str]:
    """Bytes of memory that reading a bomb takes in this process at once, and why it was refused, or "".

    The reader has been called before, so that imports do not count.
    """
    bomb = BOMBS[name]
    beside = file.with_name(f"before{file.suffix}")
    beside.write_bytes(b"no such file")
    for place in (beside, file):
        before, reason = guard._resident(), ""
        guard._reset_peak()
        try:
            bomb.read(place)
        except REFUSED as error:
            reason = str(error)
    return guard._peak() - before, reason


def write(name: str, folder: Path) -> Path:
    """The file of a bomb."""
    file = folder / f"bomb{BOMBS[name].suffix}"
    file.write_bytes(BOMBS[name].make())
    return file


def main() -> None:
    """Write a line for each bomb, made and read in processes of their own."""
    os.environ[VARIABLE] = str(LIMIT)
    for name, bomb in BOMBS.items():
        if re.search(sys.argv[1] if len(sys.argv) > 1 else "", name):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / f"bomb{bomb.suffix}"
                _in_fork(partial(write, name, file.parent))
                _in_fork(partial(_report, name, file, file.stat().st_size))


def _report(name: str, file: Path, size: int) -> None:
    peak, reason = taken(name, file)
    figures = f"{size:>11,} B {peak / 1e6:6,.1f} MB  {peak / size:>9,.1f}  {time.process_time():4.1f} s"
    sys.stdout.write(f"{name:42} {figures}  {'refused' if reason else 'read'}  {reason[:80]}\n")


def _in_fork(work: Callable[[], Any]) -> None:
    sys.stdout.flush()
    if not (process := os.fork()):
        work()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(process, 0)


if __name__ == "__main__":
    main()
