"""`excb-pretrain plan`: parameters, FLOPs, launches, memory, communication; with a GPU, images/s and hours."""

import argparse

from excb.cli import Command, Parser

from ..plan.devices import GPUS, find_gpu
from .options import add_recipe, add_run, recipe_of, reporter_of


def add_options(parser: Parser) -> None:
    """A recipe, the options of its run, and whether to measure on a CPU."""
    add_recipe(parser)
    add_run(parser)
    parser.add_argument(
        "--device",
        metavar="GPU",
        help=f"say whether it fits into another GPU: {', '.join(GPUS)}",
    )
    parser.add_argument("--measure", action="store_true", help="measure on the CPU if there is no GPU")


def run(options: argparse.Namespace) -> int:
    """Print what the run will take."""
    recipe = recipe_of(options)
    gpu = None if options.device is None else find_gpu(options.device)
    from excb.sources.opening import training_images

    from ..data.hub_stream import refuse_stream
    from ..initialise import adopted
    from ..plan.plan import show_plan
    from ..training.pixels import with_their_pixels

    refuse_stream(options.data, "plan")
    reporter = reporter_of(options)
    images = None
    if options.data or options.list:
        found = training_images(options.data, options.list, reporter.note)
        images = with_their_pixels(found, recipe.data, reporter)
    recipe = adopted(recipe, reporter.note)
    return show_plan(recipe, options.gpus, images, reporter, measure=options.measure, as_json=options.json, gpu=gpu)


PLAN = Command(
    "plan",
    "parameters, FLOPs, launches, memory, communication; with a GPU, images/s and hours",
    add_options,
    run,
    group="before a run",
    examples=(
        "plan rn50_400ep --gpus 8",
        "plan rn18_small --data photos --measure",
    ),
)
