"""A set's depth, channels and range are found by one look, and ambiguous sets are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excb.errors import UserError
from excb.images import survey
from excb.images.image_set import ImageSet
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.images.scanning import scan_folder
from excb.images.survey import surveyed, with_pixels
from tests.excb.images.deep_files import ramp, write


def folder(place: Path, files: dict[str, np.ndarray]) -> ImageSet:
    for name, values in files.items():
        write(place / name, values)
    return scan_folder(place)


def test_the_range_is_that_of_the_set(tmp_path: Path) -> None:
    images = folder(tmp_path, {"1.png": ramp(5, 255, np.uint16), "2.png": ramp(0, 4095, np.uint16)})
    found = surveyed(images)
    assert found.pixels == Pixels(3, (0.0,), (4095.0,), "measured")
    assert found.line() == "2 images: 16-bit grey, values 0 to 4,095: mapped from 0..4095"
    opened = with_pixels(images, found.pixels)
    assert np.asarray(opened.open(0)).max() == round(255 * 255 / 4095)
    assert opened.fingerprint == images.fingerprint


def test_8_bit_sets_stay_as_they_are(tmp_path: Path) -> None:
    images = folder(tmp_path, {"1.png": ramp(0, 255, np.uint8), "2.tif": ramp(0, 255, np.uint8)})
    found = surveyed(images)
    assert found.pixels is EIGHT_BIT
    assert found.line() == ""
    assert with_pixels(images, found.pixels) is images


def test_files_that_cannot_be_deep_are_not_opened(tmp_path: Path) -> None:
    class Unread(ImageSet):
        def source(self, index: int) -> Any:
            raise AssertionError(f"image {index} was opened")

    names = [f"{number}{ending}" for number, ending in enumerate((".jpg", ".JPEG", ".webp", ".heic", ".nef", ".gif"))]
    assert surveyed(Unread(tmp_path, names)).pixels is EIGHT_BIT


def test_signed_values_and_floats_are_measured(tmp_path: Path) -> None:
    signed = folder(tmp_path / "signed", {"1.tif": ramp(-1024, 3071, np.int16)})
    assert surveyed(signed).pixels.range == "-1024..3071"
    values = ramp(0, 10_000, np.float32)
    values[0, 0] = np.nan
    floats = folder(tmp_path / "floats", {"1.tif": values})
    assert surveyed(floats).pixels.high == (10_000.0,)


def test_bands_have_a_range_each(tmp_path: Path) -> None:
    values = (np.random.default_rng(0).integers(0, 100, (20, 24, 5)) * np.arange(1, 6)).astype(np.uint16)
    found = surveyed(folder(tmp_path, {"1.npy": values}))
    assert found.pixels.channels == 5
    assert found.pixels.high == tuple(float(each) for each in values.max((0, 1)))
    assert "5 channels" in found.line()


AMBIGUOUS: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "8 and 16 bits": (
        {"1.png": ramp(0, 255, np.uint8), "2.png": ramp(0, 4095, np.uint16)},
        r"1 is 8-bit \(such as 1\.png\) and 1 is 16-bit \(such as 2\.png\)",
    ),
    "signed and unsigned": (
        {"1.tif": ramp(-9, 99, np.int16), "2.tif": ramp(0, 99, np.uint16)},
        r"1 is signed 16-bit \(such as 1\.tif\) and 1 is 16-bit \(such as 2\.tif\)",
    ),
    "floats to 1 and to 255": (
        {"1.tif": ramp(0, 1, np.float32), "2.tif": ramp(0, 255, np.float32)},
        r"two scales: 1 has values up to 1 \(such as 1\.tif\), and 1 up to 255 \(such as 2\.tif\)",
    ),
    "channels": (
        {"1.npy": np.zeros((20, 24, 5), np.uint8), "2.npy": np.zeros((20, 24, 4), np.uint8)},
        r"differ in their channels: 1 has 5 \(such as 1\.npy\) and 1 has 4 \(such as 2\.npy\)",
    ),
    "one value": ({"1.png": np.full((9, 9), 7, np.uint16)}, "hold one value, 7"),
}


@pytest.mark.parametrize(("files", "reason"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_ambiguous_sets_are_refused_with_the_choices(tmp_path: Path, files: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(UserError, match=reason) as refused:
        surveyed(folder(tmp_path, files))
    assert "data." in str(refused.value)
    assert any(option in str(refused.value) for option in ("--range", "--channels"))


def test_a_declared_range_settles_it_and_counts_what_is_outside(tmp_path: Path) -> None:
    files = {"1.png": ramp(0, 255, np.uint8), "2.png": ramp(0, 5000, np.uint16), "3.png": ramp(0, 3000, np.uint16)}
    found = surveyed(folder(tmp_path, files), Pixels.declared("0..4095"))
    assert (found.measured, found.clipped) == (2, 1)
    assert found.pixels == Pixels.declared("0..4095")
    assert "mapped from the declared 0..4095; 1 with values outside, which are clipped" in found.line()


def test_large_sets_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "HEADERS", 4)
    monkeypatch.setattr(survey, "MEASURED", 3)
    images = folder(tmp_path, {f"{number}.png": ramp(0, 100 + number, np.uint16) for number in range(9)})
    found = surveyed(images)
    assert found.measured == 3
    assert found.pixels.high == (108.0,)  # the last one is among evenly spaced ones
    assert "of 3 of them" in found.line()


def test_a_faulty_value_leaves_most_of_the_range_unused(tmp_path: Path) -> None:
    faulty = ramp(0, 4095, np.uint16)
    faulty[0, 0] = 65535
    images = {f"{number}.png": ramp(0, 4095, np.uint16) for number in range(4)}
    assert surveyed(folder(tmp_path, {**images, "5.png": faulty})).spanned == pytest.approx(4095 / 65535)


def test_broken_files_are_passed_over(tmp_path: Path) -> None:
    images = folder(tmp_path, {"1.png": ramp(0, 4095, np.uint16), "2.png": ramp(0, 9, np.uint16)})
    images.file(1).write_bytes(b"nothing")
    assert surveyed(images).pixels.high == (4095.0,)


def test_sets_in_memory_are_8_bit() -> None:
    class Memory:
        root, paths = "memory", ("1",)
        __len__: Callable[[Any], int] = lambda _self: 1

    assert surveyed(Memory()).pixels is EIGHT_BIT
