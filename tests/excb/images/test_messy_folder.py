"""Tests that every search for images accounts for every file: it is an image, or it has an entry in the ledger.

A filter without an entry fails here, in whichever command it is.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from excb.images.image_set import Images, ledger_of
from excb.images.opening import open_images, training_images
from excb.images.scanning import scan_folder
from excb.pretrain.doctor.tree import check_tree
from excb.pretrain.run.sets import find_sets
from excb.transfer.data.folders import images_below
from excb.transfer.data.sources import images_of, train_and_test
from excb.transfer.dense.layouts.masks import in_folders
from excb.transfer.embeddings.sources import any_images
from tests.excb.images.messy_folder import everything, write_messy_folder


def quiet(_line: str) -> None:
    """A note that nobody reads."""


@pytest.fixture
def messy(tmp_path: Path) -> tuple[Path, set[str]]:
    images = write_messy_folder(tmp_path / "photos")
    assert 55 <= everything(tmp_path / "photos") <= 70
    return tmp_path / "photos", images


def accounted(root: Path, images: Images) -> None:
    assert len(images) + ledger_of(images).left_out == everything(root)


OPENERS: dict[str, Callable[[Path], Images]] = {
    "scan": scan_folder,
    "pretrain": lambda root: training_images(str(root), None),
    "pretrain's folder": lambda root: open_images(str(root)),
    "study": lambda root: find_sets(root).train,
    "embed": lambda root: any_images(str(root), note=quiet),
    "clusters": lambda root: images_of(str(root)),
    "features": lambda root: images_below(root, quiet),
    "knn, train": lambda root: train_and_test(None, root, root)[0],
    "knn, test": lambda root: train_and_test(None, root, root)[1],
}


@pytest.mark.parametrize("opener", OPENERS)
def test_every_file_is_an_image_or_in_the_ledger(messy: tuple[Path, set[str]], opener: str) -> None:
    root, _ = messy
    accounted(root, OPENERS[opener](root))


@pytest.mark.usefixtures("no_extra")
def test_the_ledger_of_a_messy_folder(messy: tuple[Path, set[str]]) -> None:
    root, expected = messy
    images = scan_folder(root)
    assert set(images.paths) == expected
    for index in range(len(images)):
        assert images.open(index).size == (50, 40) or images.paths[index].endswith(".ico"), images.paths[index]
    by_reason = {entry.reason: entry for entry in images.ledger.entries}
    assert by_reason[".heic"].advice == "pip install 'excb[heic]'"
    assert by_reason[".jxl"].advice == "pip install 'excb[jxl]'"
    assert by_reason[".nef"].names == ("b/4.nef",)
    assert by_reason["hidden files"].count == 2
    assert by_reason["links to a folder above them, or to one that is searched already"].count == 2
    assert by_reason["without extension"].names == ("b/LICENSE", "b/empty")
    (line,) = images.ledger.lines()
    assert "1 .heic (such as a/1.heic: pip install 'excb[heic]')" in line
    accounted(root, images)


def test_masks_account_for_every_file_beside_them(messy: tuple[Path, set[str]], tmp_path: Path) -> None:
    root, _ = messy
    paths, masks, ledger = in_folders(tmp_path, "photos", "photos", lambda path: path)
    assert paths == masks
    assert len(paths) + ledger.left_out == everything(root)


def test_the_doctor_states_the_ledger(messy: tuple[Path, set[str]]) -> None:
    root, _ = messy
    images = scan_folder(root)
    (finding,) = [each for each in check_tree(images) if each.name == "left out"]
    assert finding.verdict == "warning"
    assert finding.found.startswith(f"{images.ledger.left_out:,} of {everything(root):,} files")
