"""What a leaderboard consists of: boards, their protocols, the rows of these, and where figures come from."""

from dataclasses import dataclass, field
from typing import Any

from excb.hub.catalogue import Checkpoint
from excb.results.result import Result

from ..reporting.fields import OTHER, UNSTATED

PUBLISHED, MEASURED, REPRODUCED, FAILED = "published", "measured", "reproduced", "not reproduced"
STATUSES = (PUBLISHED, MEASURED, REPRODUCED, FAILED)


@dataclass(frozen=True)
class Source:
    """Where a figure comes from.

    Args:
        text: a table, a repository's file, or a result file.
        address: on the web, or of the file from the page's folder; None where there is none.
    """

    text: str
    address: str | None = None


@dataclass(frozen=True)
class MeasuredResult:
    """A result, and what is known of its checkpoint from elsewhere.

    Args:
        result: as read.
        source: its file.
        checkpoint: the catalogue's row of what was evaluated; None where it has none.
    """

    result: Result
    source: Source
    checkpoint: Checkpoint | None = None


@dataclass
class LeaderboardCell:
    """One metric of one row.

    Args:
        measured: in percent; None where nobody measured it here.
        interval: its 95 % interval.
        published: figures as printed, the first source's first, each once.
    """

    measured: float | None = None
    interval: tuple[float, float] | None = None
    published: list[str] = field(default_factory=list)

    @property
    def value(self) -> float | None:
        """What ranks: the measured figure, else the published one."""
        if self.measured is not None:
            return self.measured
        return float(self.published[0].replace(",", "")) if self.published else None


@dataclass
class LeaderboardRow:
    """One checkpoint under one protocol.

    Args:
        model: its name, or its file's.
        method: that trained it; empty where unknown.
        architecture: of the backbone.
        epochs: of pretraining; None is not known, here and below.
        batch: images a step of it.
        crops: its views.
        weights: sha256 of the weights that were measured; empty of published rows.
        cells: by metric.
        sources: of all its figures.
        notes: what a reader must know.
        verdicts: PASS, FAIL or CANNOT of published figures that were checked.
    """

    model: str
    method: str
    architecture: str
    epochs: int | None
    batch: int | None
    crops: str | None
    weights: str = ""
    cells: dict[str, LeaderboardCell] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verdicts: set[str] = field(default_factory=set)

    @property
    def status(self) -> str:
        """One of STATUSES."""
        if not self.weights:
            return PUBLISHED
        return FAILED if "FAIL" in self.verdicts else REPRODUCED if "PASS" in self.verdicts else MEASURED


@dataclass
class Group:
    """Rows of one protocol.

    Args:
        fields: all that defines it.
        names: what files and the registry call it.
        rows: best first.
        apart: what keeps it apart from the group before that is most like it; empty of the first.
        ranks: of the rows by the board's first metric that the group has; equals share one, None is without.
    """

    fields: dict[str, Any]
    names: list[str] = field(default_factory=list)
    rows: list[LeaderboardRow] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)

    @property
    def ranked(self) -> bool:
        """Whether its rows compare: those of settings that nobody states, or that only authors had, may be unlike."""
        return OTHER not in self.fields and UNSTATED not in self.fields

    @property
    def why_apart(self) -> str:
        """What keeps it apart, in a sentence; empty of the first."""
        if not self.apart:
            return ""
        return f"{'Ranked apart' if self.ranked else 'Not ranked'}: {'; '.join(self.apart)}"


@dataclass
class Board:
    """One task on one set of images.

    Args:
        title: of the task.
        images: what they are called.
        key: of both, unlike those of other boards.
        family: the task's name.
        metrics: its columns.
        lowest_first: those of its metrics of which lower figures are better.
        groups: in the order of `sorting.group_order`.
    """

    title: str
    images: str
    key: str
    family: str
    metrics: list[str] = field(default_factory=list)
    lowest_first: set[str] = field(default_factory=set)
    groups: list[Group] = field(default_factory=list)
