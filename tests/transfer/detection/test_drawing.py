"""Tests of pictures: colours where the detections are, nothing elsewhere, and which files there are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from excb.errors import UserError
from excb.transfer.coco.annotations import CocoSet
from excb.transfer.coco.reading import open_coco
from excb.transfer.coco.scoring import as_results
from excb.transfer.detection.drawing import FEW, LEAST, MOST, colour, contact_sheet, draw_detections, write_pictures
from tests.transfer.tiny_coco import write_coco

pytest.importorskip("pycocotools")

SIDE = 200


@pytest.fixture(scope="module")
def val(tmp_path_factory: pytest.TempPathFactory) -> CocoSet:
    return open_coco(write_coco(tmp_path_factory.mktemp("coco") / "tiny", val=12))[1]


def result(images: CocoSet, *, box: tuple[int, int, int, int], label: int, score: float) -> dict[str, Any]:
    """A detection in an image of SIDE pixels, whose mask is the middle of its box."""
    left, top, right, bottom = box
    mask = torch.zeros(1, SIDE, SIDE, dtype=torch.bool)
    mask[0, top + 30 : bottom - 10, left + 10 : right - 10] = True
    boxes, labels, scores = torch.tensor([box]).float(), torch.tensor([label]), torch.tensor([score])
    return as_results(images, 1, boxes=boxes, labels=labels, scores=scores, masks=mask)[0]


def test_masks_boxes_and_labels_are_where_they_belong(val: CocoSet) -> None:
    grey = Image.new("RGB", (SIDE, SIDE), (100, 100, 100))
    shown = result(val, box=(20, 40, 120, 140), label=1, score=0.876)
    pixels = np.asarray(
        draw_detections(grey, [shown, result(val, box=(130, 10, 190, 60), label=0, score=LEAST - 0.01)], val)
    )
    assert np.asarray(grey).std() == 0  # the image itself is left alone
    shade = np.array(colour(1))
    np.testing.assert_array_equal(pixels[100, 70], (100 + shade) // 2)
    np.testing.assert_array_equal(pixels[140, 70], shade)  # the lower edge of the box
    np.testing.assert_array_equal(pixels[100, 20], shade)  # and its left one
    np.testing.assert_array_equal(pixels[136, 70], (100, 100, 100))  # in the box, below the mask
    label = pixels[41:50, 21:70]
    assert (label == shade).all(-1).any()
    assert (label < 60).all(-1).any()  # black letters
    untouched = np.ones((SIDE, SIDE), dtype=bool)
    untouched[38:143, 18:123] = False
    assert (pixels[untouched] == 100).all()  # the second detection is too unsure


def test_unsure_detections_are_shown_where_there_are_no_others(val: CocoSet) -> None:
    grey = Image.new("RGB", (SIDE, SIDE), (100, 100, 100))
    places = [(10 + 20 * number, 10, 60 + 20 * number, 100) for number in range(6)]
    results = [result(val, box=box, label=0, score=0.05 * number) for number, box in enumerate(places)]
    assert draw_detections(grey, results, val) == draw_detections(grey, results[-FEW:], val)
    assert draw_detections(grey, results, val) != draw_detections(grey, results[-FEW + 1 :], val)
    sure = [
        result(val, box=(0, 0, 100, 100), label=number % 3, score=0.99 - number / 100) for number in range(MOST + 5)
    ]
    assert draw_detections(grey, sure, val) == draw_detections(grey, sure[:MOST], val)
    assert draw_detections(grey, [], val) == grey


def test_the_best_detection_lies_on_top(val: CocoSet) -> None:
    grey = Image.new("RGB", (SIDE, SIDE), (100, 100, 100))
    pair = [result(val, box=(20, 40, 120, 140), label=label, score=score) for label, score in ((0, 0.9), (2, 0.8))]
    assert draw_detections(grey, pair, val).getpixel((20, 100)) == colour(0)
    assert draw_detections(grey, pair[::-1], val).getpixel((20, 100)) == colour(0)


def test_names_of_any_script_are_drawn(val: CocoSet) -> None:
    grey = Image.new("RGB", (SIDE, SIDE), (100, 100, 100))
    named = replace(val, classes=("ёж", "猫\n犬", "a" * 300))
    for label in range(3):
        shown = result(val, box=(0, 0, SIDE, SIDE), label=label, score=0.9)
        assert draw_detections(grey, [shown], named) != grey


def test_colours_differ_and_are_bright() -> None:
    colours = np.array([colour(label) for label in range(80)])
    distances = np.abs(colours[:, None] - colours[None]).sum(-1) + 999 * np.eye(80, dtype=int)
    assert distances.min() > 3
    assert colours.max(1).min() > 150


def test_files_of_a_run(val: CocoSet, tmp_path: Path) -> None:
    image = val.images[0]
    mask = torch.zeros(1, image.height, image.width, dtype=torch.bool)
    mask[0, 10:30, 10:30] = True
    results = as_results(
        val,
        image.id,
        boxes=torch.tensor([[10.0, 10, 30, 30]]),
        labels=torch.tensor([0]),
        scores=torch.tensor([0.9]),
        masks=mask,
    )
    files = write_pictures(val, results, tmp_path / "pictures", number=4)
    chosen = [val.images[index].id for index in (0, 3, 7, 11)]
    assert files == [tmp_path / "pictures" / f"{number}.png" for number in chosen] + [tmp_path / "pictures/sheet.png"]
    assert sorted((tmp_path / "pictures").iterdir()) == sorted(files)
    with Image.open(files[0]) as picture:
        assert picture.convert("RGB") == draw_detections(val.open(0), results, val)
    with Image.open(files[1]) as picture:
        assert np.array_equal(np.asarray(picture.convert("RGB")), np.asarray(val.open(3)))
    few = write_pictures(val.subset([2, 5]), [], tmp_path / "few", number=8)
    assert [file.name for file in few] == [f"{val.images[index].id}.png" for index in (2, 5)] + ["sheet.png"]


def test_the_sheet_holds_all_pictures_in_order() -> None:
    shades = [(10 * number, 100, 200) for number in range(6)]
    pictures = [Image.new("RGB", (500, 300) if number % 2 else (150, 640), s) for number, s in enumerate(shades)]
    whole = contact_sheet(pictures)
    seen = [whole.getpixel((6 + 160 + 326 * (number % 4), 6 + 160 + 326 * (number // 4))) for number in range(6)]
    assert seen == shades
    assert whole.size == (4 * 326 + 6, 2 * 326 + 6)
    assert contact_sheet(pictures[:1]).size == (332, 332)
    assert pictures[0].size == (150, 640)


def test_a_folder_that_cannot_be_written(val: CocoSet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_pictures(val, [], tmp_path / "file")
