"""The probe: how well a network does on images besides those it trains on, or before and after training on them.

k-NN accuracy where the images have labels: held-out images by training images, else each image by the others. Without
labels it is the share of images that are nearest to their own augmented view.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn

from excb.distributed.collectives import all_succeed, rank, run_on_rank0, world_size
from excb.images.image_set import Images
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.images.shards import Note, ShardImages
from excb.images.subset import Subset
from excb.neighbours.knn import top_accuracies, vote
from excb.neighbours.nearest import nearest
from excb.networks.backbone import uncompiled
from excb.networks.features import Features, Inputs, extract
from excb.sources.opening import opened_by_all

from ..recipe import Recipe
from .monitor import (
    KNN_TEMPERATURE,
    MeasurementStoppedError,
    Monitor,
    NetworkFigures,
    fixed_subset,
    gather_features,
    usable,
)
from .sets import ImageSets, find_sets, with_one_mapping

# Images that a checkpoint is chosen by. Those of `test` stay unseen where there are others.
CHOSEN_BY = ("val", "test")


class FolderProbe:
    """Measures a network on the images of one folder; each rank extracts features of its part.

    Args:
        name: the figures' names begin with it.
        data: the folder, or shards.
        recipe: of the run: transform, k and the largest number of images.
        device: where networks are.
        workers: processes that read images.
        pixels: how stored values become channels, as of the training images.
        note: called with a message when shards are indexed.

    Raises:
        UserError: there are no images; raised on all ranks.
    """

    def __init__(
        self,
        name: str,
        data: str,
        recipe: Recipe,
        *,
        device: torch.device,
        workers: int,
        pixels: Pixels = EIGHT_BIT,
        note: Note = lambda _line: None,
    ) -> None:
        self.name, self._recipe, self._device, self._workers = name, recipe, device, workers
        sets = opened_by_all(data, lambda: with_one_mapping(find_sets(data, note, held_out=CHOSEN_BY), pixels, note))
        for line in sets.dropped.lines():
            note(line)
        if isinstance(sets.train, ShardImages):
            sets = all_succeed(lambda: _here(sets))
        self._sets, self._monitor = sets, None
        if sets.held_out is None:
            self._monitor = Monitor(sets.train, recipe, device=device, workers=workers)
        else:
            self._bank, self._queries = (
                fixed_subset(images, recipe, recipe.monitor.images) for images in (sets.train, sets.held_out)
            )

    @property
    def passes(self) -> int:
        """Images that one measurement reads on this rank, for progress."""
        if self._monitor is not None:
            return self._monitor.passes
        return sum(len(self._mine(images)) for images in (self._bank, self._queries))

    @property
    def measured_on(self) -> str:
        """Whose images are counted, in words."""
        held_out = self._sets.held_out
        return f"of {(self._sets.train if held_out is None else held_out).root}"

    @property
    def by_one_another(self) -> bool:
        """Whether each image is judged by the others, since none are held out."""
        return self._monitor is not None

    @property
    def identity(self) -> str:
        """A hash that differs where figures are of other images, or counted differently."""
        monitor = self._recipe.monitor
        counted = f"{self._sets.digest} {monitor.images} {monitor.k}"
        if self.by_one_another and monitor.group is not None:
            counted += f" {monitor.group}"
        return hashlib.sha256(counted.encode()).hexdigest()

    def read(
        self,
        backbone: nn.Module,
        progress: Callable[[int], None] = lambda _done: None,
        *,
        agreed: Callable[[], bool] = lambda: False,
        halves: bool = False,
    ) -> NetworkFigures:
        """Measure; the backbone's state is untouched. Arguments and exceptions as in `Monitor.measure`.

        Returns:
            The reading of one figure, whose name begins with the probe's.
        """
        if self._monitor is not None:
            reading = self._monitor.read(backbone, progress, agreed=agreed, halves=halves)
        else:
            with uncompiled(backbone):
                bank, queries = self._features(backbone, progress, agreed)
            reading = run_on_rank0(lambda: self._knn(bank, queries))
        name = f"{self.name}_{reading.decisive}"
        return NetworkFigures({name: reading.value}, name, reading.hits, reading.halves)

    def _mine(self, images: Images) -> range:
        return range(rank(), len(images), world_size())

    def _features(
        self, backbone: nn.Module, progress: Callable[[int], None], agreed: Callable[[], bool]
    ) -> tuple[Features, Features]:
        mine: list[Features] = []
        with suppress(MeasurementStoppedError):
            for images in (self._bank, self._queries):
                inputs = Inputs(images, self._recipe.views.preprocessing, indices=self._mine(images))
                mine.append(extract(backbone, inputs, device=self._device, workers=self._workers, progress=progress))
        if agreed():
            raise MeasurementStoppedError
        bank, queries = map(gather_features, mine)
        return bank, queries

    def _knn(self, bank: Features, queries: Features) -> NetworkFigures:
        assert self._bank.labels is not None
        assert self._queries.labels is not None
        assert self._bank.classes is not None
        if not usable(bank.rows) or not usable(queries.rows):
            return NetworkFigures({"knn_top1": 0.0}, "knn_top1", torch.zeros(len(queries.rows), dtype=torch.bool))
        k = min(self._recipe.monitor.k, len(bank.rows))
        labels, targets = (
            torch.from_numpy(images.labels)[features.samples]
            for images, features in ((self._bank, bank), (self._queries, queries))
        )
        neighbours = nearest(bank.rows, queries.rows, k)
        votes = vote(neighbours, labels, ks=[k], temperatures=[KNN_TEMPERATURE], classes=len(self._bank.classes))
        best = votes[k, KNN_TEMPERATURE]
        return NetworkFigures({"knn_top1": top_accuracies(best, targets)[0]}, "knn_top1", best.top1 == targets)


def _here(sets: ImageSets) -> ImageSets:
    """Sets in shards as this process sees them."""
    if isinstance(sets.train, ShardImages):
        sets = replace(sets, train=sets.train.here())
    held_out = sets.held_out
    if isinstance(held_out, Subset) and isinstance(held_out.images, ShardImages):
        sets = replace(sets, held_out=replace(held_out, images=held_out.images.here()))
    return sets
