"""Tests of every layout on a tiny tree: which files and classes it finds, what does not count, what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from excb.errors import UserError
from excb.transfer.dense.layouts import ade20k, cityscapes, pascal_context, voc
from excb.transfer.dense.layouts.table import LAYOUTS, mask_layout_of, mask_splits
from tests.transfer.dense.masked_images import CLASSES, write_set
from tests.transfer.tiny_coco import change, contents, write_coco

HEIGHT, WIDTH = 6, 9


def write(root: Path, image: str, mask: str, values: list[int]) -> None:
    """An image and its mask, whose columns hold the values in turn."""
    table = np.resize(np.array(values, np.uint8), (HEIGHT, WIDTH))
    for path, pixels in ((image, np.full((HEIGHT, WIDTH, 3), 90, np.uint8)), (mask, table)):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / path)


def names(file: Path, *lines: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_voc(root: Path) -> None:
    for name, values in (("2007_1", [0, 15, 255]), ("2007_2", [20]), ("2007_3", [1, 0])):
        write(root, f"JPEGImages/{name}.jpg", f"SegmentationClass/{name}.png", values)
    write(root, "JPEGImages/2008_9.jpg", "SegmentationClassAug/2008_9.png", [7])
    names(root / "ImageSets/Segmentation/train.txt", "2007_1", "2007_2")
    names(root / "ImageSets/Segmentation/trainaug.txt", "2008_9")
    names(root / "ImageSets/Segmentation/val.txt", "2007_3")


def write_context(root: Path) -> None:
    for name, values in (("a", [0, 1, 59]), ("b", [2])):
        write(root, f"JPEGImages/{name}.jpg", f"SegmentationClassContext/{name}.png", values)
    names(root / "ImageSets/SegmentationContext/train.txt", "a")
    names(root / "ImageSets/SegmentationContext/val.txt", "b")


def write_ade20k(root: Path) -> None:
    write(root, "images/training/t.jpg", "annotations/training/t.png", [0, 1, 150])
    write(root, "images/validation/v.jpg", "annotations/validation/v.png", [3])
    lines = [f"{number}\t0.1\t9\t1\tname {number}, other" for number in range(1, 151)]
    names(root / "objectInfo150.txt", "Idx\tRatio\tTrain\tVal\tName", *lines)


def write_cityscapes(root: Path) -> None:
    for split, values in (("train", [0, 7, 33, 9]), ("val", [26])):
        base = f"{split}/bonn/bonn_000"
        write(root, f"leftImg8bit/{base}_leftImg8bit.png", f"gtFine/{base}_gtFine_labelIds.png", values)


@pytest.mark.parametrize(
    ("name", "write_tree", "folder", "images", "classes", "first"),
    [
        ("voc", write_voc, "VOC2012", (2, 1), 21, {-1, 0, 15}),
        ("voc-aug", write_voc, "VOC2012", (1, 1), 21, {7}),
        ("pascal-context", write_context, "VOC2010", (1, 1), 59, {-1, 0, 58}),
        ("pascal-context-60", write_context, "VOC2010", (1, 1), 60, {0, 1, 59}),
        ("ade20k", write_ade20k, "ADE", (1, 1), 150, {-1, 0, 149}),
        ("cityscapes", write_cityscapes, "city", (1, 1), 19, {-1, 0, 18}),
    ],
)
def test_published_sets(
    tmp_path: Path,
    *,
    name: str,
    write_tree: Callable[[Path], None],
    folder: str,
    images: tuple[int, int],
    classes: int,
    first: set[int],
) -> None:
    write_tree(tmp_path / folder)
    train, test = mask_splits(tmp_path / folder, mask_layout_of(tmp_path / folder, name))
    assert (len(train), len(test)) == images
    assert len(set(train.classes)) == classes
    assert set(np.unique(train.mask(0)).tolist()) == first
    assert train.mask(0).shape == (HEIGHT, WIDTH)
    assert train.open(0).size == train.size(0) == (WIDTH, HEIGHT)
    assert train.fingerprint != test.fingerprint


@pytest.mark.parametrize(
    ("write_tree", "folder", "name"),
    [
        (write_voc, "VOC2012", "voc"),
        (write_voc, "VOCdevkit/VOC2012", "voc"),
        (write_context, "VOC2010", "pascal-context"),
        (write_ade20k, "x", "ade20k"),
        (write_cityscapes, "x", "cityscapes"),
        (write_set, "x", "folders"),
        (write_coco, "x", "coco"),
    ],
)
def test_a_folder_says_its_layout(tmp_path: Path, write_tree: Callable[[Path], None], folder: str, name: str) -> None:
    write_tree(tmp_path / folder)
    top = tmp_path / folder.split("/", maxsplit=1)[0]
    layout = mask_layout_of(top)
    assert layout.name == name
    mask_splits(top, layout)


def test_names_and_classes_are_those_of_their_benchmarks() -> None:
    assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS)
    assert voc.CLASSES[15] == "person"
    assert tuple(sorted(pascal_context.CLASSES)) == pascal_context.CLASSES
    assert [cityscapes.CLASSES[name] for name in ("road", "car", "bicycle")] == [7, 26, 33]
    assert ade20k.CLASSES == 150


def test_folders_of_images_and_masks(tmp_path: Path) -> None:
    root = write_set(tmp_path / "set")
    train, test = mask_splits(root, mask_layout_of(root))
    assert train.classes == CLASSES
    assert (len(train), len(test)) == (6, 4)
    assert any(path.startswith("images/deep/") for path in train.paths)
    assert (train.mask(0)[:, 0] == -1).all()  # 255
    before = train.stamp(0)
    file = root / "train" / "masks" / f"{train.paths[0].removeprefix('images/')}"
    Image.fromarray(np.ones((500, 500), np.uint8)).save(file)
    assert train.stamp(0) != before


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda mask: Image.new("RGB", mask.size), "is an image of mode RGB"),
        (lambda mask: mask.resize((5, 5)), "has 5 x 5 pixels and its image 48 x 48"),
        (lambda mask: mask.point(lambda value: 9 if value == 1 else value), "holds the value 9"),
    ],
)
def test_masks_that_cannot_be_used(tmp_path: Path, damage: Callable[[Image.Image], Image.Image], said: str) -> None:
    root = write_set(tmp_path / "set", sizes=(48,))
    file = root / "train" / "masks" / "1.png"
    with Image.open(file) as mask:
        damage(mask).save(file)
    train, _ = mask_splits(root, mask_layout_of(root))
    index = train.paths.index("images/1.png")
    with pytest.raises(UserError, match=said):
        train.mask(index)
    file.write_bytes(b"no image")
    with pytest.raises(UserError, match="cannot read the mask"):
        train.mask(index)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder"):
        mask_layout_of(tmp_path / "nothing")
    with pytest.raises(UserError, match="has none of the layouts coco"):
        mask_layout_of(tmp_path)
    with pytest.raises(UserError, match=r"--layout cityscape: there are .*did you mean 'cityscapes'"):
        mask_layout_of(tmp_path, "cityscape")
    for name in (layout.name for layout in LAYOUTS):
        with pytest.raises(UserError):
            mask_splits(tmp_path, mask_layout_of(tmp_path, name))
    root = write_set(tmp_path / "set")
    (root / "train" / "masks" / "1.png").unlink()
    with pytest.raises(UserError, match=r"1 file is not in .*, such as masks/1.png"):
        mask_splits(root, mask_layout_of(root))
    (root / "classes.txt").unlink()
    with pytest.raises(UserError, match="holds the names of the classes, a line each"):
        mask_splits(root, mask_layout_of(root))
    write_voc(tmp_path / "VOC2012")
    (tmp_path / "VOC2012/ImageSets/Segmentation/val.txt").write_text("\n")
    with pytest.raises(UserError, match="names no image"):
        mask_splits(tmp_path / "VOC2012", mask_layout_of(tmp_path / "VOC2012"))


# ---------------------------------------------------------------------------------------------------------------------
# COCO
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of COCO's tools, with NumPy 2
def test_objects_are_classes_and_crowds_do_not_count(tmp_path: Path) -> None:
    from pycocotools.coco import COCO

    root = write_coco(tmp_path / "coco")
    images, _ = mask_splits(root, mask_layout_of(root))
    assert images.classes == ("background", "square", "disc", "bar")
    truth = COCO(str(root / "annotations/instances_train2017.json"))
    numbers = {3: 1, 7: 2, 90: 3}
    for index, image in enumerate(sorted(truth.imgs)):
        objects = sorted(truth.imgToAnns[image], key=lambda one: (1 - one["iscrowd"], -one["area"]))
        expected = np.zeros(images.size(index)[::-1], np.int16)
        for one in objects:
            expected[truth.annToMask(one) > 0] = -1 if one["iscrowd"] else numbers[one["category_id"]]
        assert (images.mask(index) == expected).all()
    assert any((images.mask(index) == -1).any() for index in range(len(images)))
    assert any((images.mask(index) == 0).all() for index in range(len(images)))  # one has no object


def test_supercategories_are_classes(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "coco")
    for split in ("train", "val"):
        file = root / f"annotations/instances_{split}2017.json"
        categories = contents(file)["categories"]
        for category in categories:
            category["supercategory"] = "round" if category["name"] == "disc" else "angular"
        change(file, categories=categories)
    whole, parents = (mask_splits(root, mask_layout_of(root, name))[0] for name in ("coco", "coco-super"))
    assert parents.classes == ("background", "angular", "round")
    table = np.array([0, 1, 2, 1, -1])  # of background, square, disc, bar, and -1
    assert all((table[whole.mask(index)] == parents.mask(index)).all() for index in range(len(whole)))
    assert whole.fingerprint != parents.fingerprint


def test_objects_without_a_mask_do_not_count(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "coco")
    file = root / "annotations/instances_train2017.json"
    annotations = contents(file)["annotations"]
    annotations = [one | {"segmentation": []} for one in annotations if not one["iscrowd"]]
    change(file, annotations=annotations)
    images, _ = mask_splits(root, mask_layout_of(root))
    values = {value for index in range(len(images)) for value in np.unique(images.mask(index)).tolist()}
    assert values == {0, -1}
