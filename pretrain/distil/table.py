"""The objectives by which a student learns from a teacher. Importing it needs no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ObjectiveTraits:
    """Where an objective is, and what it needs. Its weight is the field of its name in `DistilSettings`."""

    module: str  # has a class `OBJECTIVE`, an `Objective` of `interface`
    maps: bool = False  # it compares maps, not vectors
    whole_batch: bool = False  # it compares images of a batch with each other


OBJECTIVES = {
    "features": ObjectiveTraits("features"),
    "similarities": ObjectiveTraits("similarities", whole_batch=True),
    "assignments": ObjectiveTraits("assignments"),
    "maps": ObjectiveTraits("maps", maps=True),
}
