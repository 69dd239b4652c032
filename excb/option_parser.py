"""Options dataclasses at the edge: a command line's arguments made of their fields, and read back into them."""

import argparse
import dataclasses
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from excb.cli import Parser
from excb.errors import UserError, nearest_name, require
from excb.options import REQUIRED, converted, field_types

O = TypeVar("O")  # noqa: E741 - a dataclass whose fields are made by `excb.options.option`


def add_option_fields(parser: argparse.ArgumentParser, options: type[Any]) -> None:
    """Add an argument for every field, in the groups that the fields name."""
    annotations, groups = field_types(options), dict[str, Any]()
    for field in dataclasses.fields(options):
        shell = field.metadata["shell"]
        if shell.get("hidden"):
            continue
        title = shell.get("group", "")
        if title not in groups:
            groups[title] = parser.add_argument_group(title) if title else parser
        _add(groups[title], field, annotations[field.name])


def _add(group: Any, field: "dataclasses.Field[Any]", annotation: Any) -> None:
    shell, doc = field.metadata["shell"], field.metadata["doc"]
    default = None if field.default is REQUIRED else field.default
    how: dict[str, Any] = {"help": doc, "default": list(default) if isinstance(default, tuple) else default}
    if "metavar" in shell:
        how["metavar"] = shell["metavar"]
    kind = _without_none(annotation)
    if shell.get("positional"):
        group.add_argument(field.name, **(_kind(kind) | shell.get("words", {})), **how)
        return
    if kind is bool:
        group.add_argument(flag_of(field), dest=field.name, action="store_true", default=how["default"], help=doc)
        if off := shell.get("off"):
            name, off_help = off
            group.add_argument(
                f"--{name}", dest=field.name, action="store_false", default=how["default"], help=off_help
            )
        return
    if field.default is REQUIRED:
        how["required"] = True
    group.add_argument(flag_of(field), dest=field.name, **(_kind(kind) | shell.get("words", {})), **how)


def flag_of(field: "dataclasses.Field[Any]") -> str:
    """The option of a field on a command line, such as --batch-size."""
    return f"--{field.metadata['shell'].get('flag', field.name.replace('_', '-'))}"


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (types.UnionType, typing.Union):
        parts = tuple(part for part in get_args(annotation) if part is not type(None))
        return parts[0] if len(parts) == 1 else parts
    return annotation


def _kind(kind: Any) -> dict[str, Any]:
    """The arguments of `add_argument` for a type."""
    if isinstance(kind, tuple):  # a number, or one of some words
        return {"type": _number_or(tuple(word for part in kind for word in _choices(part)))}
    origin: Any = get_origin(kind)
    parts = get_args(kind)
    if words := _choices(kind):
        return {"choices": words, "type": type(words[0])}
    if origin is tuple:
        return {"nargs": "+" if parts[-1] is Ellipsis else len(parts)} | _kind(_without_none(parts[0]))
    if origin is not None and issubclass(origin, Mapping):
        return {"action": _Pairs}
    return {} if kind in (str, Any) else {"type": kind}


def _choices(kind: Any) -> tuple[Any, ...]:
    origin: Any = get_origin(kind)
    return get_args(kind) if origin is Literal else ()


def _number_or(words: tuple[str, ...]) -> Any:
    def read(text: str) -> int | str:
        if text in words:
            return text
        if text.isdecimal():
            return int(text)
        raise argparse.ArgumentTypeError(f"takes a number, or {' or '.join(words)}, not {text!r}")

    return read


class _Pairs(argparse.Action):
    """NAME=VALUE, repeatable, as a dictionary. The option's `type` may read a pair, such as ("batch", 4)."""

    def __call__(
        self, _parser: Any, namespace: argparse.Namespace, text: Any, option_string: str | None = None
    ) -> None:
        if isinstance(text, tuple):
            name, value = text
        else:
            name, equals, value = text.partition("=")
            if not name or not equals:
                raise UserError.on_all_ranks(f"{option_string} {text}: write {self.metavar}")
        setattr(namespace, self.dest, {**dict(getattr(namespace, self.dest) or {}), name: value})


