"""The task of dense evaluation: a backbone that gives maps, and both sets cut into views."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from excb.console import Reporter
from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError, first_line
from excb.features.cache import CachedFeatures
from excb.images.image_set import Images, with_doubts
from excb.networks.backbone import REFUSALS
from excb.networks.features import Kind

from ..data.concerns import concerns
from ..data.mapping import all_on_one_mapping, declared_pixels
from ..options import OwnSetOptions
from ..task import Task, backbone_of, describe_images, require_colours
from .layouts.masks import MaskLayout
from .layouts.table import mask_layout_of, mask_splits
from .options import DenseOptions
from .patches.features import Grid, Patches, PatchExtraction, PatchReader, pixel_grid
from .patches.geometry import Geometry
from .patches.labels import PatchLabels
from .patches.views import Views
from .segmentation import Scoring


@dataclass(frozen=True, kw_only=True)
class DenseTask(Task):
    """A backbone and the views to judge its maps on; `preprocessing` only normalises them."""

    train: Views
    test: Views
    layout: MaskLayout
    grid: Grid  # of a view
    scoring: Scoring
    pixels: bool = False  # raw pixels instead of the backbone's map
    # The train masks, once they are read: references share them.
    read: list[PatchLabels] = field(default_factory=list, compare=False, repr=False)

    def extraction(self, images: Images, kind: Kind = "pooled") -> PatchExtraction:
        """The computation of the rows of a set of views."""
        return PatchExtraction(**vars(super().extraction(images, kind)), grid=self.grid, pixels=self.pixels)

    def patches(self, views: Views, name: str, reporter: Reporter) -> Callable[[np.ndarray], Patches]:
        """A function that gives patches of a set by their numbers; rows come from the cache or go there.

        All ranks call this.

        Raises:
            UserError: an image cannot be read, or the cache cannot be written.
        """
        stored: CachedFeatures = self.stored(views, name, reporter)
        return lambda numbers: Patches(stored, self.grid, numbers)

    def labels(self, reporter: Reporter) -> PatchLabels:
        """The classes of the train patches; every mask is read once. Raises UserError if one cannot be used."""
        if not self.read:
            with reporter.progress("masks of train", len(self.train)) as bar:
                self.read.append(PatchLabels(self.train, self.grid, bar.advance))
        return self.read[0]

    def baseline(self, _name: str) -> Self:
        """The same patches with raw pixels, which are quicker to read than to keep."""
        return replace(self, grid=pixel_grid(self.grid), pixels=True, cache=None)

    @property
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
        } | super().settings

    def describe_data(self) -> dict[str, Any]:
        """The images, for the result."""
        sets = {"train": self.train.images, "test": self.test.images}
        return {name: describe_images(images) for name, images in sets.items()} | {"classes": len(self.test.classes)}


def open_task(shared: OwnSetOptions, own: DenseOptions, device: torch.device, reporter: Reporter) -> DenseTask:
    """Load and check everything before any work starts.

    Args:
        shared: checkpoint and machine.
        own: the folder of images and masks, and how images become maps.
        device: where to compute.
        reporter: for progress.

    Raises:
        UserError: checkpoint, images, device or options cannot be used; or maps would leave the bound of
            `excb.features.precision.check_precision`.
    """
    how, layout = own.resolved, mask_layout_of(own.data, own.layout)
    backbone = backbone_of(
        shared.ckpt, network=shared.network, img_size=how.size, loaded="dense evaluation needs the maps of"
    )
    require_colours(backbone, "dense")
    transform = backbone.transform
    side = how.size or transform.crop
    geometry = Geometry(how.mode, side, how.resize or side, how.step or max(1, side * 2 // 3))
    interpolation = how.interpolation or transform.interpolation
    splits, transform = all_on_one_mapping(
        mask_splits(own.data, layout),
        transform,
        declared_pixels(shared.range, None, transform.pixels),
        note=reporter.note,
        warn=reporter.warn,
        colours_of="dense",
    )
    found = run_on_rank0(lambda: concerns(*splits))
    both = splits[0], with_doubts(splits[1], found)
    with reporter.progress("sizes of images", sum(map(len, both))) as bar:
        train, test = (Views(images, geometry, interpolation, progress=bar.advance) for images in both)
    task = DenseTask.on(
        backbone,
        replace(transform, resize=side, crop=side),
        train,
        test,
        device=device,
        batch=shared.batch_size,
        workers=shared.workers,
        cache=shared.features_folder,
        precision=shared.feature_precision,
        layout=layout,
        grid=_grid(backbone.network, own.stride, side),
        scoring=Scoring(how.mask_size, how.upsampling),
    )
    task.ledger.tell(reporter)
    return task


def _grid(network: nn.Module, stride: int | None, side: int) -> Grid:
    reader = PatchReader(network, stride)
    try:
        return reader.grid(side)
    except REFUSALS as error:
        raise UserError(
            f"the backbone cannot take images of {side} x {side} pixels ({first_line(error)}): choose another --size"
        ) from None
