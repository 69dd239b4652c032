"""The start of a run without its traces: a dry run refuses what the run refuses, by the same functions."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.files.run_files import RECIPE
from excb.images.image_set import CodedImages
from excb.images.pixels import pixels_of

from ..initialise import start_from
from ..precision import resolved
from ..recipe import Recipe
from ..run.probe import FolderProbe
from ..run.remote_mirror import Mirror, RunLocation
from ..run.run_folder import (
    begun_precision,
    extended,
    refuse_folder,
    refuse_place,
    refuse_unfinished,
    stored_recipe,
)
from .epoch_end import probes_of, refuse_other_gauges
from .pixels import in_colours
from .start import build_or_refuse, complete_recipe, refuse_lost_feedback, resolve_run
from .teaching import Teaching, check_cache, load_teaching, refuse_other_teachers


def rehearse(
    recipe: Recipe,
    images: CodedImages,
    place: RunLocation,
    reporter: Reporter,
    *,
    against: Sequence[str] = (),
    extend: int | None = None,
    processes: int = 1,
) -> tuple[Recipe, CodedImages, str, int]:
    """Do what a run does before its first step, but for what takes long, and write nothing; in one process.

    Of a run at a URL, checkpoints that are not on this machine are downloaded, and deleted again.

    Args:
        recipe: as the command line makes it.
        images: to train on.
        place: of the run.
        reporter: for messages.
        against: checkpoints that the verdict compares the run with.
        extend: epochs beyond the recipe's, for a finished run.
        processes: of the run.

    Returns:
        The recipe with all values but the precision, the images with their pixels, the precision, and the steps that
        are done.

    Raises:
        UserError: the run cannot start.
    """
    refuse_place(place)
    begun = place.folder / RECIPE
    mirror = None if place.url is None else Mirror(place.url, place.folder, reporter.warn)
    recipe, images, device = resolve_run(recipe, images, reporter, begun=begun, against=against)
    remote = None if mirror is None else mirror.text(RECIPE)
    stored = stored_recipe(place.folder) if remote is None else remote
    epochs = recipe.optim.epochs
    if extend is not None:
        epochs, recipe = extended(recipe, stored, place, extend)
    recipe = complete_recipe(recipe, images, reporter.note, begun=begun)
    images = in_colours(images, recipe.data.colours)
    probes = probes_of(recipe, pixels_of(images), device=device, workers=0, note=reporter.note)
    refuse_folder(place, recipe, images, extends=extend is not None, remote=remote)
    precision = resolved(recipe, device, begun=begun_precision(stored), note=reporter.note).efficiency.precision
    model = build_or_refuse(recipe, Teaching())
    with nullcontext(place.folder) if mirror is None else mirror.received() as folder:
        if extend is not None:
            there = RunLocation(folder, place.url)
            refuse_unfinished(there, epochs, recipe.optim.epochs, recipe.steps_per_epoch(len(images)))
        newest = run_checkpoint.read_newest(folder, reporter.warn)
    if newest is not None:
        _refuse_to_resume(newest[1], recipe, images, probes, device, processes=processes)
    elif recipe.init is not None:
        reporter.note(start_from(model, recipe, images))
    check_cache(recipe, images, device)
    return recipe, images, precision, 0 if newest is None else int(newest[1]["step"])


def _refuse_to_resume(
    contents: Mapping[str, Any],
    recipe: Recipe,
    images: CodedImages,
    probes: Mapping[str, FolderProbe],
    device: torch.device,
    *,
    processes: int,
) -> None:
    """Refuse what a run refuses to resume with: PowerSGD, other teachers, or other images to measure on."""
    step, each = contents["step"], recipe.steps_per_epoch(len(images))
    refuse_lost_feedback(recipe, contents, steps=each * recipe.optim.epochs, processes=processes)
    if contents.get("teachers"):
        refuse_other_teachers(load_teaching(recipe, device), contents["teachers"])
    if not step:
        return
    all_done = step >= each * recipe.optim.epochs or contents.get("ended") is not None
    last, before = ({} if contents.get(name) is None else dict(contents[name]) for name in ("last", "gauges"))
    refuse_other_gauges(
        {name: probe.identity for name, probe in probes.items()},
        before,
        started=contents.get("start") is not None,
        finished=all_done and last.get("epoch") == step // each,  # whose figures are made
    )
