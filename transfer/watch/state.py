"""All that is known of a watched run at one moment: what tables, pages and pointers show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .log import Measurement
from .runs import Snapshot


@dataclass(frozen=True)
class State:
    """A watch at one moment.

    Attributes:
        place: the run's folder or URL.
        name: of the run.
        setup: what is measured on which images.
        snapshot: the run as it was seen last.
        measured: the measurements, in the order of steps.
        missed: steps of checkpoints that were gone before they were measured.
        unreadable: why checkpoints cannot be read, by step.
        pointer: what `best.json` says; None where nothing is measured.
    """

    place: str
    name: str
    setup: Mapping[str, Any]
    snapshot: Snapshot
    measured: Sequence[Measurement]
    missed: Sequence[int]
    unreadable: Mapping[int, str]
    pointer: Mapping[str, Any] | None


def steps_in_words(steps: Sequence[int], most: int = 12) -> str:
    """Steps as people read them, of many the first ones: "steps 4, 8, 12 and 40 more"."""
    shown = ", ".join(map(str, steps[:most]))
    rest = f" and {len(steps) - most} more" if len(steps) > most else ""
    return f"step{'s' * (len(steps) > 1)} {shown}{rest}"
