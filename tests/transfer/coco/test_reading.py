"""Tests of reading sets in COCO's format: against COCO's own tools, and every wrong input with its one line."""

import hashlib
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from excb.errors import UserError
from excb.transfer.coco import reading
from excb.transfer.coco.reading import open_coco, read_coco
from tests.clone import ROOT, SHARED
from tests.transfer.tiny_coco import CATEGORIES, change, contents, write_coco

pytest.importorskip("pycocotools")
from pycocotools.coco import COCO

REAL = SHARED / "data" / "coco_tiny"
TRAIN = "annotations/instances_train2017.json"
VAL = "annotations/instances_val2017.json"

IMPORT_AND_READ = """
import sys
import tracemalloc
from excb.transfer.coco.reading import open_coco, read_coco
train, val = open_coco(sys.argv[1])
print(len(train), len(val), "torch" in sys.modules, "detectron2" in sys.modules)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "coco")


@pytest.fixture(
    params=["tiny", pytest.param("real", marks=pytest.mark.skipif(not REAL.is_dir(), reason="no coco_tiny here"))]
)
def any_tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return REAL if request.param == "real" else write_coco(tmp_path / "coco")


# ---------------------------------------------------------------------------------------------------------------------
# What is read
# ---------------------------------------------------------------------------------------------------------------------


def test_truth_is_what_cocos_tools_read(any_tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for images, file in zip(open_coco(any_tree), (any_tree / TRAIN, any_tree / VAL), strict=True):
        theirs, ours = COCO(str(file)), COCO()
        ours.dataset = images.ground_truth()
        ours.createIndex()
        assert ours.getImgIds() == sorted(theirs.getImgIds()) == [image.id for image in images.images]
        assert ours.getCatIds() == sorted(theirs.getCatIds()) == list(images.category_ids)
        assert [theirs.cats[number]["name"] for number in images.category_ids] == list(images.classes)
        assert sorted(ours.anns) == list(range(1, len(theirs.anns) + 1))
        for number in theirs.getImgIds():
            assert len(ours.imgToAnns[number]) == len(theirs.imgToAnns[number])
            for mine, other in zip(ours.imgToAnns[number], theirs.imgToAnns[number], strict=True):
                for name in ("image_id", "category_id", "bbox", "area", "iscrowd"):
                    assert mine[name] == other[name]
                assert ours.annToRLE(mine) == theirs.annToRLE(other)


def test_labels_are_contiguous_whatever_the_ids(tree: Path) -> None:
    train, val = open_coco(tree)
    assert train.category_ids == val.category_ids == tuple(CATEGORIES) == (3, 7, 90)
    assert train.classes == tuple(CATEGORIES.values())
    assert {annotation.label for image in train.images for annotation in image.annotations} == {0, 1, 2}


def test_all_kinds_of_masks_are_in_the_small_set(tree: Path) -> None:
    masks = [a["segmentation"] for a in contents(tree / TRAIN)["annotations"]]
    assert {type(mask["counts"]) for mask in masks if isinstance(mask, dict)} == {str, list}
    assert {len(mask) for mask in masks if isinstance(mask, list)} == {1, 2}


@pytest.mark.parametrize("year", ["2017", ""])
def test_layouts(tmp_path: Path, year: str) -> None:
    tree = write_coco(tmp_path / "coco", year=year)
    train, val = open_coco(str(tree))
    assert (train.listed_in, train.folder) == (tree / f"annotations/instances_train{year}.json", tree / f"train{year}")
    assert (val.listed_in, val.folder) == (tree / f"annotations/instances_val{year}.json", tree / f"val{year}")


def test_any_other_layout_is_named(tree: Path, tmp_path: Path) -> None:
    elsewhere = [tmp_path / name for name in ("a.json", "a", "b.json", "b")]
    for old, new in zip((TRAIN, "train2017", VAL, "val2017"), elsewhere, strict=True):
        (tree / old).rename(new)
    names = ("train_json", "train_images", "val_json", "val_images")
    places: dict[str, Any] = dict(zip(names, elsewhere, strict=True))
    train, val = open_coco(**places)
    assert (len(train), len(val)) == (6, 4)
    assert [train.open(index).size for index in range(6)] == [image.size for image in train.images]
    (tree / VAL).parent.mkdir(exist_ok=True)
    (tree / VAL).write_bytes(elsewhere[2].read_bytes())
    assert len(open_coco(tree, train_json=elsewhere[0], train_images=elsewhere[1], val_images=elsewhere[3])[1]) == 4


def test_images_in_subfolders(tree: Path) -> None:
    images = contents(tree / TRAIN)["images"]
    for number, image in enumerate(images):
        target = tree / "train2017" / str(number % 2) / image["file_name"]
        target.parent.mkdir(exist_ok=True)
        (tree / "train2017" / image["file_name"]).rename(target)
        image["file_name"] = f"{number % 2}/{image['file_name']}"
    change(tree / TRAIN, images=images)
    assert len(open_coco(tree)[0]) == 6


def test_lvis_names_files_by_their_address(tree: Path) -> None:
    train, _ = open_coco(tree)
    images = contents(tree / TRAIN)["images"]
    for image in images:
        image["coco_url"] = f"http://images.cocodataset.org/train2017/{image.pop('file_name')}"
    change(tree / TRAIN, images=images)
    again, _ = open_coco(tree)
    assert [image.file for image in again.images] == [image.file for image in train.images]


def test_reading_needs_no_torch(tree: Path) -> None:
    # A new interpreter: what it imports is tested.
    command = [sys.executable, "-c", IMPORT_AND_READ, str(tree)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == ["6", "4", "False", "False"]


# ---------------------------------------------------------------------------------------------------------------------
# What is refused
# ---------------------------------------------------------------------------------------------------------------------


BAD_MASK = r"masks that cannot be read or are not of their image: 1 \(annotations\[0\]\)"


def first_annotation(name: str, value: Any) -> Callable[[Path], None]:
    def spoil(tree: Path) -> None:
        annotations = contents(tree / TRAIN)["annotations"]
        annotations[0][name] = value
        change(tree / TRAIN, annotations=annotations)

    return spoil


def last_image(name: str, value: Any) -> Callable[[Path], None]:
    """The last one has no objects that could be found wrong first."""

    def spoil(tree: Path) -> None:
        images = contents(tree / TRAIN)["images"]
        images[-1][name] = value
        change(tree / TRAIN, images=images)

    return spoil


def without(kind: str, name: str) -> Callable[[Path], None]:
    def spoil(tree: Path) -> None:
        entries = contents(tree / TRAIN)[kind]
        del entries[1][name]
        change(tree / TRAIN, **{kind: entries})

    return spoil


def renamed_category(tree: Path) -> None:
    categories = contents(tree / VAL)["categories"]
    categories[-1]["name"] = "sheep"
    change(tree / VAL, categories=categories)


def another_category(tree: Path) -> None:
    categories = contents(tree / TRAIN)["categories"]
    change(tree / TRAIN, categories=[*categories, {"id": 91, "name": "ring"}])


def repeated(kind: str, **values: Any) -> Callable[[Path], None]:
    def spoil(tree: Path) -> None:
        entries = contents(tree / TRAIN)[kind]
        change(tree / TRAIN, **{kind: [*entries, entries[0] | values]})

    return spoil


def remove_images(number: int) -> Callable[[Path], None]:
    def spoil(tree: Path) -> None:
        for file in sorted((tree / "train2017").iterdir())[:number]:
            file.unlink()

    return spoil


def unmasked_in_val(tree: Path) -> None:
    annotations = contents(tree / VAL)["annotations"]
    annotations[2]["segmentation"] = []
    change(tree / VAL, annotations=annotations)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda tree: (tree / TRAIN).unlink(), "no annotation file .*instances_train2017.json.*--train-json"),
        (lambda tree: (tree / VAL).unlink(), "no annotation file .*instances_val2017.json: .*instances_val.json"),
        (lambda tree: (tree / "val2017").rename(tree / "v"), "no folder of images .*val2017.*--val-images"),
        (lambda tree: (tree / TRAIN).write_text('{"images": ['), "cannot read .*train2017.json"),
        (lambda tree: (tree / TRAIN).write_bytes(b"\xff\xfe\x00"), "cannot read .*train2017.json"),
        (lambda tree: (tree / TRAIN).write_text("[1]"), "has no list of 'images'"),
        (lambda tree: change(tree / TRAIN, categories=None), "has no list of 'categories'"),
        (
            lambda tree: change(tree / TRAIN, annotations=["one"]),
            r"entries of annotations that are no objects: 1 \(annotations\[0\]\)",
        ),
        (renamed_category, r"categories differ \(only in .*train2017.json: square \(3\); only in .*: sheep \(3\)\)"),
        (another_category, r"categories differ \(only in .*train2017.json: ring \(91\)\): both"),
        (repeated("categories", name="twin"), r"category ids that repeat: 1 \(90: twin\)"),
        (repeated("categories", id=4), r"category names that repeat: 1 \(bar\)"),
        (repeated("images"), r"image ids that repeat: 1 \(500\)"),
        (remove_images(1), r"images in .*train2017 has image files that are not there: 1 \(000465.png\)"),
        (remove_images(4), r"not there: 4 \(000486.png, 000479.png, 000472.png, \.\.\.\)"),
        (first_annotation("image_id", 12), r"objects of images that are not listed: 1 \(annotations\[0\]\)"),
        (first_annotation("category_id", 1), r"objects of categories that are not listed: 1 \(annotations\[0\]\)"),
        (
            first_annotation("bbox", [1, 2, float("nan"), 4]),
            r"boxes that are missing or not four numbers: 1 \(annotations\[0\]\)",
        ),
        (first_annotation("bbox", [1, 2, 3]), r"not four numbers: 1 \(annotations\[0\]\)"),
        (first_annotation("segmentation", {"size": [9, 9], "counts": [81]}), BAD_MASK),
        (first_annotation("segmentation", {"counts": [81]}), BAD_MASK),
        (first_annotation("segmentation", {"size": [64, 96], "counts": [81]}), BAD_MASK),
        (first_annotation("segmentation", {"size": [64, 96], "counts": 5}), BAD_MASK),
        (first_annotation("segmentation", [[[1, 2, 3], [3, 4, 5], [5, 6, 7]]]), BAD_MASK),
        (first_annotation("segmentation", [["a", "b"]]), BAD_MASK),
        (last_image("id", "twelve"), r"image ids that are no numbers: 1 \(twelve\)"),
        (last_image("width", 0), r"images without a size: 1 \(000465.png\)"),
        (last_image("width", 97), r"another size than stated: 1 \(000465.png is 112 x 60, not 97 x 60\)"),
        (without("images", "file_name"), r"images without a file name or an id: 1 \(images\[1\]\)"),
        (without("annotations", "bbox"), r"boxes that are missing or not four numbers: 1 \(annotations\[1\]\)"),
        (lambda tree: change(tree / TRAIN, annotations=[]), "train2017.json has no object to train on"),
        (lambda tree: change(tree / TRAIN, images=[], annotations=[]), "train2017.json has no object to train on"),
        (lambda tree: change(tree / VAL, annotations=[]), "val2017.json has no object to detect"),
        (
            lambda tree: (tree / "train2017/000500.png").write_bytes(b"no image"),
            r"image files that cannot be read: 1 \(000500.png\)",
        ),
        (unmasked_in_val, r"objects without a mask: 1 \(annotations\[2\]\).* --set masks=false judges boxes alone"),
    ],
)
def test_wrong_input_gives_one_line(tree: Path, spoil: Callable[[Path], None], line: str) -> None:
    spoil(tree)
    with pytest.raises(UserError, match=line) as caught:
        open_coco(tree)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_or_no_place_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        open_coco(tmp_path / "nowhere")
    with pytest.raises(UserError, match="--data, or both --train-json and --train-images"):
        open_coco(train_json=tmp_path / "a.json")


def test_missing_tools_are_named_first(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match="pip install pycocotools"):
        open_coco(tree)


def test_sizes_of_a_sample_or_of_all(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHECKED", 3)  # so that every second of six images is looked at
    images = contents(tree / TRAIN)["images"]
    next(image for image in images if image["id"] == 472)["height"] += 1  # the second by id
    change(tree / TRAIN, images=images)
    annotations = [a for a in contents(tree / TRAIN)["annotations"] if a["image_id"] != 472]
    change(tree / TRAIN, annotations=annotations)
    train, _ = open_coco(tree)
    with pytest.raises(UserError, match=r"000472.png is 64 x 96, not 64 x 97"):
        open_coco(tree, check_all=True)
    with pytest.raises(UserError, match=r"000472.png has 64 x 96 pixels"):
        train.open(1)


@pytest.mark.parametrize(
    "segmentation",
    [
        [[0, 0, 1e9, 1e9, 4e9, 5]],  # COCO's own tools end the process at this one
        [[0, 0, float("nan"), 5, 5, 5]],
        {"size": [64, 96], "counts": [64 * 96 + 5, -5]},
        {"size": [64, 96], "counts": "o" * 50},
        {"size": [64, 96], "counts": "1"},
    ],
)
def test_masks_that_must_not_reach_cocos_tools(tmp_path: Path, segmentation: object) -> None:
    root = write_coco(tmp_path / "set")
    file = root / "annotations/instances_train2017.json"
    known = contents(file)["annotations"]
    first = next(n for n, entry in enumerate(known) if entry["image_id"] == 500)
    change(
        file,
        annotations=[entry | {"segmentation": segmentation} if n == first else entry for n, entry in enumerate(known)],
    )
    with pytest.raises(
        UserError, match=rf"masks that cannot be read or are not of their image: 1 \(annotations\[{first}\]\)"
    ):
        open_coco(root)


def test_what_is_too_large_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json"
    file.write_text(" " * 100)
    monkeypatch.setenv("EXCB_MEMORY_LIMIT", "1e-8")
    with pytest.raises(UserError, match=r"if you trust it, set EXCB_MEMORY_LIMIT to more GB\)$"):
        reading.parse_file(file)


def write_lvis(root: Path, images: int, objects: int) -> Path:
    """An annotation file in LVIS's layout beside its images: long polygons, 1,203 categories, no crowd flags."""
    random = np.random.default_rng(0)
    entries = []
    for number in range(1, images + 1):
        Image.new("L", (640, 480)).save(root / f"{number:012}.png")
        entries.append({"id": number, "file_name": f"{number:012}.png", "width": 640, "height": 480})
    angles = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    annotations = []
    for number in range(1, objects + 1):
        (left, top), radius = random.uniform(60, 420, 2), random.uniform(5, 55)
        points = np.stack([left + radius * np.cos(angles), top + radius * np.sin(angles)], 1).round(2)
        low, high = points.min(0), points.max(0)
        annotations.append(
            {
                "id": number,
                "image_id": number % images + 1,
                "category_id": number % 1203 + 1,
                "area": round(np.pi * radius**2, 2),
                "bbox": np.concatenate([low, high - low]).round(2).tolist(),
                "segmentation": [points.ravel().tolist()],
            }
        )
    categories = [{"id": number, "name": f"thing {number}"} for number in range(1, 1204)]
    file = root / "lvis.json"
    file.write_text(json.dumps({"images": entries, "annotations": annotations, "categories": categories}))
    return file


def test_a_file_of_lviss_layout_takes_the_memory_that_is_stated(tmp_path: Path) -> None:
    """At most ten times its bytes (SECURITY.md), whatever their number."""
    file = write_lvis(tmp_path, 20, 1500)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        read = read_coco(file, tmp_path)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert sum(len(image.annotations) for image in read.images) == 1500
    assert len(read.classes) == 1203
    assert peak < 10 * file.stat().st_size


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-le"])
def test_any_encoding_of_json_is_read(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "a.json"
    expected = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "Äpfel"}]}
    file.write_bytes(json.dumps(expected, ensure_ascii=False).encode(encoding))
    assert reading.parse_file(file) == (hashlib.sha256(file.read_bytes()).hexdigest(), expected)
