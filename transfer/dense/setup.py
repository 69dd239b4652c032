"""What dense evaluation starts from: a backbone that gives maps, and both sets cut into views."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from excb.console import Reporter
from excb.distributed.collectives import rank
from excb.distributed.machine import choose_device
from excb.distributed.workers import worker_count
from excb.errors import UserError, first_line, require
from excb.features.extraction import features_of
from excb.features.precision import Precision, check_precision
from excb.hub.adopted import Adopted
from excb.hub.backbone import Backbone
from excb.hub.loading import load
from excb.networks.backbone import REFUSALS

from ..task import FULL_PRECISION, Task, automatic_batch
from .layouts.masks import Layout
from .layouts.table import layout_of, train_and_test
from .patches.features import Grid, Patches, PatchExtraction, PatchReader, pixel_grid
from .patches.geometry import Geometry
from .patches.views import Views
from .segmentation import Scoring


@dataclass(frozen=True)
class DenseTask:
    """A backbone and the views to judge its maps on."""

    task: Task  # whose images are views, and whose preprocessing only normalises them
    layout: Layout
    train: Views
    test: Views
    grid: Grid  # of a view
    scoring: Scoring
    pixels: bool = False  # raw pixels instead of the backbone's map

    def extraction(self, views: Views) -> PatchExtraction:
        """What it takes to compute the rows of a set of views."""
        own = self.task.extraction(views)
        values = {name: getattr(own, name) for name in own.__dataclass_fields__}
        return PatchExtraction(**values, grid=self.grid, pixels=self.pixels)

    def patches(self, views: Views, name: str, reporter: Reporter) -> Callable[[Any], Patches]:
        """What gives chosen patches of a set, by their numbers; rows come from the cache or go there.

        All ranks call this.

        Raises:
            UserError: an image cannot be read, or the cache cannot be written.
        """
        talk = reporter if rank() == 0 else Reporter(quiet=True)
        cache = None if self.pixels else self.task.cache  # pixels are quicker to read than to keep
        stored = features_of(self.extraction(views), cache, talk, name=name)
        return lambda chosen: Patches(stored, self.grid, chosen)

    def untrained(self) -> "DenseTask":
        """The same with random weights; see `Task.untrained`."""
        return replace(self, task=self.task.untrained())

    def calibrated(self) -> "DenseTask":
        """The same; see `Task.calibrated`."""
        return replace(self, task=self.task.calibrated())

    def of_pixels(self) -> "DenseTask":
        """The same patches with raw pixels."""
        return replace(self, grid=pixel_grid(self.grid), pixels=True)

    def settings(self) -> dict[str, Any]:
        """All settings that every head depends on."""
        return {
            "layout": self.layout.name,
            "ignored": self.layout.ignored,
            "views": self.train.geometry.to_dict(),
            "interpolation": self.train.interpolation,
            "stride": self.grid.stride,
            "grid": [self.grid.height, self.grid.width],
            "mask_size": self.scoring.mask_size,
            "upsampling": self.scoring.upsampling,
        } | self.task.settings


def prepare(
    checkpoint: str | nn.Module,
    data: Path,
    *,
    options: dict[str, Any],
    reporter: Reporter,
    layout: str | None = None,
    stride: int | None = None,
    network: str = "teacher",
    device: str | torch.device = "auto",
    batch: int | str = 64,
    workers: int | None = None,
    cache: Path | None = None,
    precision: Precision = "fp32",
) -> DenseTask:
    """Load and check everything before any work starts.

    Args:
        checkpoint: what `excb.load` takes, or a backbone that it gave.
        data: the folder of images and masks.
        options: as `recipes.options` gives them.
        reporter: for progress.
        layout: of the folder; None finds it.
        stride: of the map, in pixels; None is the last map's.
        network: of a run's checkpoint.
        device: cpu, cuda or auto.
        batch: views at once, or "auto".
        workers: processes that read images.
        cache: where features are kept; None keeps none.
        precision: of passes through the frozen backbone; "bf16" is autocast.

    Raises:
        UserError: checkpoint, images, device or options cannot be used; or maps would leave the bound of
            `excb.features.precision.check_precision`.
    """
    require((batch == "auto" or int(batch) >= 1) and (workers or 0) >= 0, "--batch-size is at least 1, --workers 0")
    found = layout_of(data, layout)
    scoring = Scoring(options["mask_size"], options["upsampling"])
    require(
        scoring.mask_size == "original" or options["mode"] != "window",
        "--mask-size input has no meaning for windows, which overlap: use original, or another --mode",
    )
    backbone = _backbone(checkpoint, network, options["size"])
    transform = backbone.transform
    side = options["size"] or transform.crop
    geometry = Geometry(options["mode"], side, options["resize"] or side, options["step"] or max(1, side * 2 // 3))
    train_images, test_images = train_and_test(data, found)
    interpolation = options["interpolation"] or transform.interpolation
    with reporter.progress("sizes of images", len(train_images) + len(test_images)) as bar:
        train, test = (
            Views(images, geometry, interpolation, progress=bar.advance) for images in (train_images, test_images)
        )
    where, count = choose_device(str(device)), worker_count(-1 if workers is None else workers)
    backbone.to(where)
    if where.type == "cpu":  # see `Task.prepare`
        backbone.to(memory_format=torch.channels_last)
    reader = PatchReader(backbone.network, stride)
    try:
        grid = reader.grid(side, where)
    except REFUSALS as error:
        raise UserError(
            f"the backbone cannot take images of {side} x {side} pixels ({first_line(error)}): choose another --size"
        ) from None
    size = automatic_batch(backbone, side, where) if batch == "auto" else int(batch)
    plain = replace(transform, resize=side, crop=side)
    check_precision(reader, precision, train, plain, advice=FULL_PRECISION)
    task = Task(backbone, plain, train, test, where, size, count, cache, precision)
    return DenseTask(task, found, train, test, grid, scoring)


def _backbone(checkpoint: str | nn.Module, network: str, side: int | None) -> Backbone:
    if not isinstance(checkpoint, nn.Module):
        return load(checkpoint, network="student" if network == "student" else "teacher", img_size=side)
    require(
        isinstance(checkpoint, Backbone) and not isinstance(checkpoint, Adopted),
        "dense evaluation needs the maps of a backbone that excb.load gave: save the network, and name its file",
    )
    assert isinstance(checkpoint, Backbone)
    return checkpoint
