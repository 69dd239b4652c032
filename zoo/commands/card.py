"""`excb-zoo card`: the model card of a checkpoint."""

import argparse
import tempfile
from pathlib import Path

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import require

from .options import add_results, add_source


def add_options(parser: Parser) -> None:
    """A checkpoint and its results."""
    add_source(parser)
    add_results(parser)


def run(options: argparse.Namespace) -> int:
    """Print the card: of the exported folder where there is one, else of the catalogue's row or of what is exported."""
    from excb.checkpoint.exported import CONFIG
    from excb.hub.catalogue import find
    from excb.hub.loading import load
    from excb.hub.resolve import local_folder

    from ..card import card
    from ..export import export
    from ..measured import results_by_file

    row = find(options.source)
    source = Path(options.source) if row is None else local_folder(row)
    if source is None:
        assert row is not None
        fetch = f"fetch them first: excb-zoo pull {row.name}"
        require(not options.results, f"--results are checked to be of the weights, and these are not here: {fetch}")
        Reporter().answer(card(row, []))
        return 0
    place = None if row else options.source
    with tempfile.TemporaryDirectory() as folder:
        if not (source / CONFIG).is_file():  # a run or a file: as it would be exported
            source, place = export(options.source, Path(folder) / (source.stem or "checkpoint")), options.source
        tensors = load(source).network.state_dict() if options.results else {}
        measured = results_by_file(tensors, options.results)
        Reporter().answer(card(source, list(measured.values()), place=place))
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
