"""`excb-pretrain`: pretrain, and everything around it; the commands are in `commands/`, a file each."""

import argparse
import sys
from collections.abc import Sequence

from excb.cli import Parser, command_parser, complete, keep_freed_memory
from excb.distributed.launcher import ending_with_launcher
from excb.errors import UserError, nearest_name, run_program

from .commands.adapt import ADAPT
from .commands.choose import CHOOSE
from .commands.distil import DISTIL
from .commands.doctor import DOCTOR
from .commands.draw import DRAW
from .commands.list import LIST
from .commands.options import rank0_reports
from .commands.plan import PLAN
from .commands.quickstart import QUICKSTART
from .commands.show import SHOW
from .commands.shrink import SHRINK
from .commands.study import STUDY
from .commands.train import TRAIN
from .recipes import ALIASES, RECIPES

COMMANDS = (QUICKSTART, LIST, CHOOSE, SHRINK, SHOW, PLAN, DOCTOR, TRAIN, ADAPT, DISTIL, STUDY, DRAW)
NAMES = tuple(command.name for command in COMMANDS)
DESCRIPTION = """\
Pretrain an image encoder without labels (ExCB).

  excb-pretrain quickstart                    try it end to end, offline, on a dozen photographs
  excb-pretrain list                          the recipes, what they are for, about how long they take
  excb-pretrain choose --data DIR             tries networks and short runs on your images, and says what to do
  excb-pretrain shrink --data DIR --out DIR2  smaller copies of large photographs, which train faster
  excb-pretrain show RECIPE                   every value, where it comes from, what the paper used
  excb-pretrain plan RECIPE --gpus 8          parameters, FLOPs, memory, communication; with a GPU, images/s and hours
  excb-pretrain doctor RECIPE --data DIR      what would fail or be slow: images, disk, GPUs, limits; and the fixes
  excb-pretrain RECIPE --data DIR             pretrain on the images below DIR
  excb-pretrain RECIPE --data 'shards/*.tar'  on tar shards, here or at s3://, gs://, https://
  excb-pretrain RECIPE --data hf-stream:ID --out s3://bucket/run      a stream of the Hub; a run kept in a bucket
  excb-pretrain RECIPE --data DIR optim.epochs=50 run.seed=1
  excb-pretrain RECIPE --data DIR --gpus 8    on eight GPUs of this machine
  excb-pretrain adapt NAME --data DIR         continue from any trained backbone without losing what it knows
  excb-pretrain distil TEACHER --data DIR     teach a small network what a large public one sees in your images
  excb-pretrain study NAME --data DIR         small runs side by side: balancers, batch sizes, components ...
  excb-pretrain RECIPE --data DIR --slurm partition=gpu,nodes=4,gpus=8,time=24:00:00      as a Slurm job
  torchrun --nnodes 4 --nproc-per-node 8 ... -m excb.pretrain RECIPE --data DIR      on many machines
  excb-pretrain draw KIND --out FILE          the paper's figures; `excb-pretrain draw --help` lists them

The same command resumes a run that was stopped. `excb-pretrain train --help` lists the options of a run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `excb-pretrain` and return its exit code."""
    if argv is None:  # a program of its own
        keep_freed_memory()
    arguments = sys.argv[1:] if argv is None else list(argv)
    return run_program("excb-pretrain", lambda: _main(arguments))


def _main(arguments: Sequence[str]) -> int:
    with rank0_reports():
        options = parse_command_line(arguments)
    with ending_with_launcher("excb-pretrain"):
        exit_code: int = options.command.run(options)
    return exit_code


def program() -> Parser:
    """The parser of the whole command line."""
    return command_parser("excb-pretrain", DESCRIPTION, COMMANDS)


def parse_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; `arguments` among them are the line itself, to start other processes with.

    Overrides may stand anywhere: argparse takes positionals of a sub-command from one place only and leaves the rest.

    Raises:
        UserError: no such command, recipe or option.
    """
    parser = program()
    complete(parser)
    options: argparse.Namespace
    options, rest = parser.parse_known_args(_with_command(arguments) if arguments else [])
    if rest and "overrides" not in options:
        raise UserError(f"unrecognized arguments: {' '.join(rest)} (see `excb-pretrain {options.command.name} --help`)")
    if rest:
        options.overrides = [*options.overrides, *rest]
    options.arguments = list(arguments)
    if options.command is TRAIN and options.recipe in NAMES and arguments[0].startswith("-"):
        words = list(arguments)  # options stood before the command
        words.remove(options.recipe)
        return parse_command_line([options.recipe, *words])
    return options


def _with_command(arguments: Sequence[str]) -> Sequence[str]:
    """The command line with its command in front: a recipe, or an option, begins one of `train`."""
    first = arguments[0] if arguments else ""
    if first in ALIASES:
        return _with_command([ALIASES[first], *arguments[1:]])
    if first in (*NAMES, "-h", "--help", "--version"):
        return arguments
    if first and not first.startswith("-") and first not in RECIPES:
        close = nearest_name(first, [*RECIPES, *NAMES])
        raise UserError(
            f"no recipe or command is called {first!r}{close} (`excb-pretrain list` shows all recipes, "
            "`excb-pretrain --help` all commands)"
        )
    return [TRAIN.name, *arguments]


if __name__ == "__main__":
    sys.exit(main())
