"""`excb-pretrain doctor`: what would fail or be slow, before a long run."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Command, Parser
from excb.console import Reporter
from excb.errors import UserError
from excb.files.run_files import RECIPE

from .. import overrides
from ..recipe import Recipe
from ..run.remote_mirror import run_place
from .options import add_overrides, check_gpus, named_recipe, place_of, require_images

if TYPE_CHECKING:
    from excb.images.image_set import CodedImages

    from ..doctor.finding import Finding

DESCRIPTION = """\
Check images and machine before a long run: what would fail, what would be slow, and the fix for each.

  excb-pretrain doctor --data DIR                      images, files, versions, limits, GPUs
  excb-pretrain doctor rn50_400ep --data DIR --out RUN --gpus 8     and what this run needs: disk, memory, one step
  excb-pretrain doctor rn50_400ep --data DIR --all     decode every image, not a sample

Exit code 0: no errors; 1: an error was found; 2: the command is wrong."""


def add_options(parser: Parser) -> None:
    """A recipe if any, the images, and how much to check."""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="also check what a run of this recipe needs")
    add_overrides(parser)
    parser.add_argument("--data", metavar="DIR", help="a folder of images, or tar shards, as for a run")
    parser.add_argument("--list", type=Path, metavar="FILE", help="a file with one image path per line, below --data")
    parser.add_argument("--out", type=run_place, metavar="RUN", help="the run folder (default: runs/RECIPE)")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of this machine for the run; 0 for the CPU")
    parser.add_argument("--all", action="store_true", help="decode every image, not a sample")
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    parser.add_argument("--quiet", action="store_true", help="print no progress")


def run(options: argparse.Namespace) -> int:
    """Make all checks and print what they found; the exit code is 1 after an error."""
    check_gpus(options.gpus)
    recipe = overrides.apply(named_recipe(options), options.overrides) if options.recipe else None
    require_images(options)
    from excb.sources.opening import training_images

    from ..data.hub_stream import refuse_stream
    from ..doctor.checks import CheckedMachine, examine

    refuse_stream(options.data, "doctor")
    reporter = Reporter(quiet=options.quiet)
    images = training_images(options.data, options.list, reporter.note, ledger=False)  # a check says it
    recipe = recipe and _completed(recipe, images, reporter, place_of(options).folder / RECIPE)
    subject = CheckedMachine(images, recipe, place_of(options), reporter, gpus=options.gpus, everything=options.all)
    findings = list(examine(subject))
    _print(findings, reporter, as_json=options.json)
    return int(any(finding.verdict == "error" for finding in findings))


def _completed(recipe: Recipe, images: "CodedImages", reporter: Reporter, begun: Path) -> Recipe:
    """The recipe with all values that its run would have."""
    from ..initialise import adopted
    from ..training.pixels import with_their_pixels
    from ..training.start import complete_recipe

    try:
        images = with_their_pixels(images, recipe.data, Reporter(quiet=True), begun=begun)
    except UserError:
        return adopted(recipe, reporter.note, begun=begun)  # a check says what is wrong with the images
    return complete_recipe(recipe, images, reporter.note, begun=begun)


def _print(findings: Sequence["Finding"], reporter: Reporter, *, as_json: bool) -> None:
    counts = {verdict: sum(each.verdict == verdict for each in findings) for verdict in ("ok", "warning", "error")}
    if as_json:
        reporter.answer(json.dumps({"checks": [finding.to_dict() for finding in findings], "counts": counts}, indent=2))
        return
    rows = [[finding.name, finding.verdict, finding.found, finding.fix] for finding in findings]
    reporter.table("Checks", ["check", "", "found", "fix"], rows)
    parts = (f"{number} {verdict}{'s' * (verdict != 'ok' and number != 1)}" for verdict, number in counts.items())
    reporter.answer(", ".join(parts))


DOCTOR = Command(
    "doctor",
    "what would fail or be slow: images, disk, GPUs, limits; and the fixes",
    add_options,
    run,
    DESCRIPTION,
    group="before a run",
    examples=(
        "doctor --data photos",
        "doctor rn18_small --data photos --all",
    ),
)
