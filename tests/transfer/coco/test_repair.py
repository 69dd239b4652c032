"""Tests of all faults of an annotation file at once, and of its clean copy: COCO's own tools load it as an oracle."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from excb.errors import UserError
from excb.transfer.cli import main
from excb.transfer.coco.codes import decoded, encoded, packed
from excb.transfer.coco.reading import open_coco
from excb.transfer.coco.repair import Repair, repaired, write_repaired
from tests.clone import SHARED
from tests.transfer.tiny_coco import change, contents, write_coco

pytest.importorskip("pycocotools")
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

TRAIN, VAL = "annotations/instances_train2017.json", "annotations/instances_val2017.json"
Spoil = Callable[[dict[str, Any]], None]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "coco")


def spoiled(tree: Path, spoil: Spoil, file: str = TRAIN) -> None:
    known = contents(tree / file)
    spoil(known)
    change(tree / file, **known)


def clean(tree: Path, out: Path) -> dict[str, Repair]:
    """Repair both files."""
    places = {"train": (tree / TRAIN, tree / "train2017"), "val": (tree / VAL, tree / "val2017")}
    made = repaired(places, out)
    write_repaired(made)
    return {split: each for split, (_, each) in zip(places, made, strict=True)}


def reopened(tree: Path, out: Path) -> tuple[Any, Any]:
    """The clean copies as sets, which must have no fault left, by COCO's tools first."""
    for split in ("train", "val"):
        theirs = COCO(str(out / f"{split}.json"))
        theirs.loadRes([entry | {"score": 1.0} for entry in theirs.dataset["annotations"]])
        for number in theirs.getAnnIds():
            theirs.annToRLE(theirs.anns[number])
    places = {"train_json": out / "train.json", "val_json": out / "val.json"}
    noted: list[str] = []
    images = {"train_images": tree / "train2017", "val_images": tree / "val2017"}
    train, val = open_coco(**places, **images, check_all=True, note=noted.append)  # type: ignore[arg-type, unused-ignore]
    assert (noted, train.faults, val.faults) == ([], (), ())
    return train, val


def eight_faults(known: dict[str, Any]) -> None:
    """Of an export: some can be read as meant, some are doubtful, some leave objects out, some cannot be used."""
    images, objects = known["images"], known["annotations"]
    images[1]["file_name"] = "images\\train\\" + images[1]["file_name"]
    images[4]["file_name"] = "gone.png"
    known["categories"].append({"id": 0, "name": "shape", "supercategory": "none"})  # as Roboflow's root
    objects[0]["segmentation"] = [[3, 4, 9, 9]]
    objects[3]["iscrowd"] = True
    objects[4]["image_id"] = str(objects[4]["image_id"])
    objects[5]["bbox"] = [-20, 0, 200, 90]
    objects[6]["image_id"] = 12345
    objects[7] |= {"segmentation": [], "bbox": [5, 5, 0, 9]}
    objects[9]["bbox"] = [0, 0, 5, 5]


REPORT = {
    "ids or sizes as text or with a decimal point": (1, "image_id of annotations[4]"),
    "file names with other folders, backslashes or URL encoding": (1, r"images\train\000493.png is 000493.png"),
    "crowd flags that are not 0 or 1": (1, "annotations[3]"),
    "boxes that leave their image": (1, "annotations[5]"),
    "boxes that do not enclose their masks": (2, "annotations[5], annotations[9]"),
    "boxes without an area or outside their image": (1, "annotations[7]"),
    "objects whose masks have no area, such as polygons of two points": (1, "annotations[0]"),
    "objects without a mask": (1, "annotations[7]"),
    "objects of images that are not listed": (1, "annotations[6]"),
    "image files that are not there": (1, "gone.png"),
    "categories that only group others and have no objects": (1, "shape"),
}


