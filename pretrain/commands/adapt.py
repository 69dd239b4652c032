"""`excb-pretrain adapt NAME --data DIR`: continue training from any backbone, and say whether it became better."""

import argparse

from excb.cli import Command, Parser
from excb.errors import UserError

from .options import add_overrides, names_and_overrides, rank0_reports
from .train import add_training
from .train import run as run_recipe

DESCRIPTION = """\
Continue self-supervised training of a trained backbone on your own images without losing what it knows, and measure
before, during and after training whether it improved.

  excb-pretrain adapt tiny_grocery --data photos
  excb-pretrain adapt timm:vit_small_patch16_224.dino --data photos --monitor labelled --source flowers

NAME is anything that excb.load takes: a name of `excb-zoo list`, a run, a file, hf-hub:..., timm:NAME. The run stops
once it no longer improves, keeps its best epoch, and ends with a verdict: better by how much, or keep the original. It
is the recipe `adapt` (`excb-pretrain show adapt`), whose values can be overridden."""


def add_options(parser: Parser) -> None:
    """The backbone, and the options of its run."""
    parser.add_argument("start", metavar="NAME", nargs="?", help="the backbone to start from, as excb.load takes it")
    add_overrides(parser)
    add_training(parser)
    probes = parser.add_argument_group("probes")
    probes.add_argument(
        "--monitor",
        metavar="DIR",
        help="images that choose the best epoch (monitor.data; default: the training images): k-NN of DIR/val or "
        "DIR/test by DIR/train; without labels, retrieval",
    )
    probes.add_argument(
        "--source",
        metavar="DIR",
        help="images like those of the backbone's own training (monitor.source): does it forget?",
    )
    parser.set_defaults(recipe="adapt")


def run(options: argparse.Namespace) -> int:
    """Adapt the backbone."""
    names, values = names_and_overrides([options.start, *options.overrides])
    with rank0_reports():
        if len(names) > 1:
            raise UserError(f"adapt one backbone, not {len(names)} ({', '.join(names)})")
        if not names and not any(word.startswith("init=") for word in values):
            raise UserError("adapt which backbone? name one (`excb-zoo list` shows all; tiny_grocery is here already)")
    probes = {"monitor.data": options.monitor, "monitor.source": options.source}
    options.overrides = [
        *(f"init={name}" for name in names),
        *(f"{field}={folder}" for field, folder in probes.items() if folder is not None),
        *values,
    ]
    return run_recipe(options)


ADAPT = Command(
    "adapt",
    "continue from any trained backbone without losing what it knows; says whether it became better",
    add_options,
    run,
    DESCRIPTION,
    group="train",
    examples=(
        "adapt tiny_grocery --data photos",
        "adapt rn50_400ep --data photos --monitor labelled --source flowers adapt.anchor=3",
    ),
)
