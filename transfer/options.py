"""Options that several commands of `excb-eval` share."""

import argparse
from pathlib import Path

from excb.cli import local_path
from excb.distributed.slurm import HELP as SLURM_HELP


def add_task_options(parser: argparse.ArgumentParser, *, result: str = "FILE.json") -> None:
    """Add the options of every protocol on labelled images: checkpoint, images, how they are read, --out."""
    add = parser.add_argument_group("checkpoint and images").add_argument
    add("--ckpt", required=True, metavar="PATH", help="run folder, checkpoint file, exported folder or timm:NAME")
    add("--data", metavar="SOURCE", help="a folder or URL with train/ and test/ (or val/); torchvision:NAME; hf:ID")
    add("--train", metavar="DIR", help="labelled images: one sub-folder a class, or tar shards such as 'DIR/*.tar'")
    add("--test", metavar="DIR", help="the same classes, other images")
    add("--data-root", type=Path, metavar="DIR", help="where torchvision keeps its data sets")
    add("--rename", action="append", default=[], metavar="TEST=TRAIN", help="a test folder's name in train; repeatable")
    add_pass_options(parser)
    parser.add_argument("--out", type=local_path, metavar=result, help="write the result here")


def add_pass_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a pass of images through a frozen backbone."""
    add = parser.add_argument_group("preprocessing").add_argument
    add("--network", choices=("teacher", "student"), default="teacher", help="default: teacher")
    add("--resize", type=int, metavar="PIXELS", help="shorter side (default: the checkpoint's)")
    add("--crop", type=int, metavar="PIXELS", help="central square (default: the checkpoint's)")
    add_machine_options(parser)
    add = parser.add_argument
    add("--dry-run", action="store_true", help="say what it will take, and do nothing")
    add("--json", action="store_true", help="print the result as JSON instead of a table")
    add("--quiet", action="store_true", help="no notes, no progress")


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add where a pass over images runs, and what it caches."""
    add = parser.add_argument_group("machine").add_argument
    add("--device", default="auto", metavar="NAME", help="cpu, cuda or auto (default)")
    add("--gpus", type=int, metavar="N", help="a process for each of N GPUs; the answer stays the same")
    add("--slurm", metavar="NAME=VALUE,...", help=SLURM_HELP)
    add("--batch-size", type=_batch, default=64, metavar="B", help="images at once, or auto (default: 64)")
    add("--workers", type=int, default=None, metavar="N", help="processes that read images")
    add("--cache", type=Path, metavar="DIR", help="keeps features (default: $EXCB_CACHE, else ~/.cache/excb)")
    add("--no-cache", action="store_true", help="keep no features")


def _batch(text: str) -> int | str:
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise argparse.ArgumentTypeError(f"takes a number of images, or auto, not {text!r}")