def test_all_faults_at_once_and_the_clean_copy(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (TRAIN, VAL):
        change(tree / file, info={"description": "mine", "date_created": 12}, licenses=[None])
    spoiled(tree, eight_faults)
    change(tree / VAL, categories=[*contents(tree / VAL)["categories"], {"id": 0, "name": "shape"}])
    before = (tree / TRAIN).read_bytes()
    noted: list[str] = []
    with pytest.raises(UserError) as caught:
        open_coco(tree, note=noted.append)
    said = " ".join([*noted, str(caught.value)])
    for words, (count, names) in REPORT.items():
        assert f"{words}: {count} ({names})" in said
    assert "`excb-eval detection --repair DIR` writes clean copies" in said

    arguments = ["detection", "--data", str(tree), "--repair", str(tmp_path / "clean"), "--device", "cpu"]
    assert main([*arguments, "--dry-run"]) == 0
    assert not (tmp_path / "clean").exists()
    assert f"would write {tmp_path / 'clean'}" in capsys.readouterr().err
    assert main(arguments) == 0
    report = capsys.readouterr().out
    for words, (count, names) in REPORT.items():
        line = next(line for line in report.splitlines() if line.startswith(words))
        assert line.removeprefix(words).split()[0] == str(count)
        assert names in line
    assert "the clean copy has 10 of 16 objects" in report  # without [0], [6], [7], and three of gone.png
    assert (tree / TRAIN).read_bytes() == before
    train, val = reopened(tree, tmp_path / "clean")
    assert sum(len(image.annotations) for image in train.images) == 10
    assert train.classes == val.classes == ("square", "disc", "bar")
    assert train.repaired["objects"] == [16, 10]
    assert train.repaired["faults"] == {words: count for words, (count, _) in REPORT.items()}
    assert contents(tmp_path / "clean/train.json")["info"]["description"] == "mine"
    with pytest.raises(UserError, match=r"train.json exists: name another folder with --repair DIR"):
        clean(tree, tmp_path / "clean")


def test_what_has_no_fault_is_copied_as_it_is(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detection", "--data", str(tree), "--repair", str(tmp_path / "clean"), "--device", "cpu"]) == 0
    assert "there is nothing to repair" in capsys.readouterr().out
    assert not (tmp_path / "clean").exists()
    clean(tree, tmp_path / "copy")
    for file, split in ((TRAIN, "train"), (VAL, "val")):
        ours, theirs = contents(tmp_path / f"copy/{split}.json"), contents(tree / file)
        assert ours["annotations"] == theirs["annotations"]
        assert sorted(ours["images"], key=str) == sorted(theirs["images"], key=str)


@pytest.mark.skipif(not (SHARED / "data/coco_tiny").is_dir(), reason="no coco_tiny here")
def test_cocos_own_files_have_no_fault() -> None:
    noted: list[str] = []
    train, val = open_coco(SHARED / "data/coco_tiny", check_all=True, note=noted.append)
    assert (noted, train.faults, val.faults, train.masks) == ([], (), (), True)


def set_all(kind: str, **values: Any) -> Spoil:
    def spoil(known: dict[str, Any]) -> None:
        for entry in known[kind]:
            for name, make in values.items():
                entry[name] = make(entry)

    return spoil


def flat_lists(known: dict[str, Any]) -> None:
    for entry in known["annotations"]:
        if isinstance(entry["segmentation"], list) and len(entry["segmentation"]) == 1:
            entry["segmentation"] = entry["segmentation"][0]


def pairs(known: dict[str, Any]) -> None:
    for entry in known["annotations"]:
        if isinstance(entry["segmentation"], list) and len(entry["segmentation"]) == 1:
            entry["segmentation"] = np.reshape(entry["segmentation"][0], (-1, 2)).tolist()


def codes_in_lists(known: dict[str, Any]) -> None:
    for entry in known["annotations"]:
        if isinstance(code := entry["segmentation"], dict):
            text = str(code["counts"].encode()) if isinstance(code["counts"], str) else list(map(float, code["counts"]))
            entry["segmentation"] = [code | {"counts": text}]


def without(kind: str, *names: str) -> Spoil:
    def spoil(known: dict[str, Any]) -> None:
        for entry in known[kind]:
            for name in names:
                del entry[name]

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        set_all("annotations", id=lambda _: 7),
        set_all("annotations", id=lambda entry: str(entry["id"]), image_id=lambda entry: float(entry["image_id"])),
        set_all("annotations", category_id=lambda entry: f"{entry['category_id']}.0"),
        set_all("categories", id=lambda entry: str(entry["id"])),
        set_all("images", id=lambda entry: f" {entry['id']} ", width=lambda entry: float(entry["width"])),
        set_all("images", file_name=lambda entry: f"/data/upload/1/{entry['file_name']}?d=%20"),
        set_all("images", file_name=lambda entry: f"/data/local-files/?d=train2017%2F{entry['file_name']}"),
        set_all("images", file_name=lambda entry: f"C:\\sets\\train2017\\{entry['file_name']}"),
        set_all("images", license=lambda _: None, date_captured=lambda _: 3, flickr_url=lambda _: []),
        set_all("annotations", iscrowd=lambda entry: bool(entry["iscrowd"])),
        set_all("annotations", iscrowd=lambda entry: str(entry["iscrowd"])),
        set_all("annotations", iscrowd=lambda entry: entry["iscrowd"] or None),
        flat_lists,
        pairs,
        codes_in_lists,
    ],
)
def test_what_exporters_write_otherwise_is_read_as_meant(tree: Path, tmp_path: Path, spoil: Spoil) -> None:
    """The same set as without it, as read from the file and from the clean copy."""
    expected = open_coco(tree)[0].ground_truth()
    spoiled(tree, spoil)
    assert equal(open_coco(tree)[0].ground_truth(), expected)
    clean(tree, tmp_path / "clean")
    assert equal(reopened(tree, tmp_path / "clean")[0].ground_truth(), expected)


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(json.loads(json.dumps(one)) == json.loads(json.dumps(other)))


