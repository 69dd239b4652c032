"""Stored values of every depth become channels by one range, and by nothing else."""

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from excb.errors import UserError
from excb.images.decoding import PixelsError, open_image, open_smaller, to_rgb
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.networks.preprocessing import Preprocessing
from tests import png_files
from tests.excb.images.deep_files import ramp, write


# Name of the file, least and greatest value, type, and the range as it is declared.
def as_grey(values: np.ndarray) -> np.ndarray:
    return np.repeat(values[..., None], 3, axis=2)


DEPTHS = {
    "12 bits in 16, PNG": ("1.png", 0, 4095, np.uint16, "0..4095"),
    "16 bits, PNG": ("1.png", 0, 65535, np.uint16, "0..65535"),
    "12 bits in 16, TIFF": ("1.tif", 0, 4095, np.uint16, "0..4095"),
    "8 bits in 16": ("1.png", 0, 255, np.uint16, "0..255"),
    "8 bits in 32": ("1.tif", 0, 255, np.int32, "0..255"),
    "32 bits": ("1.tif", 0, 4_000_000_000, np.uint32, "0..4000000000"),
    "signed": ("1.tif", -1024, 3071, np.int16, "-1024..3071"),
    "floats to 1": ("1.tif", 0, 1, np.float32, "0..1"),
    "floats to 255": ("1.tif", 0, 255, np.float32, "0..255"),
    "floats to 10,000": ("1.tif", 0, 10_000, np.float32, "0..10000"),
    "doubles": ("1.tif", 0, 1, np.float64, "0..1"),
    "half floats": ("1.npy", 0, 1, np.float16, "0..1"),
    "array": ("1.npy", 0, 4095, np.uint16, "0..4095"),
}


@pytest.mark.parametrize("depth", DEPTHS.values(), ids=DEPTHS)
def test_every_depth_is_mapped_from_its_range(tmp_path: Path, depth: tuple[str, float, float, type, str]) -> None:
    name, low, high, kind, text = depth
    values = ramp(low, high, kind)
    file = write(tmp_path / name, values)
    image = open_image(file, Pixels.declared(text))
    assert image.mode == "RGB"
    expected = np.rint((values.astype(np.float64) - low) / (high - low) * 255)
    assert np.array_equal(np.asarray(image), as_grey(expected))
    assert len(np.unique(np.asarray(image))) == 256  # of 256 values in the file: none is lost
    with pytest.raises(PixelsError, match=r"values have no range: declare the one of the whole set"):
        open_image(file)


@pytest.mark.parametrize("name", ["1.png", "1.tif"])
def test_16_bit_colours_keep_all_their_bits(tmp_path: Path, name: str) -> None:
    values = np.random.default_rng(0).integers(0, 4096, (11, 7, 3)).astype(np.uint16)
    if name.endswith("png"):
        (tmp_path / name).write_bytes(png(values))
    else:
        write(tmp_path / name, values, photometric="rgb")
    opened = np.asarray(open_image(tmp_path / name, Pixels.declared("0..4095")))
    assert np.array_equal(opened, np.rint(values / 4095 * 255))
    with pytest.raises(PixelsError):
        open_image(tmp_path / name)


def png(values: np.ndarray) -> bytes:
    """A PNG of 16-bit colours: Pillow writes none."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png_files.png(png_files.header(values.shape[1], values.shape[0], 16, 2), zlib.compress(rows))


def test_nothing_depends_on_an_images_own_maximum() -> None:
    declared = Pixels.declared("0..4095")
    for top in (255, 257, 4000):
        image = np.asarray(to_rgb(Image.fromarray(ramp(0, top, np.uint16)), declared))
        assert image.max() == round(top / 4095 * 255)


def test_values_outside_are_clipped_and_those_that_are_no_numbers_black(tmp_path: Path) -> None:
    values = np.array([[np.nan, -np.inf, -5, 0, 60, 100, 200, np.inf]], np.float32)
    opened = np.asarray(open_image(write(tmp_path / "1.tif", values), Pixels.declared("0..100")))
    assert opened[0, :, 0].tolist() == [0, 0, 0, 0, 153, 255, 255, 255]


def test_8_bit_images_are_channels_whatever_the_range(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 256, (9, 8, 3), dtype=np.uint8)
    file = write(tmp_path / "1.png", values)
    assert np.array_equal(np.asarray(open_image(file, Pixels.declared("0..4095"))), values)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_deep_images_are_turned_upright(tmp_path: Path, orientation: int) -> None:
    values = np.random.default_rng(2).integers(0, 256, (11, 7))
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(values.astype(np.uint8)).save(tmp_path / "shallow.png", exif=exif)
    Image.fromarray((values * 257).astype(np.uint16)).save(tmp_path / "deep.png", exif=exif)
    deep = open_image(tmp_path / "deep.png", Pixels.declared("0..65535"))
    assert np.array_equal(np.asarray(deep), np.asarray(open_image(tmp_path / "shallow.png")))


def test_each_channel_may_have_a_range_of_its_own() -> None:
    pixels = Pixels.declared("0..100,-10..10", channels=2)
    mapped = pixels.apply(np.array([[[60, -2], [100, 10]]], np.int16))
    assert mapped.tolist() == [[[153, 102], [255, 255]]]
    assert pixels.range == "0..100,-10..10"


@pytest.mark.parametrize("text", ["4095", "0-4095", "5..5", "9..1", "0..nan", "0..1,0..1", "", "a..b"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"LOW\.\.HIGH"):
        Pixels.declared(text)


def test_a_record_survives_json() -> None:
    for pixels in (EIGHT_BIT, Pixels.declared("-1..2.5"), Pixels(2, (0.0, 1.0), (3.0, 4.0), "measured")):
        assert Pixels.from_dict(pixels.to_dict()) == pixels


def test_preprocessing_names_its_pixels_only_where_they_are_unusual() -> None:
    assert "pixels" not in Preprocessing().to_dict()
    deep = Preprocessing().with_range("0..4095")
    assert Preprocessing.from_dict(deep.to_dict()) == deep


def test_pictures_in_memory_follow_the_networks_range(tmp_path: Path) -> None:
    values = ramp(0, 4095, np.uint16, 40)
    file, usual = write(tmp_path / "1.png", values), Preprocessing(32, 32)
    prepared = usual.with_range("0..4095")
    assert torch.equal(prepared(file), prepared(Image.fromarray(values)))
    assert torch.equal(prepared(file), prepared(values))
    for picture in (file, Image.fromarray(values), values):
        with pytest.raises(UserError, match=r"transform\.with_range\('0\.\.4095'\)"):
            usual(picture)


def test_a_deep_image_takes_little_more_memory_than_its_values() -> None:
    import tracemalloc

    image = Image.fromarray(np.arange(4_000_000, dtype=np.uint16).reshape(2000, 2000))
    tracemalloc.start()
    try:
        to_rgb(image, Pixels.declared("0..65535"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64_000_000  # doubles of all values, thrice, were 100 MB


def test_sizes_of_deep_images_are_known(tmp_path: Path) -> None:
    file = write(tmp_path / "1.npy", ramp(0, 9, np.uint16))
    _, size = open_smaller(file, lambda _size: 8, Pixels.declared("0..9"))
    assert size == (16, 16)
