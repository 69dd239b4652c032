"""`excb-eval`: its commands. Each imports torch and its protocol when it runs, so that `--help` stays quick."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from excb.cli import Command, Parser, command_parser, complete
from excb.console import Reporter
from excb.distributed.launcher import ending_with_launcher
from excb.errors import run_program

from .embeddings.cli import EMBED, SEARCH
from .every.cli import ALL
from .feature_commands import CACHE, FEATURES
from .leaderboard.cli import LEADERBOARD
from .overlap.cli import OVERLAP
from .parallel import PROGRAM
from .protocols import PROTOCOLS
from .reproduce.cli import REPRODUCE
from .sets.cli import SETS
from .watch.cli import WATCH

DESCRIPTION = """\
Evaluate a checkpoint on downstream tasks. --ckpt takes what excb.load takes, or timm:NAME.

  excb-eval knn --ckpt runs/rn18_small --data DIR --out knn.json    DIR holds train/ and test/ (or val/)
  excb-eval linear --ckpt runs/rn18_small --data DIR --protocol fast
  excb-eval semisup --ckpt runs/rn18_small --data DIR --percent 10 --seeds 0 1 2
  excb-eval knn --ckpt timm:resnet50 --data torchvision:CIFAR10
  excb-eval knn --ckpt timm:resnet50 --train 'DIR/train-*.tar' --test 'DIR/val-*.tar'     tar shards, also s3:// ...
  excb-eval detection --ckpt rn50_400ep --data COCO --gpus 8         Mask R-CNN: six APs of boxes and masks
  excb-eval clusters --ckpt runs/rn18_small --data DIR --out DIR    what is in each cluster: figures and an atlas
  excb-eval all --ckpt runs/rn18_small --data DIR --out REPORT      every protocol that applies, and one report page
  excb-eval sets fine-grained --ckpt runs/a runs/b --data DIR --out REPORT    twelve sets: mean, mean rank, tiers
  excb-eval watch runs/rn18_small --data DIR --every 10m            each new checkpoint of a run, while it continues
  excb-eval embed --ckpt rn50_400ep --data PHOTOS --out photos.npz  a vector for every image, labelled or not
  excb-eval search --ckpt rn50_400ep --data PHOTOS --query a.jpg --out page.html    the nearest images; near-duplicates
  excb-eval overlap --train PHOTOS --test DIR --ckpt rn50_400ep     test images that were trained on; k-NN without them
  excb-eval linear ... --slurm partition=gpu,gpus=8,time=4:00:00    as a Slurm job
  excb-eval compare a.json b.json                                   is the difference real?
  excb-eval reproduce table1/excb --data DIR                        do published figures hold? PASS, FAIL or CANNOT
  excb-eval leaderboard RESULTS --out DIR                           published and measured figures side by side"""


def _add_compare(parser: Parser) -> None:
    add = parser.add_argument
    add("first", type=Path, metavar="A.json")
    add("second", type=Path, metavar="B.json")
    add("--figure", metavar="NAME", help="one figure, or A:B if its names differ")
    add("--json", action="store_true", help="print JSON instead of a table")


def _compare(args: argparse.Namespace) -> int:
    import json

    from .compare import compare

    reporter = Reporter()
    comparison = compare(args.first, args.second, reporter, figure=args.figure, table=not args.json)
    if args.json:
        reporter.answer(json.dumps(comparison, indent=2))
    return 0


COMPARE = Command(
    "compare",
    "is the difference of two results real? (paired tests, paired bootstrap)",
    _add_compare,
    _compare,
    group="everything, and against others",
    examples=(
        "compare a.json b.json",
        "compare a.json b.json --figure knn_top1_k20",
    ),
)
COMMANDS = (*PROTOCOLS, ALL, SETS, WATCH, EMBED, SEARCH, FEATURES, COMPARE, OVERLAP, REPRODUCE, LEADERBOARD, CACHE)


def program() -> Parser:
    """The parser of the whole command line."""
    return command_parser(PROGRAM, DESCRIPTION, COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `excb-eval` and return its exit code."""
    return run_program(PROGRAM, lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(argv: Sequence[str]) -> int:
    parser = program()
    complete(parser)
    args = parser.parse_args(argv)
    args.arguments = list(argv)  # processes on other GPUs and Slurm jobs get the same command line
    command: Command = args.command
    with ending_with_launcher(PROGRAM):
        return command.run(args)


if __name__ == "__main__":
    sys.exit(main())
