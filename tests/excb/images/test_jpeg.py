"""JPEGs decoded by simplejpeg or torchvision: Pillow's pixels bit for bit, and everything else is left to Pillow."""

import io
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageCms

from excb.errors import UserError
from excb.images import jpeg
from excb.images.decoding import BrokenImageError, open_image, open_smaller
from excb.images.photographs import PHOTOGRAPHS, photograph
from tests.clone import ROOT
from tests.excb.images.odd_jpegs import odd_jpegs, whole

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
    found = jpeg.decode_jpeg(file)
    assert found is not None
    assert found.shape == (65, 97, 3)
    assert found.flags["C_CONTIGUOUS"]
    assert np.array_equal(found, np.asarray(open_image(file)))
    again = jpeg.decode_jpeg(io.BytesIO(file.read_bytes()))
    assert again is not None
    assert np.array_equal(found, again)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_images_are_left_to_pillow(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture().save(tmp_path / "1.jpg", exif=exif)
    assert (jpeg.decode_jpeg(tmp_path / "1.jpg") is None) == (orientation != 1)


def test_other_files_are_left_to_pillow(tmp_path: Path) -> None:
    picture().convert("CMYK").save(tmp_path / "cmyk.jpg")
    picture().save(tmp_path / "1.png")
    picture().save(tmp_path / "two.mpo", save_all=True, append_images=[picture()])
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "cut.jpg").write_bytes(coded(picture())[:-200])
    for name in ("cmyk.jpg", "1.png", "two.mpo", "empty.jpg", "cut.jpg", "missing.jpg"):
        assert jpeg.decode_jpeg(tmp_path / name) is None, name


def test_a_bomb_is_left_to_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture().save(tmp_path / "1.jpg")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert jpeg.decode_jpeg(tmp_path / "1.jpg") is None
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
        if (found := jpeg.decode_jpeg(file)) is not None:
            assert np.array_equal(found, np.asarray(open_image(file)))
            read += 1
    assert read > 20  # else this shows nothing


FAST: tuple[jpeg.Decoder, ...] = ("simplejpeg", "torchvision", "auto")


def pillows(data: bytes) -> np.ndarray | None:
    """Pixels of Pillow alone, or None where it refuses the file."""
    try:
        return np.asarray(open_image(io.BytesIO(data)))
    except BrokenImageError:
        return None


def compare(count: int, seed: int) -> dict[str, int]:
    """Check that every decoder gives Pillow's pixels, or leaves the file to it; how many each decoded."""
    read = dict.fromkeys(("files", "pillow", *FAST), 0)
    for name, data in odd_jpegs(count, seed):
        expected = pillows(data)
        read["files"] += 1
        read["pillow"] += expected is not None
        for decoder in FAST:
            found = jpeg.decode_jpeg(io.BytesIO(data), decoder)
            read[decoder] += found is not None
            assert found is None or (expected is not None and np.array_equal(found, expected)), (decoder, name)
    return read


def test_odd_files_have_pillows_pixels_or_its_refusal() -> None:
    pytest.importorskip("simplejpeg")
    read = compare(2000, seed=0)
    assert read["simplejpeg"] == read["auto"] >= read["torchvision"] > 750  # what it refuses, torchvision may decode
    assert read["files"] - read["pillow"] > 250


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_thousands_of_odd_files_have_pillows_pixels_or_its_refusal(seed: int) -> None:
    pytest.importorskip("simplejpeg")
    compare(5000, seed)


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411"])
def test_every_subsampling_of_simplejpegs_own_encoder(subsampling: str) -> None:
    simplejpeg = pytest.importorskip("simplejpeg")
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(picture()), colorsubsampling=subsampling)
    expected = pillows(data)
    assert expected is not None
    for decoder in FAST:
        found = jpeg.decode_jpeg(io.BytesIO(data), decoder)
        assert found is not None
        assert np.array_equal(found, expected)


def test_simplejpeg_decodes_what_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg")
    monkeypatch.setattr(jpeg, "_torchvision", lambda: None)
    assert jpeg.decode_jpeg(io.BytesIO(coded(picture()))) is not None
    assert jpeg.decode_jpeg(io.BytesIO(coded(picture())), "torchvision") is None


def test_smaller_pixels_are_pillows() -> None:
    pytest.importorskip("simplejpeg")
    draw, read = random.Random(0), 0
    for number in range(300):
        data, divisor = whole(draw), (1, 2, 4, 8)[number % 4]

        def shrink(_size: tuple[int, int], divisor: int = divisor) -> int:
            return divisor

        found = jpeg.smaller_pixels(io.BytesIO(data), shrink)
        if found is not None:
            image, size = open_smaller(io.BytesIO(data), shrink)
            assert found[1] == size
            assert np.array_equal(found[0], np.asarray(image))
            read += 1
    assert read > 150


def test_without_fast_decoders_pillow_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture().save(tmp_path / "1.jpg")
    assert jpeg.decode_jpeg(tmp_path / "1.jpg", "pillow") is None
    monkeypatch.setattr(jpeg, "simplejpeg", None)
    assert jpeg.decode_jpeg(tmp_path / "1.jpg") is not None
    monkeypatch.setattr(jpeg, "_torchvision", lambda: None)
    assert jpeg.decode_jpeg(tmp_path / "1.jpg") is None
    jpeg.require_installed("auto")
    with pytest.raises(UserError, match=r"needs simplejpeg: run `pip install 'excb\[fast\]'`"):
        jpeg.require_installed("simplejpeg")


def test_workers_do_not_import_torchvision() -> None:
    """Its import takes each of them two seconds and 150 MB."""
    code = "import sys, excb.pretrain.data.loader; sys.exit('torchvision' in sys.modules)"
    # A new interpreter: what it imports is tested.
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_stream_is_read_from_its_beginning() -> None:
    stream = io.BytesIO(coded(picture()))
    first = jpeg.decode_jpeg(stream)
    assert first is not None
    assert stream.tell() > 0
    again = jpeg.whole_file(stream)
    assert again == (stream.getvalue(), (97, 65))


def test_a_header_without_exif_and_profile_needs_no_pillow() -> None:
    every: tuple[dict[str, object], ...] = (
        {},
        {"quality": 100},
        {"progressive": True},
        {"comment": b"of a cat"},
        {"subsampling": 2},
    )
    for changes in every:
        assert jpeg.plain_size(coded(picture(), **changes)) == (97, 65)
        assert jpeg.plain_size(coded(picture().convert("L"), **changes)) == (97, 65)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    more: tuple[dict[str, object], ...] = ({"exif": exif}, {"icc_profile": profile}, {"keep_rgb": True})
    for changes in more:
        assert jpeg.plain_size(coded(picture(), **changes)) is None
    assert jpeg.plain_size(coded(picture().convert("CMYK"))) is None
    plain = coded(picture())
    scan = plain.index(b"\xff\xda")
    assert all(jpeg.plain_size(plain[:end]) is None for end in range(scan))
    assert jpeg.plain_size(plain[: scan + 4]) == (97, 65)
