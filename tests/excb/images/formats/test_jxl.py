"""JPEG XL states its size before it is decoded: by its own encoder, by hand, and where it is too large."""

import io
import struct
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.errors import UserError
from excb.files import foreign
from excb.images.decoding import BrokenImageError, open_image
from excb.images.formats import plugins
from excb.images.formats.jxl import stated_size
from excb.images.formats.plugins import JXL, RAW
from tests.excb.images.formats.test_known import write_dng

SIDES = (1, 8, 9, 256, 257, 513, 3000)
CONTAINER = b"\0\0\0\x0cJXL \r\n\x87\n" + b"\0\0\0\x14ftypjxl \0\0\0\0jxl "


def codestream(*fields: tuple[int, int]) -> bytes:
    """A codestream that begins with numbers of so many bits each."""
    value, place = 0, 0
    for number, bits in fields:
        value, place = value | number << place, place + bits
    return b"\xff\x0a" + value.to_bytes(20, "little")


TALL = codestream((0, 1), (3, 2), (2**30 - 1, 30), (0, 3), (0, 2), (6, 9))  # 7 x 2^30
EIGHTS = codestream((1, 1), (31, 5), (6, 3))  # 5 : 4 of a height of 256


def test_sizes_by_hand() -> None:
    assert stated_size(io.BytesIO(TALL)) == (7, 2**30)
    assert stated_size(io.BytesIO(EIGHTS)) == (320, 256)


@pytest.mark.parametrize(
    "box",
    [
        lambda data: struct.pack(">I4s", 8 + len(data), b"jxlc") + data,
        lambda data: struct.pack(">I4sI", 12 + len(data), b"jxlp", 0) + data,
        lambda data: struct.pack(">I4sQ", 1, b"jxlc", 16 + len(data)) + data,
        lambda data: struct.pack(">I4s", 0, b"jxlc") + data,
    ],
)
def test_sizes_in_boxes(box: Callable[[bytes], bytes]) -> None:
    stream = io.BytesIO(CONTAINER + struct.pack(">I4s3s", 11, b"Exif", b"abc") + box(EIGHTS))
    assert stated_size(stream) == (320, 256)
    assert stream.tell() == 0


@pytest.mark.parametrize(
    "damaged", [b"", b"\xff\x0a", CONTAINER, CONTAINER + struct.pack(">I4s", 3, b"Exif"), EIGHTS[1:], b"\0" * 40]
)
def test_what_states_no_size(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="no header"):
        stated_size(io.BytesIO(damaged))


def test_sizes_are_those_of_the_encoder() -> None:
    if find_spec(JXL.module) is None:
        pytest.skip(f"{JXL.module} is not installed")
    JXL.register()
    for width in SIDES:
        for height in SIDES:
            stream = io.BytesIO()
            Image.new("L", (width, height)).save(stream, "JXL")
            stream.seek(0)
            assert stated_size(stream) == (width, height)


def test_a_large_image_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec(JXL.module) is None:
        pytest.skip(f"{JXL.module} is not installed")
    JXL.register()
    Image.new("L", (1000, 900)).save(tmp_path / "large.jxl", "JXL")
    Image.new("L", (10, 90), 255).save(tmp_path / "small.jxl", "JXL")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    opened, plugin = list[object](), plugins._PLUGINS["JXL"]

    def decoded(*args: object) -> object:
        opened.append(args)
        return plugin(*args)

    monkeypatch.setitem(plugins._PLUGINS, "JXL", decoded)
    with pytest.raises((BrokenImageError, UserError), match="1000 x 900 pixels"):
        open_image(tmp_path / "large.jxl")
    assert not opened
    assert open_image(tmp_path / "small.jxl").size == (10, 90)
    assert len(opened) == 1


def test_a_large_camera_file_is_refused_before_it_is_developed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec(RAW.module) is None:
        pytest.skip("rawpy is not installed")
    tifffile = pytest.importorskip("tifffile")
    write_dng(tifffile, tmp_path / "a.dng", np.full((640, 960), 1000, np.uint16))
    assert open_image(tmp_path / "a.dng").size == (960, 640)
    monkeypatch.setenv(foreign.VARIABLE, "0.001")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", foreign.memory_limit() // 8)
    with pytest.raises(BrokenImageError, match=r"614,400 pixels"):
        open_image(tmp_path / "a.dng")
