"""Tests of the parts of a set as an image set of its own."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.transfer.dense.layouts import folders
from excb.transfer.dense.patches.geometry import Geometry
from excb.transfer.dense.patches.views import Views, nearest_pixels
from tests.transfer.dense.masked_images import write_set


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("views") / "set")


def test_windows_of_one_image_follow_each_other(root: Path) -> None:
    images = folders.LAYOUT.open(root, "train")
    views = Views(images, Geometry("window", 32, 32, 20), "bilinear")
    counted = [len(views.boxes(image)) for image in range(len(images))]
    assert len(views) == sum(counted) > len(images)
    assert [views.owner(view) for view in range(len(views))] == [
        (image, part) for image, count in enumerate(counted) for part in range(count)
    ]
    assert len(set(views.paths)) == len(views)
    for image in range(len(images)):
        whole, mask = images.open(image), images.mask(image)
        for view, (left, top, right, bottom) in zip(views.of(image), views.boxes(image), strict=True):
            expected = whole.crop((left, top, right, bottom)).resize((32, 32), Image.Resampling.BILINEAR)
            difference = np.asarray(views.open(view), float) - np.asarray(expected, float)
            assert np.abs(difference[3:-3, 3:-3]).max() <= 1  # at a border the box's surroundings differ
            assert (views.mask(view) == nearest_pixels(mask[top:bottom, left:right], 32, 32)).all()


def test_fingerprints_differ_with_the_geometry(root: Path) -> None:
    images = folders.LAYOUT.open(root, "train")
    geometries = [Geometry("resize", 32, 32, 16), Geometry("resize", 40, 40, 16), Geometry("crop", 32, 40, 16)]
    prints = {Views(images, geometry, "bilinear").fingerprint for geometry in geometries}
    prints.add(Views(images, geometries[0], "bicubic").fingerprint)
    assert len(prints) == 4


def test_masks_are_resized_as_pillow_does() -> None:
    mask = np.random.default_rng(0).integers(0, 9, (23, 31))
    for height, width in ((23, 31), (8, 8), (50, 40), (46, 62)):
        expected = Image.fromarray(mask.astype(np.uint8)).resize((width, height), Image.Resampling.NEAREST)
        assert (nearest_pixels(mask, height, width) == np.asarray(expected)).all()
