"""`excb-pretrain quickstart`: end to end and offline, on patches of a dozen photographs; or its recipe on images."""

import argparse
from typing import TYPE_CHECKING

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError

from ..recipe import Recipe
from .options import add_overrides, place_of, rank0_reports, recipe_of
from .train import add_training, dry_run_here, print_report, run_in_every_process, train_here

if TYPE_CHECKING:
    import torch


def add_options(parser: Parser) -> None:
    """The options of a run, without a recipe."""
    add_overrides(parser)
    add_training(parser)
    parser.set_defaults(recipe="quickstart")


def run(options: argparse.Namespace) -> int:
    """Pretrain on the photographs and compare features by k-NN; on images, train the recipe as any other."""
    recipe = recipe_of(options)
    photographs = options.data is None and options.list is None
    dry = options.dry_run and options.slurm is None
    if photographs and (options.against or dry):
        option = "--against" if options.against else "--dry-run"
        with rank0_reports():
            raise UserError(f"{option} is for a run on images of yours: name them with --data DIR")
    if dry:
        return dry_run_here(options, recipe)
    return run_in_every_process(options, recipe, _on_photographs if photographs else train_here)


def _on_photographs(options: argparse.Namespace, recipe: Recipe, _device: "torch.device", reporter: Reporter) -> int:
    from excb.distributed.collectives import world_size

    place = place_of(options)
    if world_size() > 1:
        raise UserError.on_all_ranks("the quickstart runs in one process: give it --data DIR to use more")
    if place.url:
        raise UserError("the quickstart writes to this machine: name a folder in --out, or images in --data")
    from ..quickstart import run_quickstart

    code = run_quickstart(
        recipe, place.folder, reporter, table=not options.json, profile=options.profile, extend=options.extend
    )
    print_report(code, options, reporter)
    return code


QUICKSTART = Command(
    "quickstart",
    "try it end to end, offline, on a dozen photographs",
    add_options,
    run,
    group="start here",
    examples=(
        "quickstart",
        "quickstart --data photos --out runs/first",
    ),
)
