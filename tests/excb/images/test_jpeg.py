"""JPEGs decoded by torchvision: Pillow's pixels to the bit, and everything else is left to Pillow."""

import io
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.images import jpeg
from excb.images.decoding import BrokenImageError, open_image
from excb.images.photographs import PHOTOGRAPHS, photograph

pytestmark = pytest.mark.usefixtures("one_thread")


def picture() -> Image.Image:
    """A photograph with odd sides, so that blocks of chroma are cut."""
    return photograph(next(iter(PHOTOGRAPHS))).convert("RGB").resize((97, 65))


def coded(image: Image.Image, **options: object) -> bytes:
    """The bytes of a JPEG file."""
    stream = io.BytesIO()
    image.save(stream, "JPEG", **options)
    return stream.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("quality", [20, 75, 100])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True])
def test_pixels_are_pillows(tmp_path: Path, mode: str, quality: int, subsampling: str, progressive: bool) -> None:
    file = tmp_path / "1.jpg"
    file.write_bytes(coded(picture().convert(mode), quality=quality, subsampling=subsampling, progressive=progressive))
    found = jpeg.pixels(file)
    assert found is not None
    assert found.shape == (65, 97, 3)
    assert found.flags["C_CONTIGUOUS"]
    assert np.array_equal(found, np.asarray(open_image(file)))
    again = jpeg.pixels(io.BytesIO(file.read_bytes()))
    assert again is not None
    assert np.array_equal(found, again)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_images_are_left_to_pillow(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture().save(tmp_path / "1.jpg", exif=exif)
    assert (jpeg.pixels(tmp_path / "1.jpg") is None) == (orientation != 1)


def test_other_files_are_left_to_pillow(tmp_path: Path) -> None:
    picture().convert("CMYK").save(tmp_path / "cmyk.jpg")
    picture().save(tmp_path / "1.png")
    picture().save(tmp_path / "two.mpo", save_all=True, append_images=[picture()])
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "cut.jpg").write_bytes(coded(picture())[:-200])
    for name in ("cmyk.jpg", "1.png", "two.mpo", "empty.jpg", "cut.jpg", "missing.jpg"):
        assert jpeg.pixels(tmp_path / name) is None, name


def test_a_bomb_is_left_to_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture().save(tmp_path / "1.jpg")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert jpeg.pixels(tmp_path / "1.jpg") is None
    with pytest.raises(BrokenImageError):
        open_image(tmp_path / "1.jpg")


def test_what_it_reads_of_damaged_files_is_what_pillow_reads(tmp_path: Path) -> None:
    file, draw, read = tmp_path / "1.jpg", random.Random(0), 0
    whole = [
        coded(picture(), quality=75),
        coded(picture(), quality=90, progressive=True),
        coded(picture().convert("L")),
    ]
    for _ in range(200):
        data = bytearray(draw.choice(whole))
        for _ in range(draw.choice((1, 3, 10))):
            data[draw.randrange(len(data))] = draw.randrange(256)
        file.write_bytes(data)
        if (found := jpeg.pixels(file)) is not None:
            assert np.array_equal(found, np.asarray(open_image(file)))
            read += 1
    assert read > 20  # else this shows nothing


def test_without_torchvisions_decoder_pillow_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture().save(tmp_path / "1.jpg")
    monkeypatch.setattr(jpeg, "decode_jpeg", None)
    assert jpeg.pixels(tmp_path / "1.jpg") is None
