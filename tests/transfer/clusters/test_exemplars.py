"""Tests of which images stand for a cluster, and of the budget for their pictures."""

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from excb.images.scanning import scan_folder
from excb.transfer.clusters.assignment import ClusterAssignment
from excb.transfer.clusters.exemplars import SIDE, choose_exemplars, in_turn, jpeg, pictures
from tests.transfer.labelled_images import write_folder


def test_exemplars_are_the_nearest_and_of_the_rest_those_at_the_border() -> None:
    random = np.random.default_rng(3)
    first = random.integers(0, 6, 90) * 2  # every other cluster is empty, and so are the last ones
    similarity, margin = random.random((2, 90)).astype(np.float32)
    nearest, border = choose_exemplars(ClusterAssignment(15, first, first, similarity, margin), 4)
    for cluster in range(15):
        members = np.flatnonzero(first == cluster)
        expected = sorted(members, key=lambda image: -similarity[image])[:4]
        assert nearest[cluster] == expected
        rest = set(members) - set(expected)
        assert border[cluster] == sorted(rest, key=lambda image: margin[image])[:2]


def test_the_budget_goes_round_by_clusters_largest_first() -> None:
    nearest, border = [[1, 2, 3], [], [4, 5]], [[6], [], []]
    assert list(in_turn(nearest, border, np.array([4, 0, 9]))) == [4, 1, 5, 2, 3, 6]


def test_pictures_stop_at_the_budget(tmp_path: Path) -> None:
    images = scan_folder(write_folder(tmp_path / "images", each=2))
    everything = pictures(images, range(14), budget=10**9)
    assert sorted(everything) == list(range(14))
    with Image.open(io.BytesIO(base64.b64decode(everything[3]))) as picture:
        assert (picture.format, picture.size) == ("JPEG", (SIDE, SIDE))
    two = len(everything[5]) + len(everything[0])
    assert list(pictures(images, [5, 0, 1, 2], budget=two)) == [5, 0]
    assert pictures(images, [5, 0], budget=0) == {}


def test_a_picture_carries_no_metadata() -> None:
    image = Image.new("RGB", (90, 50), "red")
    image.info["exif"] = b"Exif\0\0secret"
    assert b"secret" not in jpeg(image)
