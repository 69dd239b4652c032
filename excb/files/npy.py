"""What NumPy may raise, and warn of, when it reads a file that is damaged or that somebody made up."""

import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

# A header is read as a literal of Python, the parts of an .npz are those of a zip archive.
DAMAGE = (
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def unwarned() -> Iterator[None]:
    """Read without NumPy's warning of headers as Python 2 wrote them: a flipped bit can make one."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        yield
