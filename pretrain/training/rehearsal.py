"""The start of a run without its traces: a dry run refuses what the run refuses, by the same functions."""

from collections.abc import Mapping, Sequence
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
from ..run.remote_mirror import RunLocation
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
from .start import build_or_refuse, complete_recipe, resolve_run
from .teaching import Teaching, check_cache, load_teaching, refuse_other_teachers


def rehearse(
    recipe: Recipe,
    images: CodedImages,
    place: RunLocation,
    reporter: Reporter,
    *,
    against: Sequence[str] = (),
    extend: int | None = None,
) -> tuple[Recipe, CodedImages, str]:
    """Do what a run does before its first step, but for what takes long, and write nothing; in one process.

    A run at a URL is not looked at there, only its copy on this machine.

    Args:
        recipe: as the command line makes it.
        images: to train on.
        place: of the run.
        reporter: for messages.
        against: checkpoints that the verdict compares the run with.
        extend: epochs beyond the recipe's, for a finished run.

    Returns:
        The recipe with all values but the precision, the images with their pixels, and the precision.

    Raises:
        UserError: the run cannot start.
    """
    refuse_place(place)
    begun, stored = place.folder / RECIPE, stored_recipe(place.folder)
    recipe, images, device = resolve_run(recipe, images, reporter, begun=begun, against=against)
    epochs = recipe.optim.epochs
    if extend is not None:
        epochs, recipe = extended(recipe, stored, place, extend)
    recipe = complete_recipe(recipe, images, reporter.note, begun=begun)
    images = in_colours(images, recipe.data.colours)
    probes = probes_of(recipe, pixels_of(images), device=device, workers=0, note=reporter.note)
    refuse_folder(place, recipe, images, extends=extend is not None)
    if extend is not None:
        refuse_unfinished(place, epochs, recipe.optim.epochs, recipe.steps_per_epoch(len(images)))
    precision = resolved(recipe, device, begun=begun_precision(stored), note=reporter.note).efficiency.precision
    model = build_or_refuse(recipe, Teaching())
    newest = run_checkpoint.read_newest(place.folder, reporter.warn)
    if newest is not None:
        _refuse_to_resume(newest[1], recipe, images, probes, device)
    elif recipe.init is not None:
        reporter.note(start_from(model, recipe, images))
    check_cache(recipe, images, device)
    return recipe, images, precision


def _refuse_to_resume(
    contents: Mapping[str, Any],
    recipe: Recipe,
    images: CodedImages,
    probes: Mapping[str, FolderProbe],
    device: torch.device,
) -> None:
    """Refuse what the run of a checkpoint refuses to resume with: other teachers, or other images to measure on."""
    if contents.get("teachers"):
        refuse_other_teachers(load_teaching(recipe, device), contents["teachers"])
    step, each = contents["step"], recipe.steps_per_epoch(len(images))
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
