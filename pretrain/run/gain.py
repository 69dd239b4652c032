"""The gain of a run over the network it started from: differences on the same images, and the verdict on them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from excb.console import plural
from excb.inference.accuracy import difference_interval
from excb.inference.estimate import LEAST
from excb.inference.halves import halved_lead

TARGET, SOURCE = "target", "source"  # images that a run is for, and those of what its start knew


@dataclass(frozen=True)
class Gain:
    """A figure of the network that a run started from, and of what became of it, on the same images.

    Attributes:
        figure: which, in words, such as "k-NN top-1".
        measured_on: the images, in words, with their number.
        start: before, in percent.
        now: after, in percent.
        low: lower end of the 95 % interval of the difference, in points; None of too few images, which have none.
        high: upper end, likewise.
    """

    figure: str
    measured_on: str
    start: float
    now: float
    low: float | None
    high: float | None

    @property
    def lead(self) -> float:
        """The difference in points, positive where it is better now."""
        return self.now - self.start

    def described(self) -> str:
        """The difference in words."""
        return in_points(self.lead)

    def interval(self) -> str:
        """Its interval in words."""
        if self.low is None or self.high is None:
            return f"fewer than {2 * LEAST} images, too few for an interval"
        return f"95 %: {self.low:+.1f} to {self.high:+.1f}"

    @property
    def risen(self) -> bool:
        """Whether it is better now, by more than chance."""
        return self.low is not None and self.low > 0

    @property
    def fallen(self) -> bool:
        """Whether it is worse now, by more than chance."""
        return self.high is not None and self.high < 0

    @classmethod
    def between(
        cls,
        before: Tensor,
        after: Tensor,
        *,
        figure: str,
        measured_on: str,
        tries: int = 1,
        halves: tuple[Tensor, Tensor] | None = None,
    ) -> "Gain":
        """The gain between two readings of the same images.

        Args:
            before: [N] bool, right answers.
            after: [N] bool.
            figure: in words.
            measured_on: whose images, such as "of photos/val".
            tries: number of networks of which this one is the best.
            halves: the same on random halves, [P, N] bool, where images are each other's neighbours. The sampling unit
                is then an image as query and neighbour, and otherwise as query alone.
        """
        low: float | None
        high: float | None
        if halves is None:
            low, high = difference_interval(before, after, tries=tries)
        else:
            leads, on_halves = (later.double() - one.double() for one, later in ((before, after), halves))
            spread = halved_lead(leads.numpy(), on_halves.numpy())
            low, high = spread.interval(lowest=-1.0, tries=tries) or (None, None)
        start, now = (100 * float(hits.double().mean()) for hits in (before, after))
        return cls(figure, f"{plural(len(before), 'image')} {measured_on}", start, now, low, high)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Gain":
        """The inverse of `to_dict`.

        Raises:
            LookupError, TypeError, ValueError: it is not a gain.
        """
        figure, measured_on = str(stored["figure"]), str(stored["measured_on"])
        return cls(
            figure,
            measured_on,
            *(float(stored[name]) for name in ("start", "now")),
            *(None if stored[name] is None else float(stored[name]) for name in ("low", "high")),
        )


@dataclass(frozen=True)
class Adapted:
    """The change of a trained network that a run started from.

    Attributes:
        gains: of the best epoch over the start, by probe.
        epoch: the best one; 0 is the start.
        step: of its checkpoint.
        measurements: after the start's.
        ended: why the run ended before its last epoch; None where it did not.
    """

    gains: Mapping[str, Gain]
    epoch: int
    step: int
    measurements: int
    ended: str | None = None

    def judge(self) -> tuple[bool | None, str]:
        """Whether the best epoch is better than the start, and the sentences that say so; None: it may be chance."""
        gain = self.gains[TARGET]
        figure, best = f"{gain.figure} on {gain.measured_on}", f"the best of {plural(self.measurements, 'measurement')}"
        better = False if self.epoch == 0 else gain.risen or None
        if better:
            summary = (
                f"Better than the original: {figure} is {gain.now:.1f} % after epoch {self.epoch}, {gain.described()} "
                f"the original's {gain.start:.1f} % ({gain.interval()}; {best})."
            )
        elif self.epoch:
            summary = (
                f"Keep the original: {best}, after epoch {self.epoch}, is {gain.described()} its {figure}, "
                f"{gain.start:.1f} %, which may be chance ({gain.interval()})."
            )
        else:
            number = self.measurements
            none = "the only measurement is not" if number == 1 else f"none of {plural(number, 'measurement')} is"
            summary = f"Keep the original: {none} above its {figure}, {gain.start:.1f} %."
        if (source := self.gains.get(SOURCE)) is not None and self.epoch:
            lost = "it has forgotten" if source.fallen else "nothing is lost" if source.risen else "within chance"
            summary += (
                f" On {source.measured_on}, its source, it is {source.described()} the original "
                f"({source.interval()}): {lost}."
            )
        return better, summary if self.ended is None else f"{summary} The run ended early: {self.ended}."


def in_points(lead: float) -> str:
    """A difference of percentages in words."""
    return f"{abs(lead):.1f} points {'above' if lead >= 0 else 'below'}"
