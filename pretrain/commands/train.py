"""`excb-pretrain RECIPE --data DIR`, or `excb-pretrain train RECIPE ...`: here, on several GPUs, or as a Slurm job."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Command, Parser
from excb.console import Reporter, plural
from excb.distributed.slurm import HELP as SLURM_HELP
from excb.distributed.slurm import submit_command
from excb.errors import is_rank0
from excb.files.foreign import read_text

from ..recipe import Recipe
from .options import add_recipe, add_run, place_of, recipe_of, reporter_of, require_images

if TYPE_CHECKING:
    import torch

MODULE = "excb.pretrain"  # what `python -m` runs in every process

Work = Callable[[argparse.Namespace, Recipe, "torch.device", Reporter], int]


def add_options(parser: Parser) -> None:
    """A recipe, and the options of its run."""
    add_recipe(parser)
    add_training(parser)


def add_training(parser: Parser) -> None:
    """The options of a run that is to be made now."""
    add_run(parser)
    parser.add_argument("--slurm", metavar="NAME=VALUE,...", help=SLURM_HELP)
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="NAME",
        help="a checkpoint that the verdict at the end compares the run with, as excb.load takes it; repeatable",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say whether it can run and what it takes, or print the Slurm script"
    )
    parser.add_argument(
        "--extend",
        type=int,
        metavar="N",
        help="continue a finished run for N epochs beyond the recipe's; all schedules begin anew, with the warm-up",
    )
    parser.add_argument("--profile", action="store_true", help="record a few steps and report where their time goes")


def run(options: argparse.Namespace) -> int:
    """Pretrain on images."""
    recipe = recipe_of(options)
    require_images(options)
    if options.dry_run and options.slurm is None:
        return dry_run_here(options, recipe)
    return run_in_every_process(options, recipe, train_here)


def dry_run_here(options: argparse.Namespace, recipe: Recipe) -> int:
    """Say whether the run can start, then what it takes."""
    from excb.distributed.launch import require_gpus
    from excb.sources.opening import training_images

    from ..data.hub_stream import refuse_stream
    from ..plan.plan import plan_run, print_plan_report
    from ..training.rehearsal import rehearse

    refuse_stream(options.data, "--dry-run")
    reporter, place = reporter_of(options), place_of(options)
    require_gpus(options.gpus)
    images = training_images(options.data, options.list, reporter.note)
    recipe, images, precision, done = rehearse(
        recipe,
        images,
        place,
        reporter,
        against=options.against,
        extend=options.extend,
        processes=max(1, options.gpus or 1),
    )
    report = plan_run(recipe, options.gpus, images, measure="step", precision=precision, reporter=reporter)
    if not options.json:
        steps = recipe.steps_per_epoch(len(images)) * recipe.optim.epochs
        already = "" if not done else f": {done:,} of {plural(steps, 'step')} are done"
        reporter.answer(f"it can run, into {place}{already}")
    print_plan_report(report, reporter, as_json=options.json)
    return 0


def run_in_every_process(options: argparse.Namespace, recipe: Recipe, work: Work) -> int:
    """Submit a Slurm job, start a process for each GPU, or do the work in this process; return the exit code."""
    reporter, place = reporter_of(options), place_of(options)
    jobs = (Path("runs") if place.url else place.folder) / "slurm"
    code = submit_command(
        MODULE, options.arguments, options.slurm, jobs, reporter, gpus=options.gpus, dry_run=options.dry_run
    )
    if code is not None:
        return code
    from excb.distributed.launch import launch_on_gpus
    from excb.distributed.parallel import run_joined

    if (code := launch_on_gpus(MODULE, options.arguments, options.gpus)) is not None:
        return code
    return run_joined("excb-pretrain", recipe.efficiency.device, lambda device: work(options, recipe, device, reporter))


def train_here(options: argparse.Namespace, recipe: Recipe, device: "torch.device", reporter: Reporter) -> int:
    """Train in this process, as one of those that `run_in_every_process` started."""
    from ..loop import run_training
    from ..train import images_of_run

    place = place_of(options)
    code = run_training(
        recipe,
        images_of_run(options.data, options.list, place, reporter),
        place,
        reporter,
        device=device,
        table=not options.json,
        profile=options.profile,
        against=options.against,
        extend=options.extend,
    )
    print_report(code, options, reporter)
    return code


def print_report(code: int, options: argparse.Namespace, reporter: Reporter) -> None:
    """With `--json`, print the report of a run that is finished."""
    if options.json and code == 0 and is_rank0():
        reporter.answer(read_text(place_of(options).folder / "report.json").rstrip())


TRAIN = Command(
    "train",
    "pretrain a recipe on images; the word `train` may be left out",
    add_options,
    run,
    group="train",
    examples=(
        "rn18_small --data photos optim.epochs=50",
        "train rn18_small --data photos --out runs/b init=runs/a",
    ),
)
