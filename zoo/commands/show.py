"""`excb-zoo show`: what a checkpoint is."""

import argparse
import json
from typing import TYPE_CHECKING, Any, Literal

from excb.cli import Command, Parser
from excb.console import Reporter

from .options import add_json, add_network, add_source

if TYPE_CHECKING:
    from excb.hub.catalogue import Checkpoint


def add_options(parser: Parser) -> None:
    """A checkpoint, and the form of the answer."""
    add_source(parser)
    add_network(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print a checkpoint's facts, from the catalogue or from its files, and its figures."""
    from excb.hub.catalogue import find
    from excb.hub.resolve import local_folder

    row = find(options.source)
    if row is not None and local_folder(row) is None:
        facts = {name: value for name, value in row.to_dict().items() if name != "figures"}
    else:
        facts, own = _facts_of_files(options.source, options.network)
        row = row or own
        if row is not None:
            facts = {"method": row.method} | facts | {"licence": row.licence, "note": row.note}
    figures = [] if row is None else row.figures
    reporter = Reporter()
    if options.json:
        reporter.answer(json.dumps(facts | {"figures": [vars(figure) for figure in figures]}, indent=2))
        return 0
    if "teachers" in facts:  # a table has room for their names
        facts |= {"teachers": ", ".join(f"{each['name']} (labels: {each['labels']})" for each in facts["teachers"])}
    values = [[name, "" if value is None else str(value)] for name, value in facts.items()]
    reporter.table(str(options.source), ["", "value"], values)
    if figures:
        lines = [[figure.name, f"{figure.value:g}", figure.source] for figure in figures]
        reporter.table("Figures", ["figure", "%", "source"], lines)
    return 0


def _facts_of_files(source: str, network: Literal["teacher", "student"]) -> tuple[dict[str, Any], "Checkpoint | None"]:
    """Facts in the files of a checkpoint on this machine, and the catalogue row in them."""
    from excb.hub.catalogue import method_of
    from excb.hub.loading import load

    backbone = load(source, network=network)
    entry = backbone.entry
    facts = {
        "source": entry.source,
        "architecture": entry.architecture.name,
        "options": entry.architecture.options,
        "network": entry.network,
        "parameters": sum(parameter.numel() for parameter in backbone.parameters()),
        "width": backbone.width,
        "preprocessing": backbone.transform.to_dict(),
        "layout": entry.layout,
        **({"dropped": list(entry.dropped)} if entry.dropped else {}),
        **({"method": method_of(entry.recipe)} if entry.recipe else {}),
        **({"teachers": list(entry.teachers)} if entry.teachers else {}),
        "recipe": entry.recipe.get("name"),
        "step": entry.step,
        "epoch": entry.epoch,
    }
    return facts, entry.checkpoint


SHOW = Command(
    "show",
    "what a checkpoint is",
    add_options,
    run,
    group="use",
    examples=(
        "show tiny_grocery",
        "show runs/a --network student --json",
    ),
)
