"""Figures of the representation during training: k-NN where labels exist, and two figures that need none.

The effective rank (RankMe; Garrido et al., 2023) falls when features collapse. The neighbour agreement is the share of
an image's nearest neighbours that stay the same when every image is replaced by an augmented view. It grows as the
features come to follow the content. Without labels, the product of both selects the best checkpoint.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from excb import seeding
from excb.distributed.collectives import gather_objects, rank, run_on_rank0, world_size
from excb.images.image_set import Images
from excb.images.subset import Subset
from excb.neighbours.knn import accuracy, vote
from excb.neighbours.nearest import nearest
from excb.networks.backbone import uncompiled
from excb.networks.features import Features, Inputs, extract

from ..data.augmentation import augment
from ..data.views import ViewMaker
from ..recipe import Recipe, ViewSettings

KNN_TEMPERATURE = 0.07  # DINO's


class StoppedError(Exception):
    """A measurement ends early, without a result."""


class AugmentedInputs(Inputs):
    """The first global view of every image, the same one at every call."""

    def __init__(
        self, images: Images, settings: ViewSettings, *, seed: int, chosen: Sequence[int] | None = None
    ) -> None:
        super().__init__(images, settings.preprocessing, chosen=chosen)
        self._settings = settings
        self._maker = ViewMaker(settings, seed=seeding.fold(seeding.Purpose.MONITOR, seed), epochs=1)

    def prepare(self, image: Image.Image, index: int) -> Tensor:
        """Cut and augment the image's view."""
        crops, parameters = self._maker.cut(image, epoch=0, sample=index, views=range(1))
        return augment(torch.from_numpy(crops), torch.from_numpy(parameters), self._settings)[0]


class Monitor:
    """Measures a backbone on a fixed subset of the training images; each rank extracts features of its part."""

    def __init__(self, images: Images, recipe: Recipe, *, device: torch.device, workers: int) -> None:
        random = seeding.generator(seeding.Purpose.MONITOR, recipe.run.seed)
        subset = np.sort(random.permutation(len(images))[: recipe.monitor.images])
        self._images = Subset(images, subset.astype(np.int64))
        self._recipe, self._device, self._workers = recipe, device, workers
        self._mine = range(rank(), len(subset), world_size())

    @property
    def passes(self) -> int:
        """Images that one measurement reads on this rank, for progress."""
        return 2 * len(self._mine)

    def measure(
        self,
        backbone: nn.Module,
        progress: Callable[[int], None] = lambda _done: None,
        *,
        agreed: Callable[[], bool] = lambda: False,
    ) -> dict[str, float]:
        """Measure; the backbone's state is untouched.

        Args:
            backbone: [B, 3, H, W] -> [B, D].
            progress: called with the number of images done after every batch; it may raise StoppedError.
            agreed: called on all ranks: whether any of them was stopped.

        Returns:
            effective_rank; neighbour_agreement in percent; knn_top1 in percent, leave-one-out, where labels exist; and
            score, which selects the best checkpoint: knn_top1, or else neighbour_agreement x effective_rank / D.

        Raises:
            StoppedError: `agreed` returned True.
        """
        mine: list[Features] = []
        with uncompiled(backbone), suppress(StoppedError):
            mine += self._features(backbone, progress)
        if agreed():
            raise StoppedError
        plain, augmented = map(self._all, mine)
        return run_on_rank0(lambda: self._figures(plain, augmented))

    def _features(self, backbone: nn.Module, progress: Callable[[int], None]) -> Iterator[Features]:
        for inputs in (
            Inputs(self._images, self._recipe.views.preprocessing, chosen=self._mine),
            AugmentedInputs(self._images, self._recipe.views, seed=self._recipe.run.seed, chosen=self._mine),
        ):
            yield extract(backbone, inputs, device=self._device, workers=self._workers, progress=progress)

    def _all(self, features: Features) -> Features:
        """The features of all ranks, in the order of the images."""
        if world_size() == 1:
            return features
        parts = gather_objects((features.rows, features.samples, features.broken))
        rows = torch.cat([part[0] for part in parts if len(part[0])] or [features.rows])
        samples = torch.cat([part[1] for part in parts])
        order = samples.argsort()
        return Features(rows[order], samples[order], {name: why for part in parts for name, why in part[2].items()})

    def _figures(self, plain: Features, augmented: Features) -> dict[str, float]:
        rows = plain.rows
        if len(rows) < 2 or not rows.isfinite().all():
            return {"effective_rank": 0.0, "neighbour_agreement": 0.0, "score": 0.0}
        k = min(self._recipe.monitor.k, len(rows) - 1)
        rank = effective_rank(rows)
        neighbours = nearest(rows, rows, k, exclude_self=True)
        others = nearest(augmented.rows, augmented.rows, k, exclude_self=True)
        agreement = 100 * shared(neighbours.indices, others.indices)
        figures = {"effective_rank": rank, "neighbour_agreement": agreement, "score": agreement * rank / rows.shape[1]}
        if self._images.labels is not None and self._images.classes is not None:
            labels = torch.from_numpy(self._images.labels)[plain.samples]
            classes = len(self._images.classes)
            votes = vote(neighbours, labels, ks=[k], temperatures=[KNN_TEMPERATURE], classes=classes)
            figures["knn_top1"] = figures["score"] = accuracy(votes[k, KNN_TEMPERATURE], labels)[0]
        return figures


def effective_rank(rows: Tensor) -> float:
    """exp of the entropy of the normalised singular values of rows [N, D]: from 1 (collapsed) to min(N, D)."""
    values = torch.linalg.svdvals(rows.double())
    shares = values / values.sum().clamp(min=torch.finfo(torch.float64).tiny)
    return float(torch.special.entr(shares).sum().exp())


def shared(first: Tensor, second: Tensor) -> float:
    """Mean share of common neighbours of two lists of indices [N, k], from 0 to 1."""
    return float((first[:, :, None] == second[:, None, :]).any(2).double().mean())
