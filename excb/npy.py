"""What NumPy may raise when it reads a file that is damaged or that somebody made up."""

import struct
import tokenize
import zipfile
import zlib

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
