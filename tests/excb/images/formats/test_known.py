"""Tests of what is an image: extensions, first bytes, and the extras that other formats need."""

import io
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from PIL import Image, ImageFile

from excb.errors import UserError
from excb.images.decoding import BrokenImageError, open_image, stored_and_upright_size
from excb.images.formats import known, plugins
from excb.images.formats.known import HEAD, Kind, extension_of, kind_of_extension, kind_of_head
from excb.images.formats.plugins import HEIC, JXL, RAW, Extra
from excb.images.scanning import scan_folder

PICTURE = Image.fromarray((np.mgrid[:40, :56][0] * 4)[..., None].repeat(3, 2).astype(np.uint8))


@pytest.mark.parametrize(
    ("name", "extension"),
    [("a.JPG", ".jpg"), ("a.tar.gz", ".gz"), ("a", ""), (".jpg", ""), ("a.", "."), ("a.b c", ".b c")],
)
def test_extensions(name: str, extension: str) -> None:
    assert extension_of(name) == extension


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "JPEG2000", "AVIF", "QOI"])
def test_first_bytes_of_images_tell(form: str) -> None:
    stream = io.BytesIO()
    PICTURE.save(stream, form)
    assert kind_of_head(stream.getvalue()[:HEAD]) is Kind.IMAGE


@pytest.mark.parametrize(
    "head", [b"", b"BM is a text", b'{"a": 1}', b"\0\0\0\x18ftypmp42", b"RIFF1234AVI ", b"%PDF-1.7"]
)
def test_first_bytes_of_other_files_tell(head: bytes) -> None:
    assert kind_of_head(head) is Kind.OTHER


def test_a_plugin_that_pillow_has_is_honoured(tmp_path: Path) -> None:
    class Own(ImageFile.ImageFile):
        format = "OWN"

        def _open(self) -> None:
            self._size, self._mode = (1, 1), "L"

    assert kind_of_extension(".own1") is Kind.UNKNOWN
    known.kind_of_extension.cache_clear()
    Image.register_open("OWN", Own, lambda prefix: prefix.startswith(b"own"))
    Image.register_extension("OWN", ".own1")
    try:
        assert kind_of_extension(".own1") is Kind.IMAGE
    finally:
        Image.OPEN.pop("OWN")
        Image.EXTENSION.pop(".own1")
        Image.ID.remove("OWN")
        known.kind_of_extension.cache_clear()


@pytest.mark.parametrize("extension", [".eps", ".pdf", ".wmf", ".mpg", ".h5", ".grib"])
def test_what_needs_another_program_is_no_image(extension: str) -> None:
    assert kind_of_extension(extension) in (Kind.OTHER, Kind.UNKNOWN)


@pytest.mark.usefixtures("no_extra")
def test_a_file_that_needs_an_extra_is_counted_with_the_line_that_installs_it(tmp_path: Path) -> None:
    for name in ("a.heic", "b.NEF", "c.jxl"):
        (tmp_path / name).write_bytes(b"content")
    (tmp_path / "phone").write_bytes(b"\0\0\0\x1cftypheic" + bytes(40))
    with pytest.raises(UserError, match=r"no image below .*1 \.heic \(such as a\.heic: pip install 'excb\[heic\]'\)"):
        scan_folder(tmp_path)
    for name, extra in (("a.heic", "heic"), ("b.NEF", "raw"), ("c.jxl", "jxl")):
        with pytest.raises(BrokenImageError, match=rf"pip install 'excb\[{extra}\]'"):
            open_image(tmp_path / name)


@pytest.mark.parametrize(("extra", "form"), [(HEIC, "HEIF"), (JXL, "JXL")])
def test_an_installed_extra_opens_its_format(tmp_path: Path, extra: Extra, form: str) -> None:
    if find_spec(extra.module) is None:
        pytest.skip(f"{extra.module} is not installed")
    assert extra.register()
    file = tmp_path / f"a{extra.extensions[0]}"
    PICTURE.save(file, form)
    PICTURE.save(tmp_path / "without", form)
    images = scan_folder(tmp_path)
    assert images.paths == [file.name, "without"]
    for index in range(2):
        difference = np.asarray(images.open(index)).astype(int) - np.asarray(PICTURE)
        assert abs(difference).mean() < 3
    assert stored_and_upright_size(file) == ((56, 40), (56, 40))


def test_a_camera_file_is_developed_alike_whatever_its_own_maximum(tmp_path: Path) -> None:
    if find_spec(RAW.module) is None:
        pytest.skip("rawpy is not installed")
    tifffile = pytest.importorskip("tifffile")
    levels = []
    for top in (2000, 4000):  # a grey mosaic of half and of the whole range
        mosaic = np.full((64, 96), 1000, np.uint16)
        mosaic[:16] = top
        file = tmp_path / f"{top}.dng"
        write_dng(tifffile, file, mosaic)
        assert stored_and_upright_size(file)[1] == (96, 64)
        levels.append(np.asarray(open_image(file))[40:56].mean())
    assert levels[0] == pytest.approx(levels[1], abs=1)
    (tmp_path / "broken.dng").write_bytes(b"II*\0 nothing")
    with pytest.raises(BrokenImageError, match="LibRaw"):
        open_image(tmp_path / "broken.dng")


def write_dng(tifffile: object, file: Path | IO[bytes], mosaic: np.ndarray) -> None:
    """A minimal camera file: one mosaic of red, green, green, blue in 12 bits."""
    matrix = [(1, 1) if number % 4 == 0 else (0, 1) for number in range(9)]
    tags = [
        (33421, 3, 2, (2, 2), True),  # CFARepeatPatternDim
        (33422, 1, 4, bytes([0, 1, 1, 2]), True),  # CFAPattern
        (50706, 1, 4, bytes([1, 4, 0, 0]), True),  # DNGVersion
        (50708, 2, 0, "Test camera", True),  # UniqueCameraModel
        (50714, 3, 1, 0, True),  # BlackLevel
        (50717, 4, 1, 4095, True),  # WhiteLevel
        (50721, 10, 9, [part for pair in matrix for part in pair], True),  # ColorMatrix1
        (50728, 5, 3, (1, 1, 1, 1, 1, 1), True),  # AsShotNeutral
        (50778, 3, 1, 21, True),  # CalibrationIlluminant1
    ]
    tifffile.imwrite(file, mosaic, photometric=32803, extratags=tags)  # type: ignore[attr-defined]


def test_the_extras_are_those_of_the_package() -> None:
    assert {extra.name for extra in known.EXTRAS} == {"heic", "raw", "jxl"}
    assert all(extension.startswith(".") for extra in known.EXTRAS for extension in extra.extensions)
    assert plugins.is_raw("x.NEF")
    assert not plugins.is_raw("x.jpg")
