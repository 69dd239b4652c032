"""The trials on a sample: references, frozen networks, and short runs; and the figures of each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..run.monitor import NetworkFigures
from ..run.taught import NetworkCost

Kind = Literal["reference", "frozen", "adapted", "distilled", "pretrained"]
KINDS: dict[Kind, str] = {
    "reference": "needs no training",
    "frozen": "as it is",
    "adapted": "adapted in a short run",
    "distilled": "taught in a short run",
    "pretrained": "from random weights in a short run",
}


@dataclass(frozen=True)
class Trial:
    """One thing that was tried, and its figures on the images that are measured.

    Attributes:
        name: of the reference, of the network, or of the short run.
        kind: what was done.
        reading: its figures, with what they count image by image.
        seconds: that it took here, training and measuring.
        seen: images that a short run saw, epochs times images; 0 of what does not train.
        speed: of a short run, images per second with reading.
        cost: of the network in use; None of references.
        base: the network that it started or learned from.
        values: overrides of its recipe that are worth keeping in a full run.
    """

    name: str
    kind: Kind
    reading: NetworkFigures
    seconds: float
    seen: int = 0
    speed: float = 0.0
    cost: NetworkCost | None = None
    base: str = ""
    values: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The decisive figure, in percent."""
        return self.reading.value

    def interval(self) -> tuple[float, float] | None:
        """Its 95 % interval over images as query and neighbour, in percent; None where it is not known."""
        return self.reading.estimate().interval()

    def leads(self, other: "Trial", *, tries: int = 1) -> bool:
        """Whether it is ahead of another by more than chance (95 %).

        Args:
            other: of the same images.
            tries: trials of which this one is the best.
        """
        return self.value - other.value > self.margin(other, tries=tries)

    def margin(self, other: "Trial", *, tries: int = 1) -> float:
        """Points that a difference to another must exceed to be no accident of these images; infinite if unknown."""
        margin = 100 * self.reading.lead_over(other.reading).margin(tries=tries)
        return math.inf if math.isnan(margin) else margin

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        interval = self.interval()
        figures = {name: round(value, 2) for name, value in self.reading.figures.items()}
        return {
            "name": self.name,
            "kind": self.kind,
            "figures": figures,
            "interval": None if interval is None else [round(end, 2) for end in interval],
            "seconds": round(self.seconds, 1),
            **({"images_seen": self.seen} if self.seen else {}),
            **({"milliseconds": self.cost.milliseconds, "parameters": self.cost.parameters} if self.cost else {}),
            **({"base": self.base} if self.base else {}),
            **({"overrides": [*self.values]} if self.values else {}),
        }


@dataclass(frozen=True)
class Experiment:
    """All trials on one sample."""

    trials: tuple[Trial, ...]
    measured: int  # images
    learned: int  # images that short runs learn from
    labelled: bool
    networks: int = 0  # trained ones that were to be tried
    skipped: Mapping[str, str] = field(default_factory=dict)  # what was not tried, and why
    stopped: int = 0  # exit code of the signal that ended it early
    too_slow: tuple[str, ...] = ()  # networks that were skipped for lack of time
    failed: Mapping[str, str] = field(default_factory=dict)  # short runs that a mistake ended, and which
    grouped: str = ""  # in which groups labelled images vote for each other, in words

    def of(self, *kinds: Kind) -> list[Trial]:
        """The trials of these kinds, the best first."""
        return sorted((trial for trial in self.trials if trial.kind in kinds), key=lambda trial: -trial.value)

    def best(self, *kinds: Kind) -> Trial | None:
        """The best of these kinds, or None."""
        return next(iter(self.of(*kinds)), None)
