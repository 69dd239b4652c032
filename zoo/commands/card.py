"""`excb-zoo card`: the model card of a checkpoint."""

import argparse
import tempfile
from pathlib import Path

from excb.cli import Command, Parser
from excb.console import Reporter

from .options import add_results, add_source


def add_options(parser: Parser) -> None:
    """A checkpoint and its results."""
    add_source(parser)
    add_results(parser)


def run(options: argparse.Namespace) -> int:
    """Print the card: of the exported folder where there is one, else of the catalogue's row or of what is exported."""
    from excb.checkpoint.exported import CONFIG
    from excb.hub.catalogue import find
    from excb.hub.resolve import local_folder
    from excb.results.result import ResultRecord

    from ..card import card
    from ..export import export

    row = find(options.source)
    source = Path(options.source) if row is None else local_folder(row) or row
    results = [ResultRecord.read(file) for file in options.results]
    if not isinstance(source, Path) or (source / CONFIG).is_file():
        Reporter().answer(card(source, results, place=None if row else options.source))
        return 0
    with tempfile.TemporaryDirectory() as folder:  # a run or a file: as it would be exported
        exported = export(options.source, Path(folder) / (source.stem or "checkpoint"))
        Reporter().answer(card(exported, results, place=options.source))
    return 0


CARD = Command(
    "card",
    "the model card of a checkpoint",
    add_options,
    run,
    group="publish",
    examples=(
        "card runs/a",
        "card runs/a --results knn.json",
    ),
)
