"""Values that replace a recipe's, from Python or as `section.field=value`: checked by type, with the nearest name."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from excb.errors import UserError, in_short, nearest_name, require
from excb.files import json_text
from excb.networks.architecture import known_options
from excb.options import converted, field_types

from .channels import changes_for
from .recipe import Recipe
from .recipes import ALIASES, RECIPES

NO_SECTIONS = ("name", "init", "adopts")  # fields of a recipe that are values themselves
# What a run takes from the checkpoint of `init` unless the command line says otherwise.
ADOPTED = (
    *("model.backbone", "model.options", "model.position_interpolation"),
    *("views.global_size", "views.local_size", "views.eval_resize", "views.eval_crop", "views.mean", "views.std"),
    *("views.eval_crop_mode", "views.eval_interpolation", "views.eval_corner", "data.colours"),
)
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")


def find_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        UserError: there is no such recipe.
    """
    require(isinstance(name, str), f"a recipe is a name of `excb-pretrain list`, not {in_short(name)}")
    name = ALIASES.get(name, name)
    if name not in RECIPES:
        raise UserError(f"no recipe is called {name!r}{nearest_name(name, RECIPES)} (`excb-pretrain list` shows all)")
    return RECIPES[name]()


def field_names(recipe: Recipe) -> list[str]:
    """Every field that can be overridden, as section.field."""
    sections = [field.name for field in dataclasses.fields(recipe) if field.name not in NO_SECTIONS]
    return ["init"] + [f"{s}.{field.name}" for s in sections for field in dataclasses.fields(getattr(recipe, s))]


def apply(recipe: Recipe, words: Sequence[str]) -> Recipe:
    """A copy of the recipe with overrides of a command line, each "section.field=value" (or "init=PATH").

    Raises:
        UserError: an unknown field, a value of the wrong type or out of range.
    """
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"{word!r} is not an override: write {_instead_of(word, recipe)}")
        values[name] = value_of_text(text, _field_type(recipe, name))
    return replace_fields(recipe, values)


def _instead_of(word: str, recipe: Recipe) -> str:
    """The override that somebody may have meant: of recipes that need a network, its name."""
    network = "init" if recipe.adapt.active else "distil.teachers" if recipe.distil.active else None
    if network is None or word in field_names(recipe):
        return "section.field=value, such as optim.epochs=100"
    return f"{network}={word} for a network, or section.field=value"


def replace_fields(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """A copy of the recipe with other values by "section.field" (or "init"), each checked by its field's type.

    Another backbone keeps those of the recipe's options of the network that it takes.
    With `init` and without a backbone of one's own, the checkpoint decides the architecture and the sizes that are not
    named: they are in `Recipe.adopts`.

    Raises:
        UserError: an unknown field, a value of the wrong type or out of range.
    """
    changes: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        checked = checked_value(value, _field_type(recipe, name), name)
        if name == "init":
            empty = checked is not None and not checked.strip()
            require(not empty, "init= is empty: name a run, or none for none (is a shell variable unset?)")
            recipe = replace(recipe, init=checked, adopts=ADOPTED if checked else ())
            continue
        section, field = name.split(".")
        changes.setdefault(section, {})[field] = checked
    own = values.keys() & {"model.backbone", "model.options"}
    if own == {"model.backbone"} and changes["model"]["backbone"] != recipe.model.backbone:
        known = known_options(changes["model"]["backbone"])
        changes["model"]["options"] = {name: value for name, value in recipe.model.options.items() if name in known}
    adopts = tuple(name for name in recipe.adopts if not own and name not in values)
    if (channels := changes.get("data", {}).get("channels")) is not None and not adopts:
        changes = changes_for(recipe, channels, changes)
    return replace(recipe, adopts=adopts).change(**changes)


def _field_type(recipe: Recipe, name: str) -> Any:
    """The type of a field. Raises UserError with the nearest name if there is none of that name."""
    names = field_names(recipe)
    if name not in names:
        # People remember the last part only: `epochs` is optim.epochs.
        last = name.rpartition(".")[-1]
        matches = [valid for valid in names if valid.rpartition(".")[-1] == last]
        hint = f"; did you mean '{matches[0]}'?" if matches else nearest_name(name, names)
        raise UserError(f"no field is called {name!r}{hint} (`excb-pretrain show {recipe.name}` lists all)")
    section, _, field = name.rpartition(".")
    return field_types(type(getattr(recipe, section) if section else recipe))[field]


def value_of_text(text: str, annotation: Any) -> Any:
    """The value that a text means in a field of this type; if none, the text itself, which `checked_value` refuses."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    nothing = text.lower() in ("", "none")
    if origin in (types.UnionType, typing.Union):
        unset = not text and parts[0] is str  # a shell variable, of which the recipe says so
        return None if nothing and not unset else value_of_text(text, parts[0])
    if origin is tuple:
        several = parts[-1] is Ellipsis
        items = [] if nothing else (text if parts[0] is str else text.strip("()[] ")).split(",")
        fits = several or len(items) == len(parts)
        return tuple(value_of_text(item.strip(), parts[0]) for item in items) if fits else text
    if annotation is bool:
        return {**dict.fromkeys(TRUE, True), **dict.fromkeys(FALSE, False)}.get(text.lower(), text)
    try:
        if origin is dict:
            return json_text.parse(text, parse_constant=int)  # int refuses NaN and Infinity, which JSON lacks
        return annotation(text) if annotation in (int, float) else text
    except ValueError:
        return text


def checked_value(value: Any, annotation: Any, name: str) -> Any:
    """A value as a field of this type holds it (`excb.options.converted`); a dictionary as JSON gives it back.

    Raises:
        UserError: it is of another type; the message names one that is not.
    """
    return _check_json(value, name) if typing.get_origin(annotation) is dict else converted(name, value, annotation)


def _check_json(value: Any, name: str) -> dict[str, Any]:
    """A JSON object as the recipe's file gives it back: tuples become lists."""
    message = f"{name} takes a JSON object such as '{{\"depth\": 6}}', not {value!r}"
    require(isinstance(value, Mapping), message)
    try:
        plain: dict[str, Any] = json_text.parse(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError):
        raise UserError(message) from None
    return plain
