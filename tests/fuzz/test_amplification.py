"""Small files that state large contents, in every format: no more than ten times the memory limit is ever taken."""

import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import excb
from excb.checkpoint.untrusted import read_untrusted
from excb.errors import UserError
from excb.files import json_text, npy, tensors, toml
from excb.files.foreign import VARIABLE, read_bytes
from excb.files.parquet import read_parquet
from excb.images.decoding import BrokenImageError, open_image
from excb.transfer.instances.layouts.plain_pickle import read_pickle
from excb.transfer.published.registry import claims
from tests.fuzz import guard

LIMIT = 0.01  # GB
ONE = struct.pack("<II", 1, 1)  # pixel
STATED = 300_000_000  # bytes that a file claims, or that a reader that follows all it says would take


def png(width: int, height: int, mode: int = 2) -> bytes:
    """A PNG of zeros, compressed, without having them in memory at once."""
    packer, row = zlib.compressobj(1), bytes(1 + width * (3 if mode == 2 else 1))
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, mode, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def chunk(name: bytes, part: bytes) -> bytes:
    return struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))


def picture(kind: str, side: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (side, side)).save(stream, kind, **({"compression": "tiff_deflate"} if kind == "TIFF" else {}))
    return stream.getvalue()


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, vectors=np.zeros(STATED // 4, np.float32))
    return stream.getvalue()


def npz_of_a_forged_header() -> bytes:
    stream, array = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "<f4", "fortran_order": False, "shape": (STATED,)})
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("vectors.npy", array.getvalue())
    return stream.getvalue()


def parquet() -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as format_

    stream, column = io.BytesIO(), pyarrow.array(np.zeros(STATED // 8))
    format_.write_table(pyarrow.table({"path": column}), stream, use_dictionary=False, compression="zstd")
    return stream.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [STATED], "data_offsets": [0, 4 * STATED]}}).encode()
    return struct.pack("<Q", len(header)) + header


def torch_archive() -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save({"a": torch.zeros(1).expand(STATED)}, stream)
    return stream.getvalue()


def png_header(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return png(1, 1).replace(png(1, 1)[8:33], chunk(b"IHDR", header))


FILES: dict[str, tuple[Callable[[], bytes], Callable[[Path], Any]]] = {
    "bytes": (lambda: bytes(20_000_000), read_bytes),
    "json of lists": (lambda: b"[" + b"[]," * 3_000_000 + b"0]", lambda file: json_text.parse(read_bytes(file))),
    "json of tables": (lambda: b"[" + b"{}," * 2_000_000 + b"0]", lambda file: json_text.parse(read_bytes(file))),
    "json within": (lambda: b"[" + b"[]," * 500_000 + b"0]", lambda file: json_text.parse(read_bytes(file))),
    "toml of keys": (lambda: "\n".join(f"{n:x}=1" for n in range(150_000)).encode(), toml.read_toml),
    "toml, dotted": (lambda: b".".join([b"a"] * 100_000) + b"=1", toml.read_toml),
    "toml of claims": (lambda: b"a=[" + b"[]," * 300_000 + b"]", lambda file: claims([file])),
    "npz": (npz, npy.read_npz),
    "npz, forged": (npz_of_a_forged_header, npy.read_npz),
    "embeddings, npz": (npz, excb.Embeddings.load),
    "parquet": (parquet, read_parquet),
    "safetensors": (safetensors, tensors.read_tensors),
    "checkpoint": (torch_archive, read_untrusted),
    "checkpoint, safetensors": (safetensors, read_untrusted),
    "ground truth": (lambda: pickle.dumps([np.arange(5_000)] * 50_000, protocol=2), read_pickle),
    "PNG": (lambda: png(5_000, 5_000), open_image),
    "PNG within": (lambda: png(1_500, 1_500), open_image),
    "PNG of one channel": (lambda: png(20_000, 5_000, mode=0), open_image),
    "PNG, forged": (lambda: png_header(100_000, 100_000), open_image),
    "WebP": (lambda: picture("WEBP", 4_000), open_image),
    "WebP within": (lambda: picture("WEBP", 1_500), open_image),
    "TIFF": (lambda: picture("TIFF", 5_000), open_image),
    "TIFF within": (lambda: picture("TIFF", 1_500), open_image),
    "JPEG": (lambda: picture("JPEG", 5_000), open_image),
    "JPEG within": (lambda: picture("JPEG", 1_500), open_image),
    "GIF": (lambda: picture("GIF", 5_000), open_image),
    "BMP, forged": (lambda: picture("BMP", 1).replace(ONE, struct.pack("<II", 50_000, 50_000), 1), open_image),
}


CHEAP = ("bytes", "toml, dotted", "npz, forged", "safetensors", "checkpoint", "checkpoint, safetensors", "PNG, forged")


def names() -> list[Any]:
    return [pytest.param(name, marks=[] if name in CHEAP else [pytest.mark.slow]) for name in FILES]


@pytest.mark.skipif(not guard._peak(), reason="needs /proc")
@pytest.mark.parametrize("name", names())
def test_no_file_takes_more_than_ten_times_the_limit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, read = FILES[name]
    file = tmp_path / ("a.npz" if "npz" in name else "a.safetensors" if "safetensors" in name else "a")
    file.write_bytes(make())
    monkeypatch.setenv(VARIABLE, str(LIMIT))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # which the variable sets
    before = guard._resident()
    guard._reset_peak()
    refused = False
    try:
        kept = read(file)
    except (UserError, ValueError, OSError, BrokenImageError):
        refused, kept = True, None
    taken = guard._peak() - before
    assert taken <= 10 * LIMIT * 10**9, f"{taken / 1e6:,.0f} MB"
    assert refused == ("within" not in name and name != "toml of keys"), kept
