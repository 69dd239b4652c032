"""Opening images: every mode, upright, smaller; what counts as broken."""

import io
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image, UnidentifiedImageError
from PIL.Image import DecompressionBombError
from PIL.PngImagePlugin import PngImageFile

from excb.images import jpeg
from excb.images.decoding import BrokenImageError, open_image, open_smaller, stored_and_upright_size, to_rgb
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder

drawn = hypothesis.settings(deadline=None, database=None, derandomize=True, max_examples=100)


# ---------------------------------------------------------------------------------------------------------------------
# Opening every mode
# ---------------------------------------------------------------------------------------------------------------------


SIDE = (11, 7)  # height and width


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)


COLOURS, GREYS, ALPHA = noise(*SIDE, 3), noise(*SIDE), noise(*SIDE)


PALETTE = noise(256, 3)


INDICES = np.random.default_rng(5).integers(0, 256, SIDE, dtype=np.uint8)


def palette_image() -> Image.Image:
    image = Image.fromarray(INDICES, "P")
    image.putpalette(PALETTE.tobytes())
    return image


def as_grey(values: np.ndarray) -> np.ndarray:
    """RGB with three equal channels."""
    return np.repeat(values[..., None], 3, axis=2)


def alpha(image: Image.Image) -> Image.Image:
    image.putalpha(Image.fromarray(ALPHA))
    return image


# Name of file, image as saved, options of saving, expected pixels.
MODES: dict[str, tuple[str, Callable[[], Image.Image], dict[str, Any], np.ndarray]] = {
    "1": ("1.png", lambda: Image.fromarray(GREYS > 99), {}, as_grey(np.where(GREYS > 99, 255, 0).astype(np.uint8))),
    "L": ("1.png", lambda: Image.fromarray(GREYS), {}, as_grey(GREYS)),
    "L transparent": ("1.png", lambda: Image.fromarray(GREYS), {"transparency": 7}, as_grey(GREYS)),
    "LA": ("1.png", lambda: alpha(Image.fromarray(GREYS)), {}, as_grey(GREYS)),
    "P": ("1.png", palette_image, {}, PALETTE[INDICES]),
    "P one transparent": ("1.png", palette_image, {"transparency": 3}, PALETTE[INDICES]),
    "P partly transparent": ("1.png", palette_image, {"transparency": bytes(range(256))}, PALETTE[INDICES]),
    "P GIF": ("1.gif", palette_image, {}, PALETTE[INDICES]),
    "RGB": ("1.png", lambda: Image.fromarray(COLOURS), {}, COLOURS),
    "RGB transparent": ("1.png", lambda: Image.fromarray(COLOURS), {"transparency": (1, 2, 3)}, COLOURS),
    "RGB BMP": ("1.bmp", lambda: Image.fromarray(COLOURS), {}, COLOURS),
    "RGB PPM": ("1.ppm", lambda: Image.fromarray(COLOURS), {}, COLOURS),
    "RGB WebP": ("1.webp", lambda: Image.fromarray(COLOURS), {"lossless": True}, COLOURS),
    "RGB JPEG 2000": ("1.jp2", lambda: Image.fromarray(COLOURS), {"irreversible": False}, COLOURS),
    "RGBA": ("1.png", lambda: alpha(Image.fromarray(COLOURS)), {}, COLOURS),
}


@pytest.mark.parametrize(("name", "make", "options", "expected"), MODES.values(), ids=MODES)
def test_every_mode_opens_as_8_bit_rgb(
    tmp_path: Path, name: str, make: Callable[[], Image.Image], options: dict[str, Any], expected: np.ndarray
) -> None:
    make().save(tmp_path / name, **options)
    image = open_image(tmp_path / name)
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), expected)


def test_modes_on_disk_are_those_named() -> None:
    """The table above says what it says: each row really is stored in that mode."""
    stored = {}
    for label, (name, make, options, _) in MODES.items():
        buffer = io.BytesIO()
        make().save(buffer, Image.registered_extensions()[Path(name).suffix], **options)
        stored[label] = Image.open(io.BytesIO(buffer.getvalue()))
    for label, image in stored.items():
        assert image.mode == label.split()[0], label
    transparent = {label for label, image in stored.items() if "transparency" in image.info}
    assert transparent == {label for label in MODES if "transparent" in label}


def test_16_bit_colours_of_a_ppm_keep_their_high_bytes(tmp_path: Path) -> None:
    deep = noise(*SIDE, 3).astype(np.uint16) * 257  # the same colours in 16 bits
    header = f"P6 {SIDE[1]} {SIDE[0]} 65535\n".encode()
    (tmp_path / "1.ppm").write_bytes(header + deep.astype(">u2").tobytes())
    assert np.array_equal(np.asarray(open_image(tmp_path / "1.ppm")), noise(*SIDE, 3))