def given_flags(options: Any, *names: str) -> list[str]:
    """The flags of those options that differ from their defaults."""
    every = {field.name: field for field in dataclasses.fields(options)}
    return [flag_of(every[name]) for name in names if getattr(options, name) != every[name].default]


def require_use(options: Any, *names: str, used: bool, why: str) -> None:
    """Raise UserError where one of these options is given though it has no use: "--k is of queries ..., leave it out".

    Args:
        options: the dataclass with its values.
        names: of fields.
        used: whether they have a use.
        why: what they are of, and what is missing.
    """
    given = given_flags(options, *names)
    require(used or not given, f"{' '.join(given[:1])} {why}: leave it out")


def of_words(options: type[O], words: Sequence[str], *, program: str) -> O:
    """The options that the words of a command line set.

    Args:
        options: the dataclass.
        words: without the program.
        program: for messages.

    Raises:
        UserError: the words are none of its options, or one without a default is missing.
    """
    parser = Parser(prog=program, allow_abbrev=False)
    parser.helps = False
    add_option_fields(parser, options)
    return of_arguments(options, parser.parse_args(words))


def of_arguments(options: type[O], args: argparse.Namespace) -> O:
    """The options that a command line has; lists become tuples."""
    fields = dataclasses.fields(options)  # type: ignore[arg-type]
    values = {field.name: getattr(args, field.name) for field in fields if hasattr(args, field.name)}
    return options(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def of_values(
    options: type[O],
    values: Mapping[str, Any],
    *,
    owner: str,
    refused: Mapping[str, str] | None = None,
    others: Collection[str] = (),
) -> O:
    """The options that Python code gives by name; None leaves an option at its default.

    Args:
        options: the dataclass.
        values: by the names of its fields, or of their flags with _ for -.
        owner: whose options they are, for messages.
        refused: names of what only a command line has, and what to do instead.
        others: names of options that are given elsewhere, for hints.

    Raises:
        UserError: there is no such option, it does not take this value, or one without a default is missing.
    """
    fields, annotations = {field.name: field for field in dataclasses.fields(options)}, field_types(options)  # type: ignore[arg-type]
    names = {flag_of(field).removeprefix("--").replace("-", "_"): name for name, field in fields.items()}
    given = dict[str, Any]()
    for name, value in values.items():
        if refused and name in refused:
            raise UserError(f"{name} is not an option in Python: {refused[name]}")
        if value is None and name not in {**names, **fields}:
            continue
        if (own := name if name in fields else names.get(name)) is None:
            raise UserError(f"{owner} has no option {name}{nearest_name(name, [*names, *others])}")
        if value is not None:
            given[own] = converted(name, value, annotations[own])
            # Such an option of a command line takes one value at least.
            if isinstance(given[own], tuple) and not given[own] and fields[own].default != ():
                raise UserError(f"{name} is empty: give one value at least, or leave it out")
    if missing := [name for name, field in fields.items() if field.default is REQUIRED and name not in given]:
        raise UserError(f"{owner} needs {', '.join(missing)}")
    return options(**given)


def to_words(options: Any) -> list[str]:
    """The words of a command line that set the options which differ from their defaults."""
    words = list[str]()
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value == field.default:
            continue
        flag = flag_of(field)
        if isinstance(value, bool):
            off = field.metadata["shell"].get("off")
            words.append(flag if value or off is None else f"--{off[0]}")
        elif isinstance(value, Mapping):
            words += [word for pair in value.items() for word in (flag, "=".join(map(str, pair)))]
        elif isinstance(value, tuple):
            words += [flag, *map(_text, value)]
        elif value is not None:
            words += [flag, _text(value)]
    return words


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def plain(value: Any) -> Any:
    """A field's value as JSON holds it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
