"""A recipe for images of other than three channels: its network, and views without operations on colours."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from excb.console import plural
from excb.errors import require
from excb.networks.architecture import RGB

from .recipe import COLOURS, Recipe

Changes = dict[str, dict[str, Any]]  # values by section and field


def changes_for(recipe: Recipe, channels: int, given: Mapping[str, Mapping[str, Any]] | None = None) -> Changes:
    """The values that a recipe needs for images of so many channels, together with those that are given.

    Operations on colours are switched off. Means and standard deviations of another number of channels are left to be
    measured.

    Args:
        recipe: which they replace values of.
        channels: C, of the images.
        given: values by section and field that replace the recipe's as well.

    Raises:
        UserError: the network takes RGB images only, or an operation on colours is asked for.
    """
    changes = {section: dict(values) for section, values in (given or {}).items()}
    model, views = changes.setdefault("model", {}), changes.setdefault("views", {})
    model["options"] = replace(recipe.model, **model).architecture.of_channels(channels).foreign_options
    if channels != RGB:
        asked = [f"views.{name}" for name in COLOURS if views.get(name)]
        require(
            not asked,
            f"{' and '.join(asked)}: operations on colours, which images of {plural(channels, 'channel')} have not; "
            "leave it out",
        )
        views |= dict.fromkeys(COLOURS, 0.0)
    for name in ("mean", "std"):
        if name not in views and len(getattr(recipe.views, name)) != channels:
            views[name] = ()
    return changes


def fit_channels(recipe: Recipe, channels: int, note: Callable[[str], None] = lambda _line: None) -> Recipe:
    """The recipe for images of so many channels.

    Args:
        recipe: whose network may still be one of RGB images.
        channels: C, of the images.
        note: called with a message that says what was changed.

    Raises:
        UserError: as `changes_for`; or the network takes images of another number of channels.
    """
    if recipe.channels == channels:
        return recipe
    require(
        recipe.channels == RGB,
        f"the network takes images of {plural(recipe.channels, 'channel')}, and these have {channels}: declare their "
        "channels with data.channels, or choose another network",
    )
    off = (
        f"; {', '.join(COLOURS)} are off, which only colours have" if any(map(vars(recipe.views).get, COLOURS)) else ""
    )
    note(f"images of {plural(channels, 'channel')}, and {recipe.model.backbone} for them{off}")
    return recipe.change(**changes_for(recipe, channels))
