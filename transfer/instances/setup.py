"""What instance retrieval starts from: a backbone, a set with ground truth, distractors, and how images are read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor, nn

from excb.console import Reporter
from excb.distributed.collectives import rank, run_on_rank0
from excb.distributed.machine import choose_device
from excb.distributed.workers import worker_count
from excb.errors import UserError, first_line, require
from excb.features.extraction import features_of
from excb.hub.adopted import Adopted
from excb.hub.backbone import Backbone
from excb.hub.loading import load
from excb.images.image_set import Images
from excb.images.opening import open_images
from excb.neighbours.unit_rows import Rows
from excb.networks.backbone import REFUSALS, evaluating
from excb.networks.outputs import resized_preprocessing
from excb.networks.preprocessing import Preprocessing

from ..task import Task, automatic_batch
from .descriptors import Descriptor, DescriptorExtraction, Descriptors, Pooling, WholeImage, patch_side
from .instance_set import InstanceSet, Layout
from .layouts import layout_of
from .ranking import StackedRows
from .whitening import WhitenedRows, Whitening

Mode = Literal["resize", "longer", "crop"]


@dataclass(frozen=True)
class Reading:
    """How images become descriptors.

    Args:
        mode: the whole image as a square, the whole image with its longer side shrunk, or the centre as the checkpoint
            has it.
        size: side in pixels; None is the checkpoint's.
        pooling: see `Descriptor`.
        power: p of GeM.
        scales: of the input.
        whitened: dimensions that whitening keeps; None is all.
    """

    mode: Mode = "resize"
    size: int | None = None
    pooling: Pooling = "own"
    power: float = 3.0
    scales: tuple[float, ...] = (1.0,)
    whitened: int | None = None

    def check(self) -> None:
        """Raise UserError unless all of it makes sense."""
        require(self.size is None or self.size >= 1, f"--size {self.size} is a side in pixels, at least 1")
        require(0 < self.power < float("inf"), "--gem-power must be above 0, such as 3")
        require(all(0 < scale <= 4 for scale in self.scales), "--scales lie between 0 and 4, such as 1 0.7071 1.4142")
        require(self.whitened is None or self.whitened >= 1, "--whiten-width is a number of dimensions, at least 1")


@dataclass(frozen=True)
class InstanceTask:
    """A backbone and the set to judge it on."""

    task: Task  # whose train images are the gallery, and whose test images are the queries
    layout: Layout
    instances: InstanceSet
    descriptor: Descriptor
    reading: Reading
    distractors: Images | None = None  # more gallery images, none of which answers a query
    whitened_on: Images | None = None  # images that whitening is learned on

    def extraction(self, images: Images) -> DescriptorExtraction:
        """What it takes to compute the descriptors of a set."""
        own = self.task.extraction(images)
        values = {name: getattr(own, name) for name in own.__dataclass_fields__}
        return DescriptorExtraction(**values, descriptor=self.descriptor)

    @property
    def sets(self) -> dict[str, Images]:
        """All sets whose descriptors are needed, by their names in messages."""
        others = {"distractors": self.distractors, "whitening": self.whitened_on}
        given = {"gallery": self.instances.gallery, "queries": self.instances.queries}
        return given | {name: images for name, images in others.items() if images is not None}

    def descriptors(self, reporter: Reporter) -> tuple[Rows, Tensor]:
        """The rows of the gallery with its distractors, and those of the queries [Q, D]; all ranks call this.

        They come from the cache or go there.

        Raises:
            UserError: an image cannot be read, the cache cannot be written, or there are too few images to whiten.
        """
        talk = reporter if rank() == 0 else Reporter(quiet=True)
        # Pixels are quicker to read than to keep.
        cache = None if self.descriptor.pooling == "pixels" else self.task.cache
        stored = {
            name: features_of(self.extraction(images), cache, talk, name=name) for name, images in self.sets.items()
        }
        gallery: Rows = StackedRows([stored[name] for name in ("gallery", "distractors") if name in stored])
        queries = stored["queries"].all()
        if "whitening" not in stored:
            return gallery, queries
        whitening = run_on_rank0(lambda: Whitening.learned(stored["whitening"].all(), self.reading.whitened))
        return WhitenedRows(gallery, whitening), WhitenedRows(queries, whitening).rows(0, len(queries))

    def untrained(self) -> "InstanceTask":
        """The same with random weights; see `Task.untrained`."""
        return replace(self, task=replace(self._central().untrained(), preprocessing=self.task.preprocessing))

    def calibrated(self) -> "InstanceTask":
        """The same; see `Task.calibrated`."""
        return replace(self, task=replace(self._central().calibrated(), preprocessing=self.task.preprocessing))

    def _central(self) -> Task:
        """The task with the checkpoint's own preprocessing: BatchNorm is calibrated on images of one size."""
        return replace(self.task, preprocessing=self.task.backbone.transform)

    def of_pixels(self) -> "InstanceTask":
        """The same images as raw pixels, at one scale and not whitened."""
        return replace(self, descriptor=Descriptor("pixels"), whitened_on=None)

    def settings(self) -> dict[str, Any]:
        """All settings that descriptors depend on, beside the checkpoint's."""
        settings = {"layout": self.layout.name, "mode": self.reading.mode, "size": self.task.preprocessing.crop}
        settings |= {"interpolation": self.task.preprocessing.interpolation} | self.descriptor.to_dict()
        whitening = None
        if self.whitened_on is not None:
            whitening = {"images": self.whitened_on.fingerprint, "width": self.reading.whitened}
        return settings | {"similarity": "cosine", "whitening": whitening}


