"""The command line of `excb-pretrain doctor`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from excb.cli import Parser
from excb.console import Reporter
from excb.errors import UserError

from .. import overrides
from ..recipe import Recipe
from ..run.remote_mirror import Place, run_place

if TYPE_CHECKING:
    from excb.images.image_set import CodedImages

    from .check import Check

DESCRIPTION = """\
Look at images and machine before a long run: what would fail, what would be slow, and the mend for each.

  excb-pretrain doctor --data DIR                      images, files, versions, limits, GPUs
  excb-pretrain doctor rn50_400ep --data DIR --out RUN --gpus 8     and what this run needs: disk, memory, one step
  excb-pretrain doctor rn50_400ep --data DIR --all     decode every image, not a sample

Exit code 0: nothing stands in the way; 1: an error was found; 2: the command is wrong."""


def main(argv: Sequence[str]) -> int:
    """Run `excb-pretrain doctor` with its own arguments, and return the exit code."""
    parser = Parser(
        prog="excb-pretrain doctor", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="check what this recipe's run needs, too")
    parser.add_argument("values", metavar="section.field=value", nargs="*", help="values other than the recipe's")
    parser.add_argument("--data", metavar="DIR", help="a folder of images, or tar shards, as for a run")
    parser.add_argument("--list", type=Path, metavar="FILE", help="a file with one image path a line, below --data")
    parser.add_argument("--out", type=run_place, metavar="RUN", help="the run folder (default: runs/RECIPE)")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of this machine that the run is to use; 0: the CPU")
    parser.add_argument("--all", action="store_true", help="decode every image, not a sample of them")
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    chosen = parser.parse_intermixed_args(argv)
    if chosen.gpus is not None and chosen.gpus < 0:
        raise UserError("--gpus takes 0 (the CPU) or more")
    recipe = overrides.apply(overrides.find_recipe(chosen.recipe), chosen.values) if chosen.recipe else None
    if chosen.data is None and chosen.list is None:
        raise UserError("name the folder of images with --data DIR, or a list of them with --list FILE")
    from excb.images.opening import training_images

    from ..data.hub_stream import refuse_stream

    refuse_stream(chosen.data, "doctor")
    reporter = Reporter(quiet=chosen.quiet)
    images = training_images(chosen.data, chosen.list, reporter.note)
    checks = examine(
        images,
        recipe,
        chosen.out or Place(Path("runs") / (chosen.recipe or "")),
        reporter,
        gpus=chosen.gpus,
        everything=chosen.all,
    )
    _tell(checks, reporter, as_json=chosen.json)
    return int(any(check.verdict == "error" for check in checks))


def examine(
    images: "CodedImages",
    recipe: Recipe | None,
    run: Place,
    reporter: Reporter,
    *,
    gpus: int | None = None,
    everything: bool = False,
) -> list["Check"]:
    """Make all checks, quick ones first.

    Args:
        images: the training images.
        recipe: adds what its run needs; without one, the usual values are judged.
        run: the run folder, there or not, and where it is kept.
        reporter: shows progress.
        gpus: GPUs of this machine that the run is to use; None for one if there is one.
        everything: decode every image.

    Raises:
        UserError: the recipe cannot make a run with so many processes.
    """
    from excb.distributed.workers import worker_count

    from ..data.broken_files import MAX_SHARE
    from .accelerator import check_accelerator
    from .files import check_files
    from .limits import check_cores, check_open_files, check_shared_memory
    from .run_folder import check_folder, check_space, check_store
    from .tree import check_tree
    from .versions import check_versions

    usual, processes = recipe or Recipe(name=""), max(1, gpus or 1)
    efficiency = usual.efficiency
    workers = worker_count(efficiency.workers)
    if efficiency.workers < 0:  # these share the machine's cores
        workers = max(1, min(workers, worker_count(-1) // processes))
    checks = check_tree(images, usual.optim.batch if recipe else None)
    checks += check_versions()
    checks += check_accelerator(efficiency.device, efficiency.precision, gpus)
    checks += [check_cores(workers, processes), check_open_files(workers, efficiency.prefetch)]
    checks += (folder := check_folder(run.folder, lambda: _refuse_folder(images, recipe, run)))
    if run.url is not None:
        checks.append(check_store(run.url))
    if recipe is not None:
        from .requirements import batch_bytes, checkpoint_bytes

        batch = batch_bytes(recipe, processes)
        checks.append(check_shared_memory(batch, workers, efficiency.prefetch, processes))
        if all(check.verdict != "error" for check in folder):
            checks.append(check_space(run.folder, checkpoint_bytes(recipe, len(images)), recipe.run.keep))
        checks += _step(recipe, processes, gpus, checks)
    side = recipe.views.global_size if recipe else None
    return checks + check_files(images, reporter, bearable=MAX_SHARE, side=side, everything=everything)


def _refuse_folder(images: "CodedImages", recipe: Recipe | None, run: Place) -> None:
    """Refuse a run folder as the run itself would: among the images, or another run's."""
    from excb.images.scanning import refuse_among

    from ..run.run_folder import describe, refuse_other_run

    if run.url is None:
        refuse_among(images, run.folder)
    if recipe is not None:
        refuse_other_run(run.folder, recipe, describe(images))


def _step(recipe: Recipe, processes: int, gpus: int | None, checks: Sequence["Check"]) -> list["Check"]:
    """One step, unless what it needs has failed already."""
    from excb.distributed.machine import choose_device

    from .requirements import check_step

    if any(check.verdict == "error" and check.name.startswith(("GPU", "bf16", "versions")) for check in checks):
        return []
    return [check_step(recipe, choose_device("cpu" if gpus == 0 else recipe.efficiency.device), processes)]


def _tell(checks: Sequence["Check"], reporter: Reporter, *, as_json: bool) -> None:
    """Print all checks, and how many of them are not well."""
    counts = {verdict: sum(check.verdict == verdict for check in checks) for verdict in ("ok", "warning", "error")}
    if as_json:
        reporter.answer(json.dumps({"checks": [check.to_dict() for check in checks], "counts": counts}, indent=2))
        return
    rows = [[check.name, check.verdict, check.found, check.mend] for check in checks]
    reporter.table("Checks", ["check", "", "found", "mend"], rows)
    reporter.answer(f"{counts['ok']} ok, {counts['warning']} to look at, {counts['error']} in the way")
