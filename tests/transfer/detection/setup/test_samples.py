"""Tests of samples and batches: against Detectron2's mapper and COCO's tools; resumed, shared and in workers."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image

from excb.errors import UserError
from excb.transfer.coco.annotations import CocoSet
from excb.transfer.coco.codes import decoded
from excb.transfer.coco.reading import open_coco
from excb.transfer.detection.setup.samples import (
    Loader,
    Sample,
    evaluation_sample,
    evaluation_samples,
    resized,
    training_sample,
)
from excb.transfer.detection.setup.settings import DetectionSettings, settings_for
from tests.transfer.tiny_coco import write_coco

pytest.importorskip("pycocotools")
from pycocotools.coco import COCO

SETTINGS = settings_for("smoke", options={"min_sizes": (40, 50, 60), "max_size": 80, "test_size": 50, "seed": 3})


class Draws:
    """In place of a generator: a size and whether to flip."""

    def __init__(self, short: int, *, flip: bool) -> None:
        self.short, self.flip = short, flip

    def choice(self, sizes: tuple[int, ...]) -> int:
        return self.short

    def random(self) -> float:
        return 0.4 if self.flip else 0.6


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(tmp_path_factory.mktemp("coco") / "tiny", train=9)


@pytest.fixture(scope="module")
def train(tree: Path) -> CocoSet:
    return open_coco(tree)[0]


def same(first: Sample, second: Sample) -> bool:
    names = ("image", "boxes", "labels", "masks")
    return first.image_id == second.image_id and all(torch.equal(getattr(first, n), getattr(second, n)) for n in names)


def drawn(images: CocoSet, index: int, short: int, *, flip: bool = False) -> Sample:
    draws = cast(np.random.Generator, Draws(short, flip=flip))
    return training_sample(images, index, replace(SETTINGS, max_size=1333), draws)


# ---------------------------------------------------------------------------------------------------------------------
# Samples
# ---------------------------------------------------------------------------------------------------------------------


def test_untouched_samples_are_what_cocos_tools_read(train: CocoSet) -> None:
    api = COCO()
    api.dataset = train.ground_truth()
    api.createIndex()
    for index, image in enumerate(train.images):
        sample = drawn(train, index, min(image.size))
        wanted = [annotation for annotation in api.imgToAnns[image.id] if not annotation["iscrowd"]]
        assert (sample.image_id, sample.size) == (image.id, (image.height, image.width))
        with Image.open(train.file(index)) as picture:
            np.testing.assert_array_equal(sample.image.permute(1, 2, 0), np.asarray(picture))
        left, top, right, bottom = sample.boxes.T
        assert torch.stack((left, top, right - left, bottom - top), 1).tolist() == [a["bbox"] for a in wanted]
        assert [train.category_ids[label] for label in sample.labels] == [a["category_id"] for a in wanted]
        assert sample.masks.dtype == torch.bool
        assert sample.masks.shape == (len(wanted), image.height, image.width)
        for mask, annotation in zip(sample.masks, wanted, strict=True):
            np.testing.assert_array_equal(mask, decoded(api.annToRLE(annotation)))


def test_without_flips_nothing_is_mirrored(train: CocoSet) -> None:
    settings = settings_for("smoke", options={"min_sizes": (50,), "test_size": 50, "flip": False})
    draws = cast(np.random.Generator, Draws(50, flip=True))
    assert torch.equal(training_sample(train, 0, settings, draws).image, drawn(train, 0, 50).image)


def test_flipping_moves_everything_alike(train: CocoSet) -> None:
    for index in range(len(train)):
        plain, flipped = drawn(train, index, 50), drawn(train, index, 50, flip=True)
        assert torch.equal(flipped.image, plain.image.flip(2))
        assert torch.equal(flipped.labels, plain.labels)
        mirrored = plain.image.shape[2] - plain.boxes[:, [2, 1, 0, 3]]
        torch.testing.assert_close(flipped.boxes[:, [0, 2]], mirrored[:, [0, 2]], atol=1e-4, rtol=0)
        assert torch.equal(flipped.boxes[:, [1, 3]], plain.boxes[:, [1, 3]])
        # Polygons are flipped before they are drawn, and edges on the middle of a pixel fall to one side of it.
        changed = (plain.masks.flip(2) != flipped.masks).flatten(1).sum(1)
        assert (changed <= 0.15 * plain.masks.flatten(1).sum(1)).all()


def test_objects_stay_where_their_pixels_go(train: CocoSet) -> None:
    for index, flip in ((0, False), (1, True), (2, True), (3, False)):
        sample = drawn(train, index, 150, flip=flip)
        for box, mask in zip(sample.boxes, sample.masks, strict=True):
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            tight = torch.tensor([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
            torch.testing.assert_close(tight.float(), box, atol=2, rtol=0)
            # Shapes are bright in one channel, and the ground is grey.
            inside = sample.image[:, mask].float()
            assert (inside.amax(0) - inside.amin(0)).mean() > 80


def test_degenerate_boxes_are_dropped(train: CocoSet) -> None:
    image = train.images[-1]
    objects = [annotation for annotation in image.annotations if annotation.trainable]
    outside = [replace(objects[0], box=box) for box in ((200.0, 5.0, 9.0, 9.0), (5.0, -9.0, 4.0, 9.0), (1, 1, 0, 5))]
    over = replace(objects[0], box=(image.width - 5.0, 5.0, 50.0, 9.0))
    changed = replace(train, images=(replace(image, annotations=(*outside, over, objects[1])),))
    sample = drawn(changed, 0, min(image.size))
    assert sample.labels.tolist() == [over.label, objects[1].label]
    assert sample.boxes[0].tolist() == [image.width - 5, 5, image.width, 14]
    assert len(sample.masks) == 2


def test_samples_without_objects_have_empty_tensors(train: CocoSet) -> None:
    empty = next(index for index, image in enumerate(train.images) if not image.annotations)
    sample = drawn(train, empty, 40)
    assert (sample.boxes.shape, sample.labels.shape) == ((0, 4), (0,))
    assert sample.masks.shape == (0, *sample.image.shape[1:])


def test_sizes_and_flips_are_drawn_evenly(train: CocoSet) -> None:
    shapes: Counter[int] = Counter()
    flips = 0
    plain = {short: drawn(train, 0, short).image for short in SETTINGS.min_sizes}
    for number in range(300):
        image = training_sample(train, 0, replace(SETTINGS, max_size=1333), np.random.default_rng(number)).image
        short = min(image.shape[1:])
        shapes[short] += 1
        flips += not torch.equal(image, plain[short])
    assert set(shapes) == set(SETTINGS.min_sizes)
    assert min(shapes.values()) > 70
    assert 120 < flips < 180


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(480, 640, (800, 1067)), (640, 480, (1067, 800)), (500, 500, (800, 800)), (200, 1000, (267, 1333))],
)
def test_published_sizes(height: int, width: int, expected: tuple[int, int]) -> None:
    assert resized(height, width, short=800, longest=1333) == expected


def test_a_strip_keeps_a_pixel() -> None:
    assert resized(1, 2**20, short=800, longest=1333) == (1, 1333)
    assert resized(2**20, 1, short=800, longest=1333) == (1333, 1)


@pytest.mark.detectron2
@pytest.mark.filterwarnings("ignore")  # its own, of PyTorch and NumPy functions that are going away
def test_sizes_are_detectron2s() -> None:
    from detectron2.data.transforms import ResizeShortestEdge

    random = np.random.default_rng(0)
    for height, width in random.integers(20, 1500, (2000, 2)).tolist():
        for short, longest in ((800, 1333), (672, 1333), (320, 533)):
            expected = ResizeShortestEdge.get_output_shape(height, width, short, longest)
            assert resized(height, width, short=short, longest=longest) == expected


@pytest.mark.detectron2
@pytest.mark.filterwarnings("ignore")  # its own, of PyTorch and NumPy functions that are going away
@pytest.mark.parametrize("flip", [False, True])
def test_samples_are_what_detectron2s_mapper_makes(tree: Path, train: CocoSet, flip: bool) -> None:
    from detectron2.data import transforms
    from detectron2.data.dataset_mapper import DatasetMapper
    from detectron2.data.datasets import load_coco_json

    mapper = DatasetMapper(
        is_train=True,
        augmentations=[transforms.ResizeShortestEdge(50, 1333), transforms.RandomFlip(float(flip))],
        image_format="RGB",
        use_instance_mask=True,
        instance_mask_format="bitmask",
    )
    entries = load_coco_json(str(tree / "annotations/instances_train2017.json"), str(tree / "train2017"), "tiny")
    assert [entry["image_id"] for entry in entries] == [image.id for image in train.images]
    for index, entry in enumerate(entries):
        if not train.images[index].annotations:
            continue  # it would never be asked for: Detectron2 leaves it out as well
        for annotation in entry["annotations"]:
            # Detectron2 transforms whole numbers in place, and so rounds them down.
            annotation["bbox"] = [float(number) for number in annotation["bbox"]]
            if isinstance(annotation["segmentation"], list):
                annotation["segmentation"] = [[float(x) for x in points] for points in annotation["segmentation"]]
        theirs, ours = mapper(entry), drawn(train, index, 50, flip=flip)
        objects = theirs["instances"]
        assert torch.equal(theirs["image"], ours.image)
        assert torch.equal(objects.gt_classes, ours.labels)
        torch.testing.assert_close(objects.gt_boxes.tensor, ours.boxes, atol=1e-4, rtol=0)
        assert torch.equal(objects.gt_masks.tensor, ours.masks)


def test_evaluation_samples_are_resized_only(train: CocoSet) -> None:
    sample = evaluation_sample(train, 0, replace(SETTINGS, max_size=70))
    image = train.images[0]
    assert sample.image.shape[1:] == resized(image.height, image.width, short=50, longest=70)
    with Image.open(train.file(0)) as picture:
        small = picture.resize((sample.image.shape[2], sample.image.shape[1]), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(sample.image.permute(1, 2, 0), np.asarray(small))
    assert len(sample.boxes) == len(sample.masks) == len(sample.labels) == 0


# ---------------------------------------------------------------------------------------------------------------------
# Batches
# ---------------------------------------------------------------------------------------------------------------------


def ids(batches: Iterator[list[Sample]]) -> list[list[int]]:
    return [[sample.image_id for sample in batch] for batch in batches]


def first(number: int, images: CocoSet, settings: DetectionSettings = SETTINGS, **options: int) -> list[list[Sample]]:
    return list(islice(Loader(images, settings, **options), number))


@pytest.mark.parametrize(("workers", "rank", "world"), [(0, 0, 1), (2, 0, 1), (0, 1, 2), (1, 1, 2)])
def test_a_resumed_stream_is_the_same(train: CocoSet, workers: int, rank: int, world: int) -> None:
    whole = first(9, train, rank=rank, world=world)
    rest = first(4, train, rank=rank, world=world, start=5, workers=workers)
    assert len(rest) == 4
    for before, after in zip(whole[5:], rest, strict=True):
        assert all(same(one, other) for one, other in zip(before, after, strict=True))


def test_batches_hold_wide_or_other_images(train: CocoSet) -> None:
    wide = {image.id: image.width > image.height for image in train.images}
    batches = ids(islice(Loader(train, replace(SETTINGS, batch=3)), 40))
    assert all(len(batch) == 3 and len({wide[number] for number in batch}) == 1 for batch in batches)
    assert len({wide[batch[0]] for batch in batches}) == 2


def test_every_image_once_an_epoch(train: CocoSet) -> None:
    learnt = {image.id for image in train.trainable.images}
    assert len(learnt) == 8
    batches = list(chain.from_iterable(ids(islice(Loader(train, replace(SETTINGS, batch=1)), 24))))
    epochs = [batches[start : start + 8] for start in (0, 8, 16)]
    assert all(set(epoch) == learnt for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_processes_share_the_images(train: CocoSet) -> None:
    settings = replace(SETTINGS, batch=2)
    shares = [list(chain.from_iterable(ids(islice(Loader(train, settings, rank=rank, world=2), 4)))) for rank in (0, 1)]
    assert sorted(shares[0] + shares[1]) == [image.id for image in train.trainable.images]
    with pytest.raises(UserError, match="a batch of 2 cannot be divided among 3 processes"):
        Loader(train, settings, world=3)
    empty = next(index for index, image in enumerate(train.images) if not image.annotations)
    with pytest.raises(UserError, match="has no object to train on in the 1 selected image"):
        Loader(train.subset([empty]), settings)


def test_views_differ_by_step_place_process_and_seed(train: CocoSet) -> None:
    """One image many times: the same view comes back only for the same name."""
    settings = replace(SETTINGS, min_sizes=tuple(range(40, 70)), max_size=1333, batch=8)
    one = train.subset([1])
    runs = [
        chain.from_iterable(first(5, one, replace(settings, seed=seed), rank=rank, world=2))
        for seed in (0, 1)
        for rank in (0, 1)
    ]
    views = [tuple((sample.image.shape, int(sample.image[0, :, 0].sum())) for sample in run) for run in runs]
    assert len(set(views)) == 4
    assert all(len(set(view)) > 10 for view in views)


def test_no_random_number_is_taken_from_torch(train: CocoSet) -> None:
    before = torch.get_rng_state()
    for workers in (0, 1):
        first(1, train, workers=workers)
        next(evaluation_samples(train, SETTINGS, workers=workers))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_goes_in_order_and_is_shared(train: CocoSet, workers: int) -> None:
    everything = [sample.image_id for sample in evaluation_samples(train, SETTINGS, workers=workers)]
    assert everything == [image.id for image in train.images]
    shares = [
        [sample.image_id for sample in evaluation_samples(train, SETTINGS, rank=rank, world=2)] for rank in (0, 1)
    ]
    assert shares == [everything[::2], everything[1::2]]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_gives_one_line(tmp_path: Path, workers: int) -> None:
    train, val = open_coco(write_coco(tmp_path / "coco"))
    for images in (train, val):
        for file in images.folder.iterdir():
            file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(
        UserError, match=r"/train2017/000\d+.png cannot be read .*: fix it, or remove it from"
    ) as caught:
        first(1, train, workers=workers)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"/val2017/000\d+.png cannot be read"):
        list(evaluation_samples(val, SETTINGS, workers=workers))
