"""Commands of `excb-eval` made of dataclasses of options, and what only a command line says."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from excb.cli import Command, Parser, local_path
from excb.console import Reporter
from excb.distributed.slurm import HELP as SLURM_HELP
from excb.errors import UserError, is_rank0
from excb.option_parser import add_option_fields, of_arguments

from .parallel import in_parallel

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Shell:
    """Options that only a command line has."""

    out: Path | None
    dry_run: bool
    json: bool
    quiet: bool
    overwrite: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace) -> "Shell":
        """Of a parsed command line."""
        return cls(args.out, args.dry_run, args.json, args.quiet, getattr(args, "overwrite", False))

    @property
    def reporter(self) -> Reporter:
        """For notes and progress of this process: other ranks are quiet."""
        return Reporter(quiet=self.quiet or not is_rank0())

    @property
    def prints(self) -> bool:
        """Whether this process prints tables."""
        return is_rank0() and not self.json


def shell_command(
    name: str,
    about: str,
    kinds: Sequence[type[Any]],
    work: "Callable[[list[Any], Shell, torch.device], int]",
    *,
    out: Literal["file", "folder"] = "file",
    metavar: str = "FILE.json",
    default_out: "Callable[[Any], Path] | None" = None,
    overwrite: bool = False,
    answers: tuple[int, ...] = (),
    group: str = "",
    description: str = "",
    examples: tuple[str, ...] = (),
) -> Command:
    """A command of `excb-eval` whose options are dataclasses.

    Args:
        name: on the command line.
        about: its help, one line without a full stop.
        kinds: dataclasses of options.
        work: runs it in one process, which has joined the others: given an instance of each of `kinds`; the exit code.
        out: what --out names.
        metavar: of --out.
        default_out: the place to write to where --out names none, given the first options; None writes nothing then.
        overwrite: whether it has the option that lets --out hold results of something else.
        answers: exit codes beside 0 that are not failures.
        group: under which the program's help lists it.
        description: for its own `--help`.
        examples: what to type after the program's name.
    """

    def add(parser: Parser) -> None:
        for kind in kinds:
            add_option_fields(parser, kind)
        add = parser.add_argument_group("processes").add_argument
        add("--gpus", type=int, metavar="N", help="GPUs to use, with one process each; the answer stays the same")
        add("--slurm", metavar="NAME=VALUE,...", help=SLURM_HELP)
        add = parser.add_argument_group("output").add_argument
        add("--out", type=local_path, metavar=metavar, help="write the result here")
        if overwrite:
            add("--overwrite", action="store_true", help="replace what --out has of other checkpoints or images")
        add("--dry-run", action="store_true", help="say what it will take, and do nothing")
        add("--json", action="store_true", help="print the result as JSON instead of a table")
        add("--quiet", action="store_true", help="print neither notes nor progress")

    def run(args: argparse.Namespace, device: "torch.device") -> int:
        return work([of_arguments(kind, args) for kind in kinds], Shell.of(args), device)

    start = in_parallel(run, out=out, answers=answers)

    def run_command(args: argparse.Namespace) -> int:
        if args.out is None and default_out is not None:
            args.out = default_out(of_arguments(kinds[0], args))
        if overwrite and args.overwrite and args.out is None and getattr(args, "index", None) is None:
            raise UserError.on_all_ranks(f"--overwrite is of results in files: name a place with --out {metavar}")
        return start(args)

    return Command(name, about, add, run_command, description, group, examples)


# Options that only a command line has use for, and what Python has instead.
FROM_SHELL = {
    **dict.fromkeys(("gpus", "slurm"), "start the script with torchrun, or use the command excb-eval"),
    "overwrite": "the result has .save(FILE, overwrite=True)",
    **dict.fromkeys(("json", "out"), "the result has .save(FILE), .figures and .record"),
    **dict.fromkeys(("dry_run", "help"), "that is the command line's"),
}
