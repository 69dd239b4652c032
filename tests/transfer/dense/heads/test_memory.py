"""Tests of which patches are remembered."""

import numpy as np
import pytest

from excb.errors import UserError
from excb.transfer.dense.heads.memory import choose_patches, part_of
from excb.transfer.dense.layouts import folders
from excb.transfer.dense.patches.features import Grid
from excb.transfer.dense.patches.geometry import Geometry
from excb.transfer.dense.patches.labels import PatchLabels
from excb.transfer.dense.patches.views import Views
from tests.transfer.dense.masked_images import write_set

GRID = Grid(8, 8, 1, 4)


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Views:
    root = write_set(tmp_path_factory.mktemp("memory") / "set", train=8)
    return Views(folders.LAYOUT.open(root, "train"), Geometry("window", 32, 32, 16), "bilinear")


def test_parts_are_nested_and_named_by_their_seed() -> None:
    for seed in range(3):
        parts = [set(part_of(64, part, seed).tolist()) for part in (1, 2, 8, 64)]
        assert [len(part) for part in parts] == [64, 32, 8, 1]
        assert parts[3] < parts[2] < parts[1] < parts[0]
    assert part_of(64, 8, 0).tolist() != part_of(64, 8, 1).tolist()
    with pytest.raises(UserError, match="1/65 of 64 images is none"):
        part_of(64, 65, 0)


def test_a_large_memory_holds_all_labelled_patches_of_its_images(views: Views) -> None:
    labels = PatchLabels(views, GRID)
    assert (choose_patches(labels, views, 64, part=1, most=10**6, seed=0) == labels.labelled()).all()
    chosen = choose_patches(labels, views, 64, part=4, most=10**6, seed=0)
    images = {views.owner(int(number) // 64)[0] for number in chosen}
    assert images == set(part_of(8, 4, 0).tolist())


def test_a_small_memory_holds_as_many_of_each_view(views: Views) -> None:
    labels = PatchLabels(views, GRID)
    most = 5 * len(views) + 3
    chosen = choose_patches(labels, views, 64, part=1, most=most, seed=0)
    assert (np.bincount(chosen // 64, minlength=len(views)) == 5).all()
    assert (np.diff(chosen) > 0).all()
    assert np.isin(chosen, labels.labelled()).all()
    assert (choose_patches(labels, views, 64, part=1, most=most, seed=0) == chosen).all()
    assert (choose_patches(labels, views, 64, part=1, most=most, seed=1) != chosen).any()
    with pytest.raises(UserError, match="--memory 3 is less than a patch for each"):
        choose_patches(labels, views, 64, part=1, most=3, seed=0)
