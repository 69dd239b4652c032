"""`excb-pretrain distil TEACHER --data DIR`: a small network learns from a large one, and is compared with it."""

import argparse

from excb.cli import Command, Parser
from excb.errors import UserError

from .options import add_overrides, names_and_overrides, rank0_reports
from .train import add_training
from .train import run as run_recipe

DESCRIPTION = """\
Teach a small network of your own what a large public one sees in your images. No labels are needed. The run ends with
a verdict: how much of the teacher's accuracy the student keeps, at which share of its time and size.

  excb-pretrain distil mobilenetv2 --data photos
  excb-pretrain distil dinov2_vits14 --data photos model.backbone=resnet18
  excb-pretrain distil mobilenetv2 effnet_lite2 --data photos distil.teacher_sees=view

TEACHER is anything that excb.load takes: a name of `excb-zoo list`, a run, a file, hf-hub:..., timm:NAME; of several,
each has a head of its own. It is the recipe `distil` (`excb-pretrain show distil`), whose values can be overridden."""


def add_options(parser: Parser) -> None:
    """The teachers, and the options of the run."""
    parser.add_argument(
        "teachers", metavar="TEACHER", nargs="*", help="the network to learn from, as excb.load takes it"
    )
    add_overrides(parser)
    add_training(parser)
    parser.set_defaults(recipe="distil")


def run(options: argparse.Namespace) -> int:
    """Teach the student."""
    names, values = names_and_overrides([*options.teachers, *options.overrides])
    with rank0_reports():
        if commas := [name for name in names if "," in name]:
            raise UserError(f"{commas[0]!r} is not one name: write several teachers with spaces between them")
        if not names and not any(word.startswith("distil.teachers=") for word in values):
            raise UserError(
                "learn from which teacher? Name one (`excb-zoo list` shows all; mobilenetv2 is a small one)"
            )
    options.overrides = [*([f"distil.teachers={','.join(names)}"] if names else []), *values]
    return run_recipe(options)


DISTIL = Command(
    "distil",
    "teach a small network what a large public one sees in your images; says what it keeps, and what it saves",
    add_options,
    run,
    DESCRIPTION,
    group="train",
    examples=(
        "distil mobilenetv2 --data photos",
        "distil dinov2_vits14 --data photos model.backbone=resnet18 optim.epochs=200",
    ),
)
