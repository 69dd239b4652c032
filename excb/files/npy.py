"""NumPy's files of any origin: .npy mapped from the disk, and .npz, which unpack within the memory limit."""

import io
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from excb.files.foreign import check_memory, open_file, parsing, refuse_special
from excb.files.stated.entries import HEAD_SIZE, begin_of_data, check_sum, is_stored

_LONGEST_HEADER = 2**16 + 10  # bytes, of version 1

# A header is parsed as a Python literal, and an .npz is a zip archive.
DAMAGE = (
    *(ArithmeticError, EOFError, LookupError, MemoryError, NotImplementedError, OSError, RecursionError, SyntaxError),
    *(TypeError, ValueError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


@contextmanager
def unwarned() -> Iterator[None]:
    """Read without NumPy's warning of headers of Python 2, which a flipped bit can trigger."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        yield


def read_npz(source: Path | bytes, but: Collection[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, or of its bytes, by name, but for some; their checksums hold.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged or something else, holds objects, or would unpack to more than `memory_limit`.
    """
    with parsing(), unwarned(), io.BytesIO(source) if isinstance(source, bytes) else open_file(source) as stream:
        size = stream.seek(0, io.SEEK_END)
        with zipfile.ZipFile(stream) as archive:
            check_memory(sum(entry.file_size for entry in archive.infolist() if entry.compress_type))
            check_memory(sum(entry.file_size for entry in archive.infolist()) - size)  # entries may overlap
            whole = {name: _whole(stream, archive.getinfo(name)) for name in archive.namelist() if name[:-4] not in but}
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as arrays:
            made = {name: whole.get(f"{name}.npy") for name in arrays.files if name not in but}
            return {name: arrays[name] if array is None else array for name, array in made.items()}


def names_in(source: Path) -> set[str]:
    """The names of the arrays in an .npz file. Raises OSError and ValueError as `read_npz`."""
    with parsing(), open_file(source) as stream, zipfile.ZipFile(stream) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist()}


def _whole(stream: IO[bytes], entry: zipfile.ZipInfo) -> np.ndarray | None:
    """The array of an entry that is stored, read at once; None for others, and for what NumPy refuses or warns of."""
    if not entry.filename.endswith(".npy") or not is_stored(entry):
        return None
    stream.seek(entry.header_offset)
    stream.seek(begin_of_data(entry, stream.read(HEAD_SIZE)))
    data = np.empty(entry.file_size, np.uint8)
    check_sum(entry, data.data[: stream.readinto(data.data)])  # type: ignore[attr-defined]
    header = io.BytesIO(data[:_LONGEST_HEADER].tobytes())
    if np.lib.format.read_magic(header) != (1, 0):
        return None
    shape, in_columns, kind = np.lib.format.read_array_header_1_0(header)
    values = data[header.tell() :]
    if kind.hasobject or not kind.itemsize or values.size != math.prod(shape) * kind.itemsize:
        return None
    array = values.view(kind)
    return array.reshape(shape[::-1]).T if in_columns else array.reshape(shape)


def read_npy(stream: IO[bytes]) -> np.ndarray:
    """The array of a .npy file that is open. Raises ValueError and OSError as `read_npz`."""
    with parsing(), unwarned():
        values: np.ndarray = np.load(stream, allow_pickle=False)
    return values


def mapped_npy(file: Path) -> np.ndarray:
    """A .npy file's array in place, copied where it is written. Raises ValueError and OSError as `read_npz`."""
    refuse_special(file)
    with parsing(), unwarned():
        values: np.ndarray = np.load(file, mmap_mode="c", allow_pickle=False)
    return values
