"""Tests of annotated images: what is learnt, what a choice of images keeps, and which way up they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from excb.errors import UserError
from excb.transfer.coco.codes import decoded
from excb.transfer.coco.reading import open_coco
from tests.transfer.tiny_coco import change, contents, write_coco

pytest.importorskip("pycocotools")

TRAIN = "annotations/instances_train2017.json"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "coco")


def test_training_leaves_out_what_has_nothing_to_learn(tree: Path) -> None:
    everything = contents(tree / TRAIN)
    crowded = everything["images"][1]["id"]
    for annotation in everything["annotations"]:
        annotation["iscrowd"] = int(annotation["iscrowd"] or annotation["image_id"] == crowded)
    change(tree / TRAIN, **everything)
    train, val = open_coco(tree)
    learnt = {a["image_id"] for a in everything["annotations"] if not a["iscrowd"]}
    assert len(train) == 6
    assert [image.id for image in train.trainable.images] == sorted(learnt)
    assert len(learnt) == 4
    assert len(val) == 4  # the image without objects is evaluated on
    assert [len(image.annotations) for image in val.images].count(0) == 1


def test_an_object_without_mask_is_not_learnt(tree: Path) -> None:
    annotations = contents(tree / TRAIN)["annotations"]
    first = annotations[0]["image_id"]
    odd: list[Any] = [None, [], [[1, 2, 3, 4]], [[1, 2, 3, 4, 5, 6, 7]]]
    mine = [a for a in annotations if a["image_id"] == first and not a["iscrowd"]]
    for annotation, mask in zip(mine, odd, strict=False):
        annotation["segmentation"] = mask
    del mine[0]["segmentation"]
    change(tree / TRAIN, annotations=annotations)
    train, _ = open_coco(tree)
    assert first not in [image.id for image in train.trainable.images]


def test_fingerprint_names_annotations_and_choice(tree: Path, tmp_path: Path) -> None:
    train, val = open_coco(tree)
    again, _ = open_coco(write_coco(tmp_path / "again"))
    prints = [train.fingerprint, val.fingerprint, train.subset([0, 1]).fingerprint, train.subset([1, 0]).fingerprint]
    assert len(set(prints)) == 4
    assert train.fingerprint == again.fingerprint == train.subset(range(6)).fingerprint
    assert train.subset([0, 1]).fingerprint == again.subset([0, 1]).fingerprint
    change(tree / TRAIN, info={"version": 2})
    assert open_coco(tree)[0].fingerprint != train.fingerprint


def test_chosen_images_keep_their_objects(tree: Path) -> None:
    train, _ = open_coco(tree)
    some = train.subset([4, 2])
    assert some.images == (train.images[4], train.images[2])
    assert some.file(0) == train.file(4)
    assert {a["image_id"] for a in some.ground_truth()["annotations"]} == {image.id for image in some.images}


def test_uncompressed_and_compressed_codes_are_read_alike(tree: Path) -> None:
    train, _ = open_coco(tree)
    for image in train.images:
        for annotation in image.annotations:
            if isinstance(annotation.mask, dict):
                mask = annotation.mask_at(np.ones(2), image.height, image.width, flip=False)
                assert mask.shape == (image.height, image.width)
                assert mask.sum() == annotation.area
                if isinstance(annotation.mask["counts"], str):
                    np.testing.assert_array_equal(mask, decoded(annotation.mask))


@pytest.mark.parametrize("marked_upright", [True, False])
def test_exif_rotation(tree: Path, marked_upright: bool) -> None:
    """As in Detectron2 images are turned upright first; objects that were marked unturned would lie elsewhere."""
    images = contents(tree / TRAIN)["images"]
    last = images[-1]  # without objects
    picture = Image.new("RGB", (80, 40), "red")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tree / "train2017" / last["file_name"], exif=exif)
    last["width"], last["height"] = (40, 80) if marked_upright else (80, 40)
    change(tree / TRAIN, images=images)
    if marked_upright:
        train, _ = open_coco(tree)
        assert train.open(0).size == (40, 80)
    else:
        with pytest.raises(
            UserError, match=r"that an EXIF tag rotates and whose objects are not rotated: 1 \(000465.png\)"
        ):
            open_coco(tree)


def test_the_clearest_images_have_the_largest_small_objects(tree: Path) -> None:
    train, _ = open_coco(tree)

    def smallest(image: Any) -> float:
        return min(a.area / (image.width * image.height) for a in image.annotations if a.trainable)

    able = train.trainable.images
    chosen = train.clearest(2).images
    left_out = [image for image in able if image not in chosen]
    assert len(chosen) == 2
    assert min(map(smallest, chosen)) >= max(map(smallest, left_out))
    assert [image.id for image in chosen] == sorted(image.id for image in chosen)
    assert train.clearest(100).images == able
