"""The start of a run without its traces: a dry run refuses what the run refuses, by the same functions."""

from collections.abc import Sequence

from excb.console import Reporter
from excb.files.run_files import RECIPE
from excb.images.image_set import CodedImages
from excb.images.pixels import pixels_of

from ..initialise import start_from
from ..precision import resolved
from ..recipe import Recipe
from ..run.probe import CHOSEN_BY
from ..run.remote_mirror import RunLocation
from ..run.run_folder import (
    begun_precision,
    extended,
    newest_step,
    refuse_folder,
    refuse_place,
    refuse_unfinished,
    stored_recipe,
)
from ..run.sets import find_sets, with_one_mapping
from .pixels import in_colours
from .start import build_or_refuse, complete_recipe, resolve_run
from .teaching import Teaching, check_cache


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
    for folder in (recipe.monitor.data, recipe.monitor.source):
        if folder is not None:
            sets = find_sets(folder, reporter.note, held_out=CHOSEN_BY)
            with_one_mapping(sets, pixels_of(images), reporter.note)
    refuse_folder(place, recipe, images, extends=extend is not None)
    if extend is not None:
        refuse_unfinished(place, epochs, recipe.optim.epochs, recipe.steps_per_epoch(len(images)))
    precision = resolved(recipe, device, begun=begun_precision(stored), note=reporter.note).efficiency.precision
    model = build_or_refuse(recipe, Teaching())
    if recipe.init is not None and not newest_step(place.folder):  # a run that has trained starts from its checkpoint
        reporter.note(start_from(model, recipe, images))
    check_cache(recipe, images, device)
    return recipe, images, precision
