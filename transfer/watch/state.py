"""All that is known of a watched run at one moment: what tables, pages and `best.json` show."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..protocols import kind_of
from .log import CheckpointFigures
from .runs import Snapshot, WatchedRun


@dataclass(frozen=True)
class WatchState:
    """A watch at one moment.

    Attributes:
        run: the watched run.
        setup: the protocol and its images.
        snapshot: the run as it was seen last.
        measured: the measurements, in the order of steps.
        missed: steps of checkpoints that were gone before they were measured.
        unreadable: why checkpoints cannot be read, by step.
    """

    run: WatchedRun
    setup: Mapping[str, Any]
    snapshot: Snapshot
    measured: Sequence[CheckpointFigures]
    missed: Sequence[int] = ()
    unreadable: Mapping[int, str] | None = None

    @cached_property
    def pointer(self) -> dict[str, Any] | None:
        """The contents of `best.json`; None where nothing is measured.

        It names the best checkpoint that the run still has, or where it has none the best one; and the steps of better
        ones that are gone.
        """
        order, kept = best_first(self.measured), self.snapshot.checkpoints
        if not order:
            return None
        best = next((one for one in order if one.step in kept), order[0])
        return {
            "checkpoint": self.run.address(best.step),
            "kept": best.step in kept,
            "step": best.step,
            "epoch": best.epoch,
            "figure": best.figure,
            "value": best.value,
            "interval": best.interval,
            "weights_sha256": best.weights_sha256,
            "better_but_gone": [one.step for one in order[: order.index(best)] if one.value != best.value],
        }


def best_first(measured: Iterable[CheckpointFigures]) -> list[CheckpointFigures]:
    """Measurements by their main figure, the best first; of equal ones the earlier step."""

    def key(one: CheckpointFigures) -> tuple[float, int]:
        kind = kind_of(one.figure)
        return -one.value if kind is None or kind.higher_is_better else one.value, one.step

    return sorted(measured, key=key)


def steps_in_words(steps: Sequence[int], most: int = 12) -> str:
    """Steps as people read them, of many the first ones: "steps 4, 8, 12 and 40 more"."""
    shown = ", ".join(map(str, steps[:most]))
    rest = f" and {len(steps) - most} more" if len(steps) > most else ""
    return f"step{'s' * (len(steps) > 1)} {shown}{rest}"
