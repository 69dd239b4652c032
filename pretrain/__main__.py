"""`excb-pretrain`: list, show and plan recipes, pretrain, try the quickstart, draw."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Parser
from excb.console import Reporter
from excb.distributed.slurm import HELP as SLURM_HELP
from excb.distributed.slurm import submit_command
from excb.errors import UserError, is_rank0, run
from excb.version import __version__

from . import overrides
from .doctor import command as doctor_command
from .recipe import Recipe
from .recipes import RECIPES
from .run.remote_mirror import Place, run_place
from .study import command as study_command

if TYPE_CHECKING:
    import torch

DESCRIPTION = """\
Pretrain an image encoder without labels (ExCB).

  excb-pretrain quickstart                    try the whole road offline, on a dozen photographs
  excb-pretrain list                          the recipes
  excb-pretrain show RECIPE                   every value, where it comes from, what the paper used
  excb-pretrain plan RECIPE --gpus 8          parameters, FLOPs, memory, communication; with a GPU, images/s and hours
  excb-pretrain doctor RECIPE --data DIR      what would fail or be slow: images, disk, GPUs, limits; and the mends
  excb-pretrain RECIPE --data DIR             pretrain on the images below DIR
  excb-pretrain RECIPE --data 'shards/*.tar'  on tar shards, here or at s3://, gs://, https://
  excb-pretrain RECIPE --data hf-stream:ID --out s3://bucket/run      a stream of the Hub; a run kept in a bucket
  excb-pretrain RECIPE --data DIR optim.epochs=50 run.seed=1
  excb-pretrain RECIPE --data DIR --gpus 8    on eight GPUs of this machine
  excb-pretrain study NAME --data DIR         small runs side by side: balancers, batch sizes, components ...
  excb-pretrain RECIPE --data DIR --slurm partition=gpu,nodes=4,gpus=8,time=24:00:00      as a Slurm job
  torchrun --nnodes 4 --nproc-per-node 8 ... -m excb.pretrain RECIPE --data DIR      on many machines
  excb-pretrain draw KIND --out FILE          the paper's pictures; `excb-pretrain draw --help` lists them

A run started again in its folder goes on where it was."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `excb-pretrain` and return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    commands = {"study": study_command.main, "doctor": doctor_command.main, "draw": _draw}
    own = commands.get(arguments[0]) if arguments else None
    if own is not None:
        return run("excb-pretrain", lambda: own(arguments[1:]))
    return run("excb-pretrain", lambda: _main(arguments))


def _draw(arguments: Sequence[str]) -> int:
    from .figures.draw import main

    return main(arguments)


def _parser() -> Parser:
    parser = Parser(prog="excb-pretrain", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a recipe, or: list, show, plan, doctor, quickstart, study, draw"
    )
    parser.add_argument("overrides", metavar="section.field=value", nargs="*", help="values other than the recipe's")
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="images at any depth, or tar shards: a folder of them or 'DIR/*.tar', also s3://, gs://, https://; or "
        "hf-stream:ID; labels are used for figures only",
    )
    parser.add_argument("--list", type=Path, metavar="FILE", help="a file with one image path a line, below --data")
    parser.add_argument(
        "--out", type=run_place, metavar="RUN", help="the run folder, also s3://... or gs://... (default: runs/RECIPE)"
    )
    parser.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help="GPUs to train on, 0 for the CPU (default: one if there is one)",
    )
    parser.add_argument("--slurm", metavar="NAME=VALUE,...", help=SLURM_HELP)
    parser.add_argument("--profile", action="store_true", help="record a few steps and say where their time goes")
    parser.add_argument("--measure", action="store_true", help="plan: measure on the CPU where there is no GPU")
    parser.add_argument("--json", action="store_true", help="print the report, or the listing, as JSON")
    parser.add_argument("--quiet", action="store_true", help="no notes, no progress")
    parser.add_argument("--version", action="version", version=f"excb {__version__}")
    return parser