def test_missing_areas_and_flags(tree: Path, tmp_path: Path) -> None:
    expected = contents(tree / TRAIN)["annotations"]
    spoiled(tree, without("annotations", "area", "iscrowd", "id"))
    clean(tree, tmp_path / "clean")
    made = contents(tmp_path / "clean/train.json")["annotations"]
    assert [entry["area"] for entry in made] == [entry["area"] for entry in expected]  # pixels of masks, as drawn
    assert {entry["iscrowd"] for entry in made} == {0}
    assert [entry["id"] for entry in made] == list(range(1, len(made) + 1))
    reopened(tree, tmp_path / "clean")


def test_boxes_come_from_masks_where_they_are_missing_or_wrong(tree: Path, tmp_path: Path) -> None:
    expected = [entry["bbox"] for entry in contents(tree / TRAIN)["annotations"]]
    spoiled(tree, set_all("annotations", bbox=lambda entry: None if entry["id"] % 2 else [0, 0, 3, 0]))
    clean(tree, tmp_path / "clean")
    made = [entry["bbox"] for entry in contents(tmp_path / "clean/train.json")["annotations"]]
    np.testing.assert_allclose(made, expected)
    reopened(tree, tmp_path / "clean")


def test_boxes_as_corners_are_recognised(tree: Path, tmp_path: Path) -> None:
    """As kili and others export them; widths would then reach beyond the images."""
    expected = [entry["bbox"] for entry in contents(tree / TRAIN)["annotations"]]

    def as_corners(entry: dict[str, Any]) -> list[float]:
        left, top, width, height = entry["bbox"]
        return [left, top, left + width, top + height]

    spoiled(tree, set_all("annotations", bbox=as_corners))
    with pytest.raises(UserError, match=r"boxes that fit their images only as left, top, right, bottom: 16"):
        open_coco(tree)
    clean(tree, tmp_path / "clean")
    assert [entry["bbox"] for entry in contents(tmp_path / "clean/train.json")["annotations"]] == expected


