"""The protocols: one line each. Their order is that of `--help`, of `excb-eval all` and of the leaderboard's tables."""

import argparse
import re
from collections.abc import Mapping, Sequence

from excb.cli import command_parser

from .clusters.record import CLUSTERS
from .dense.cli import DENSE
from .detection.cli import DETECTION
from .finetuning.cli import FINETUNE, SEMISUP
from .instances.cli import INSTANCES
from .knn.record import KNN
from .layers.cli import LAYERS
from .linear.record import LINEAR
from .old_protocol import Protocol, adapted
from .protocol import Family, FigureKind
from .retrieval.record import RETRIEVAL
from .robustness.cli import ROBUSTNESS

PROTOCOLS: tuple[Protocol, ...] = (
    adapted(KNN),
    adapted(RETRIEVAL),
    INSTANCES,
    adapted(LINEAR),
    LAYERS,
    DENSE,
    ROBUSTNESS,
    SEMISUP,
    FINETUNE,
    DETECTION,
    adapted(CLUSTERS),
)

FAMILIES: tuple[Family, ...] = tuple(family for protocol in PROTOCOLS for family in protocol.families)

_TOP = re.compile(r"(\w+)_top([15])")  # accuracies of any family, also those that no protocol here measures


def of_command(name: str) -> Protocol | None:
    """The protocol of that command; None for other commands, and of claims that none measures."""
    return next((protocol for protocol in PROTOCOLS if protocol.name == name), None)


def of_result(name: str) -> Protocol | None:
    """The protocol that made a result, by the result's `protocol`; None of protocols that this version lacks."""
    return next((protocol for protocol in PROTOCOLS if protocol.made(name)), None)


def kind_of(figure: str) -> FigureKind | None:
    """What a figure's name says; None of names that are no figure of a table: single seeds, spreads, clusters."""
    kinds = (kind for protocol in PROTOCOLS if (kind := protocol.kind_of(figure)) is not None)
    if (kind := next(kinds, None)) is not None:
        return kind
    match = _TOP.fullmatch(figure)
    return None if match is None else FigureKind(match[1], f"top-{match[2]}")


def family_of(kind: FigureKind) -> Family:
    """The table that a figure stands in."""
    name = kind.family
    return next((family for family in FAMILIES if family.name == name), Family(name, name.replace("_", " "), name))


def headline(figures: Mapping[str, float]) -> str:
    """The best-known figure of a result: k = 20 of a grid of neighbours, else its first."""
    headlines = (protocol.headline for protocol in PROTOCOLS if protocol.headline in figures)
    return next(headlines, None) or next(iter(figures))


def title(figure: str) -> str:
    """What people call a figure."""
    if (kind := kind_of(figure)) is None:
        return figure
    settings = "".join(f", {name} {value}" for name, value in kind.settings)
    return f"{family_of(kind).short} {kind.metric}{settings}"


def parse(words: Sequence[str]) -> tuple[Protocol, argparse.Namespace]:
    """A protocol and its options from a command line without the program.

    Raises:
        UserError: there is no such protocol, or it has no such option.
    """
    args = command_parser("excb-eval", "", PROTOCOLS).parse_args(words)
    protocol: Protocol = args.command
    return protocol, args