def prepare(
    checkpoint: str | nn.Module,
    data: Path,
    reading: Reading,
    *,
    reporter: Reporter,
    layout: str | None = None,
    ground_truth: Path | None = None,
    distractors: str | None = None,
    whiten: str | None = None,
    network: str = "teacher",
    device: str | torch.device = "auto",
    batch: int | str = 64,
    workers: int | None = None,
    cache: Path | None = None,
) -> InstanceTask:
    """Load and check everything before any work starts.

    Args:
        checkpoint: what `excb.load` takes, or a backbone that it gave.
        data: the folder of the set.
        reading: how images become descriptors.
        reporter: for notes.
        layout: of the folder; None finds it.
        ground_truth: its file; None is the layout's own.
        distractors: a folder or shards of more gallery images.
        whiten: a folder or shards of images that whitening is learned on.
        network: of a run's checkpoint.
        device: cpu, cuda or auto.
        batch: images at once, or "auto"; in mode "longer" images have different sizes and pass one at a time.
        workers: processes that read images.
        cache: where descriptors are kept; None keeps none.

    Raises:
        UserError: checkpoint, images, device or options cannot be used.
    """
    require((batch == "auto" or int(batch) >= 1) and (workers or 0) >= 0, "--batch-size is at least 1, --workers 0")
    require(reading.whitened is None or whiten is not None, "--whiten-width needs the images to learn it on: --whiten")
    found = layout_of(data, layout)
    instances = found.open(data, ground_truth)
    others = [None if place is None else open_images(place, reporter.note) for place in (distractors, whiten)]
    backbone = _backbone(checkpoint, network, reading)
    preprocessing = _preprocessing(backbone, reading)
    where, count = choose_device(str(device)), worker_count(-1 if workers is None else workers)
    backbone.to(where)
    if where.type == "cpu":  # see `Task.prepare`
        backbone.to(memory_format=torch.channels_last)
    descriptor = Descriptor(reading.pooling, reading.power, reading.scales)
    _check_sizes(_reader(backbone, descriptor), preprocessing, reading.mode, where)
    if reading.mode == "longer":
        size = 1
    else:
        size = automatic_batch(backbone, preprocessing.crop, where) if batch == "auto" else int(batch)
    task = Task(backbone, preprocessing, instances.gallery, instances.queries, where, size, count, cache)
    return InstanceTask(task, found, instances, descriptor, reading, *others)


def _backbone(checkpoint: str | nn.Module, network: str, reading: Reading) -> Backbone:
    if not isinstance(checkpoint, nn.Module):
        side = reading.size if reading.mode != "longer" else None
        return load(checkpoint, network="student" if network == "student" else "teacher", img_size=side)
    require(
        isinstance(checkpoint, Backbone) and not isinstance(checkpoint, Adopted),
        "instance retrieval resizes images by itself, for a backbone that excb.load gave: save the network, and name "
        "its file",
    )
    assert isinstance(checkpoint, Backbone)
    return checkpoint


def _preprocessing(backbone: Backbone, reading: Reading) -> Preprocessing:
    own, multiple = backbone.transform, patch_side(backbone.network)
    side = reading.size or own.crop
    if reading.mode == "crop":
        return resized_preprocessing(own, side)
    return WholeImage(side, side, own.mean, own.std, own.interpolation, mode=reading.mode, multiple=multiple)


def _reader(backbone: Backbone, descriptor: Descriptor) -> Descriptors:
    try:
        return Descriptors(backbone, descriptor)
    except UserError as error:
        raise UserError(f"--pooling {descriptor.pooling} pools a map: choose --pooling own ({error})") from None


def _check_sizes(reader: nn.Module, preprocessing: Preprocessing, mode: Mode, device: torch.device) -> None:
    """Raise UserError unless the network takes images of the sizes that there will be, at all scales."""
    side = preprocessing.crop
    image = preprocessing(Image.new("RGB", (side, max(1, side * 3 // 4)))) if mode == "longer" else None
    inputs = torch.zeros(1, 3, side, side, device=device) if image is None else image[None].to(device)
    try:
        with evaluating(reader), torch.no_grad():
            reader(inputs)
    except REFUSALS as error:
        height, width = inputs.shape[-2:]
        raise UserError(
            f"the backbone cannot take images of {width} x {height} pixels at these scales ({first_line(error)}): "
            "choose --mode resize, --scales 1, or another --size"
        ) from None


def names_of(images: Images, distractors: Images | None) -> Sequence[str]:
    """The paths of the gallery's images, with the distractors behind them."""
    return list(images.paths) + ([] if distractors is None else list(distractors.paths))
