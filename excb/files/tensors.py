"""Safetensors of any origin: a header of a bounded size, read by the library, with errors as ValueErrors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.files import json_text
from excb.files.foreign import open_file, parsing

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

MOST_TENSORS = 100_000  # of a file; the library takes a minute for a million of no values
LARGEST_HEADER = 10**8  # bytes, as in the library


def header_of(file: Path) -> tuple[dict[str, Any], int]:
    """A file's header, and where its tensors begin.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged or something else, or names more than `MOST_TENSORS`.
    """
    with open_file(file) as stream:
        return _header(stream.read(8), stream.read)


def _header(start: bytes, read: Any) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > LARGEST_HEADER:
        raise ValueError("no header of safetensors")
    text = read(length)
    if text.count(b'"data_offsets"') > MOST_TENSORS:
        raise ValueError(f"more than {MOST_TENSORS:,} tensors")
    header = json_text.parse(text, bounded=False)
    if not isinstance(header, dict):
        raise ValueError("no header of safetensors")
    return header, 8 + length


def read_tensors(file: Path) -> "dict[str, Tensor]":
    """The tensors of a file by name, on the CPU, in memory that is mapped from it. Raises as `header_of`."""
    from safetensors.torch import load_file

    header_of(file)
    with parsing():
        return load_file(file)


def unpack_arrays(packed: bytes) -> "tuple[dict[str, np.ndarray], dict[str, Any]]":
    """The arrays in the bytes of a file, and its metadata. Raises ValueError as `header_of`."""
    from safetensors.numpy import load

    header, _ = _header(packed[:8], lambda length: packed[8 : 8 + length])
    with parsing():
        return load(packed), header.get("__metadata__") or {}


@contextmanager
def opened(file: Path) -> Iterator[tuple[Any, int]]:
    """The library's `safe_open` of a file for NumPy, and where its tensors begin. Raises as `header_of`."""
    from safetensors import safe_open

    _, start = header_of(file)
    with parsing(), safe_open(file, framework="np") as file_of_tensors:
        yield file_of_tensors, start
