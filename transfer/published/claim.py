"""One published figure: what was claimed of which network, how it was measured, and on which images."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from excb.files.records import rules_of

MOST = 1e15  # of any number in a claim
MULTI = "multi"  # crops of more than one size, which ones is not stated
Kind = TypeVar("Kind")


def from_table(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """A dataclass from a table that people write, whose lists become tuples.

    Raises:
        TypeError: a field is missing, unknown, or of another type than its annotation.
    """
    for name, rule in rules_of(kind, MOST).items():
        if name in values and rule(values[name]) is not None:
            raise TypeError(f"{name} is {ascii(values[name])[:80]}")
    return kind(**{name: tuple(item) if isinstance(item, list) else item for name, item in values.items()})


@dataclass(frozen=True, kw_only=True)
class ClaimProtocol:
    """How a figure was measured, as a command of `excb-eval`."""

    name: str  # of the protocol
    source: str  # who states its settings
    metrics: tuple[str, ...]  # that it measures
    command: str = ""  # of `excb-eval`; empty where none measures it
    options: dict[str, Any] = field(default_factory=dict)  # of the command, with every one that the figures depend on
    figures: dict[str, str] = field(default_factory=dict)  # a metric's name in result files, where it is another
    unstated: tuple[str, ...] = ()  # settings that nobody states, so that ours are assumed
    differs: tuple[str, ...] = ()  # in what the command is known to differ from how the figure was measured
    cannot: str = ""  # why no command here measures it; empty where one does
    spread: float = 0.0  # half of the spread between trainings in points, of measurements without an interval
    # whose claims it is for; with `methods`, `checkpoints` and `tables`, all where empty
    architectures: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()  # see `architectures`
    checkpoints: tuple[str, ...] = ()  # see `architectures`
    tables: tuple[str, ...] = ()  # see `architectures`

    def arguments(self) -> list[str]:
        """The command and its options as words of a command line."""
        words = [self.command]
        for name, value in self.options.items():
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        return words

    def fit(self, metric: str, facts: Mapping[str, Any], table: str) -> int:
        """How many things of a claim this protocol names; -1 where it is not for that claim."""
        claim = (facts["architecture"], facts["method"], facts["checkpoint"], table)
        selectors = (self.architectures, self.methods, self.checkpoints, self.tables)
        named = [value in names for value, names in zip(claim, selectors, strict=True) if names]
        return len(named) if metric in self.metrics and all(named) else -1


@dataclass(frozen=True, kw_only=True)
class ClaimImages:
    """The images of a claim; what is not known is None."""

    name: str  # as claims call it
    title: str  # as people call it
    classes: int | None = None  # how many
    train: int | None = None  # images in the train set
    test: int | None = None  # images in the set that figures are of
    train_fingerprint: str | None = None  # of result files; None where any copy with these numbers will do
    test_fingerprint: str | None = None  # see `train_fingerprint`
    rename: tuple[str, ...] = ()  # folders of the test set that are named differently in the train set, as TEST=TRAIN


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One published figure."""

    id: str  # TABLE/ROW/METRIC, such as "table1/excb/knn_top1"
    method: str  # that trained the network
    architecture: str  # of the backbone, as the catalogue calls it
    checkpoint: str  # the row of the catalogue that the claim is about: its note says why, where it has no weights
    metric: str  # what was measured, such as "linear_top1"; in percent but for numbers of clusters and images
    value: str  # as printed, with its precision
    protocol: ClaimProtocol  # how
    data: ClaimImages  # on which images
    source: str  # table, section or REPOSITORY@COMMIT:FILE
    epochs: int | None = None  # of the pretraining as the source states them; None where it states none
    batch: int | None = None  # images per step of it, likewise
    # its views, such as "2x224+6x96"; MULTI where all that is stated is that there are several sizes
    crops: str | None = None
    recipe: str = ""  # words after `excb-pretrain` that train this network; empty for methods that this package lacks
    unstated: tuple[str, ...] = ()  # what the figure depends on and nobody states, beside the protocol's
    differs: tuple[str, ...] = ()  # in what its measurement here differs from the source's, beside the protocol's
    differs_from: str = ""  # the id of a claim about the same file that says something else; empty where there is none
    note: str = ""  # what a reader must know

    @property
    def table(self) -> str:
        """The table that it stands in."""
        return self.id.partition("/")[0]

    @property
    def figure(self) -> str:
        """The metric's name in result files under this protocol."""
        return self.protocol.figures.get(self.metric, self.metric)

    @property
    def differences(self) -> list[str]:
        """In what its measurement here is known to differ from the source's, so that a gap is not a failure."""
        return [*self.differs, *self.protocol.differs]

    @property
    def number(self) -> float:
        """The value as a number."""
        return float(self.value.replace(",", ""))

    @property
    def half_unit(self) -> float:
        """Half a unit of the last printed digit: how far the figure before rounding may lie from the printed one."""
        _, _, decimals = self.value.partition(".")
        return 0.5 * 10.0 ** -len(decimals)

    @property
    def address(self) -> str | None:
        """Where the source can be read on the web; None for the paper and for packages."""
        if match := re.fullmatch(r"([\w.-]+/[\w.-]+)@(\w+):([^ ]+).*", self.source):
            return f"https://github.com/{match[1]}/blob/{match[2]}/{match[3]}"
        if match := re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", self.source):
            return f"https://github.com/{match[1]}/issues/{match[2]}"
        return None

    @property
    def command(self) -> str:
        """The `excb-pretrain` command that trains this network; empty for methods that this package lacks."""
        if not self.recipe:
            return ""
        name, *overrides = self.recipe.split()
        return " ".join(["excb-pretrain", name, "--data", "DIR", *overrides])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the protocol and the images by name, with the protocol's settings."""
        values = asdict(self)
        protocol = self.protocol
        return values | {
            "protocol": protocol.name,
            "settings": {"command": protocol.command} | protocol.options,
            "data": self.data.name,
            "unstated": [*self.unstated, *protocol.unstated],
            "differs": self.differences,
            "figure": self.figure,
            "command": self.command,
            "address": self.address,
        }
