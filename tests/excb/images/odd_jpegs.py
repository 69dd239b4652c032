"""JPEG files as they are met in the wild: every way of coding that Pillow writes, edited headers, damaged bytes."""

import io
import random
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from PIL import Image

SOF, SOS, APP14, DRI = 0xC0, 0xDA, 0xEE, 0xDD

Edit = Callable[[bytearray, random.Random], None]


@cache
def _scene() -> np.ndarray:
    """Smooth colours with edges and noise, RGB [96, 128, 3]: chroma that upsampling changes, rows that differ."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((128, 96), Image.Resampling.BICUBIC)).astype(np.int16)
    smooth[20:50, 30:60] = (250, 10, 30)
    return (smooth + rng.integers(-25, 26, smooth.shape)).clip(0, 255).astype(np.uint8)


def _exif(draw: random.Random) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = draw.choice((0, 1, 1, 1, 2, 3, 6, 8, 9))
    return exif


def whole(draw: random.Random) -> bytes:
    """A valid file: random sides of 1 to 128, mode, quality, subsampling, scans, restarts and metadata."""
    width, height = (draw.choice((1, 2, 7, 8, 9, 15, 16, 17, 31, 33, draw.randint(1, 96))) for _ in range(2))
    top, left = draw.randint(0, 96 - height), draw.randint(0, 128 - width)
    image = Image.fromarray(_scene()[top : top + height, left : left + width].copy())
    image = image.convert(draw.choice(("RGB", "RGB", "RGB", "RGB", "L", "CMYK")))
    options: dict[str, object] = {"quality": draw.choice((1, 10, 50, 75, 90, 95, 100))}
    if image.mode == "RGB" and draw.random() < 0.15:
        options["keep_rgb"] = True  # RGB is stored, with Adobe's marker
    elif image.mode != "L":
        options["subsampling"] = draw.choice(("4:4:4", "4:2:2", "4:2:0"))
    options["progressive"] = draw.random() < 0.3
    options["optimize"] = draw.random() < 0.3
    if draw.random() < 0.3:
        options[draw.choice(("restart_marker_blocks", "restart_marker_rows"))] = draw.randint(1, 5)
    if draw.random() < 0.3:
        options["exif"] = _exif(draw)
    if draw.random() < 0.2:
        options["comment"] = b"a comment"
    if draw.random() < 0.2:
        options["icc_profile"] = bytes(draw.randbytes(300))
    stream = io.BytesIO()
    image.save(stream, "JPEG", **options)
    return stream.getvalue()


def _segment(data: bytearray, *markers: int) -> int:
    """Where the first segment of one of these markers begins, or -1."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        if data[at + 1] in markers:
            return at
        if data[at + 1] == SOS:
            break
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return -1


def _sof(data: bytearray) -> int:
    return _segment(data, *(kind for kind in range(SOF, SOF + 16) if kind not in (0xC4, 0xC8, 0xCC)))


def _sampling(data: bytearray, draw: random.Random) -> None:
    """Other sampling factors for the luma: 4:4:0, 4:1:1, 4:1:0 ..., whose scan then ends early or late."""
    data[_sof(data) + 11] = draw.choice((0x11, 0x12, 0x14, 0x21, 0x22, 0x24, 0x41, 0x42, 0x44, 0x13, 0x31))


def _process(data: bytearray, draw: random.Random) -> None:
    """Another coding process: extended, progressive, lossless or arithmetic."""
    data[_sof(data) + 1] = draw.choice((0xC0, 0xC1, 0xC2, 0xC3, 0xC9, 0xCA, 0xCB))


def _precision(data: bytearray, draw: random.Random) -> None:
    data[_sof(data) + 4] = draw.choice((2, 7, 12, 16))


def _sides(data: bytearray, draw: random.Random) -> None:
    """A height or width that the scan does not have."""
    at = _sof(data) + draw.choice((5, 7))
    data[at : at + 2] = draw.choice((0, 1, 8, 17, 40, 200)).to_bytes(2, "big")


def _adobe(data: bytearray, draw: random.Random) -> None:
    """Adobe's marker, which decides on the colours: RGB, YCbCr, YCCK or unknown."""
    transform = draw.choice((0, 1, 2, 3))
    data[2:2] = bytes((0xFF, APP14, 0, 14)) + b"Adobe" + bytes((0, 100, 0, 0, 0, 0, transform))


def _names(data: bytearray, draw: random.Random) -> None:
    """Names of components, which decide on the colours where no marker does."""
    frame, scan = _sof(data), _segment(data, SOS)
    names = draw.choice((b"RGB", b"\0\1\2", b"\1\2\3", b"\1\x22\x23"))
    for number in range(min(3, data[frame + 9])):
        data[frame + 10 + 3 * number] = names[number]
        data[scan + 5 + 2 * number] = names[number]


def _bare(data: bytearray, draw: random.Random) -> None:
    """Without JFIF's marker."""
    if (at := _segment(data, 0xE0)) > 0:
        del data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")]


def _restarts(data: bytearray, draw: random.Random) -> None:
    """An interval of restarts that the scan does not keep."""
    at = _segment(data, SOS)
    data[at:at] = bytes((0xFF, DRI, 0, 4, 0, draw.randint(0, 9)))


def _after(data: bytearray, draw: random.Random) -> None:
    """Bytes after the end: zeros, noise or another image."""
    data += draw.choice((bytes(7), draw.randbytes(50), bytes(data), b"\xff\xd9"))


def _fill(data: bytearray, draw: random.Random) -> None:
    """Fill bytes before a marker, which the standard allows."""
    data[2:2] = b"\xff" * draw.randint(1, 3)


def _cut(data: bytearray, draw: random.Random) -> None:
    del data[-draw.choice((1, 2, 3, 10, len(data) // 2)) :]


def _changed(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice((1, 1, 3, 10))):
        data[draw.randrange(2, len(data))] = draw.randrange(256)


def _scan_changed(data: bytearray, draw: random.Random) -> None:
    """Changed only in what is entropy-coded, which the decoder may not notice."""
    start = _segment(data, SOS) + 12
    if start < len(data) - 2:
        data[draw.randrange(start, len(data) - 2)] = draw.randrange(255)


def _gone(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(2, len(data))
    del data[at : at + draw.choice((1, 1, 4, 40))]


def _twice(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(2, len(data))
    data[at:at] = data[at : at + draw.choice((1, 4, 40))]


EDITS: tuple[Edit, ...] = (
    *(_sampling, _process, _precision, _sides, _adobe, _names, _bare, _restarts),
    *(_after, _fill, _cut, _changed, _scan_changed, _gone, _twice),
)


def odd_jpegs(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """So many files, with what was done to each: a third are whole, the rest have one or two edits."""
    draw = random.Random(seed)
    for number in range(count):
        data, edits = bytearray(whole(draw)), draw.sample(EDITS, number % 3)
        for edit in edits:
            if _sof(data) > 0 and _segment(data, SOS) > 0:  # else an edit before it broke the header
                edit(data, draw)
        yield f"{number}: {', '.join(edit.__name__ for edit in edits) or 'whole'}", bytes(data)
