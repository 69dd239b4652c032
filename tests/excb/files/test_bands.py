"""Stored values of arrays and multi-band TIFFs: which axis the channels are, and what is left to Pillow."""

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from excb.files import bands, foreign
from excb.files.bands import BandsError, read_bands, read_header
from excb.images.decoding import open_image
from excb.images.pixels import Pixels
from tests.fuzz import bombs

VALUES = np.random.default_rng(0).integers(0, 4096, (20, 30, 12)).astype(np.uint16)


@pytest.mark.parametrize(
    ("shape", "channels", "result"),
    [
        ((20, 30, 12), 12, (20, 30, 12)),
        ((6, 20, 30), None, (20, 30, 6)),
        ((20, 30, 6), None, (20, 30, 6)),
        ((20, 30), None, (20, 30, 1)),
        ((1, 20, 30), None, (20, 30, 1)),
        ((8, 8, 12), 12, (8, 8, 12)),
        ((12, 8, 8), 12, (8, 8, 12)),
    ],
)
def test_an_array_s_channels_are_its_short_axis(
    tmp_path: Path, shape: tuple[int, ...], channels: int | None, result: tuple[int, ...]
) -> None:
    values = np.arange(np.prod(shape), dtype=">f4").reshape(shape)
    np.save(file := tmp_path / "a.npy", values)
    read = read_bands(file, channels)
    assert read is not None
    assert read.shape == result
    assert read.dtype == np.float32
    # Every row of one channel is a row of the file, whichever axis held the channels.
    moved = shape[0] == result[2] and shape[-1] != result[2]
    expected = values[0] if moved else values if values.ndim == 2 else values[..., 0]
    np.testing.assert_array_equal(read[..., 0], expected)
    header = read_header(file, channels)
    assert header is not None
    assert (header.height, header.width, header.channels) == result


@pytest.mark.parametrize(
    ("shape", "channels"), [((12, 20, 12), None), ((12, 20, 12), 12), ((20, 20, 20), None), ((8, 8, 12), None)]
)
def test_axes_that_do_not_tell_are_refused(tmp_path: Path, shape: tuple[int, ...], channels: int | None) -> None:
    np.save(file := tmp_path / "a.npy", np.zeros(shape, np.uint8))
    with pytest.raises(BandsError, match=r"\[H, W, C\] or \[C, H, W\].*data\.channels=\d+"):
        read_bands(file, channels)


@pytest.mark.parametrize("values", [np.zeros((2, 2, 2, 2)), np.zeros(4), np.array([["a"]]), np.array([[None]])])
def test_other_arrays_are_no_images(tmp_path: Path, values: np.ndarray) -> None:
    np.save(file := tmp_path / "a.npy", values)
    with pytest.raises(BandsError, match="no image"):
        read_bands(file)


def test_another_number_of_channels_is_refused(tmp_path: Path) -> None:
    np.save(file := tmp_path / "a.npy", VALUES)
    with pytest.raises(BandsError, match="no axis of 4 channels"):
        read_bands(file, 4)
    tifffile.imwrite(file := tmp_path / "a.tif", VALUES, photometric="minisblack", planarconfig="contig")
    with pytest.raises(BandsError, match="12 channels, not 4"):
        read_bands(file, 4)


@pytest.mark.parametrize("planes", ["contig", "separate"])
@pytest.mark.parametrize("compression", [None, "zlib", "lzw"])
def test_a_multi_band_tiff(
    tmp_path: Path, planes: str, compression: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    stored = VALUES if planes == "contig" else VALUES.transpose(2, 0, 1)
    kind: dict[str, object] = {"photometric": "minisblack", "planarconfig": planes, "compression": compression}
    tifffile.imwrite(file := tmp_path / "a.tif", stored, **kind)  # type: ignore[arg-type]
    with caplog.at_level(logging.DEBUG):
        for source in (file, str(file), io.BytesIO(file.read_bytes())):
            read = read_bands(source)
            assert read is not None
            np.testing.assert_array_equal(read, VALUES)
    assert read_header(file) == bands.Bands(20, 30, 12, np.dtype(np.uint16))
    assert not caplog.records


def test_pages_are_channels_only_where_their_number_is_known(tmp_path: Path) -> None:
    tifffile.imwrite(file := tmp_path / "a.tif", VALUES.transpose(2, 0, 1), photometric="minisblack")
    assert read_bands(file) is None  # an animation, as ever
    read = read_bands(file, 12)
    assert read is not None
    np.testing.assert_array_equal(read, VALUES)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "CMYK", "P", "I;16", "F", "1"])
def test_what_pillow_reads_is_left_to_it(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (9, 7)).save(file := tmp_path / "a.tif")
    assert read_bands(file) is None
    assert read_header(file) is None


@pytest.mark.parametrize(("channels", "dtype"), [(2, "uint8"), (3, "uint16"), (4, "float32"), (5, "uint8")])
def test_what_pillow_does_not_read_whole_is_read(tmp_path: Path, channels: int, dtype: str) -> None:
    values = VALUES[..., :channels].astype(dtype)
    tifffile.imwrite(file := tmp_path / "a.tif", values, photometric="minisblack", planarconfig="contig")
    read = read_bands(file)
    assert read is not None
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, values)


def test_damaged_files_are_broken_images(tmp_path: Path) -> None:
    np.save(array := tmp_path / "a.npy", VALUES)
    tifffile.imwrite(tiff := tmp_path / "a.tif", VALUES, photometric="minisblack", planarconfig="contig")
    for file in (array, tiff):
        whole = file.read_bytes()
        for end in (7, 60, len(whole) // 2):
            with pytest.raises(BandsError):
                read_bands(io.BytesIO(whole[:end]))
    with pytest.raises(BandsError):
        read_bands(tmp_path / "missing.npy")
    assert read_bands(io.BytesIO(b"")) is None


def test_a_forged_size_takes_no_memory() -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**9)})
    with pytest.raises(BandsError, match="no image"):
        read_bands(header)


def test_opening_one_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tifffile.imwrite(file := tmp_path / "a.tif", VALUES, photometric="minisblack", planarconfig="contig")
    opened = open_image(file, Pixels(12, (0.0,), (4095.0,), "declared"))
    np.testing.assert_array_equal(opened, (VALUES * (255 / 4095)).round())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("codec", ["imagecodecs", None])
def test_no_tiff_takes_more_than_the_limit(codec: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by its sides nor by a strip, also without imagecodecs, whose decoders stop at the stated size."""
    if codec is None:
        monkeypatch.setattr(bands, "find_spec", lambda _name: None)
    form: Any = {"photometric": "minisblack", "planarconfig": "contig", "compression": "zlib"}
    small, large = np.zeros((100, 100, 5), np.uint16), np.zeros((1000, 1000, 5), np.uint16)
    tifffile.imwrite(file := tmp_path / "a.tif", large, **form)
    np.testing.assert_array_equal(read_bands(file), large)
    monkeypatch.setenv(foreign.VARIABLE, "0.001")
    with pytest.raises(BandsError, match="EXCB_MEMORY_LIMIT"):
        read_bands(file)
    assert read_header(file) is not None
    tifffile.imwrite(file, small, **form)
    np.testing.assert_array_equal(read_bands(file), small)
    with pytest.raises(BandsError):
        read_bands(io.BytesIO(bombs.tiff_strip()))
