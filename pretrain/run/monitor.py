"""Figures of the representation during training: k-NN where labels exist, and three figures that need none.

The effective rank (RankMe; Garrido et al., 2023) falls when features collapse. The neighbour agreement is the share of
an image's nearest neighbours that stay the same when every image is replaced by an augmented view. It grows as the
features come to follow the content. Instance retrieval is the share of images that are nearest to their own augmented
view. Without labels, effective rank times neighbour agreement selects the best checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from excb import seeding
from excb.distributed.collectives import gather_objects, rank, run_on_rank0, world_size
from excb.images.image_set import Images
from excb.images.subset import Subset
from excb.inference.estimate import Estimate
from excb.inference.halves import enough, halved_lead, halved_mean, how_many
from excb.neighbours.halves import enough_neighbours, retrieval_on_halves, vote_on_halves
from excb.neighbours.knn import top_accuracies, vote
from excb.neighbours.nearest import Neighbours, nearest
from excb.networks.backbone import uncompiled
from excb.networks.features import Features, Inputs, extract
from excb.networks.preprocessing import Preprocessing

from ..data.augmentation import augment
from ..data.views import ViewMaker
from ..recipe import MonitorSettings, Recipe, ViewSettings

KNN_TEMPERATURE = 0.07  # DINO's
FEWEST_VOTERS = 5  # of a group
FEWEST = 1000  # images, of which a share has an interval of 3 points to either side


class MeasurementStoppedError(Exception):
    """A measurement ends early, without a result."""


@dataclass(frozen=True)
class NetworkFigures:
    """A measurement of one network.

    Attributes:
        figures: in percent, but for the effective rank.
        decisive: name of the figure that says most: k-NN, or without labels retrieval.
        hits: [N] bool, of which images that figure counts.
        halves: the hits on P random halves of the images, [P, N] bool, where images are each other's neighbours; see
            `excb.neighbours.halves`. None where nobody asked, or hits are independent.
        samples: [N] int64, the images that could be read, as indices of the set. None where nobody asked.
    """

    figures: dict[str, float]
    decisive: str
    hits: Tensor
    halves: Tensor | None = None
    samples: Tensor | None = None

    def labels_of(self, images: Images) -> list[int] | None:
        """The labels of the images that were measured; None where the set has no classes."""
        if images.labels is None or images.classes is None:
            return None
        labels: list[int] = (images.labels if self.samples is None else images.labels[self.samples.numpy()]).tolist()
        return labels

    @property
    def value(self) -> float:
        """The decisive figure."""
        return self.figures[self.decisive]

    def lead_over(self, other: "NetworkFigures") -> Estimate:
        """The decisive figure minus that of another network, as a share of 1, with its spread; of the same images."""
        assert self.halves is not None
        assert other.halves is not None
        hits, halves = self.hits.double() - other.hits.double(), self.halves.double() - other.halves.double()
        return halved_lead(hits.numpy(), halves.numpy())

    def estimate(self) -> Estimate:
        """The decisive figure, as a share of 1, with its spread."""
        assert self.halves is not None
        return halved_mean(self.hits.numpy(), self.halves.numpy())


class SideBySide(nn.Module):
    """Several networks on the same inputs: [B, 3, H, W] -> [B, the sum of their widths]."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.widths: list[int] = []  # known after the first batch

    def forward(self, images: Tensor) -> Tensor:
        """The features of all networks, one after the other."""
        rows = []
        for network in self.networks:  # a trained network may be of double precision, and others are not
            parameter = next(network.parameters(), images)
            rows.append(network(images.to(parameter.dtype)).float())
        self.widths = [each.shape[1] for each in rows]
        return torch.cat(rows, 1)


