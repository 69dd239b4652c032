"""The same faulty annotation file through every command that reads it: one ledger, as far as its faults concern it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import excb
from excb.errors import UserError
from excb.ledger import LedgerEntry
from excb.results.result import ResultRecord
from excb.transfer.coco.reading import open_coco
from excb.transfer.data.concerns import OLD
from excb.transfer.data.sources import open_source
from excb.transfer.dense.layouts.table import mask_layout_of, mask_splits
from excb.transfer.detection import engines
from excb.transfer.detection import task as tasks
from tests.run_files import tiny_recipe, write_run
from tests.transfer.detection.test_command import Perfect
from tests.transfer.detection.test_command import checkpoint as resnet50
from tests.transfer.tiny_coco import change, contents, write_coco

pytestmark = pytest.mark.usefixtures("one_thread")
FILES = {part: f"annotations/instances_{part}2017.json" for part in ("train", "val")}
UNTRAINED, UNSCORED, KEPT = "left out of training", "the pixels of their boxes do not count", "kept as they are"

MASKS = {  # count and names in the train file, by what detection, and reading masks as classes, do about it
    ("objects whose masks have no area, such as polygons of two points", UNTRAINED, UNSCORED): ["annotations[0]"],
    ("objects without a mask", UNTRAINED, UNSCORED): ["annotations[7]"],
    ("boxes without an area or outside their image", UNTRAINED, KEPT): ["annotations[7]"],
    ("boxes that leave their image", KEPT, KEPT): ["annotations[5]"],
    ("boxes that do not enclose their masks", KEPT, KEPT): ["annotations[5]", "annotations[9]"],
    ("objects that are listed twice", KEPT, KEPT): ["annotations[16]"],
}
LISTS = {  # of the lists of images and categories, which concern every command
    ("image files that are listed twice", KEPT, KEPT): ["000486.png"],
    ("categories that only group others and have no objects", KEPT, KEPT): ["shape"],
}


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """A set with eight faults in its train file that no command refuses, and three kinds that are read as meant."""
    tree = write_coco(tmp_path / "coco")
    group = {"id": 0, "name": "shape", "supercategory": "none"}
    known = contents(tree / FILES["train"])
    images, objects = known["images"], known["annotations"]
    images[1]["file_name"] = "images\\train\\" + images[1]["file_name"]
    images.append(images[2] | {"id": 9000})
    objects[0]["segmentation"] = [[3, 4, 9, 9]]
    objects[3]["iscrowd"] = True
    objects[4]["image_id"] = str(objects[4]["image_id"])
    objects[5]["bbox"] = [-20, 0, 200, 90]
    objects[7] |= {"segmentation": [], "bbox": [5, 5, 0, 9]}
    objects[9]["bbox"] = [0, 0, 5, 5]
    objects.append(objects[10] | {"id": 77})
    change(tree / FILES["train"], **known | {"categories": [*known["categories"], group]})
    change(tree / FILES["val"], categories=[*contents(tree / FILES["val"])["categories"], group])
    return tree


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    return tmp_path / "run"


def expected(table: dict[tuple[str, str, str], list[str]], column: int) -> set[LedgerEntry]:
    """The entries of the train file: those of the table's first or second column of effects."""
    return {
        LedgerEntry(
            words[0],
            len(names),
            tuple(names),
            words[column],
            left_out=words[column] in (UNTRAINED, UNSCORED),
            of="train",
        )
        for words, names in table.items()
    }


def of_annotations(result: Any) -> set[LedgerEntry]:
    """The entries of the train file, without those of the search for copies, read from the result's file."""
    entries = ResultRecord.from_json(result.record.to_json()).ledger.entries
    return {entry for entry in entries if entry.of == "train" and "another name" not in entry.reason}


def evaluated(checkpoint: Path | str, protocol: str, data: Any, **options: Any) -> Any:
    return excb.evaluate(checkpoint, protocol, data=data, device="cpu", quiet=True, **options)


