"""A checkpoint as read from disk, and the strict loading of its tensors into a network."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from excb.checkpoint.coverage import check_values
from excb.console import few
from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing

Which = Literal["teacher", "student"]


@dataclass(frozen=True)
class Stored:
    """A checkpoint as read from disk, not yet built."""

    file: Path  # where the tensors come from
    tensors: dict[str, Tensor]  # of one backbone, by the names of its architecture
    architecture: Architecture  # of the backbone
    preprocessing: Preprocessing  # of its images
    # Projectors, predictor, centroids and sizes, named as in `excb.method.ExCB`; empty where there are none.
    heads: dict[str, Tensor] = field(default_factory=dict)
    # What else is known: network, step, epoch, recipe, training, teachers, layout, the catalogue's row.
    facts: dict[str, Any] = field(default_factory=dict)
    contents: dict[str, Any] = field(default_factory=dict)  # everything in a run's checkpoint; empty otherwise
    preprocessing_from: str = ""  # its source, of a foreign file, for a note

    @property
    def full(self) -> bool:
        """Whether it holds both networks, centroids and sizes, as a run's checkpoint does."""
        return "model" in self.contents


def load_strictly(module: nn.Module, tensors: Mapping[str, Tensor], *, what: str) -> None:
    """Load tensors into a module, or refuse: every one must be there, expected, of the right shape and sound.

    Raises:
        UserError: naming what is missing, unexpected and misshapen, or has values that no network has; the module is
            then unchanged.
    """
    check_fit(module.state_dict(), tensors, what=what)
    check_values(tensors, source=what)
    module.load_state_dict(dict(tensors))


def check_fit(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], *, what: str) -> None:
    """Compare tensors with those of a network, which may be its blueprint (`excb.checkpoint.coverage.blueprint`).

    Raises:
        UserError: naming what is missing, unexpected and misshapen.
    """
    missing = [name for name in expected if name not in tensors]
    unexpected = [name for name in tensors if name not in expected]
    misshapen = [
        f"{name} {tuple(tensors[name].shape)} for {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if missing or unexpected or misshapen:
        parts = [("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen)]
        listing = "; ".join(f"{len(names)} {kind} ({few(names)})" for kind, names in parts if names)
        raise UserError(f"{what} does not fit the network, nothing was loaded: {listing}")
