"""`excb-eval reproduce`: its options, and what it does in each process."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from excb.cli import Command
from excb.option_parser import of_arguments

from ..shell import Shell, shell_command
from .options import ReproduceOptions

if TYPE_CHECKING:
    import torch

FAILED, NOTHING_CHECKED = 1, 3  # exit codes


def _work(given: list[Any], shell: Shell, device: "torch.device") -> int:
    from .checking import run_reproduction

    words = run_reproduction(given[0], shell, device)
    return FAILED if "FAIL" in words else 0 if "PASS" in words or not words else NOTHING_CHECKED


_IN_PROCESSES = shell_command(
    "reproduce",
    "check published figures: PASS, FAIL or CANNOT, and why",
    (ReproduceOptions,),
    _work,
    out="folder",
    metavar="DIR",
    overwrite=True,
    answers=(FAILED, NOTHING_CHECKED),
    group="everything, and against others",
    examples=(
        "reproduce table1/excb --data imagenet",
        "reproduce table1/excb --data imagenet --dry-run",
    ),
)


def _run(args: argparse.Namespace) -> int:
    """Run the command; a list of claims needs neither other processes nor torch."""
    options = of_arguments(ReproduceOptions, args)
    if not options.listed or options.ckpt is not None or args.slurm is not None or args.out is not None:
        return _IN_PROCESSES.run(args)
    from .runs import planned
    from .tables import listing

    shell = Shell.of(args)
    listing(*planned(options), shell.reporter, as_json=shell.json)
    return 0


REPRODUCE: Command = replace(_IN_PROCESSES, run=_run)