def detected(tree: Path, run: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "ENGINES", {"detectron2": Perfect})
        patch.setattr(tasks, "load", lambda name, network: resnet50())
        return evaluated(run, "detection", tree, schedule="smoke", run=run.parent / "detection")


def segmented(tree: Path, run: Path, layout: str = "coco") -> Any:
    return evaluated(run, "dense", tree, layout=layout, heads=["knn"], k=1, no_cache=True, workers=0)


def labelled(tree: Path, run: Path) -> Any:
    return evaluated(run, "knn", f"multilabel:{tree}", k=[1], no_cache=True, workers=0)


def test_detection(faulty: Path, run: Path) -> None:
    assert of_annotations(detected(faulty, run)) == expected(MASKS | LISTS, 1)


@pytest.mark.parametrize("layout", ["coco", "coco-super"])
def test_masks_as_classes_of_pixels(faulty: Path, run: Path, layout: str) -> None:
    assert of_annotations(segmented(faulty, run, layout)) == expected(MASKS | LISTS, 2)


def test_categories_as_sets_of_labels(faulty: Path, run: Path) -> None:
    result = labelled(faulty, run)
    assert of_annotations(result) == expected(LISTS, 1)
    assert "train: 1 image file that is listed twice, such as 000486.png: kept as they are" in result.notes


@pytest.mark.parametrize("evaluate", [detected, segmented, labelled])
def test_copies_between_train_and_test_images(tmp_path: Path, run: Path, evaluate: Callable[[Path, Path], Any]) -> None:
    tree = write_coco(tmp_path / "coco")
    shutil.copy(tree / "train2017/000500.png", tree / "val2017/000500.png")
    with Image.open(tree / "train2017/000493.png") as picture:
        picture.point(lambda value: value * 0.8).save(tree / "val2017/000493.png")
    notes = evaluate(tree, run).notes
    assert f"test: 1 of 4 images is among the train images too, such as 000500.png = 000500.png: {OLD}" in notes
    assert f"test: 1 of 4 images looks like a train image, such as 000493.png ~ 000493.png: {OLD}" in notes


READERS: dict[str, Callable[[Path], Any]] = {
    "detection": open_coco,
    "dense": lambda tree: mask_splits(tree, mask_layout_of(tree)),
    "multilabel": lambda tree: open_source(f"multilabel:{tree}", "train"),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_cannot_be_used_is_refused_at_once_by_all(faulty: Path, reader: str) -> None:
    known = contents(faulty / FILES["train"])
    known["images"][4]["file_name"] = "gone.png"
    known["images"].append(known["images"][0])
    known["annotations"][6]["image_id"] = 12345
    known["annotations"][8]["category_id"] = "none"
    change(faulty / FILES["train"], **known)
    with pytest.raises(UserError) as caught:
        READERS[reader](faulty)
    for part in (
        "objects of images that are not listed: 1 (annotations[6])",
        "objects of categories that are not listed: 1 (annotations[8])",
        "image ids that repeat: 1 (500)",
        "image files that are not there: 1 (gone.png)",
        "`excb-eval detection --repair DIR` writes clean copies",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("reader", ["detection", "dense"])
def test_sizes_that_are_not_those_of_the_files_are_refused_at_once(faulty: Path, reader: str) -> None:
    known = contents(faulty / FILES["train"])
    for image in known["images"][3:5]:
        image["width"] += 40
    known["annotations"] = [entry for entry in known["annotations"] if isinstance(entry["segmentation"], list)]
    change(faulty / FILES["train"], **known)
    with pytest.raises(UserError, match=r"image files of another size than stated: 2 \("):
        READERS[reader](faulty)


def test_a_fault_in_a_validation_set_is_not_left_out_of_training(faulty: Path) -> None:
    known = contents(faulty / FILES["val"])
    known["annotations"][0]["bbox"] = [5, 5, 0, 9]
    change(faulty / FILES["val"], **known)
    (entry,) = (one for one in open_coco(faulty)[1].ledger.entries if one.reason.startswith("boxes without"))
    assert (entry.advice, entry.left_out) == (KEPT, False)
