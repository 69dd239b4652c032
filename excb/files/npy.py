"""Errors and warnings of NumPy that a damaged or forged file may cause."""

import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

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
