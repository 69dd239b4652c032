"""Images of anybody: mutated files of every format and mode, bombs, headers that claim what is not there."""

import io
import struct
import zlib
from functools import cache, partial

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image

from excb.images import jpeg
from excb.images.decoding import BrokenImageError, open_image, open_smaller, stored_and_upright_size
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.networks.features import Inputs
from excb.networks.preprocessing import Preprocessing
from excb.pretrain.data.loader import TrainingViews
from excb.pretrain.data.sampler import SampleRef
from tests import png_files
from tests.fuzz import hostile
from tests.fuzz.guard import Guard
from tests.fuzz.lane import fuzz
from tests.run_files import tiny_recipe

KIND = "images"
BROKEN = (BrokenImageError,)
SLOT = SampleRef(epoch=0, position=0, sample=0)


def coded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010E] = "a description"
    return exif


@cache
def files() -> dict[str, bytes]:
    """One small valid file of every format and mode that differ in how they are decoded."""
    random = np.random.default_rng(0)
    rgb = Image.fromarray(random.integers(0, 256, (24, 33, 3), dtype=np.uint8))
    grey, palette = rgb.convert("L"), rgb.quantize(16)
    deep = Image.fromarray(random.integers(0, 65536, (9, 7), dtype=np.uint16))
    clear = rgb.convert("RGBA")
    clear.putalpha(grey)
    palette.info["transparency"] = 3
    frames = {"save_all": True, "append_images": [grey.convert("RGB"), rgb.rotate(180)]}
    return {
        "rgb.jpg": coded(rgb, "jpeg"),
        "progressive.jpg": coded(rgb, "jpeg", progressive=True, quality=60),
        "grey.jpg": coded(grey, "jpeg"),
        "cmyk.jpg": coded(rgb.convert("CMYK"), "jpeg"),
        "turned.jpg": coded(rgb, "jpeg", exif=turned(6)),
        "several.jpg": coded(rgb, "mpo", **frames),
        "rgb.png": coded(rgb, "png"),
        "clear.png": coded(clear, "png"),
        "palette.png": coded(palette, "png", transparency=3),
        "deep.png": coded(deep, "png"),
        "bits.png": coded(rgb.convert("1"), "png"),
        "turned.png": coded(rgb, "png", exif=turned(5)),
        "moving.png": coded(rgb, "png", **frames),
        "moving.gif": coded(rgb, "gif", **frames),
        "clear.gif": coded(palette, "gif", transparency=3),
        "rgb.webp": coded(rgb, "webp"),
        "moving.webp": coded(clear, "webp", lossless=True, **frames),
        "rgb.tif": coded(rgb, "tiff"),
        "packed.tif": coded(rgb, "tiff", compression="tiff_lzw"),
        "deflated.tif": coded(deep, "tiff", compression="tiff_adobe_deflate"),
        "jpeg.tif": coded(rgb, "tiff", compression="jpeg"),
        "float.tif": coded(Image.fromarray(random.random((6, 5), dtype=np.float32)), "tiff"),
        "turned.tif": coded(rgb, "tiff", exif=turned(8)),
        "rgb.bmp": coded(rgb, "bmp"),
        "palette.bmp": coded(palette, "bmp"),
        "rgb.ppm": coded(rgb, "ppm"),
        "deep.pgm": coded(deep.convert("I"), "ppm"),
        "rgb.jp2": coded(rgb, "jpeg2000"),
        "rgb.avif": coded(rgb, "avif", speed=10),
        "one.png": coded(rgb.crop((0, 0, 1, 1)), "png"),
        "line.jpg": coded(rgb.resize((3000, 1)), "jpeg"),
    }


def read(guard: Guard, name: str, data: bytes, *, scaled: bool = False) -> None:
    """Read one file in every way that the programs read images: shown, measured, for training, and for features."""
    (guard.folder / name).write_bytes(data)
    file = guard.folder / name
    image = guard.run(lambda: open_image(file), declared=BROKEN)
    if image is not None:
        assert image.mode == "RGB"
        assert min(image.size) > 0
    guard.run(lambda: stored_and_upright_size(file), declared=BROKEN)
    guard.run(lambda: open_smaller(io.BytesIO(data), lambda _size: 4), declared=BROKEN)
    found = guard.run(lambda: jpeg.decode_jpeg(file))
    assert found is None or image is not None
    images = ImageSet(guard.folder, [name])
    views = TrainingViews(images, tiny_recipe().change(efficiency={"scaled_decoding": scaled}))
    _, used, arrays, broken, *_ = guard.run(lambda: views[SLOT])
    assert (used < 0) == bool(broken) == (image is None)
    assert all(array.dtype in (np.uint8, np.float32) for array in arrays)
    _, pixels = guard.run(lambda: Inputs(images, Preprocessing(36, 32))[0])
    assert isinstance(pixels, str) == (image is None)
    assert image is None or (pixels.shape == (3, 32, 32) and bool(torch.isfinite(pixels).all()))
    guard.refused = image is None


