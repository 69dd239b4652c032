"""The parts of a leaderboard: boards, their protocols, the rows of these, and where figures come from."""

import re
from dataclasses import dataclass, field
from typing import Any

from excb.hub.catalogue import Checkpoint
from excb.results.result import ResultRecord

from ..reporting import fields
from ..reporting.fields import OTHER, UNSTATED

PUBLISHED, MEASURED, REPRODUCED, FAILED = "published", "measured", "reproduced", "not reproduced"
STATUSES = (PUBLISHED, MEASURED, REPRODUCED, FAILED)


@dataclass(frozen=True)
class FigureSource:
    """Where a figure comes from."""

    text: str  # a table, a repository's file, or a result file
    address: str | None = None  # on the web, or of the file from the page's folder; None where there is none

    @property
    def short(self) -> str:
        """A repository without its commit and file, and a file without its folder."""
        text = re.split(r"[@#:]", self.text.removeprefix("paper, "))[0]
        return text.rpartition("/")[2] if text.endswith(".json") else text


@dataclass(frozen=True)
class MeasuredResult:
    """A result, and what is known of its checkpoint from elsewhere."""

    result: ResultRecord  # as read
    source: FigureSource  # its file
    checkpoint: Checkpoint | None = None  # the catalogue's row of what was evaluated; None where it has none


@dataclass
class LeaderboardCell:
    """One metric of one row."""

    measured: float | None = None  # in percent; None where nobody measured it here
    interval: tuple[float, float] | None = None  # its 95 % interval
    published: list[str] = field(default_factory=list)  # figures as printed, the first source's first, each once

    @property
    def value(self) -> float | None:
        """The figure that ranks: the measured one, else the published one."""
        if self.measured is not None:
            return self.measured
        return float(self.published[0].replace(",", "")) if self.published else None


@dataclass
class LeaderboardRow:
    """One checkpoint under one protocol."""

    model: str  # its name, or its file's
    method: str  # that trained it; empty where unknown
    architecture: str  # of the backbone
    epochs: int | None  # of pretraining; None is not known, here and below
    batch: int | None  # images per step of it
    crops: str | None  # its views
    weights: str = ""  # sha256 of the weights that were measured; empty of published rows
    cells: dict[str, LeaderboardCell] = field(default_factory=dict)  # by metric
    sources: list[FigureSource] = field(default_factory=list)  # of all its figures
    notes: list[str] = field(default_factory=list)  # what a reader must know
    own: bool = False  # measured by the reader, not by who made this package
    verdicts: set[str] = field(default_factory=set)  # PASS, FAIL or CANNOT of published figures that were checked

    @property
    def status(self) -> str:
        """One of STATUSES."""
        if not self.weights:
            return PUBLISHED
        return FAILED if "FAIL" in self.verdicts else REPRODUCED if "PASS" in self.verdicts else MEASURED

    @property
    def status_class(self) -> str:
        """Of a page's style."""
        return {REPRODUCED: "reproduced", FAILED: "failed"}.get(self.status, "")

    @property
    def network(self) -> str:
        """The architecture as people call it."""
        return self.architecture.removeprefix("timm:")

    @property
    def searchable(self) -> str:
        """All that a search looks through."""
        return " ".join([self.model, self.method, *(each.text for each in self.sources), *self.notes]).casefold()


@dataclass
class Group:
    """Rows of one protocol."""

    fields: dict[str, Any]  # all that defines it
    names: list[str] = field(default_factory=list)  # what files and the registry call it
    rows: list[LeaderboardRow] = field(default_factory=list)  # best first
    # what keeps it apart from the group before that is most like it; empty of the first
    apart: list[str] = field(default_factory=list)
    # of the rows by the board's first metric that the group has; equals share one, None is without
    ranks: list[int | None] = field(default_factory=list)

    @property
    def ranked(self) -> bool:
        """Whether its rows compare: those of settings that nobody states, or that only authors had, may be unlike."""
        return OTHER not in self.fields and UNSTATED not in self.fields

    @property
    def ranking(self) -> list[tuple[LeaderboardRow, int | None]]:
        """The rows with their ranks."""
        return list(zip(self.rows, self.ranks, strict=True))

    @property
    def headline(self) -> str:
        """The settings that people ask for first."""
        return fields.settings_line(self.fields)

    @property
    def settings(self) -> list[str]:
        """All settings as people read them."""
        shown = {name: value for name, value in self.fields.items() if name not in (OTHER, "protocol")}
        return [f"{name.replace('_', ' ')}: {fields.readable(value)}" for name, value in shown.items()]

    @property
    def why_apart(self) -> str:
        """The difference that keeps it apart, in a sentence; empty of the first."""
        if not self.apart:
            return ""
        return f"{'Ranked apart' if self.ranked else 'Not ranked'}: {'; '.join(self.apart)}"


@dataclass
class Board:
    """One task on one set of images."""

    title: str  # of the task
    images: str  # what they are called
    key: str  # of both, unlike those of other boards
    family: str  # the task's name
    metrics: list[str] = field(default_factory=list)  # its columns
    lowest_first: set[str] = field(default_factory=set)  # those of its metrics of which lower figures are better
    groups: list[Group] = field(default_factory=list)  # in the order of `sorting.group_order`
