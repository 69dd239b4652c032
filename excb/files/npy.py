"""NumPy's files of any origin: .npy mapped from the disk, and .npz, which unpack within the memory limit."""

import io
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
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files if name not in but}


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