@pytest.mark.parametrize(("mode", "channels"), [("CMYK", 4), ("YCbCr", 3)])
@pytest.mark.parametrize("name", ["1.jpg", "1.tif"])
def test_other_colour_spaces_open_as_pillow_converts_them(tmp_path: Path, mode: str, channels: int, name: str) -> None:
    smooth = np.asarray(Image.fromarray(noise(3, 3, 3)).resize((32, 32), Image.Resampling.BICUBIC))
    Image.fromarray(smooth).convert(mode).save(tmp_path / name, quality=95)
    pixels = np.asarray(open_image(tmp_path / name)).astype(int)
    assert pixels.shape == (32, 32, 3)
    assert np.abs(pixels - smooth).mean() < 3
    with Image.open(tmp_path / name) as stored:
        assert len(stored.getbands()) == channels


def test_converting_leaves_the_image_alone() -> None:
    image = palette_image()
    image.info["transparency"] = bytes(range(256))
    assert np.array_equal(np.asarray(to_rgb(image)), PALETTE[INDICES])
    assert image.mode == "P"
    assert image.info["transparency"] == bytes(range(256))


def test_the_first_frame_of_an_animation_is_taken(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    for name in ("1.gif", "1.webp", "1.png", "1.tif"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        with Image.open(tmp_path / name) as stored:
            assert getattr(stored, "n_frames", 1) == 3
        pixels = np.asarray(open_image(tmp_path / name)).astype(int)
        assert np.abs(pixels - [255, 0, 0]).max() <= 2, name


@pytest.mark.parametrize("name", ["1.png", "1.gif", "1.bmp", "1.jpg", "1.webp"])
def test_one_pixel_opens(tmp_path: Path, name: str) -> None:
    Image.new("L", (1, 1), 90).save(tmp_path / name)
    image = open_image(tmp_path / name)
    assert image.size == (1, 1)
    assert np.abs(np.asarray(image).astype(int) - 90).max() <= 2


def test_the_content_decides_not_the_ending(tmp_path: Path) -> None:
    with (tmp_path / "1.jpg").open("wb") as file:
        Image.fromarray(COLOURS).save(file, "PNG")
    assert np.array_equal(np.asarray(open_image(str(tmp_path / "1.jpg"))), COLOURS)


# ---------------------------------------------------------------------------------------------------------------------
# Opening upright
# ---------------------------------------------------------------------------------------------------------------------


# What each orientation's stored pixels are of the upright ones (EXIF 2.3, "Orientation"), and so what undoes it.
UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("make", [lambda: Image.fromarray(COLOURS), palette_image])
def test_exif_rotation_is_applied(tmp_path: Path, orientation: int, make: Callable[[], Image.Image]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    make().save(tmp_path / "plain.png")
    make().save(tmp_path / "turned.png", exif=exif)
    plain, turned = (np.asarray(open_image(tmp_path / name)) for name in ("plain.png", "turned.png"))
    assert plain.shape == (*SIDE, 3)
    assert np.array_equal(turned, UPRIGHT[orientation](plain))


@pytest.mark.parametrize("orientation", [0, 9, 6])
def test_jpegs_turn_as_their_exif_says(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(COLOURS).save(tmp_path / "1.jpg", exif=exif)
    with Image.open(tmp_path / "1.jpg") as stored:
        plain = np.asarray(stored.convert("RGB"))
    expected = np.rot90(plain, -1) if orientation == 6 else plain  # 0 and 9 mean nothing
    assert np.array_equal(np.asarray(open_image(tmp_path / "1.jpg")), expected)


# ---------------------------------------------------------------------------------------------------------------------
# Opening smaller
# ---------------------------------------------------------------------------------------------------------------------


def smooth(width: int, height: int) -> Image.Image:
    return Image.fromarray(noise(6, 5, 3)).resize((width, height), Image.Resampling.BICUBIC)


def means(pixels: np.ndarray, divisor: int) -> np.ndarray:
    """The mean of every square of pixels, those at the right and lower edge cut short."""
    starts = [np.arange(0, length, divisor) for length in pixels.shape[:2]]
    counts = [np.diff([*start, length]) for start, length in zip(starts, pixels.shape[:2], strict=True)]
    sums = np.add.reduceat(np.add.reduceat(pixels.astype(float), starts[0], axis=0), starts[1], axis=1)
    return sums / np.outer(*counts)[..., None]


@pytest.mark.parametrize("divisor", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [(160, 120), (131, 97), (40, 57)])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_a_jpeg_decoded_smaller_holds_the_means_of_its_pixels(
    tmp_path: Path, divisor: int, size: tuple[int, int], options: dict[str, Any]
) -> None:
    file, asked = tmp_path / "1.jpg", []
    smooth(*size).save(file, quality=98, **options)
    image, whole = open_smaller(file, lambda size: asked.append(size) or divisor)  # type: ignore[func-returns-value]
    assert asked == [size]
    assert whole == size
    assert image.mode == "RGB"
    assert image.size == (-(-size[0] // divisor), -(-size[1] // divisor))
    steps = np.abs(np.asarray(image) - means(np.asarray(open_image(file)), divisor))
    assert steps[: size[1] // divisor, : size[0] // divisor].mean() < 2  # JPEG's blocks reach beyond the image's edges


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_a_jpeg_decoded_smaller_is_upright(tmp_path: Path, orientation: int) -> None:
    exif, asked = Image.Exif(), []
    exif[0x0112] = orientation
    smooth(96, 64).save(tmp_path / "plain.jpg", quality=98)
    smooth(96, 64).save(tmp_path / "turned.jpg", quality=98, exif=exif)
    plain, _ = open_smaller(tmp_path / "plain.jpg", lambda _size: 4)

    def shrink(size: tuple[int, int]) -> int:
        asked.append(size)
        return 4

    turned, whole = open_smaller(tmp_path / "turned.jpg", shrink)
    assert np.array_equal(np.asarray(turned), UPRIGHT[orientation](np.asarray(plain)))
    assert asked == [whole]
    assert whole == ((64, 96) if orientation >= 5 else (96, 64)) == open_image(tmp_path / "turned.jpg").size


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_modes_of_jpeg_decode_smaller(tmp_path: Path, mode: str) -> None:
    smooth(96, 64).convert(mode).save(tmp_path / "1.jpg", quality=98)
    image, whole = open_smaller(tmp_path / "1.jpg", lambda _size: 2)
    assert (image.mode, image.size, whole) == ("RGB", (48, 32), (96, 64))
    assert np.abs(np.asarray(image) - means(np.asarray(open_image(tmp_path / "1.jpg")), 2)).mean() < 3


@pytest.mark.parametrize("divisor", [2, 4, 8])
def test_a_jpeg_too_small_to_divide_is_divided_less(tmp_path: Path, divisor: int) -> None:
    for size in ((1, 1), (3, 1), (2, 5)):
        Image.new("RGB", size, (200, 100, 50)).save(tmp_path / "1.jpg")
        image, whole = open_smaller(tmp_path / "1.jpg", lambda _size: divisor)
        assert whole == size
        assert image.size in {(-(-size[0] // less), -(-size[1] // less)) for less in (1, 2, 4, 8) if less <= divisor}


@pytest.mark.parametrize("name", ["1.png", "1.bmp", "1.tif", "1.gif"])
def test_other_formats_open_whole(tmp_path: Path, name: str) -> None:
    smooth(32, 24).save(tmp_path / name)
    image, size = open_smaller(tmp_path / name, lambda _size: 8)
    assert image.size == size == (32, 24)
    assert np.array_equal(np.asarray(image), np.asarray(open_image(tmp_path / name)))


@pytest.mark.parametrize("divisor", [1, 2])
def test_a_stream_is_read_as_its_file_and_left_open(tmp_path: Path, divisor: int) -> None:
    smooth(32, 24).save(tmp_path / "1.jpg")
    file = ImageSet(tmp_path, ["1.jpg"]).file(0)
    stream = io.BytesIO(file.read_bytes())
    stream.seek(7)  # wherever it stands
    for _ in range(2):
        image, size = open_smaller(stream, lambda _size: divisor)
        expected, whole = open_smaller(file, lambda _size: divisor)
        assert (image.size, size) == (expected.size, whole) == ((32 // divisor, 24 // divisor), (32, 24))
        assert np.array_equal(np.asarray(image), np.asarray(expected))


# ---------------------------------------------------------------------------------------------------------------------
# Opening broken files
# ---------------------------------------------------------------------------------------------------------------------


def encoded(fmt: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(noise(32, 32, 3)).save(buffer, fmt, **options)
    return buffer.getvalue()


BROKEN: dict[str, bytes] = {
    "truncated.jpg": encoded("JPEG")[:700],
    "truncated.png": encoded("PNG")[:700],
    "truncated.gif": encoded("GIF")[:700],
    "truncated.bmp": encoded("BMP")[:700],
    "truncated.webp": encoded("WEBP")[:500],
    "header.jpg": encoded("JPEG")[:12],
    "text.jpg": b"<html>404: no such image</html>\n",
    "zero.png": b"",
    "nulls.jpg": b"\0" * 4096,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_file_is_broken(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BROKEN[name])
    for opened in (open_image, lambda file: open_smaller(file, lambda _size: 2)):
        with pytest.raises(BrokenImageError, match=r"^\w+: .") as error:
            opened(tmp_path / name)
        assert "\n" not in str(error.value)


def test_missing_files_and_folders_are_broken(tmp_path: Path) -> None:
    (tmp_path / "dangling.jpg").symlink_to("nowhere")
    for file in (tmp_path / "none.jpg", tmp_path / "dangling.jpg", tmp_path, "null\0byte.jpg"):
        with pytest.raises(BrokenImageError):
            open_image(file)


def test_a_decompression_bomb_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (30, 30)).save(tmp_path / "1.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 449)
    with pytest.raises(BrokenImageError, match="DecompressionBombError"):
        open_image(tmp_path / "1.png")


def test_a_large_image_opens_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (30, 30), 1).save(tmp_path / "1.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 450)
    with pytest.warns(Image.DecompressionBombWarning), Image.open(tmp_path / "1.png"):
        pass  # so this test can fail
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        image = open_image(tmp_path / "1.png")
    assert caught == []
    assert np.asarray(image).min() == 255


def test_odd_metadata_are_no_reason_to_warn(tmp_path: Path) -> None:
    # One entry, a description (0x010E) of 65,535 bytes at offset 64, which is beyond the end.
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x0e\x01\x02\0\xff\xff\0\0\x40\0\0\0\0\0\0\0"
    (tmp_path / "1.jpg").write_bytes(encoded("JPEG", exif=exif))
    with pytest.warns(UserWarning, match="Corrupt EXIF|larger than file"), Image.open(tmp_path / "1.jpg") as stored:
        stored.getexif()  # so this test can fail
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        image = open_image(tmp_path / "1.jpg")
    assert caught == []
    assert image.size == (32, 32)


INTACT = [
    encoded("JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"),
    encoded("PNG"),
    encoded("GIF"),
    encoded("BMP"),
    encoded("TIFF", compression="tiff_lzw"),
    encoded("PPM"),
    encoded("WEBP"),
    *([encoded("AVIF")] if ".avif" in Image.registered_extensions() else []),
]


@drawn
@hypothesis.given(
    data=st.sampled_from(INTACT),
    length=st.one_of(st.none(), st.integers(0, 400)),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
)
def test_damage_of_any_kind_gives_pixels_or_a_broken_image(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, length: int | None, changes: list[tuple[int, int]]
) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged"
    damaged = bytearray(data[:length])
    for place, value in changes:
        if place < len(damaged):
            damaged[place] = value
    file.write_bytes(damaged)
    try:
        image = open_image(file)
    except BrokenImageError:
        return
    assert image.mode == "RGB"
    assert min(image.size) >= 1


@pytest.mark.parametrize(
    "error",
    [
        DecompressionBombError("too large"),
        EOFError("no more frames"),
        IndexError("index out of range"),
        KeyError(4),
        MemoryError(),
        NotImplementedError("unknown pixel format"),
        OSError("image file is truncated"),
        OverflowError("too large to convert"),
        RuntimeError("Failed to decode frame 0"),
        SyntaxError("broken PNG file"),
        TypeError("bad operand type"),
        UnidentifiedImageError("cannot identify image file"),
        ValueError("bad value"),
        ZeroDivisionError("division by zero"),
        struct.error("unpack requires a buffer of 4 bytes"),
        zlib.error("invalid block type"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_decoder_raises_the_file_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    Image.fromarray(COLOURS).save(tmp_path / "1.png")
    monkeypatch.setattr(PngImageFile, "load_end", fail)
    with pytest.raises(BrokenImageError, match=type(error).__name__):
        open_image(tmp_path / "1.png")


def test_an_interrupt_is_no_broken_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    Image.fromarray(COLOURS).save(tmp_path / "1.png")
    monkeypatch.setattr(PngImageFile, "load_end", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_image(tmp_path / "1.png")


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be opened
# ---------------------------------------------------------------------------------------------------------------------


def test_nobody_waits_for_a_pipe_or_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    images = scan_folder(tmp_path)
    assert images.paths == ["pipe.jpg", "zero.jpg"]
    for file in map(images.file, range(2)):
        with pytest.raises(BrokenImageError, match="it is not a regular file"):
            open_image(file)
        with pytest.raises(BrokenImageError, match="it is not a regular file"):
            stored_and_upright_size(file)
        assert jpeg.decode_jpeg(file) is None


def test_a_name_that_no_system_takes_is_a_broken_image(tmp_path: Path) -> None:
    images = ImageSet(tmp_path, ["a\0.jpg"])
    assert images.stamp(0) == "none"
    with pytest.raises(BrokenImageError):
        images.open(0)
