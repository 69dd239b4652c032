"""The objectives by which a student learns from a teacher. Importing it needs no torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .settings import DistilSettings


@dataclass(frozen=True)
class Entry:
    """An objective: where it is, and what it needs. Its weight is the field of its name in `DistilSettings`."""

    module: str  # has a class `OBJECTIVE`, an `Objective` of `interface`
    chance: Callable[["DistilSettings", int], float]  # its loss where nothing is learned, by the images of a batch
    maps: bool = False  # it compares maps, not vectors
    whole_batch: bool = False  # it compares images of a batch with each other


OBJECTIVES = {
    "features": Entry("features", lambda _settings, _batch: 1.0),
    "similarities": Entry(
        "similarities", lambda settings, batch: math.log(max(2, batch - 1 + settings.queue)), whole_batch=True
    ),
    "assignments": Entry("assignments", lambda settings, _batch: math.log(settings.clusters)),
    "maps": Entry("maps", lambda _settings, _batch: 1.0, maps=True),
}
