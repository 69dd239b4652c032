"""Entries of zip archives that are stored as they are: where their bytes stand in the file, and their checksums."""

import struct
import zipfile
from mmap import mmap

try:  # which takes a fifth of the time of Python's own
    from isal.isal_zlib import crc32
except ImportError:  # on machines for which it is not built
    from zlib import crc32

_HEAD = struct.Struct("<4s22xHH")  # what begins an entry, the lengths of its name and of more
HEAD_SIZE = _HEAD.size


def is_stored(entry: zipfile.ZipInfo) -> bool:
    """Whether the bytes of an entry stand in the file as they are."""
    return not entry.compress_type and not entry.flag_bits & 1 and entry.compress_size == entry.file_size


def begin_of_data(entry: zipfile.ZipInfo, head: bytes) -> int:
    """Where the bytes of an entry begin, by the `HEAD_SIZE` bytes at its `header_offset`. Raises BadZipFile."""
    if len(head) < HEAD_SIZE:
        raise zipfile.BadZipFile(f"no header of {entry.filename}")
    signature, name, extra = _HEAD.unpack(head)
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no header of {entry.filename}")
    return int(entry.header_offset + HEAD_SIZE + name + extra)


def check_stored(entry: zipfile.ZipInfo, mapped: mmap) -> int:
    """Where the bytes of an entry of a mapped file begin. Raises BadZipFile if their checksum is another."""
    begin = begin_of_data(entry, mapped[entry.header_offset : entry.header_offset + HEAD_SIZE])
    with memoryview(mapped) as whole, whole[begin : begin + entry.file_size] as data:
        check_sum(entry, data)
    return begin


def check_sum(entry: zipfile.ZipInfo, data: memoryview) -> None:
    """Raise BadZipFile if the checksum of the bytes of an entry is another, or they are fewer."""
    if len(data) != entry.file_size or crc32(data) != entry.CRC:
        raise zipfile.BadZipFile(f"checksum of {entry.filename}")