class AugmentedInputs(Inputs):
    """The first global view of every image, the same one at every call."""

    def __init__(
        self, images: Images, settings: ViewSettings, *, seed: int, indices: Sequence[int] | None = None
    ) -> None:
        super().__init__(images, settings.preprocessing, indices=indices)
        self._settings = settings
        self._maker = ViewMaker(settings, seed=seeding.fold(seeding.Purpose.MONITOR, seed), epochs=1)

    def prepare(self, image: Image.Image, index: int) -> Tensor:
        """Cut and augment the image's view."""
        crops, parameters = self._maker.cut(image, epoch=0, sample=index, views=range(1))
        return augment(torch.from_numpy(crops), torch.from_numpy(parameters), self._settings)[0]


def images_measured(recipe: Recipe, images: int) -> int:
    """Images that each measurement of a run reads, of a set of so many.

    A measurement costs a pass or two over them, however short the run is. With `monitor.share`, all of them together
    read at most that share of the images that the run trains on, but no fewer than `FEWEST` each.
    """
    settings, epochs = recipe.monitor, recipe.optim.epochs
    if settings.share is None:
        return settings.images
    measurements = epochs // settings.every_epochs + 2  # the last epoch, and the verdict
    return min(settings.images, max(FEWEST, int(settings.share * images * epochs / measurements)))


def fixed_subset(images: Images, recipe: Recipe, most: int) -> Subset:
    """At most so many images of a set, the same ones every time."""
    random = seeding.generator(seeding.Purpose.MONITOR, recipe.run.seed)
    return Subset(images, np.sort(random.permutation(len(images))[:most]).astype(np.int64))


