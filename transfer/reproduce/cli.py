"""`excb-eval reproduce`: its options, and what it does in each process."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Command, Parser, local_path
from excb.console import Reporter
from excb.errors import is_rank0

from ..options import add_machine_options
from ..parallel import in_parallel

if TYPE_CHECKING:
    import torch

FAILED, NOTHING_CHECKED = 1, 3  # exit codes


def _add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("what", nargs="?", metavar="WHAT", help="a claim, a table (or TABLE/ROW), or a checkpoint")
    add(
        "--data",
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        help="the claim's images, as its protocol takes them; with NAME=, such as coco2017=, where claims need several",
    )
    add("--ckpt", metavar="PATH", help="check the claims on this checkpoint of yours instead of the published one")
    add("--claims", action="append", default=[], type=Path, metavar="FILE.toml", help="more claims, from your own file")
    add("--list", action="store_true", help="list claims, and which of them can be checked")
    for name in ("table", "method", "protocol"):
        add(f"--{name}", dest=f"of_{name}", metavar="NAME", help=f"claims of this {name} only")
    add("--status", choices=("runnable", "cannot"), help="only claims that can be checked, or that cannot")
    add("--dry-run", action="store_true", help="say what would be fetched, run and computed, and do nothing")
    add("--out", type=local_path, metavar="DIR", help="write each evaluation's result here, with claims and verdicts")
    add("--json", action="store_true", help="print JSON instead of tables")
    add_machine_options(parser)
    add("--quiet", action="store_true", help="print neither notes nor progress")


def _work(args: argparse.Namespace, device: "torch.device") -> int:
    from .checking import reproduce

    words = reproduce(args, device, Reporter(quiet=args.quiet or not is_rank0()))
    return FAILED if "FAIL" in words else 0 if "PASS" in words or not words else NOTHING_CHECKED


REPRODUCE = Command(
    "reproduce",
    "check published figures: PASS, FAIL or CANNOT, and why",
    _add_options,
    in_parallel(_work, out="folder", answers=(FAILED, NOTHING_CHECKED)),
    group="everything, and against others",
    examples=(
        "reproduce table1/excb --data imagenet",
        "reproduce table1/excb --data imagenet --dry-run",
    ),
)