@fuzz(
    KIND,
    inputs=120,
    drawn=st.sampled_from(sorted(files())).flatmap(
        lambda name: st.tuples(
            st.just(name),
            st.one_of(hostile.damaged(files()[name]), hostile.damaged(files()[name], until=96), st.just(files()[name])),
        )
    ),
    ending=st.sampled_from(("", "", ".jpg", ".png", ".gif")),
    scaled=st.booleans(),
)
def test_mutated_images(guard: Guard, drawn: tuple[str, bytes], ending: str, scaled: bool) -> None:
    name, data = drawn
    read(guard, f"{name}{ending}", data, scaled=scaled)


# ---------------------------------------------------------------------------------------------------------------------
# Headers that claim what is not there, and what is there a thousand times
# ---------------------------------------------------------------------------------------------------------------------

SIDES = st.sampled_from(
    (0, 1, 2, 255, 4096, 13_000, 16_383, 30_000, 65_535, 65_536, 2**20, 2**31 - 1, 2**31, 2**32 - 1)
)


@cache
def zeros(megabytes: int) -> bytes:
    """So many megabytes of zeros in a thousandth of the size."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(2**20)) for _ in range(megabytes)) + packer.flush()


@fuzz(
    KIND,
    inputs=20,
    width=SIDES,
    height=SIDES,
    depth=st.sampled_from((1, 8, 8, 16, 3)),
    colour=st.sampled_from((0, 2, 3, 4, 6, 5)),
    megabytes=st.sampled_from((0, 1, 64)),
    text=st.sampled_from((b"", b"zTXt", b"iCCP", b"eXIf", b"iTXt")),
)
def test_bombs_of_png(  # noqa: PLR0917 - named by the strategies
    guard: Guard, width: int, height: int, depth: int, colour: int, megabytes: int, text: bytes
) -> None:
    extra = [png_files.chunk(b"PLTE", bytes(range(48)))] if colour == 3 else []
    extra += [png_files.chunk(text, b"name\0\0" + zeros(64))] if text else []
    read(guard, "bomb.png", png_files.png(png_files.header(width, height, depth, colour), zeros(megabytes), *extra))


def gif(width: int, height: int) -> bytes:
    frame = struct.pack("<BHHHHB", 0x2C, 0, 0, width & 0xFFFF, height & 0xFFFF, 0)
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", width & 0xFFFF, height & 0xFFFF, 0x80, 0, 0)
        + bytes(6)
        + frame
        + b"\x02\x02L\x01\0;"
    )


def bmp(width: int, height: int) -> bytes:
    info = struct.pack(
        "<IiiHHIIiiII", 40, *struct.unpack("<ii", struct.pack("<II", width, height)), 1, 24, 0, 0, 0, 0, 0, 0
    )
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + info + bytes(64)


def ppm(width: int, height: int) -> bytes:
    return f"P6 {width} {height} 255\n".encode() + bytes(64)


def tiff(width: int, height: int) -> bytes:
    """A TIFF of one strip whose length is as large as its sides say."""
    tags = ((256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, height), (279, width))
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return struct.pack("<2sHI", b"II", 42, 8) + struct.pack("<H", len(tags)) + entries + bytes(4 + 64)


def jpg(width: int, height: int) -> bytes:
    """A valid JPEG whose header states other sides."""
    data = files()["rgb.jpg"]
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height & 0xFFFF, width & 0xFFFF) + data[at + 4 :]


def webp(width: int, height: int) -> bytes:
    data = files()["rgb.webp"]
    at = data.index(b"\x9d\x01\x2a") + 3
    return data[:at] + struct.pack("<HH", width & 0x3FFF, height & 0x3FFF) + data[at + 4 :]


MAKERS = {"gif": gif, "bmp": bmp, "ppm": ppm, "tif": tiff, "jpg": jpg, "webp": webp}


@fuzz(KIND, inputs=60, kind=st.sampled_from(sorted(MAKERS)), width=SIDES, height=SIDES, cut=st.booleans())
def test_headers_that_claim_other_sides(guard: Guard, kind: str, width: int, height: int, cut: bool) -> None:
    data = MAKERS[kind](width, height)
    read(guard, f"bomb.{kind}", data[:-20] if cut else data)


# ---------------------------------------------------------------------------------------------------------------------
# Names
# ---------------------------------------------------------------------------------------------------------------------


@fuzz(KIND, inputs=40, names=st.lists(hostile.names, min_size=1, max_size=4), classes=st.booleans())
def test_names_of_files(guard: Guard, names: list[str], classes: bool) -> None:
    folder = guard.folder / "images"
    folder.mkdir()
    made = 0
    for number, name in enumerate(names):
        last = f"a{name}".replace("/", "_").replace("\0", "0")
        try:
            place = folder / last / f"{number}.png" if classes else folder / f"{last}.png"
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(files()["one.png"])
        except (OSError, UnicodeEncodeError):  # this disk takes no such name
            continue
        made += 1
    images = guard.run(lambda: scan_folder(folder))
    assert (images is None) == (made == 0)
    if images is not None:
        assert guard.run(lambda: images.fingerprint)
        for index in range(len(images)):
            assert guard.run(partial(images.open, index)).size == (1, 1)
