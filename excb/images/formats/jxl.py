"""The size that a JPEG XL file states, which its plugin for Pillow knows only once it has decoded all pixels.

ISO/IEC 18181: part 1 has the header of the codestream, part 2 the boxes of the container.
"""

import struct
from collections.abc import Iterator
from typing import IO

_CODESTREAM, _CONTAINER = b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n"
_BITS = (9, 13, 18, 30)  # of a side, by a selector of two
_RATIOS = {1: (1, 1), 2: (12, 10), 3: (4, 3), 4: (3, 2), 5: (16, 9), 6: (5, 4), 7: (2, 1)}  # of width and height
_HEADER = 16  # bytes that hold both sides, whatever their form
_PART = 4  # bytes before the codestream in a box that has a part of it


def stated_size(stream: IO[bytes]) -> tuple[int, int]:
    """Width and height in pixels; the stream is left where it is. Raises ValueError if none is stated."""
    before = stream.tell()
    try:
        head = _codestream(stream)
    finally:
        stream.seek(before)
    if head[:2] != _CODESTREAM or len(head) < _HEADER // 2:
        raise ValueError("no header of JPEG XL")
    bits = _Bits(head[2:])
    in_eights = bits.take(1)
    height = _side(bits, in_eights)
    ratio = bits.take(3)
    if ratio:
        wide, high = _RATIOS[ratio]
        return height * wide // high, height
    return _side(bits, in_eights), height


class _Bits:
    """Numbers of so many bits each, the least significant bit first."""

    def __init__(self, data: bytes) -> None:
        self._left = int.from_bytes(data, "little")

    def take(self, count: int) -> int:
        value = self._left & ((1 << count) - 1)
        self._left >>= count
        return value


def _side(bits: _Bits, in_eights: int) -> int:
    return 8 * (bits.take(5) + 1) if in_eights else bits.take(_BITS[bits.take(2)]) + 1


def _codestream(stream: IO[bytes]) -> bytes:
    """The first bytes of the codestream, which is the file, or in one of its boxes."""
    start = stream.tell()
    head = stream.read(len(_CONTAINER))
    if head != _CONTAINER:
        stream.seek(start)
        return stream.read(_HEADER)
    for kind in _boxes(stream):
        if kind == b"jxlp":
            stream.seek(_PART, 1)
        if kind in (b"jxlc", b"jxlp"):
            return stream.read(_HEADER)
    return b""


def _boxes(stream: IO[bytes]) -> Iterator[bytes]:
    """The kinds of the boxes that follow; the stream is at the contents of each."""
    while len(head := stream.read(8)) == 8:
        size, kind = struct.unpack(">I4s", head)
        contents = size - 8
        if size == 1:
            contents = struct.unpack(">Q", stream.read(8).ljust(8, b"\0"))[0] - 16
        begin = stream.tell()
        yield kind
        if contents < 0:  # 0: the last box; less than its own header: damaged
            return
        stream.seek(begin + contents)
