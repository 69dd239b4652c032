"""Sets of images: their fingerprints, and their images outside the range."""

import os
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from excb.images.image_set import ImageSet, clipped_ledger, ledger_of, share_clipped, with_doubts
from excb.images.pixels import Pixels
from excb.images.scanning import scan_folder
from excb.images.subset import Subset
from excb.images.survey import with_pixels
from excb.ledger import NOTHING, doubt
from excb.networks.features import Inputs
from excb.networks.preprocessing import Preprocessing
from tests.excb.images.deep_files import ramp, write
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


def test_images_outside_the_range_are_counted_wherever_they_are_read(tmp_path: Path) -> None:
    for number, top in enumerate((90, 200, 95, 300, 100)):
        write(tmp_path / f"{number}.png", ramp(0, top, np.uint16))
    images = with_pixels(scan_folder(tmp_path), Pixels.declared("0..100"))
    some = Subset(images, np.array([4, 3, 0]))
    assert clipped_ledger(some) == NOTHING
    loader = DataLoader(Inputs(some, Preprocessing(16, 16)), num_workers=1, batch_size=None)
    assert len(list(loader)) == 3
    (entry,) = clipped_ledger(some, "test").entries
    assert (entry.count, entry.names, entry.left_out, entry.of) == (1, ("3.png",), False, "test")
    images.open(1)
    images.open(1)
    share_clipped(some)
    (entry,) = clipped_ledger(images).entries
    assert entry.line == "2 images with values outside the range, such as 1.png, 3.png: clipped to 0..100"


@pytest.mark.parametrize(
    ("values", "outside"),
    [
        (np.array([[0, 100]], np.uint16), False),
        (np.array([[0, 101]], np.uint16), True),
        (np.array([[-1, 5]], np.int16), True),
        (np.array([[255, 0]], np.uint8), False),  # of 8 bits: channels as they are
        (np.array([[np.nan, 5, np.inf]], np.float32), False),  # no numbers
        (np.array([[np.nan, 5, 100.5]], np.float32), True),
        (np.array([[[5, 5, 101]]], np.uint16), True),
    ],
)
def test_values_outside_a_range(values: np.ndarray, *, outside: bool) -> None:
    assert Pixels.declared("0..100").clips(values) == outside


def test_a_set_keeps_a_ledger_where_it_is_a_part_of_another(tmp_path: Path) -> None:
    write(tmp_path / "0.png", ramp(0, 9, np.uint8))
    part = Subset(scan_folder(tmp_path), np.array([0]))
    found = doubt("images are odd", ["0.png"], "look")
    assert ledger_of(with_doubts(part, found)) == found
