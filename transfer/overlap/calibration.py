"""Thresholds that leave few false alarms, and the planted copies that they find: crops, JPEGs, flips."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from excb.console import Reporter, plural
from excb.errors import UserError, require
from excb.images.image_set import Images
from excb.images.subset import Subset

from .altered import KINDS, Altered, drawn
from .descriptors import Descriptor
from .hashing import bits_of, of_bits
from .matching import EQUAL, cosines

PLANTED, FEWEST = 200, 20  # train images that are altered; the fewest that calibrate
ALARMS = 0.01  # share of false alarms that a threshold leaves, at most
EITHER = "either"
_AT_ONCE = 8192


@dataclass(frozen=True)
class Calibration:
    """The share that thresholds find of S planted copies of each kind, and of S train images that are not copies.

    Args:
        thresholds: cosines, by descriptor.
        found: [S] bool by descriptor and kind: whether the copy reaches the threshold with its original.
        alarms: [S] bool by descriptor: whether an image reaches it with one that it is not a copy of.
        by_class: whether these others are of other classes, else they are all other train images.
    """

    thresholds: Mapping[str, float]
    found: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    alarms: Mapping[str, Tensor] = field(default_factory=dict)
    by_class: bool = False

    def with_either(self) -> "Calibration":
        """The same with what any of the descriptors finds, under `EITHER`."""
        if not self.found:
            return self
        each = list(self.found.values())
        either = {kind: torch.stack([found[kind] for found in each]).any(0) for kind in KINDS}
        alarms = torch.stack(list(self.alarms.values())).any(0)
        return Calibration(
            self.thresholds, {**self.found, EITHER: either}, {**self.alarms, EITHER: alarms}, self.by_class
        )

    @property
    def planted(self) -> int:
        """S, the train images that were altered in each way; half of all of them where more were asked for."""
        return len(next(iter(self.alarms.values()), ()))

    def recall(self, name: str, kind: str) -> float:
        """The share of planted copies of a kind that a descriptor finds."""
        return float(self.found[name][kind].double().mean())

    def precision(self, name: str, kind: str) -> float:
        """The share of true copies among what it reports, of as many copies as images that are none; NaN of nothing."""
        true, false = self.recall(name, kind), float(self.alarms[name].double().mean())
        return true / (true + false) if true + false else math.nan


def calibrate(
    train: Images,
    rows: Mapping[str, Tensor],
    descriptors: Mapping[str, Descriptor],
    thresholds: Mapping[str, float],
    reporter: Reporter,
    *,
    planted: int = PLANTED,
    by_class: bool = False,
) -> Calibration:
    """Choose the thresholds that are not given, and measure all of them on planted copies; all ranks call this.

    Half of the images that are drawn choose the thresholds, the other half measures: `alarms` and `found`.

    Args:
        train: the train images.
        rows: [N, D] of these, by descriptor.
        descriptors: by name.
        thresholds: cosines that the user chose.
        reporter: prints notes and progress.
        planted: images that are altered in each way, S; 0 measures nothing.
        by_class: compare images that are not copies with those of other classes only. Thresholds are lower then: they
            find more copies, and images of one class that only look alike.

    Raises:
        UserError: there are too few train images, or no image to choose a threshold by.
    """
    require(not by_class or train.labels is not None, "--control classes needs train images with labels")
    if planted == 0:
        return Calibration(thresholds)
    sample = drawn(train, 2 * planted)
    if len(sample) < 2 * FEWEST:
        flags = " and ".join({"features": "--cosine", "hash": "--bits"}[name] for name in descriptors)
        raise UserError(
            f"{plural(len(train), 'train image is', 'train images are')} too few to set thresholds by: name "
            f"{flags}, and --calibrate 0"
        )
    choosing, measuring = (Subset(train, sample.indices[start::2]) for start in (0, 1))
    limits, found, alarms = dict(thresholds), dict[str, dict[str, Tensor]](), dict[str, Tensor]()
    for name, descriptor in descriptors.items():
        bank = rows[name]
        if name not in limits:
            sides = descriptor.both(choosing, "train images to calibrate by", reporter)
            limits[name] = threshold(_unrelated(bank, choosing, sides, by_class=by_class), name)
        sides = descriptor.both(measuring, "train images to count false alarms by", reporter)
        alarms[name] = _unrelated(bank, measuring, sides, by_class=by_class) >= limits[name] - EQUAL
        originals, found[name] = bank[torch.from_numpy(measuring.indices)], {}
        for kind in KINDS:
            sides = descriptor.both(Altered(measuring, kind), f"planted {kind}", reporter)
            own = torch.stack([cosines(side, originals) for side in sides]).amax(0)
            found[name][kind] = own >= limits[name] - EQUAL
    return Calibration(limits, found, alarms, by_class)


def threshold(unrelated: Tensor, name: str) -> float:
    """The lowest cosine that at most `ALARMS` of unrelated images [S] reach; of hashes one of a whole number of bits.

    At most 1, so that identical images are found even where many are.
    """
    ranked = unrelated.sort(descending=True).values
    most = float(ranked[int(ALARMS * len(ranked))])
    if name == "hash":
        return of_bits(max(0, bits_of(most) - 1))
    return min(1.0, math.floor(most * 1000 + 1) / 1000)


def _unrelated(bank: Tensor, some: Subset, sides: tuple[Tensor, Tensor], *, by_class: bool) -> Tensor:
    """The highest cosine [S] float64 of train images, upright or mirrored, with others that they are not copies of.

    Args:
        bank: [N, D], rows of the train images.
        some: S of these.
        sides: their rows, and those of their mirror images.
        by_class: others are those of other classes.
    """
    labels = some.images.labels if by_class else None
    excluded = np.arange(len(bank)) if labels is None else labels
    own = torch.from_numpy(excluded[some.indices])
    queries = [torch.nn.functional.normalize(side.double(), dim=1) for side in sides]
    best = torch.full((len(some),), -1.0, dtype=torch.float64)
    for start in range(0, len(bank), _AT_ONCE):
        unit = torch.nn.functional.normalize(bank[start : start + _AT_ONCE].double(), dim=1)
        same = torch.from_numpy(excluded[start : start + _AT_ONCE]) == own[:, None]
        for side in queries:
            best = torch.maximum(best, (side @ unit.T).masked_fill(same, -1).amax(1))
    fix = "compare with all others, by --control all"
    require(bool((best > -1).any()), f"no train image is of another class, to set thresholds by: {fix}")
    return best
