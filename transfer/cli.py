"""`excb-eval`: which command runs, here, in processes of its own or as a Slurm job; each is imported when it runs."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from excb.console import Reporter
from excb.distributed.slurm import submit_command
from excb.errors import UserError, is_rank0, run

from .arguments import FAILED, NOTHING_CHECKED, parser

if TYPE_CHECKING:
    import argparse

    import torch


def main(argv: Sequence[str] | None = None) -> int:
    """Run `excb-eval` and return its exit code."""
    return run("excb-eval", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    chosen = parser().parse_args(argv)
    if chosen.protocol == "compare":
        return _compare(chosen)
    if chosen.protocol == "cache":
        return _cache(chosen)
    if chosen.protocol == "leaderboard":
        from .leaderboard.command import leaderboard

        return leaderboard(chosen, Reporter(quiet=chosen.quiet))
    if chosen.out is not None:
        _check_out(chosen.out, folder=chosen.protocol in ("all", "clusters", "reproduce"))
    arguments = sys.argv[1:] if argv is None else argv
    jobs = Path("runs") / "slurm"
    code = submit_command("excb.transfer.cli", arguments, chosen.slurm, jobs, Reporter(), gpus=chosen.gpus)
    if code is not None:
        return code
    from excb.distributed.launch import launch_on_gpus
    from excb.distributed.parallel import run_joined

    answers = (FAILED, NOTHING_CHECKED) if chosen.protocol == "reproduce" else ()
    code = launch_on_gpus("excb.transfer.cli", arguments, chosen.gpus, answers=answers)
    if code is not None:
        return code
    work = _work(chosen.protocol)
    return run_joined("excb-eval", chosen.device, lambda device: work(chosen, device))


def _work(protocol: str) -> "Callable[[argparse.Namespace, torch.device], int]":
    """What a command does in each of its processes."""
    if protocol in ("all", "reproduce"):
        from .many_command import evaluate_all, reproduce_claims

        return evaluate_all if protocol == "all" else reproduce_claims
    if protocol == "clusters":
        from .clusters.cli import assign_clusters

        return assign_clusters
    if protocol == "detection":
        from .detection.cli import detect

        return detect
    from .task_command import evaluate

    return evaluate


def _compare(chosen: "argparse.Namespace") -> int:
    """`excb-eval compare`."""
    import json

    from .reporting.compare import compare

    reporter = Reporter()
    found = compare(chosen.first, chosen.second, reporter, figure=chosen.figure, table=not chosen.json)
    if chosen.json:
        reporter.answer(json.dumps(found, indent=2))
    return 0


def _check_out(out: Path, *, folder: bool) -> None:
    """Refuse a place for results, before any work."""
    from excb.files.atomic import check_folder  # not above: its imports would slow every start

    if folder and out.exists() and not out.is_dir():
        raise UserError.on_all_ranks(f"--out {out} is a file: name a folder")
    if not folder and out.is_dir():
        raise UserError.on_all_ranks(f"--out {out} is a folder: name a file in it")
    if is_rank0():  # which writes; the others may be on machines without that disk
        check_folder(out if folder else out.parent)


def _cache(chosen: "argparse.Namespace") -> int:
    """`excb-eval cache`."""
    from excb.remote.home import cache_root

    from .features.cache import entries, remove

    root, reporter = chosen.cache or cache_root(), Reporter()
    if chosen.cache is not None and not root.is_dir():
        raise UserError(f"no folder {root}: --cache names the one that keeps features")
    if chosen.clear:
        reporter.answer(f"{remove(root) / 2**20:,.1f} MiB deleted from {root}")
        return 0
    rows = [
        [entry.architecture or "unfinished", entry.kind or "", f"{entry.images or 0:,}", f"{entry.bytes / 2**20:,.1f}"]
        for entry in entries(root)
    ]
    reporter.table(f"Features in {root}", ["network", "kind", "images", "MiB"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