def test_sizes_missing_scaled_swapped_or_of_another_version(tree: Path, tmp_path: Path) -> None:
    known = contents(tree / TRAIN)
    images = known["images"]
    names = [image["file_name"] for image in images]
    del images[0]["width"]
    images[1]["height"] = 0
    images[2] |= {"width": 200, "height": 144}  # annotated at twice the size
    for entry in known["annotations"]:
        if entry["image_id"] == images[2]["id"]:
            entry["bbox"] = [2 * side for side in entry["bbox"]]
            entry["area"] *= 4
            if isinstance(entry["segmentation"], list):
                entry["segmentation"] = [[2 * side for side in part] for part in entry["segmentation"]]
            else:
                half = decoded(packed(entry["segmentation"])).astype(np.uint8)
                whole = np.kron(half, np.ones((2, 2), np.uint8))
                entry["segmentation"] = encoded(whole)
    images[4] |= {"width": 31, "height": 96}
    expected = {entry["id"]: entry["bbox"] for entry in contents(tree / TRAIN)["annotations"]}
    masks = {entry["id"]: entry["area"] for entry in contents(tree / TRAIN)["annotations"]}
    change(tree / TRAIN, **known)
    repair = clean(tree, tmp_path / "clean")["train"]
    train, _ = reopened(tree, tmp_path / "clean")
    assert {image.file for image in train.images} == {*names} - {names[4]}
    assert next(image.size for image in train.images if image.file == names[2]) == (100, 72)
    for entry in contents(tmp_path / "clean/train.json")["annotations"]:
        np.testing.assert_allclose(entry["bbox"], expected[entry["id"]])
        assert entry["area"] == pytest.approx(masks[entry["id"]])
    assert sum(repair.lost.values()) == 3


def test_swapped_sides_are_corrected_where_all_boxes_fit(tree: Path, tmp_path: Path) -> None:
    known = contents(tree / TRAIN)
    image = next(image for image in known["images"] if image["width"] > image["height"])
    image["width"], image["height"] = image["height"], image["width"]
    for entry in known["annotations"]:
        if isinstance(entry["segmentation"], dict):
            entry["segmentation"] = [[0, 0, 9, 0, 9, 9]]
            entry["bbox"] = [0, 0, 9, 9]
    change(tree / TRAIN, **known)
    clean(tree, tmp_path / "clean")
    train, _ = reopened(tree, tmp_path / "clean")
    assert len(train) == 6


def test_an_id_of_two_things_is_not_guessed(tree: Path, tmp_path: Path) -> None:
    known = contents(tree / TRAIN)
    change(tree / TRAIN, images=[*known["images"], known["images"][0] | {"file_name": known["images"][1]["file_name"]}])
    with pytest.raises(UserError, match=r"image id 500 means both 000500.png and 000493.png: only its author"):
        clean(tree, tmp_path / "clean")
    change(tree / TRAIN, images=known["images"], categories=[*known["categories"], {"id": 90, "name": "twin"}])
    with pytest.raises(UserError, match=r"category id 90 means both bar and twin"):
        clean(tree, tmp_path / "clean")
    assert not (tmp_path / "clean").exists()


def test_doubles_are_merged(tree: Path, tmp_path: Path) -> None:
    known = contents(tree / TRAIN)
    number, again = len(known["annotations"]), known["images"][0] | {"id": 9000}
    categories = [*known["categories"], {"id": 1, "name": "bar"}]
    moved = known["annotations"][0] | {"image_id": 9000, "category_id": 1, "id": 1}
    twin = known["annotations"][1] | {"id": 2}
    annotations = [*known["annotations"], moved, twin]
    change(tree / TRAIN, images=[*known["images"], again], categories=categories, annotations=annotations)
    repair = clean(tree, tmp_path / "clean")["train"]
    found = {fault.kind.words: fault.count for fault in repair.faults}
    assert found["image files that are listed twice"] == found["objects that are listed twice"] == 1
    assert found["category names that repeat"] == 1
    train, _ = reopened(tree, tmp_path / "clean")
    assert (len(train), sum(len(image.annotations) for image in train.images)) == (6, number + 1)


