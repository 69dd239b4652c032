"""The doctor says what a set's values are, and is not content where they are lost."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.pretrain.doctor.pixels import check_pixels, check_profiles
from excb.pretrain.recipe import DataSettings
from tests.excb.images.deep_files import BLUE, GREEN, RED, linear_profile, ramp, write


def folder(place: Path, *images: np.ndarray) -> ImageSet:
    for number, values in enumerate(images):
        write(place / f"{number}.png", values)
    return scan_folder(place)


def verdict(images: ImageSet, text: str | None = None) -> tuple[str, str]:
    [finding] = check_pixels(images, DataSettings(range=text))
    return finding.verdict, finding.found


def test_values_that_keep_their_levels_are_ok(tmp_path: Path) -> None:
    assert verdict(folder(tmp_path, ramp(0, 255, np.uint8))) == ("ok", "8 bits a channel")
    deep = folder(tmp_path / "deep", ramp(0, 4095, np.uint16))
    assert verdict(deep) == ("ok", "1 image: 16-bit grey, values 0 to 4,095: mapped from 0..4095")


@pytest.mark.parametrize("text", ["0..65535", "0..1000"])
def test_ranges_that_lose_values_are_not(tmp_path: Path, text: str) -> None:
    said, found = verdict(folder(tmp_path, ramp(0, 4095, np.uint16)), text)
    assert said == "warning"
    assert "levels" in found


def test_a_faulty_value_is_not_either(tmp_path: Path) -> None:
    faulty = ramp(0, 4095, np.uint16)
    faulty[0, 0] = 65535
    said, found = verdict(folder(tmp_path, faulty, *[ramp(0, 4095, np.uint16)] * 3))
    assert said == "warning"
    assert "at most 16 of 256 levels" in found


def test_mixed_depths_are_an_error(tmp_path: Path) -> None:
    said, found = verdict(folder(tmp_path, ramp(0, 255, np.uint8), ramp(0, 4095, np.uint16)))
    assert said == "error"
    assert "1 is 8-bit (such as 0.png) and 1 is 16-bit (such as 1.png)" in found


def test_profiles_are_counted(tmp_path: Path) -> None:
    colours = Image.fromarray(np.zeros((9, 9, 3), np.uint8))
    for name, profile in (("1.png", None), ("2.png", linear_profile(RED, GREEN, BLUE))):
        colours.save(tmp_path / name, icc_profile=profile)
    finding = check_profiles(scan_folder(tmp_path))
    assert (finding.verdict, finding.found) == ("ok", "of 2 images: 1 image converted to sRGB")
    colours.save(tmp_path / "3.png", icc_profile=b"junk" * 50)
    finding = check_profiles(scan_folder(tmp_path))
    assert (finding.verdict, "1 image with a profile that cannot be used" in finding.found) == ("warning", True)
