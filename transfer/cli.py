"""`excb-eval`: its commands, a line each. A command is imported when it is asked for, and torch when it runs."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from excb.cli import Command, Parser, collect_seldom, command_parser, complete, keep_freed_memory
from excb.distributed.launcher import ending_with_launcher
from excb.errors import run_program

from .parallel import PROGRAM
from .protocols import PROTOCOLS
from .runner import command

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
  excb-eval photos PHOTOS --labels labels.csv                       the best network, guesses, what to label next
  excb-eval embed --ckpt rn50_400ep --data PHOTOS --out photos.npz  a vector for every image, labelled or not
  excb-eval search --ckpt rn50_400ep --data PHOTOS --query a.jpg --out page.html    the nearest images; near-duplicates
  excb-eval map --ckpt rn50_400ep --data PHOTOS --out map.html      images in the plane: hover, colours, lasso, search
  excb-eval overlap --train PHOTOS --test DIR --ckpt rn50_400ep     test images that were trained on; k-NN without them
  excb-eval linear ... --slurm partition=gpu,gpus=8,time=4:00:00    as a Slurm job
  excb-eval compare a.json b.json                                   is the difference real?
  excb-eval reproduce table1/excb --data DIR                        do published figures hold? PASS, FAIL or CANNOT
  excb-eval leaderboard RESULTS --out DIR                           published and measured figures side by side"""


# Commands that are not protocols, by the modules that hold their records.
OTHERS = {
    "all": "every.cli:all_command",
    "sets": "sets.cli:SETS",
    "watch": "watch.cli:WATCH",
    "embed": "embeddings.cli:EMBED",
    "search": "embeddings.cli:SEARCH",
    "photos": "photos.cli:PHOTOS",
    "map": "embeddings.map_command:MAP",
    "features": "feature_commands:FEATURES",
    "compare": "compare_command:COMPARE",
    "overlap": "overlap.cli:OVERLAP",
    "reproduce": "reproduce.cli:REPRODUCE",
    "leaderboard": "leaderboard.cli:LEADERBOARD",
    "cache": "feature_commands:CACHE",
}
COMMANDS = (*PROTOCOLS, *OTHERS)


def command_named(name: str) -> Command:
    """The command of that name, one of `COMMANDS`."""
    if name in PROTOCOLS:
        return command(PROTOCOLS[name])
    module, _, record = OTHERS[name].partition(":")
    found: Command | Callable[[], Command] = getattr(import_module(f".{module}", __package__), record)
    return found if isinstance(found, Command) else found()


def program(names: Sequence[str] = COMMANDS) -> Parser:
    """The parser of the command line, with these commands."""
    return command_parser(PROGRAM, DESCRIPTION, [command_named(name) for name in names])


def main(argv: Sequence[str] | None = None) -> int:
    """Run `excb-eval` and return its exit code."""
    if argv is None:  # a program of its own
        keep_freed_memory()
        collect_seldom()
    return run_program(PROGRAM, lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(argv: Sequence[str]) -> int:
    parser = program([argv[0]] if argv and argv[0] in COMMANDS else COMMANDS)
    complete(parser)
    args = parser.parse_args(argv)
    args.arguments = list(argv)  # processes on other GPUs and Slurm jobs get the same command line
    command: Command = args.command
    with ending_with_launcher(PROGRAM):
        return command.run(args)


if __name__ == "__main__":
    sys.exit(main())