class Monitor:
    """Measures a backbone on a fixed subset of the training images; each rank extracts features of its part."""

    def __init__(self, images: Images, recipe: Recipe, *, device: torch.device, workers: int) -> None:
        self.images = fixed_subset(images, recipe, images_measured(recipe, len(images)))
        self._recipe, self._device, self._workers = recipe, device, workers
        self._mine = range(rank(), len(self.images), world_size())

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
            effective_rank; neighbour_agreement and instance_retrieval in percent; knn_top1 in percent, leave-one-out,
            where labels exist; and score, which selects the best checkpoint: knn_top1, or else
            neighbour_agreement x effective_rank / D.

        Raises:
            StoppedError: `agreed` returned True.
        """
        return self.read(backbone, progress, agreed=agreed).figures

    def read(
        self,
        backbone: nn.Module,
        progress: Callable[[int], None] = lambda _done: None,
        *,
        agreed: Callable[[], bool] = lambda: False,
        halves: bool = False,
    ) -> NetworkFigures:
        """`measure`, with what the decisive figure counts image by image, and on `halves` where it is asked for."""
        with uncompiled(backbone):
            plain, augmented = self._read_in(backbone, self._recipe.views, None, progress, agreed)
        return run_on_rank0(lambda: self._scored(plain, augmented, halves=halves))

    def compare(
        self,
        networks: Mapping[str, nn.Module],
        progress: Callable[[int], None] = lambda _done: None,
        *,
        transform: Preprocessing | None = None,
        agreed: Callable[[], bool] = lambda: False,
        decisive_only: bool = False,
    ) -> dict[str, NetworkFigures]:
        """The figures of several networks on the same inputs, each of which is read once, with their halves.

        Args:
            networks: by name, each [B, 3, H, W] -> [B, D], in eval mode on the monitor's device; the first one has
                parameters.
            progress: as `measure`.
            transform: of the images, if not the recipe's; the views then have its size, mean and deviation.
            agreed: as `measure`.
            decisive_only: where labels exist, measure k-NN alone, which needs no augmented views and half the time.

        Returns:
            By name, figures as `measure` returns them, without effective_rank and score.

        Raises:
            StoppedError: `agreed` returned True.
        """
        views = self._recipe.views
        if transform is not None:
            views = replace(
                views,
                global_size=transform.crop,
                eval_resize=transform.resize,
                eval_crop=transform.crop,
                mean=transform.mean,
                std=transform.std,
            )
        beside = SideBySide([*networks.values()])
        with ExitStack() as eager:
            for network in networks.values():
                eager.enter_context(uncompiled(network))
            read = self._read_in(
                beside, views, transform, progress, agreed, plain_only=decisive_only and self._labelled
            )

        def figures() -> dict[str, NetworkFigures]:
            each = [[replace(one, rows=rows) for rows in one.rows.split(beside.widths, 1)] for one in read]
            return {
                name: self._read(*parts, halves=True)
                for name, parts in zip(networks, zip(*each, strict=True), strict=True)
            }

        return run_on_rank0(figures)

    @property
    def _labelled(self) -> bool:
        return self.images.labels is not None and self.images.classes is not None

    def _read_in(
        self,
        network: nn.Module,
        views: ViewSettings,
        transform: Preprocessing | None,
        progress: Callable[[int], None],
        agreed: Callable[[], bool],
        *,
        plain_only: bool = False,
    ) -> list[Features]:
        """The features of the images and, unless `plain_only`, of their views, on all ranks."""
        kinds = [Inputs(self.images, transform or views.preprocessing, indices=self._mine)]
        if not plain_only:
            kinds.append(AugmentedInputs(self.images, views, seed=self._recipe.run.seed, indices=self._mine))
        mine: list[Features] = []
        with suppress(MeasurementStoppedError):
            mine.extend(
                extract(network, inputs, device=self._device, workers=self._workers, progress=progress)
                for inputs in kinds
            )
        if agreed():
            raise MeasurementStoppedError
        return [*map(gather_features, mine)]

    def _scored(self, plain: Features, augmented: Features, *, halves: bool) -> NetworkFigures:
        rows, reading = plain.rows, self._read(plain, augmented, halves=halves)
        figures = reading.figures
        rank = effective_rank(rows) if usable(rows) and usable(augmented.rows) else 0.0
        score = figures["neighbour_agreement"] * rank / max(1, rows.shape[1])
        return replace(reading, figures={"effective_rank": rank} | figures | {"score": figures.get("knn_top1", score)})

    def _read(self, plain: Features, augmented: Features | None = None, *, halves: bool) -> NetworkFigures:
        rows, labelled = plain.rows, self._labelled
        if not usable(rows) or (augmented is not None and not usable(augmented.rows)):
            zeros = {} if augmented is None else {"neighbour_agreement": 0.0, "instance_retrieval": 0.0}
            zeros |= {"knn_top1": 0.0} if labelled else {}
            decisive, none = "knn_top1" if labelled else "instance_retrieval", torch.zeros(len(rows)).bool()
            in_halves = none.repeat(how_many(len(rows)), 1) if halves else None
            return NetworkFigures(zeros, decisive, none, in_halves, plain.samples)
        k = min(self._recipe.monitor.k, len(rows) - 1)
        wanted = max(k, enough_neighbours(k, len(rows))) if halves and labelled else k
        neighbours = nearest(rows, rows, wanted, exclude_self=True)
        figures: dict[str, float] = {}
        if augmented is not None:
            others = nearest(augmented.rows, augmented.rows, k, exclude_self=True)
            nearest_images = nearest(rows, augmented.rows, min(enough(1), len(rows)) if halves else 1).indices
            hits = retrieved(nearest_images)
            figures["neighbour_agreement"] = 100 * shared(neighbours.indices[:, :k], others.indices)
            figures["instance_retrieval"] = 100 * float(hits.double().mean())
        if self.images.labels is None or self.images.classes is None:
            of_halves = torch.from_numpy(retrieval_on_halves(nearest_images)) if halves else None
            return NetworkFigures(figures, "instance_retrieval", hits, of_halves, plain.samples)
        labels = torch.from_numpy(self.images.labels)[plain.samples]
        classes, settings = len(self.images.classes), self._recipe
        number, k = groups_and_voters(len(rows), settings.monitor)
        if number > 1:
            wanted = enough_neighbours(k, len(rows) // number) if halves else k
            neighbours = nearest_in_groups(rows, wanted, random_groups(len(rows), number, seed=settings.run.seed))
        votes = vote(neighbours, labels, ks=[k], temperatures=[KNN_TEMPERATURE], classes=classes)
        figures["knn_top1"] = top_accuracies(votes[k, KNN_TEMPERATURE], labels)[0]
        of_votes = None
        if halves:
            on_halves = vote_on_halves(neighbours, labels, k=k, temperature=KNN_TEMPERATURE, classes=classes)
            of_votes = torch.from_numpy(on_halves)
        right = votes[k, KNN_TEMPERATURE].top1 == labels
        return NetworkFigures(figures, "knn_top1", right, of_votes, plain.samples)


def groups_and_voters(images: int, monitor: MonitorSettings) -> tuple[int, int]:
    """The number of groups in which images vote for each other, and how many of its group vote for each.

    Photographs of one series find each other in any network, and hide what it learned of everything else: 91.4 % of
    2,640 groceries were voted right by all others before a run, and 92.1 % after it, while it gained 11 points on test
    images. A small group has few of a series, and few of a class: so fewer vote (docs/adapt.md).

    Args:
        images: how many are measured.
        monitor: how.
    """
    number = 1 if monitor.group is None else max(1, round(images / monitor.group))
    k = max(min(monitor.k, FEWEST_VOTERS), monitor.k // number)
    return number, min(k, images // number - 1)


def in_groups(images: int, monitor: MonitorSettings) -> str:
    """The groups in words, after what was measured; empty for one group."""
    number, _ = groups_and_voters(images, monitor)
    return f" in groups of {images // number:,}" if number > 1 else ""


def random_groups(images: int, number: int, *, seed: int) -> list[Tensor]:
    """All images, divided at random into groups whose sizes differ by one at most, the same ones every time.

    Args:
        images: how many.
        number: of groups.
        seed: of the run.

    Returns:
        The indices of each group, ascending.
    """
    order = seeding.generator(seeding.Purpose.MONITOR, seed, number).permutation(images)
    return [torch.from_numpy(np.sort(order[first::number])) for first in range(number)]


def nearest_in_groups(rows: Tensor, k: int, groups: Sequence[Tensor]) -> Neighbours:
    """The k nearest others of every row [N, D] in its group, as rows of all groups."""
    indices = torch.empty(len(rows), k, dtype=torch.int64)
    similarities = torch.empty(len(rows), k, dtype=torch.float64)
    for group in groups:
        found = nearest(rows[group], rows[group], k, exclude_self=True)
        indices[group], similarities[group] = group[found.indices], found.similarities
    return Neighbours(indices, similarities)


def gather_features(features: Features) -> Features:
    """The features of all ranks, each of which has some of the images, in the order of the images."""
    if world_size() == 1:
        return features
    parts = gather_objects((features.rows, features.samples, features.broken))
    rows = torch.cat([part[0] for part in parts if len(part[0])] or [features.rows])
    samples = torch.cat([part[1] for part in parts])
    order = samples.argsort()
    return Features(rows[order], samples[order], {name: why for part in parts for name, why in part[2].items()})


def usable(rows: Tensor) -> bool:
    """Whether there are rows to compare, and all are finite."""
    return len(rows) > 1 and bool(rows.isfinite().all())


def effective_rank(rows: Tensor) -> float:
    """exp of the entropy of the normalised singular values of rows [N, D]: from 1 (collapsed) to min(N, D)."""
    values = torch.linalg.svdvals(rows.double())
    shares = values / values.sum().clamp(min=torch.finfo(torch.float64).tiny)
    return float(torch.special.entr(shares).sum().exp())


def shared(first: Tensor, second: Tensor) -> float:
    """Mean share of common neighbours of two lists of indices [N, k], from 0 to 1."""
    return float((first[:, :, None] == second[:, None, :]).any(2).double().mean())


def retrieved(nearest_images: Tensor) -> Tensor:
    """Whether the image nearest to each view is its own, [N] bool; chance is 1 / N.

    Args:
        nearest_images: [N, M] indices of the images nearest to each view, the nearest first.
    """
    return nearest_images[:, 0] == torch.arange(len(nearest_images))