def _main(arguments: Sequence[str]) -> int:
    try:
        chosen = _parser().parse_intermixed_args(arguments)
        reporter = Reporter(quiet=chosen.quiet or not is_rank0())
        if chosen.recipe == "list":
            return _list(reporter, as_json=chosen.json)
        if chosen.measure and chosen.recipe != "plan":
            raise UserError("--measure is for `excb-pretrain plan`: leave it out")
        if chosen.slurm is not None and chosen.recipe in ("show", "plan"):
            raise UserError(f"{chosen.recipe} runs here, not under Slurm: leave --slurm out")
        if chosen.recipe in ("show", "plan"):
            if not chosen.overrides:
                raise UserError(f"{chosen.recipe} which recipe? (`excb-pretrain list` shows all)")
            name, *values = chosen.overrides
            return (_show if chosen.recipe == "show" else _plan)(overrides.find_recipe(name), values, chosen, reporter)
        recipe = overrides.apply(
            overrides.find_recipe(chosen.recipe), [*_gpu_overrides(chosen.gpus), *chosen.overrides]
        )
        if chosen.recipe != "quickstart" and chosen.data is None and chosen.list is None:
            raise UserError("name the folder of images with --data DIR, or a list of them with --list FILE")
    except UserError as error:
        error.already_reported = not is_rank0()  # every process reads the same command line
        raise
    place = _place(chosen)
    jobs = (Path("runs") if place.url else place.folder) / "slurm"
    code = submit_command("excb.pretrain", arguments, chosen.slurm, jobs, reporter, gpus=chosen.gpus)
    if code is not None:
        return code
    from excb.distributed.launch import launch_on_gpus
    from excb.distributed.parallel import run_joined

    code = launch_on_gpus("excb.pretrain", arguments, chosen.gpus)
    if code is not None:
        return code
    return run_joined(
        "excb-pretrain", recipe.efficiency.device, lambda device: _pretrain(chosen, recipe, device, reporter)
    )


def _place(chosen: argparse.Namespace) -> Place:
    place: Place = chosen.out or Place(Path("runs") / chosen.recipe)
    return place


def _pretrain(chosen: argparse.Namespace, recipe: Recipe, device: "torch.device", reporter: Reporter) -> int:
    """Train in this process."""
    from excb.distributed.collectives import all_succeed, run_on_rank0, world_size

    place = _place(chosen)
    if chosen.data is None and chosen.list is None:
        if world_size() > 1:
            raise UserError.on_all_ranks(
                "the quickstart is made for one process: give it --data DIR to use more",
            )
        if place.url:
            raise UserError("the quickstart writes to this machine: name a folder in --out, or images in --data")
        from .quickstart import quickstart

        code = quickstart(recipe, place.folder, reporter, table=not chosen.json, profile=chosen.profile)
    else:
        from excb.images.scanning import refuse_among
        from excb.images.shards import ShardImages

        from .data.hub_stream import open_training
        from .loop import train

        # One process reads the folder: a million names from many processes would be slow on a network's disk.
        images = run_on_rank0(lambda: open_training(chosen.data, chosen.list, reporter.note))
        if isinstance(images, ShardImages):
            images = all_succeed(images.here)
        elif not place.url:
            all_succeed(lambda: refuse_among(images, place.folder))
        code = train(recipe, images, place, reporter, device=device, table=not chosen.json, profile=chosen.profile)
    if chosen.json and code == 0 and is_rank0():
        reporter.answer((place.folder / "report.json").read_text(encoding="utf-8").rstrip())
    return code


def _gpu_overrides(gpus: int | None) -> list[str]:
    """`--gpus` as overrides, before the user's own."""
    if gpus is None:
        return []
    if gpus < 0:
        raise UserError("--gpus takes 0 (the CPU) or more")
    return ["efficiency.device=cuda" if gpus else "efficiency.device=cpu"]


def _show(recipe: Recipe, values: Sequence[str], chosen: argparse.Namespace, reporter: Reporter) -> int:
    from .show import show

    return show(recipe, values, reporter, as_json=chosen.json)


def _plan(recipe: Recipe, values: Sequence[str], chosen: argparse.Namespace, reporter: Reporter) -> int:
    recipe = overrides.apply(recipe, [*_gpu_overrides(chosen.gpus), *values])
    from excb.images.opening import training_images

    from .data.hub_stream import refuse_stream
    from .plan.plan import plan

    refuse_stream(chosen.data, "plan")
    images = training_images(chosen.data, chosen.list, reporter.note) if chosen.data or chosen.list else None
    return plan(recipe, chosen.gpus, images, reporter, measure=chosen.measure, as_json=chosen.json)


def _list(reporter: Reporter, *, as_json: bool) -> int:
    """Print every recipe with the first sentence of its documentation."""
    rows = []
    for name in RECIPES:
        recipe = RECIPES[name]()
        kind = "multi-crop" if recipe.views.local_views else "two views"
        rows.append(
            [
                name,
                recipe.model.backbone,
                str(recipe.optim.epochs),
                f"{recipe.optim.batch:,}",
                f"{recipe.method.clusters:,}",
                kind,
            ]
        )
    header = ["recipe", "backbone", "epochs", "batch", "clusters", "views"]
    if as_json:
        reporter.answer(json.dumps([dict(zip(header, row, strict=True)) for row in rows], indent=2))
    else:
        reporter.table("Recipes (`excb-pretrain show RECIPE` for every value)", header, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
