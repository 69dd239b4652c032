"""Sets of images: their fingerprints."""

import os
from pathlib import Path

import numpy as np
import pytest

from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from tests.excb.images.empty_files import touch


def test_equal_sets_have_equal_fingerprints_wherever_they_lie(tmp_path: Path) -> None:
    paths = ["a/1.jpg", "b/2.jpg", "b/ü.jpg"]
    first, second = (scan_folder(touch(tmp_path / name, *paths)) for name in ("here", "there"))
    assert first.fingerprint == second.fingerprint
    assert len(first.fingerprint) == 64
    # Neither does the way in which labels are stored count.
    assert first.labels is not None
    assert ImageSet(Path(), first.paths, first.labels.astype(">i4"), first.classes).fingerprint == first.fingerprint


def test_other_sets_have_other_fingerprints() -> None:
    labels = np.array([0, 1])
    sets = [
        ImageSet(Path(), ["a/1.jpg", "b/2.jpg"]),
        ImageSet(Path(), ["b/2.jpg", "a/1.jpg"]),
        ImageSet(Path(), ["a/1.jpg"]),
        ImageSet(Path(), ["a/1.jpg", "b/2.jpg", "b/3.jpg"]),
        ImageSet(Path(), ["a/1.jpgb", "/2.jpg"]),
        ImageSet(Path(), ["a/1.jpg", "b/2.jpg"], labels, ("a", "b")),
        ImageSet(Path(), ["a/1.jpg", "b/2.jpg"], 1 - labels, ("a", "b")),
    ]
    assert len({images.fingerprint for images in sets}) == len(sets)


def test_names_that_are_no_text_have_a_fingerprint(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"\xff.jpg")).touch()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    images = scan_folder(touch(tmp_path, "1.jpg"))
    assert len(images) == 2
    assert images.file(1).is_file()
    assert images.fingerprint != ImageSet(tmp_path, images.paths[:1]).fingerprint
