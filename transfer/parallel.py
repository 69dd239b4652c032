"""Commands that run in a process per GPU, on this machine or as a Slurm job."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from excb.console import Reporter
from excb.distributed.slurm import submit_command
from excb.errors import UserError, is_rank0

if TYPE_CHECKING:
    import torch

PROGRAM, MODULE = "excb-eval", "excb.transfer.cli"
Work = Callable[[argparse.Namespace, "torch.device"], int]


def in_parallel(
    work: Work, *, out: Literal["file", "folder"] = "file", answers: tuple[int, ...] = ()
) -> Callable[[argparse.Namespace], int]:
    """A function that runs a command in as many processes as `--gpus` or `--slurm` says, or in this one.

    Args:
        work: the command in one process, which has joined the others; it returns the exit code.
        out: what --out names.
        answers: exit codes beside 0 that are not failures.

    Returns:
        The `run` of a `Command`. It expects the program's own arguments as `args.arguments`.
    """

    def run(args: argparse.Namespace) -> int:
        if args.out is not None:
            _check_out(args.out, folder=out == "folder")
        jobs = Path("runs") / "slurm"
        dry_run = getattr(args, "dry_run", False)
        code = submit_command(MODULE, args.arguments, args.slurm, jobs, Reporter(), gpus=args.gpus, dry_run=dry_run)
        if code is not None:
            return code
        from excb.distributed.launch import launch_on_gpus
        from excb.distributed.parallel import run_joined

        code = launch_on_gpus(MODULE, args.arguments, args.gpus, answers=answers)
        return run_joined(PROGRAM, args.device, lambda device: work(args, device)) if code is None else code

    return run


def _check_out(out: Path, *, folder: bool) -> None:
    """Refuse a place that results cannot be written to, before any work."""
    from excb.files.atomic import check_writable_folder  # not above: its imports would slow every start

    if folder and out.exists() and not out.is_dir():
        raise UserError.on_all_ranks(f"--out {out} is a file: name a folder")
    if not folder and out.is_dir():
        raise UserError.on_all_ranks(f"--out {out} is a folder: name a file in it")
    if is_rank0():  # rank 0 writes; other ranks may lack that disk
        check_writable_folder(out if folder else out.parent)
