"""`excb-pretrain show`: every value of a recipe, where it comes from and what the paper used."""

import argparse

from excb.cli import Command, Parser

from ..show import print_recipe
from .options import add_recipe, add_run, named_recipe, rank0_reports, reporter_of


def add_options(parser: Parser) -> None:
    """A recipe, and the options of its run."""
    add_recipe(parser)
    add_run(parser)


def run(options: argparse.Namespace) -> int:
    """Print the recipe with its overrides."""
    with rank0_reports():
        return print_recipe(named_recipe(options), options.overrides, reporter_of(options), as_json=options.json)


SHOW = Command(
    "show",
    "every value of a recipe, where it comes from, what the paper used",
    add_options,
    run,
    group="before a run",
    examples=(
        "show rn50_400ep",
        "show rn18_small optim.epochs=50 --json",
    ),
)
