"""The protocols: one line each. Their order is that of `--help`, of `excb-eval all` and of the leaderboard's tables.

A record is imported when it is asked for: a command enters no file of another protocol.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from excb.errors import UserError, in_short, nearest_name, require

from .protocol import Family, FigureKind, Protocol

if TYPE_CHECKING:
    from excb.inference.paired import Paired
    from excb.results.result import ResultRecord


class _Records(Mapping[str, Protocol]):
    """Records by the protocol's name, from the modules that hold them as MODULE:NAME."""

    def __init__(self, *places: str) -> None:
        self._places = {place.partition(":")[2].lower(): place for place in places}

    def __getitem__(self, name: str) -> Protocol:
        module, _, record = self._places[name].partition(":")
        protocol: Protocol = getattr(import_module(f".{module}", __package__), record)
        return protocol

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


PROTOCOLS: Mapping[str, Protocol] = _Records(
    "knn.record:KNN",
    "retrieval.record:RETRIEVAL",
    "instances.record:INSTANCES",
    "linear.record:LINEAR",
    "layers.record:LAYERS",
    "dense.record:DENSE",
    "robustness.record:ROBUSTNESS",
    "finetuning.record:SEMISUP",
    "finetuning.record:FINETUNE",
    "detection.record:DETECTION",
    "clusters.record:CLUSTERS",
)

_TOP = re.compile(r"(\w+)_top([15])")  # accuracies of any family, also those that no protocol here measures


def protocol_named(name: str) -> Protocol:
    """The protocol of that name. Raises UserError if there is none."""
    require(isinstance(name, str), f"a protocol is one name, such as knn, not {in_short(name)}")
    if name not in PROTOCOLS:
        close = nearest_name(name, PROTOCOLS)
        raise UserError(f"no protocol is called {name!r}{close} (there are {', '.join(PROTOCOLS)})")
    return PROTOCOLS[name]


def of_command(name: str) -> Protocol | None:
    """The protocol of that command; None for other commands, and of claims that none measures."""
    return PROTOCOLS.get(name)


def protocol_of_result(name: str) -> Protocol | None:
    """The protocol that made a result, by the result's `protocol`; None of protocols that this version lacks."""
    own = next((each for each in PROTOCOLS if name == each or name.startswith((f"{each}_", f"{each}-"))), None)
    return None if own is None else PROTOCOLS[own]


def answers_beside(result: "ResultRecord", file: Path) -> "Paired | None":
    """The answers for every image beside a result's FILE.json; None of a protocol that saves none, such as detection.

    Raises:
        UserError: they are missing or damaged.
    """
    from .reporting.label_scores import LabelScores
    from .reporting.predictions import Scored
    from .reporting.report import paired_beside

    protocol = protocol_of_result(result.protocol)
    if protocol is not None and protocol.read_paired is not None:
        return protocol.read_paired(file)
    saved = result.predictions.get("file", "")
    return paired_beside(result, file) if saved.endswith((Scored.suffix, LabelScores.suffix)) else None


def families() -> tuple[Family, ...]:
    """The families of all protocols, in the order of their tables."""
    return tuple(family for protocol in PROTOCOLS.values() for family in protocol.families)


def kind_of(figure: str) -> FigureKind | None:
    """The kind that a figure's name states; None for names without a place in tables, such as single seeds."""
    kinds = (kind for protocol in PROTOCOLS.values() if (kind := protocol.kind_of(figure)) is not None)
    if (kind := next(kinds, None)) is not None:
        return kind
    match = _TOP.fullmatch(figure)
    return None if match is None else FigureKind(match[1], f"top-{match[2]}")


def family_of(kind: FigureKind) -> Family:
    """The table that a figure stands in."""
    name = kind.family
    return next((family for family in families() if family.name == name), Family(name, name.replace("_", " "), name))


def headline(figures: Mapping[str, float]) -> str:
    """The best-known figure of a result: k = 20 of a grid of neighbours, else its first."""
    headlines = (protocol.headline for protocol in PROTOCOLS.values() if protocol.headline in figures)
    return next(headlines, None) or next(iter(figures))


def title(figure: str) -> str:
    """The usual name of a figure."""
    if (kind := kind_of(figure)) is None:
        return figure
    settings = "".join(f", {name} {value}" for name, value in kind.settings)
    return f"{family_of(kind).short} {kind.metric}{settings}"
