"""`section.field=value` on the command line: typed, checked, and refused with the nearest valid name."""

import dataclasses
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from excb.errors import UserError, nearest_name, require
from excb.files import json_text
from excb.networks.architecture import known_options
from excb.options import field_types

from .recipe import Recipe
from .recipes import ALIASES, RECIPES

NO_SECTIONS = ("name", "init", "adopts")  # fields of a recipe that are values themselves
# What a run takes from the checkpoint of `init` unless the command line says otherwise.
ADOPTED = (
    *("model.backbone", "model.options", "model.position_interpolation"),
    *("views.global_size", "views.local_size", "views.eval_resize", "views.eval_crop", "views.mean", "views.std"),
)
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")


def find_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        UserError: there is no such recipe.
    """
    name = ALIASES.get(name, name)
    if name not in RECIPES:
        raise UserError(f"no recipe is called {name!r}{nearest_name(name, RECIPES)} (`excb-pretrain list` shows all)")
    return RECIPES[name]()


def field_names(recipe: Recipe) -> list[str]:
    """Every field that can be overridden, as section.field."""
    sections = [field.name for field in dataclasses.fields(recipe) if field.name not in NO_SECTIONS]
    return ["init"] + [f"{s}.{field.name}" for s in sections for field in dataclasses.fields(getattr(recipe, s))]


def apply(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """A copy of the recipe with the overrides, each "section.field=value" (or "init=PATH").

    Another backbone keeps those of the recipe's options of the network that it takes.
    With `init` and without a backbone of one's own, the checkpoint decides the architecture and the sizes that are not
    named: they are in `Recipe.adopts`.

    Raises:
        UserError: an unknown field, a value of the wrong type or out of range.
    """
    changes: dict[str, dict[str, Any]] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise UserError(f"{override!r} is not an override: write section.field=value, such as optim.epochs=100")
        if name not in field_names(recipe):
            # People remember the last part only: `epochs` is optim.epochs.
            matches = [valid for valid in field_names(recipe) if valid.split(".")[-1] == name.split(".")[-1]]
            hint = f"; did you mean '{matches[0]}'?" if matches else nearest_name(name, field_names(recipe))
            raise UserError(f"no field is called {name!r}{hint} (`excb-pretrain show {recipe.name}` lists all)")
        if name == "init":
            require(text.strip() != "", "init= is empty: name a run, or none for none (is a shell variable unset?)")
            init = None if text.lower() == "none" else text
            recipe = replace(recipe, init=init, adopts=ADOPTED if init else ())
            continue
        section, field = name.split(".")
        annotation = field_types(type(getattr(recipe, section)))[field]
        changes.setdefault(section, {})[field] = parse(text, annotation, name)
    named = {f"{section}.{field}" for section, values in changes.items() for field in values}
    own = named & {"model.backbone", "model.options"}
    if own == {"model.backbone"} and changes["model"]["backbone"] != recipe.model.backbone:
        known = known_options(changes["model"]["backbone"])
        changes["model"]["options"] = {name: value for name, value in recipe.model.options.items() if name in known}
    adopts = tuple(name for name in recipe.adopts if not own and name not in named)
    return replace(recipe, adopts=adopts).change(**changes)


def parse(text: str, annotation: Any, name: str) -> Any:
    """Read a value of a field's type from text.

    Raises:
        UserError: the text is not such a value; the message shows one that is.
    """
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        if text.lower() in ("", "none"):
            return None
        return parse(text, next(part for part in parts if part is not type(None)), name)
    if origin is tuple and parts[-1] is Ellipsis:
        items = [] if text.lower() in ("", "none") else text.split(",")
        return tuple(parse(item.strip(), parts[0], name) for item in items)
    if origin is tuple:
        items = text.strip("()[] ").split(",")
        require(len(items) == len(parts), f"{name} takes {len(parts)} numbers separated by commas, not {text!r}")
        return tuple(parse(item.strip(), part, name) for item, part in zip(items, parts, strict=True))
    if origin is Literal:
        hint = nearest_name(text, parts)
        require(text in parts, f"{name} must be one of {', '.join(parts)}, not {text!r}{hint}")
        return text
    return _parse_json(text, name) if origin is dict else _parse_scalar(text, annotation, name)


def _parse_scalar(text: str, kind: type[int] | type[float] | type[str], name: str) -> bool | float | str:
    if kind is bool:
        require(text.lower() in TRUE + FALSE, f"{name} is true or false, not {text!r}")
        return text.lower() in TRUE
    kinds = {int: "a whole number", float: "a number", str: "text"}
    try:
        value = kind(text)
    except ValueError:
        raise UserError(f"{name} takes {kinds[kind]}, not {text!r}") from None
    require(not isinstance(value, float) or math.isfinite(value), f"{name} takes a finite number, not {text!r}")
    return value


def _parse_json(text: str, name: str) -> dict[str, Any]:
    try:
        value = json_text.parse(text, parse_constant=int)  # int refuses NaN and Infinity, which JSON lacks
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{name} takes a JSON object such as '{{\"depth\": 6}}', not {text!r}")
    return value


def from_dict(values: dict[str, Any]) -> Recipe:
    """The inverse of `Recipe.to_dict`. Fields unknown to this version are refused.

    Raises:
        UserError: the values are not a recipe of this version.
    """
    sections: dict[str, Any] = {}
    try:
        stored = [field for field in dataclasses.fields(Recipe) if field.name != "adopts"]
        if unknown := values.keys() - {field.name for field in stored}:
            raise KeyError(*sorted(unknown))
        for field in stored:
            # Sections that earlier versions lacked: off by default.
            value = values.get(field.name, {}) if field.name in ("adapt", "distil") else values[field.name]
            kind: Any = typing.get_type_hints(Recipe)[field.name]
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                fields = {n: tuple(v) if isinstance(v, list) else v for n, v in value.items()}
                if fields.get("objective") == "flex":  # a loss backend until 0.1; it changed speed only
                    fields["objective"] = "auto"
                value = kind(**fields)
            sections[field.name] = value
        return Recipe(**sections)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"this recipe was written by another version of excb ({error})") from None
