"""`excb-pretrain choose`: a recipe and a command for your images, this machine and your time, with reasons."""

import argparse
import json
from pathlib import Path

from excb.cli import Command, Parser
from excb.console import duration

from .options import add_output, add_range, check_gpus, reporter_of, require_images

DESCRIPTION = """\
Propose a recipe and the command that runs it, from the number and size of the images, cores, GPUs and hours.

  excb-pretrain choose --data DIR
  excb-pretrain choose --data DIR --hours 8 --json"""


def add_options(parser: Parser) -> None:
    """The images, the time and the GPUs."""
    parser.add_argument("--data", metavar="DIR", help="a folder of images at any depth, or tar shards")
    parser.add_argument("--list", type=Path, metavar="FILE", help="a file with one image path per line, below --data")
    parser.add_argument("--hours", type=float, metavar="H", help="hours that the run may take")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of this machine, 0 for the CPU (default: all)")
    add_range(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Print the proposal."""
    check_gpus(options.gpus)
    require_images(options)
    from excb.distributed.machine import choose_device
    from excb.images.opening import training_images

    from ..data.hub_stream import refuse_stream
    from ..plan.choice import choose_recipe
    from ..recipe import DataSettings
    from ..training.pixels import with_their_pixels

    refuse_stream(options.data, "choose")
    reporter = reporter_of(options)
    settings = DataSettings(range=options.range)
    images = with_their_pixels(training_images(options.data, options.list, reporter.note), settings, reporter)
    device = choose_device("cpu" if options.gpus == 0 else "auto")
    named = options.data or str(images.root)
    declared = () if options.range is None else (f"data.range={options.range}",)
    choice = choose_recipe(images, named, device, gpus=options.gpus, hours=options.hours, declared=declared)
    if options.json:
        reporter.answer(json.dumps(choice.to_dict(), indent=2))
        return 0
    reporter.answer(f"{choice.command}\n")
    for reason in choice.reasons:
        reporter.answer(f"- {reason}")
    reporter.answer(f"\nIt takes about {duration(3600 * choice.hours)}, reading images not counted.")
    return 0


CHOOSE = Command(
    "choose",
    "a recipe and command for your images, machine and time",
    add_options,
    run,
    DESCRIPTION,
    group="start here",
    examples=(
        "choose --data photos",
        "choose --data photos --hours 8",
    ),
)