def test_words_as_ids_are_numbered(tree: Path, tmp_path: Path) -> None:
    spoiled(tree, set_all("images", id=lambda entry: f"image {entry['id']}"))
    spoiled(tree, set_all("annotations", image_id=lambda entry: f"image {entry['image_id']}"))
    with pytest.raises(UserError, match=r"image ids that are no numbers: 6 \(image 500"):
        open_coco(tree)
    clean(tree, tmp_path / "clean")
    train, _ = reopened(tree, tmp_path / "clean")
    assert [image.id for image in train.images] == [1, 2, 3, 4, 5, 6]
    assert [len(image.annotations) for image in train.images] == [4, 3, 3, 3, 3, 0]


def test_crowds_that_are_polygons(tree: Path, tmp_path: Path) -> None:
    spoiled(tree, lambda known: known["annotations"][0].update(iscrowd=1, segmentation=[[2, 2, 9, 2, 9, 9]]))
    noted: list[str] = []
    open_coco(tree, note=noted.append)
    assert "crowds that are polygons, which neither train nor count: 1 (annotations[0]): kept as they are" in noted[0]
    clean(tree, tmp_path / "clean")
    made = contents(tmp_path / "clean/train.json")["annotations"][0]
    assert set(made["segmentation"]) == {"size", "counts"}


# ---------------------------------------------------------------------------------------------------------------------
# Boxes alone
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [(TRAIN, VAL), (VAL,), (TRAIN,)])
def test_sets_of_boxes_alone_are_recognised(tree: Path, tmp_path: Path, files: tuple[str, ...]) -> None:
    for file in files:
        spoiled(tree, set_all("annotations", segmentation=lambda _: []), file)
    train, val = open_coco(tree)
    assert (train.masks, val.masks, train.faults, val.faults) == (False, False, (), ())
    assert len(train.trainable) == 5
    clean(tree, tmp_path / "clean")
    truth, detections = COCO(str(tmp_path / "clean/val.json")), contents(tmp_path / "clean/val.json")["annotations"]
    results = [{name: entry[name] for name in ("image_id", "category_id", "bbox")} for entry in detections]
    evaluation = COCOeval(truth, truth.loadRes([entry | {"score": 1.0} for entry in results]), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert evaluation.stats[0] == pytest.approx(1)


def test_masks_of_some_objects_are_judged_or_left_by_choice(tree: Path, tmp_path: Path) -> None:
    """As of Label Studio's rectangles and polygons in one project."""
    for file in (TRAIN, VAL):
        spoiled(tree, lambda known: known["annotations"][0].update(segmentation=[]), file)
    with pytest.raises(UserError, match=r"val2017 has objects without a mask: 1 .*--set masks=false judges boxes"):
        open_coco(tree)
    train, val = open_coco(tree, masks=False)
    assert (train.masks, train.faults, val.faults) == (False, (), ())
    assert all(len(images.objects(0)) == len(images.images[0].annotations) for images in (train, val) if images)
    repairs = clean(tree, tmp_path / "clean")
    assert [repair.before - repair.kept for repair in repairs.values()] == [1, 1]
    assert reopened(tree, tmp_path / "clean")[0].masks


@pytest.mark.parametrize(
    ("annotations", "folder"),
    [
        ("annotations/instances_{}.json", "images/{}"),  # CVAT
        ("{}/_annotations.coco.json", "{}"),  # Roboflow
        ("{}/labels.json", "{}/data"),  # FiftyOne
    ],
)
def test_layouts_of_exporters(tree: Path, tmp_path: Path, annotations: str, folder: str) -> None:
    root = tmp_path / "exported"
    for split, file, name in (("train", TRAIN, "train"), ("val", VAL, "valid")):
        shutil.copytree(tree / f"{split}2017", root / folder.format(name))
        (root / annotations.format(name)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree / file, root / annotations.format(name))
    train, val = open_coco(root)
    assert (len(train), len(val)) == (6, 4)
    assert isinstance(val.open(0), Image.Image)
