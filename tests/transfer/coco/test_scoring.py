"""Tests of average precision: against COCO's tools run by hand on the saved file, and against counting."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from excb.errors import UserError
from excb.transfer.coco.annotations import CocoSet
from excb.transfer.coco.codes import decoded
from excb.transfer.coco.reading import open_coco
from excb.transfer.coco.scoring import as_results, score, write_predictions
from tests.clone import SHARED
from tests.transfer.tiny_coco import run_length, write_coco

pytest.importorskip("pycocotools")
from pycocotools import mask as coco
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

REAL = SHARED / "data" / "coco_tiny"
FIGURES = ["bbox_AP", "bbox_AP50", "bbox_AP75", "segm_AP", "segm_AP50", "segm_AP75"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> CocoSet:
    return open_coco(write_coco(tmp_path_factory.mktemp("coco") / "tiny", val=9))[1]


def detections(images: CocoSet, seed: int, *, most: int = 200) -> list[dict[str, Any]]:
    """Objects moved a little, some called something else, some missed, and some that are not there."""
    random = np.random.default_rng(seed)
    results = []
    for image in images.images:
        boxes, labels, masks = [], [], []
        for annotation in [*image.annotations, *image.annotations[:1]][:most]:
            if random.random() < 0.2:
                continue
            width, height = np.array(annotation.box[2:]) * random.uniform(0.7, 1.2, 2)
            left, top = np.array(annotation.box[:2]) + random.uniform(-0.1, 0.1, 2) * annotation.box[2:]
            left, top = max(left, 0), max(top, 0)
            mask = torch.zeros(image.height, image.width, dtype=torch.bool)
            mask[int(top) : int(top + height) + 1, int(left) : int(left + width) + 1] = True
            boxes.append([left, top, min(left + width, image.width), min(top + height, image.height)])
            labels.append(annotation.label if random.random() < 0.9 else 0)
            masks.append(mask)
        if boxes:
            results += as_results(
                images,
                image.id,
                boxes=torch.tensor(boxes),
                labels=torch.tensor(labels),
                scores=torch.from_numpy(random.uniform(0, 1, len(boxes))),
                masks=torch.stack(masks),
            )
    return results


def by_hand(annotations: Path, predictions: Path) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The figures, and AP of every category, as COCO's tools give them for two files."""
    figures: dict[str, float] = {}
    each: dict[str, list[float]] = {}
    for kind in ("bbox", "segm"):
        truth = COCO(str(annotations))
        evaluation = COCOeval(truth, truth.loadRes(str(predictions)), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        figures |= dict(zip((f"{kind}_AP", f"{kind}_AP50", f"{kind}_AP75"), 100 * evaluation.stats[:3], strict=True))
        each[kind] = []
        for category in sorted(truth.getCatIds()):
            evaluation.params.catIds = [category]
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            each[kind].append(100 * evaluation.stats[0])
    return figures, each


@pytest.mark.parametrize(
    "place", ["tiny", pytest.param("real", marks=pytest.mark.skipif(not REAL.is_dir(), reason="no coco_tiny here"))]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_figures_are_those_of_cocos_tools_by_hand(tiny: CocoSet, tmp_path: Path, place: str, seed: int) -> None:
    images = tiny if place == "tiny" else open_coco(REAL)[1]
    predictions = detections(images, seed)
    write_predictions(predictions, tmp_path / "predictions.json")
    figures, each = by_hand(images.listed_in, tmp_path / "predictions.json")
    scores = score(images, predictions)
    assert list(scores.figures) == FIGURES
    assert scores.figures == pytest.approx(figures, abs=1e-9)
    assert 10 < scores.figures["bbox_AP"] < scores.figures["bbox_AP50"] < 99
    for kind in ("bbox", "segm"):
        ours = scores.per_class[f"{kind}_AP"]
        assert list(ours) == list(images.classes)
        wanted = [None if ap < 0 else pytest.approx(ap, abs=1e-9) for ap in each[kind]]
        assert list(ours.values()) == wanted


def test_counting(tiny: CocoSet) -> None:
    """Of two squares one is found exactly: precision 1 at the 51 recalls up to one half, 0 at the other 50."""
    found = [annotation for annotation in tiny.ground_truth()["annotations"] if annotation["category_id"] == 3]
    found = [annotation for annotation in found if not annotation["iscrowd"]][:2]
    places = [index for index, image in enumerate(tiny.images) if image.id in {a["image_id"] for a in found}]
    image = next(image for image in tiny.images if image.id == found[0]["image_id"])
    annotation = next(a for a in image.annotations if a.label == 0 and not a.crowd)
    left, top, width, height = annotation.box
    results = as_results(
        tiny,
        image.id,
        boxes=torch.tensor([[left, top, left + width, top + height]]),
        labels=torch.tensor([0]),
        scores=torch.tensor([0.7]),
        masks=torch.from_numpy(annotation.mask_at(np.ones(2), image.height, image.width, flip=False))[None],
    )
    scores = score(tiny.subset(places), results)
    squares = {name: classes["square"] for name, classes in scores.per_class.items()}
    assert squares == {"bbox_AP": pytest.approx(100 * 51 / 101), "segm_AP": pytest.approx(100 * 51 / 101)}
    assert scores.figures["bbox_AP75"] == pytest.approx(100 * 51 / 101 / 3)  # discs and bars: nothing


def test_the_truth_scores_hundred(tiny: CocoSet) -> None:
    perfect = [
        {name: entry[name] for name in ("image_id", "category_id", "bbox")}
        | {
            "score": 0.9,
            "segmentation": run_length(annotation.mask_at(np.ones(2), image.height, image.width, flip=False)),
        }
        for image in tiny.images
        for annotation, entry in zip(
            image.annotations,
            [entry for entry in tiny.ground_truth()["annotations"] if entry["image_id"] == image.id],
            strict=True,
        )
        if not annotation.crowd
    ]
    for entry in perfect:
        code = entry["segmentation"]
        entry["segmentation"] = coco.frPyObjects(code, *code["size"])
    assert score(tiny, perfect).figures == pytest.approx(dict.fromkeys(FIGURES, 100))


def test_ids_from_zero_count(tiny: CocoSet, tmp_path: Path) -> None:
    """Annotation ids of the file do not matter; COCO's tools would take an object of id 0 for no object."""
    contents = json.loads(tiny.listed_in.read_text())
    for number, annotation in enumerate(contents["annotations"]):
        annotation["id"] = number
    tree = write_coco(tmp_path / "coco", val=9)
    (tree / "annotations/instances_val2017.json").write_text(json.dumps(contents))
    for file in (tree / "val2017").iterdir():
        file.write_bytes((tiny.folder / file.name).read_bytes())
    predictions = detections(tiny, 0)
    assert score(open_coco(tree)[1], predictions) == score(tiny, predictions)


def test_crowds_are_neither_missed_nor_wrong(tiny: CocoSet) -> None:
    """A detection in a crowd, and a category of crowds only."""
    predictions = detections(tiny, 0)
    image = next(image for image in tiny.images if any(a.crowd for a in image.annotations))
    crowd = next(a for a in image.annotations if a.crowd)
    left, top, _, height = crowd.box
    mask = torch.zeros(1, image.height, image.width, dtype=torch.bool)
    mask[0, int(top) + 2 : int(top + height) - 2, int(left) + 2 : int(left) + 12] = True
    inside = as_results(
        tiny,
        image.id,
        boxes=torch.tensor([[left + 2, top + 2, left + 12, top + height - 2]]),
        labels=torch.tensor([crowd.label]),
        scores=torch.tensor([0.999]),
        masks=mask,
    )
    assert score(tiny, predictions + inside).figures == score(tiny, predictions).figures


def test_no_predictions_score_zero_and_no_objects_none(tiny: CocoSet) -> None:
    index = next(i for i, image in enumerate(tiny.images) if len(image.annotations) == 4)
    scores = score(tiny.subset([index]), [])
    assert scores.figures == dict.fromkeys(FIGURES, 0.0)
    assert set(scores.per_class["bbox_AP"].values()) == {0.0}
    image = tiny.images[index]
    squares = tuple(annotation for annotation in image.annotations if annotation.label == 0)
    only = replace(tiny, images=(replace(image, annotations=squares),))
    expected = {"square": 0.0, "disc": None, "bar": None}
    assert score(only, []).per_class == {"bbox_AP": expected, "segm_AP": expected}
    crowds = replace(tiny, images=(replace(image, annotations=tuple(a for a in squares if a.crowd)),))
    with pytest.raises(UserError, match="has no object to detect"):
        score(crowds, [])


def test_results_are_in_cocos_form(tiny: CocoSet) -> None:
    masks = torch.zeros(2, 64, 96, dtype=torch.bool)
    masks[1, 5:9, 3:10] = True
    boxes = torch.tensor([[0.0, 0.0, 0.0, 0.0], [3.5, 5.0, 10.0, 9.25]])
    first, second = as_results(
        tiny, 500, boxes=boxes, labels=torch.tensor([2, 1]), scores=torch.tensor([0.25, 0.5]), masks=masks
    )
    assert (first["category_id"], second["category_id"]) == (90, 7)
    assert (second["image_id"], second["score"], second["bbox"]) == (500, 0.5, [3.5, 5.0, 6.5, 4.25])
    assert second["segmentation"]["size"] == [64, 96]
    np.testing.assert_array_equal(decoded(first["segmentation"]), masks[0])
    np.testing.assert_array_equal(decoded(second["segmentation"]), masks[1])
    nothing = torch.zeros(0)
    empty = as_results(
        tiny, 500, boxes=torch.zeros(0, 4), labels=nothing, scores=nothing, masks=torch.zeros(0, 64, 96).bool()
    )
    assert empty == []


def test_the_file_is_whole_and_named(tiny: CocoSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predictions = detections(tiny, 0)
    file = tmp_path / "run" / "predictions.json"
    named = write_predictions(predictions, file)
    assert named == {"file": "predictions.json", "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert json.loads(file.read_text()) == predictions
    assert score(tiny, json.loads(file.read_text())) == score(tiny, predictions)
    assert capsys.readouterr() == ("", "")  # COCO's tools would talk
    assert [path.name for path in file.parent.iterdir()] == ["predictions.json"]
    with pytest.raises(UserError, match="cannot write"):
        write_predictions(predictions, file / "below.json")
