"""The door for files of others: special files, limits of memory, and one error for all parsers."""

import lzma
import os
import socket
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from excb.errors import NotTextError, RefusedFileError, UserError, as_user_error
from excb.files import foreign, json_text, npy, tensors, toml
from excb.files.foreign import memory_limit, open_file, parsing, read_bytes, read_text, refuse_special


@pytest.fixture(params=["pipe", "device", "socket", "link to a device"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file that is none: reading it would wait for ever, or never end."""
    path = tmp_path / "a"
    match request.param:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
                yield path
                return
        case _:
            path.symlink_to("/dev/zero")
    yield path


READERS: list[Callable[[Path], object]] = [
    open_file,
    read_bytes,
    read_text,
    refuse_special,
    npy.read_npz,
    npy.mapped_npy,
    tensors.header_of,
    tensors.read_tensors,
    toml.read_toml,
]


@pytest.mark.parametrize("read", READERS)
def test_special_files_are_refused_at_once(special: Path, read: Callable[[Path], object]) -> None:
    # The system itself does not open a socket.
    with pytest.raises(OSError, match=r"not a regular file|No such device or address"):
        read(special)


def test_a_refusal_is_one_line_for_the_user(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.toml")
    with pytest.raises(RefusedFileError) as caught:
        read_text(tmp_path / "a.toml")
    assert str(as_user_error(caught.value)) == f"{tmp_path}/a.toml: it is not a regular file"
    assert str(caught.value) == "it is not a regular file"


def test_files_are_read_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n\xff")
    assert read_bytes(file) == file.read_bytes()
    with open_file(file) as stream:
        assert stream.read() == file.read_bytes()
    assert read_text(file, "utf-8-sig", errors="replace") == file.read_text("utf-8-sig", errors="replace")
    with pytest.raises(NotTextError, match=r"it is no text in UTF-8 \(byte 11\): save it as UTF-8"):
        read_text(file)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none")


def test_files_larger_than_the_limit_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    file.touch()
    os.truncate(file, 2 * 10**9)  # takes no room
    with pytest.raises(RefusedFileError, match=r"2,000\.0 MB, more than 1,000\.0 MB: .* set EXCB_MEMORY_LIMIT"):
        read_bytes(file)
    with pytest.raises(RefusedFileError, match=r"more than 5\.0 MB$"):
        read_bytes(file, 5_000_000)
    os.truncate(file, 100_001)
    monkeypatch.setenv(foreign.VARIABLE, "0.0001")
    with pytest.raises(RefusedFileError):
        read_bytes(file)
    monkeypatch.setenv(foreign.VARIABLE, "0.00011")
    assert len(read_bytes(file)) == 100_001


@pytest.mark.parametrize("text", ["many", "-1", "0", "nan", "inf", "1GB"])
def test_the_limit_is_a_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(foreign.VARIABLE, text)
    with pytest.raises(UserError, match=f"EXCB_MEMORY_LIMIT is '{text}'"):
        memory_limit()


@pytest.mark.parametrize(
    "error", [zlib.error("a"), lzma.LZMAError("a"), RecursionError("a"), MemoryError("a"), AssertionError("a")]
)
def test_any_error_of_a_parser_is_a_value_error(error: Exception) -> None:
    with pytest.raises(ValueError, match=f"{type(error).__name__}: a"), parsing():
        raise error


@pytest.mark.parametrize("error", [OSError("a"), UserError("a"), ValueError("a"), KeyboardInterrupt()])
def test_other_errors_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, parsing():
        raise error
    assert caught.value is error


HOSTILE_TOML = {
    "nested": "x=" + "[" * 100_000,
    "tables": "x=" + "{a=" * 100_000,
    "digits": "x=" + "9" * 9_000,
    "dotted": ".".join(["a"] * 100_000) + "=1",
    "dotted, quoted": " . ".join(["'a'", '"b"'] * 50_000) + "=1",
    "dotted table": "[" + ".".join(["a"] * 100_000) + "]",
    "dotted inline": "x = {" + ".".join(["a"] * 100_000) + " = 1}",
    "a long word": "a" * 1_000_000,
    "quotes": '"' * 1_000_000,
}


@pytest.mark.parametrize("name", HOSTILE_TOML)
def test_hostile_toml_is_refused_in_time(name: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError):  # noqa: PT011 - of many kinds
        toml.parse_toml(HOSTILE_TOML[name])
    assert time.process_time() - start < 2


def test_ordinary_toml_is_read() -> None:
    text = f"[a.b.c]\nx = [{', '.join(['1.5'] * 100)}]\n'k.k' = '''{'word. ' * 60}'''\n"
    assert toml.parse_toml(text) == {"a": {"b": {"c": {"x": [1.5] * 100, "k.k": "word. " * 60}}}}


def test_json_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(foreign.VARIABLE, "0.005")
    for values in ("[],", "{},", '{"a":0},', "0,"):
        with pytest.raises(ValueError, match="GB of memory"):
            json_text.parse("[" + values * 1_500_000 + "0]")
    assert len(json_text.parse('["' + "a" * 2_000_000 + '"]')[0]) == 2_000_000


def test_npz_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(foreign.VARIABLE, "0.001")
    zeros = np.zeros(1_000_000, np.uint8)
    np.savez_compressed(tmp_path / "small.npz", a=zeros[:900_000])
    np.savez_compressed(tmp_path / "large.npz", a=zeros)
    np.savez(tmp_path / "stored.npz", a=zeros)
    assert npy.read_npz(tmp_path / "small.npz")["a"].tolist() == [0] * 900_000
    assert len(npy.read_npz((tmp_path / "stored.npz").read_bytes())["a"]) == 1_000_000
    with pytest.raises(ValueError, match="EXCB_MEMORY_LIMIT"):
        npy.read_npz(tmp_path / "large.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_damaged_npz_is_a_value_error(method: int, tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a.npy", bytes(range(256)) * 100)
    whole = bytearray(file.read_bytes())
    for place in range(35, 60):
        whole[place] ^= 0xFF
    file.write_bytes(whole)
    with pytest.raises((ValueError, OSError)):
        npy.read_npz(file)


def test_a_header_of_a_million_tensors_is_refused_in_time(tmp_path: Path) -> None:
    entries = ",".join(f'"{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for n in range(200_000))
    header = f"{{{entries}}}".encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    start = time.process_time()
    with pytest.raises(ValueError, match="more than 100,000 tensors"):
        tensors.read_tensors(tmp_path / "a.safetensors")
    assert time.process_time() - start < 1
