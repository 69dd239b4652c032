"""Tests that every search for images accounts for every file: it is an image, or it has an entry in the ledger.

A filter without an entry fails here, in whichever command it is.
"""

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from excb.images.image_set import Images, ledger_of
from excb.images.scanning import scan_folder
from excb.images.shards import open_shards
from excb.pretrain.__main__ import main as pretrain
from excb.pretrain.doctor.tree import check_tree
from excb.pretrain.run.sets import find_sets
from excb.sources.opening import open_images, training_images
from excb.transfer.coco.reading import read_coco
from excb.transfer.data.folders import images_below
from excb.transfer.data.sources import images_of, open_source, train_and_test
from excb.transfer.dense.layouts.masks import in_folders
from excb.transfer.embeddings.sources import any_images
from tests.clone import ROOT
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


def write_annotations(root: Path, paths: list[str]) -> Path:
    """A file in COCO's format beside a folder, which lists some of its images."""
    images = [{"id": number, "file_name": path, "width": 50, "height": 40} for number, path in enumerate(paths, 1)]
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9], "area": 81, "iscrowd": 0}
    content = {"images": images, "categories": [{"id": 1, "name": "ant"}], "annotations": [box]}
    file = root.with_suffix(".json")
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


@pytest.mark.usefixtures("no_extra")
def test_detection_accounts_for_every_file_beside_those_that_are_listed(messy: tuple[Path, set[str]]) -> None:
    pytest.importorskip("pycocotools", reason="COCO's tools are not installed")
    root, paths = messy
    listed = sorted(paths)[:5]
    images = read_coco(write_annotations(root, listed), root)
    assert images.paths == tuple(listed)
    entry = next(entry for entry in images.ledger.entries if entry.reason == "images that photos.json does not list")
    assert entry.names == tuple(sorted(paths)[5:8])
    assert len(images) + images.beside.left_out == everything(root)  # the ledger counts objects, too


def test_sets_of_labels_account_for_every_file(messy: tuple[Path, set[str]], tmp_path: Path) -> None:
    root, paths = messy
    listed = sorted(paths)[:5]
    (tmp_path / "train.csv").write_text("".join(f"{path},ant\n" for path in listed), encoding="utf-8")
    root.rename(tmp_path / "train")
    accounted(tmp_path / "train", open_source(f"multilabel:{tmp_path}", "train"))


@pytest.mark.usefixtures("no_extra")
def test_shards_account_for_every_member_and_name_the_extras(messy: tuple[Path, set[str]], tmp_path: Path) -> None:
    root, paths = messy
    with tarfile.open(tmp_path / "one.tar", "w") as archive:
        archive.add(root, ".")
    images = open_shards(str(tmp_path / "one.tar"))
    labels = {".json", ".cls"}  # read, as WebDataset has them, not left out
    members = [file for file in root.rglob("*") if file.is_symlink() or not file.is_dir()]
    others = [file for file in members if file.suffix not in labels]
    assert {path.partition("/")[2] for path in images.paths} == paths | {"b/features.npy"}
    assert len(images) + images.ledger.left_out == len(others)
    assert {entry.advice for entry in images.ledger.entries if entry.reason == ".heic"} == {"pip install 'excb[heic]'"}


@pytest.mark.usefixtures("no_extra")
def test_the_doctor_names_what_is_left_out_once(
    messy: tuple[Path, set[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    root, _ = messy
    assert pretrain(["doctor", "--data", str(root)]) in (0, 1)
    printed = capsys.readouterr()
    assert " ".join((printed.out + printed.err).split()).count("1 .heic") == 1


# Modules that list folders, and what they look for there; images are found by `scanning` alone, which keeps the ledger.
LISTINGS = {
    "excb/images/scanning.py": "images",
    "excb/images/tars/places.py": "tars",
    "transfer/coco/image_files.py": "the files that an annotation file names",
    "transfer/data/multilabel_layouts.py": "VOC's lists",
    "transfer/data/folders.py": "folders of splits",
    "transfer/data/concerns.py": "class folders without an image",
    "transfer/instances/layouts/revisited.py": "the ground truth",
    "transfer/detection/protocol.py": "run folders",
    "transfer/detection/detectron2/hooks.py": "checkpoints",
}


def test_a_new_search_for_images_is_noticed() -> None:
    searches = re.compile(r"\b(?:scandir|listdir|os\.walk|rglob|iterdir)\(|\.glob\(")
    rooms = ["excb/images", "transfer/data", "transfer/coco", "transfer/dense", "transfer/instances", "transfer/sets"]
    rooms += ["transfer/detection", "transfer/embeddings", "transfer/overlap", "transfer/clusters", "pretrain/data"]
    found = {
        file.relative_to(ROOT).as_posix()
        for room in rooms
        for file in (ROOT / room).rglob("*.py")
        if searches.search(file.read_text(encoding="utf-8"))
    }
    assert found == LISTINGS.keys(), "find images with excb.images.scanning, and test what it leaves out here"


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
