"""Tests of corrupted images: what is corrupted, with which random numbers, and what must be installed."""

import pickle
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from excb.errors import UserError
from excb.images.subset import Subset
from excb.networks.preprocessing import Preprocessing
from excb.transfer.data.classes import labelled_folder
from excb.transfer.robustness import corruptions
from excb.transfer.robustness.corruptions import CorruptedImages, corrupt
from excb.transfer.robustness.imagenet_c import frost
from tests.transfer.labelled_images import write_folder
from tests.transfer.robustness.recorder import install

pytestmark = pytest.mark.usefixtures("one_thread")
SQUARE = Preprocessing(resize=36, crop=32)


@pytest.fixture
def images(tmp_path: Path) -> CorruptedImages:
    clean = labelled_folder(write_folder(tmp_path / "set", each=2, classes=("ant", "bee")))
    return CorruptedImages(clean, SQUARE, "gaussian_noise", (1, 4), 0)


def test_order_paths_and_labels(images: CorruptedImages, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = install(monkeypatch)
    assert len(images) == 8
    assert images.paths[:3] == [
        "ant/0.png#gaussian_noise-1",
        "ant/0.png#gaussian_noise-4",
        "ant/1.png#gaussian_noise-1",
    ]
    assert images.labels is not None
    assert images.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    for index in range(8):
        images.open(index)
    assert recorder.calls == 4 * [("gaussian_noise", 1), ("gaussian_noise", 4)]
    assert [bool(images.stamp(index)) for index in range(4)] == [True, False, True, False]


def test_the_square_that_the_network_sees_is_corrupted(
    images: CorruptedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corruptions, "corrupt", lambda image, *_, **__: image)
    cut = transforms.Compose([transforms.Resize(36), transforms.CenterCrop(32)])
    square = images.open(3)
    assert square.size == (32, 32)
    assert np.array_equal(np.asarray(square), np.asarray(cut(images.clean.open(1))))
    as_it_is = replace(SQUARE, resize=SQUARE.crop)  # how squares pass through the network
    assert torch.equal(as_it_is(square), SQUARE(images.clean.open(1)))


def test_random_numbers_depend_on_the_image_and_not_on_the_order(images: CorruptedImages) -> None:
    forward = [np.asarray(images.open(index)) for index in range(8)]
    copy = pickle.loads(pickle.dumps(images))  # as worker processes get it
    for index in reversed(range(8)):
        assert np.array_equal(np.asarray(copy.open(index)), forward[index])
    fewer = replace(images, clean=Subset(images.clean, np.array([2])), severities=(4,))
    assert np.array_equal(np.asarray(fewer.open(0)), forward[5])
    assert not np.array_equal(np.asarray(replace(images, seed=1).open(5)), forward[5])
    one, other = (
        np.asarray(corrupt(Image.new("RGB", (32, 32), "grey"), "fog", 1, key, stored=False)) for key in (1, 2)
    )
    assert not np.array_equal(one, other)


def test_fingerprints_differ_with_all_that_changes_images(
    images: CorruptedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [
        replace(images, corruption="fog"),
        replace(images, severities=(1, 5)),
        replace(images, seed=1),
        replace(images, stored=False),
        replace(images, preprocessing=replace(SQUARE, resize=40)),
        replace(images, clean=Subset(images.clean, np.arange(3))),
    ]
    prints = [images.fingerprint, *(each.fingerprint for each in others)]
    monkeypatch.setattr(corruptions, "VERSION", "2")
    prints.append(replace(images).fingerprint)
    assert len(set(prints)) == 8


def test_images_are_stored_as_jpegs_of_quality_85(images: CorruptedImages, tmp_path: Path) -> None:
    exact, stored = (replace(images, corruption="contrast", stored=stored).open(0) for stored in (False, True))
    exact.save(tmp_path / "stored.jpg", quality=85, optimize=True)
    assert np.array_equal(np.asarray(stored), np.asarray(Image.open(tmp_path / "stored.jpg")))


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    corruptions.require_libraries(["fog", "motion_blur"])
    with pytest.raises(UserError, match=r"without OpenCV there is no snow, spatter: run `pip install"):
        corruptions.require_libraries(["spatter", "fog", "snow"])


def test_other_pictures_of_frost_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> list[metadata.PackagePath]:
        raise metadata.PackageNotFoundError

    frost.photographs.cache_clear()
    monkeypatch.setattr(metadata, "files", lambda _name: [])
    with pytest.raises(UserError, match=r"frost1\.png of imagecorruptions-imaug is not ImageNet-C's"):
        frost.photographs()
    monkeypatch.setattr(metadata, "files", missing)
    with pytest.raises(UserError, match=r"frost needs the photographs of imagecorruptions-imaug: run `pip install"):
        frost.photographs()
