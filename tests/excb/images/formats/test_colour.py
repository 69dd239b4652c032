"""Embedded colour profiles are honoured, and nothing changes where there is none, sRGB or a broken one."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from excb.images.decoding import open_image, open_smaller, to_rgb
from excb.images.formats.colour import in_srgb, profile_of
from excb.images.image_set import ImageSet
from excb.images.jpeg import decode_jpeg, whole_file
from excb.images.picture import as_channels
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.images.survey import has_profiles, with_pixels
from tests.excb.images.deep_files import BLUE, GREEN, RED, encoded, linear_profile

SWAPPED = linear_profile(GREEN, RED, BLUE)  # its first value is green's light, its second red's
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
COLOURS = np.random.default_rng(0).integers(0, 256, (13, 9, 3), dtype=np.uint8)


def stored(values: np.ndarray, profile: bytes | None, kind: str = "PNG", mode: str | None = None) -> io.BytesIO:
    stream = io.BytesIO()
    image = Image.fromarray(values)
    (image.convert(mode) if mode else image).save(stream, kind, icc_profile=profile)
    return stream


def test_colours_are_converted_to_srgb() -> None:
    expected = encoded(COLOURS[..., [1, 0, 2]] / 255)
    assert np.abs(np.asarray(open_image(stored(COLOURS, SWAPPED))) - expected).max() < 1


@pytest.mark.parametrize("profile", [None, SRGB, b"junk" * 50, SWAPPED[:200]])
def test_no_profile_srgb_and_broken_ones_change_nothing(profile: bytes | None) -> None:
    assert np.array_equal(np.asarray(open_image(stored(COLOURS, profile))), COLOURS)


def test_a_set_of_stored_colours_ignores_profiles(tmp_path: Path) -> None:
    """Files, streams, images in memory, JPEGs of any size and images beside those of more bits."""
    pixels = Pixels(colours="stored")
    (tmp_path / "1.png").write_bytes(stored(COLOURS, SWAPPED).getvalue())
    picture = Image.open(tmp_path / "1.png")
    deep = Pixels(3, (0.0,), (4095.0,), "declared", "stored")
    for opened in (
        open_image(tmp_path / "1.png", pixels),
        open_image(tmp_path / "1.png", deep),
        with_pixels(ImageSet(tmp_path, ["1.png"]), pixels).open(0),
        as_channels(str(tmp_path / "1.png"), pixels),
        as_channels(picture, pixels),
        as_channels(picture, deep),
    ):
        assert np.array_equal(np.asarray(opened), COLOURS)
    assert not np.array_equal(np.asarray(as_channels(picture, EIGHT_BIT)), COLOURS)
    large = np.repeat(np.repeat(COLOURS, 8, axis=0), 8, axis=1)
    with_profile, without = (stored(large, profile, "JPEG") for profile in (SWAPPED, None))
    for divisor in (1, 4):
        smaller, size = open_smaller(with_profile, lambda _size, by=divisor: by, pixels)  # type: ignore[misc]
        assert size == (72, 104)
        assert np.array_equal(np.asarray(smaller), np.asarray(open_smaller(without, lambda _size, by=divisor: by)[0]))  # type: ignore[misc]


def test_what_a_profile_does_is_named() -> None:
    for profile, does in ((None, "none"), (SRGB, "sRGB"), (SWAPPED, "converted"), (b"junk" * 50, "ignored")):
        assert profile_of(Image.open(stored(COLOURS, profile))) == does


def test_a_profile_of_another_kind_of_image_is_ignored() -> None:
    image = Image.open(stored(COLOURS, SWAPPED, "JPEG", "CMYK"))
    assert profile_of(image) == "ignored"
    assert in_srgb(image) is image


def test_greys_and_transparent_colours_are_converted_too() -> None:
    grey, linear = COLOURS[..., 0], linear_profile(RED, GREEN, BLUE)
    for profile in (linear, linear_profile()):
        opened = np.asarray(open_image(stored(grey, profile)))[..., 1]
        assert np.abs(opened - encoded(grey / 255))[grey > 16].max() < 1.5  # littlecms interpolates dark greys
    alpha = np.dstack([COLOURS, np.full(COLOURS.shape[:2], 40, np.uint8)])
    assert np.abs(np.asarray(open_image(stored(alpha, linear))) - encoded(COLOURS / 255)).max() < 1


def test_a_converted_image_is_not_converted_again() -> None:
    opened = open_image(stored(COLOURS, SWAPPED))
    assert np.array_equal(np.asarray(to_rgb(opened)), np.asarray(opened))


def test_fast_decoders_leave_other_profiles_to_pillow() -> None:
    assert decode_jpeg(stored(COLOURS, SWAPPED, "JPEG")) is None
    assert whole_file(stored(COLOURS, SWAPPED, "JPEG")) is None
    plain = stored(COLOURS, SRGB, "JPEG")
    decoded = decode_jpeg(plain)
    assert decoded is not None
    assert np.array_equal(decoded, np.asarray(open_image(plain)))


def test_the_first_other_profile_of_a_set_is_found(tmp_path: Path) -> None:
    for name, profile in (("1.png", None), ("2.png", SRGB)):
        (tmp_path / name).write_bytes(stored(COLOURS, profile).getvalue())
    assert not has_profiles(ImageSet(tmp_path, ["1.png", "2.png"]))
    (tmp_path / "3.png").write_bytes(stored(COLOURS, SWAPPED).getvalue())
    assert has_profiles(ImageSet(tmp_path, ["1.png", "2.png", "3.png"]))
