"""The doctor's look at the data tree: every fault is made in a folder of a few pictures."""

import shutil
from pathlib import Path

import pytest

from excb.images.scanning import scan_folder
from excb.images.shards import open_shards
from excb.pretrain.doctor.finding import Finding
from excb.pretrain.doctor.tree import check_tree
from excb.sources.opening import read_list
from tests.excb.images.shard_files import pack_folder
from tests.pretrain.small_runs import write_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", classes=3, each=5, side=8)


def judged(folder: Path, batch: int | None = None) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_tree(scan_folder(folder), batch)}


def test_a_sound_tree(folder: Path) -> None:
    findings = judged(folder, batch=15)
    assert {finding.verdict for finding in findings.values()} == {"ok"}
    assert "15 images below" in findings["images"].found
    assert "15 .png" in findings["images"].found
    assert findings["classes"].found == "3 classes of 5 to 5 images"


def test_a_batch_larger_than_the_set(folder: Path) -> None:
    assert judged(folder, batch=16)["images"].verdict == "error"


def test_one_image(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("class0/0.png\n")
    assert check_tree(read_list(tmp_path / "list.txt", folder))[0].verdict == "error"


def test_a_class_with_few_images_is_named(folder: Path) -> None:
    (folder / "class1" / "0.png").unlink()
    finding = judged(folder)["classes"]
    assert finding.verdict == "warning"
    assert finding.names == ("class1 (4)",)


def test_parts_of_a_set_are_not_its_classes(folder: Path) -> None:
    shutil.rmtree(folder / "class2")
    (folder / "class0").rename(folder / "Test")
    (folder / "class1").rename(folder / "val")
    finding = judged(folder)["classes"]
    assert finding.verdict == "error"
    assert "--data" in finding.fix


def test_no_labels(folder: Path) -> None:
    (folder / "class0" / "0.png").rename(folder / "loose.png")
    assert "no labels" in judged(folder)["classes"].found


def test_copies_are_named_and_namesakes_are_not(folder: Path) -> None:
    shutil.copy(folder / "class0" / "0.png", folder / "class2" / "0.png")
    content = (folder / "class0" / "1.png").read_bytes()
    (folder / "class1" / "1.png").write_bytes(content[:-1] + b"?")  # one name, one size, other bytes
    finding = judged(folder)["copies"]
    assert finding.verdict == "warning"
    assert finding.names == ("class0/0.png = class2/0.png",)


def test_a_tree_in_shards(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "class0" / "0.png", folder / "class2" / "0.png")
    packed = check_tree(open_shards(str(pack_folder(folder, tmp_path / "shards", count=1))))
    plain = check_tree(scan_folder(folder))
    verdicts = [[finding.verdict for finding in each] for each in (packed, plain)]
    assert verdicts == 2 * [["ok", "ok", "ok", "warning"]]
    assert packed[-1].names == ("000.tar/class0/0.png = 000.tar/class2/0.png",)
