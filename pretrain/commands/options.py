"""Options that several commands of `excb-pretrain` share, and the recipe that they name."""

import argparse
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from excb.cli import Parser
from excb.console import Reporter
from excb.errors import UserError, is_rank0

from .. import overrides
from ..recipe import Recipe
from ..run.remote_mirror import RunLocation, run_place

OVERRIDE = re.compile(r"[\w.]+=")  # how an override begins


def add_recipe(parser: Parser) -> None:
    """A recipe and its overrides."""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="its name, see `excb-pretrain list`")
    add_overrides(parser)


def add_overrides(parser: Parser) -> None:
    """Overrides; `parse` in `__main__` also takes those that stand between other options."""
    parser.add_argument("overrides", metavar="section.field=value", nargs="*", help="values that replace the recipe's")


def names_and_overrides(words: Iterable[str | None]) -> tuple[list[str], list[str]]:
    """Divide words of a command line, of which argparse cannot tell names of networks from overrides."""
    given = [word for word in words if word is not None]
    values = [word for word in given if OVERRIDE.match(word)]
    return [word for word in given if word not in values], values


def add_run(parser: Parser) -> None:
    """A run: `show` and `plan` take the same options as training, so that one more word checks a command line."""
    images, run = parser.add_argument_group("images"), parser.add_argument_group("run")
    images.add_argument(
        "--data",
        metavar="DIR",
        help="images at any depth, or tar shards: a folder of them or 'DIR/*.tar', also s3://, gs://, https://; "
        "torchvision:NAME, hf:ID, hf-stream:ID; labels are used for figures only",
    )
    images.add_argument("--list", type=Path, metavar="FILE", help="a file with one image path per line, below --data")
    run.add_argument(
        "--out", type=run_place, metavar="RUN", help="the run folder, also s3://... or gs://... (default: runs/RECIPE)"
    )
    run.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs to train on, 0 for the CPU (default: one if there is one)"
    )
    add_output(parser)


def add_output(parser: Parser) -> None:
    """How a command reports."""
    parser.add_argument("--json", action="store_true", help="print the report, or the listing, as JSON")
    parser.add_argument("--quiet", action="store_true", help="print neither notes nor progress")


def reporter_of(options: argparse.Namespace) -> Reporter:
    """Where this process reports: of several, only rank 0 does."""
    return Reporter(quiet=options.quiet or not is_rank0())


@contextmanager
def rank0_reports() -> Iterator[None]:
    """A user's error in the block is one that every process meets, as all read one command line: rank 0 prints it."""
    try:
        yield
    except UserError as error:
        error.already_reported = not is_rank0()
        raise


def recipe_of(options: argparse.Namespace) -> Recipe:
    """The recipe with `--gpus` and the overrides applied.

    Raises:
        UserError: no recipe is named, or an override is wrong.
    """
    with rank0_reports():
        check_gpus(options.gpus)
        device = [] if options.gpus is None else [f"efficiency.device={'cuda' if options.gpus else 'cpu'}"]
        return overrides.apply(named_recipe(options), [*device, *options.overrides])


def named_recipe(options: argparse.Namespace) -> Recipe:
    """The recipe as it is, without overrides.

    Raises:
        UserError: none is named, or there is none of that name.
    """
    with rank0_reports():
        if options.recipe is None:
            raise UserError(f"{options.command.name} which recipe? (`excb-pretrain list` shows all)")
        if OVERRIDE.match(options.recipe):
            raise UserError(
                f"{options.recipe} replaces a value of a recipe: name the recipe before it "
                "(`excb-pretrain list` shows all)"
            )
        return overrides.find_recipe(options.recipe)


def require_images(options: argparse.Namespace) -> None:
    """Raise UserError unless images are named."""
    with rank0_reports():
        if options.data is None and options.list is None:
            raise UserError("name the folder of images with --data DIR, or a list of them with --list FILE")


def place_of(options: argparse.Namespace) -> RunLocation:
    """The run folder."""
    place: RunLocation = options.out or RunLocation(Path("runs") / (options.recipe or ""))
    return place


def check_gpus(gpus: int | None) -> None:
    """Raise UserError for a negative `--gpus`."""
    if gpus is not None and gpus < 0:
        raise UserError("--gpus takes 0 (the CPU) or more")


def add_range(parser: Parser) -> None:
    """The range of images of more than 8 bits, of commands that take no recipe."""
    parser.add_argument(
        "--range",
        metavar="LOW..HIGH",
        help="stored values that become black and white, such as 0..4095, of images of more than 8 bits (default: "
        "measured)",
    )
