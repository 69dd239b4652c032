"""PNG files by hand, of bits and sizes that Pillow does not write."""

import struct
import zlib


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def header(width: int, height: int, depth: int, colour: int) -> bytes:
    """The first chunk."""
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))


def png(first: bytes, rows: bytes, *extra: bytes) -> bytes:
    """A whole file.

    Args:
        first: `header`.
        rows: compressed, each behind a byte for its filter.
        extra: more chunks.
    """
    return b"\x89PNG\r\n\x1a\n" + b"".join((first, *extra, chunk(b"IDAT", rows), chunk(b"IEND", b"")))
