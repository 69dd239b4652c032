"""Entries of zip archives: they stand where `zipfile` finds them, and another byte is another checksum."""

import io
import struct
import zipfile
import zlib
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest

from excb.files.stated import entries

TEXTS = {"a": b"", "folder/b": b"0123456789" * 1000, "c" * 200: bytes(range(256))}


def write(file: Path) -> bytes:
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in TEXTS.items():
            with archive.open(name, "w", force_zip64=True) as stream:  # which lengthens the head
                stream.write(text)
    return file.read_bytes()


def check(file: Path) -> list[bytes]:
    with (
        zipfile.ZipFile(file) as archive,
        file.open("rb") as stream,
        mmap(stream.fileno(), 0, access=ACCESS_READ) as mapped,
    ):
        places = [(entries.check_stored(entry, mapped), entry.file_size) for entry in archive.infolist()]
        return [mapped[begin : begin + size] for begin, size in places]


def test_entries_stand_where_zipfile_finds_them(tmp_path: Path) -> None:
    write(tmp_path / "a.zip")
    assert check(tmp_path / "a.zip") == list(TEXTS.values())


def test_any_other_byte_of_an_entry_is_found(tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    whole = write(file)
    begin = whole.index(b"0123456789")
    for place in range(begin, begin + 10_000, 997):
        file.write_bytes(whole[:place] + b"x" + whole[place + 1 :])
        with pytest.raises(zipfile.BadZipFile, match="checksum of folder/b"):
            check(file)


def test_a_head_that_is_none_is_found(tmp_path: Path) -> None:
    entry = zipfile.ZipInfo("a")
    entry.header_offset = 10
    for head in (b"", b"PK\x03\x04", b"PK\x01\x02" + bytes(26)):
        with pytest.raises(zipfile.BadZipFile, match="no header of a"):
            entries.begin_of_data(entry, head)
    assert entries.begin_of_data(entry, b"PK\x03\x04" + bytes(22) + struct.pack("<HH", 3, 4)) == 47


def test_fewer_bytes_are_found() -> None:
    entry = zipfile.ZipInfo("a")
    entry.file_size, entry.CRC = 2, zlib.crc32(b"1")
    with pytest.raises(zipfile.BadZipFile, match="checksum of a"):
        entries.check_sum(entry, memoryview(b"1"))


@pytest.mark.parametrize(("way", "stored"), [(zipfile.ZIP_STORED, True), (zipfile.ZIP_DEFLATED, False)])
def test_what_is_packed_is_not_stored(way: int, stored: bool) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", way) as archive:
        archive.writestr("a", b"text" * 100)
    with zipfile.ZipFile(stream) as archive:
        (entry,) = archive.infolist()
    assert entries.is_stored(entry) == stored
    entry.flag_bits |= 1  # encrypted
    assert not entries.is_stored(entry)


@pytest.mark.parametrize("size", [1, 7, 8, 1000, 2**20 + 3])
def test_checksums_are_those_of_zip(size: int) -> None:
    text = bytearray(number * 37 % 251 for number in range(size))
    entry = zipfile.ZipInfo("a")
    entry.file_size, entry.CRC = size, zlib.crc32(text)
    entries.check_sum(entry, memoryview(text))
    text[size // 2] ^= 1
    with pytest.raises(zipfile.BadZipFile, match="checksum of a"):
        entries.check_sum(entry, memoryview(text))
