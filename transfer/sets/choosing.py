"""Which sets a command line means: groups and names of the catalogue, a TOML file, and --set NAME=SOURCE."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from excb.distributed.collectives import all_succeed, run_on_rank0
from excb.errors import UserError, nearest_name, require
from excb.files import toml
from excb.images.image_set import Images, with_doubts
from excb.ledger import Ledger, doubt
from excb.sources.source import Note

from ..data.classes import unknown_classes
from ..data.concerns import concerns
from ..data.multilabel import PREFIX, has_label_sets
from ..data.sources import is_named, train_and_test
from ..protocol import COUNT_AS_WRONG
from .catalogue import GROUPS, SETS, SetEntry
from .metrics import MAP, METRICS, TOP1

_NAME = re.compile(r"[\w.-]+")
TAKEN = {"all", ".", ".."}  # of a set these would be no file's name, or that of the record of finished sets
_KEYS = {"name", "data", "metric", "train", "test"}


@dataclass(frozen=True)
class OpenSet:
    """A set of which the images are there."""

    entry: SetEntry
    train: Images
    test: Images


def sets_named(words: Sequence[str], own: Mapping[str, str], only: Sequence[str] = ()) -> list[SetEntry]:
    """The sets of a command line.

    Args:
        words: names of groups or of sets, or files that end in .toml.
        own: name -> source, which is what --data of other commands takes.
        only: keeps these alone.

    Raises:
        UserError: there is no such set, or a file is wrong, or two sets have one name.
    """
    entries = [entry for word in words for entry in _named(word)] + [_own(name, source) for name, source in own.items()]
    require(bool(entries), f"name sets: {', '.join(GROUPS)}, single ones, FILE.toml, or --set NAME=DIR")
    names = [entry.name for entry in entries]
    files = [name.casefold() for name in names]
    if twice := next((name for name in names if files.count(name.casefold()) > 1), None):
        raise UserError(f"two sets are called {twice}: rename one, or name it once")
    if wrong := next((name for name in only if name not in names), None):
        raise UserError(f"--only {wrong}: no such set{nearest_name(wrong, names)} (there are {', '.join(names)})")
    return [entry for entry in entries if not only or entry.name in only]


def _named(word: str) -> Sequence[SetEntry]:
    if word.endswith(".toml"):
        return _from_file(Path(word))
    if word in GROUPS:
        return GROUPS[word]
    if word in SETS:
        return [SETS[word]]
    known = [*GROUPS, *SETS]
    raise UserError(
        f"no sets {word}{nearest_name(word, known)} (there are {', '.join(known)}; FILE.toml names your own)"
    )


def _own(name: str, source: str) -> SetEntry:
    where = f"--set {name}={source}"
    require(bool(source), f"{where}: write NAME=DIR, a name for tables and its folder or source")
    return _entry({"name": name, "data": source}, where)


def _from_file(file: Path) -> list[SetEntry]:
    """`[[set]]` tables with name and data (or train and test), and perhaps metric; paths are relative to the file."""
    try:
        tables = toml.read_toml(file).get("set")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the sets of {file}: {error}") from None
    fits = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
    require(fits and bool(tables), f"{file} needs a [[set]] with name and data for each set")
    return [_from_table(table, file) for table in tables or ()]


def _from_table(table: dict[str, Any], file: Path) -> SetEntry:
    where = f"{file}, set {table.get('name', '')!r}"
    if wrong := sorted(table.keys() - _KEYS):
        raise UserError(
            f"{where}: no key {wrong[0]}{nearest_name(wrong[0], _KEYS)} (there are {', '.join(sorted(_KEYS))})"
        )
    require(all(isinstance(value, str) for value in table.values()), f"{where}: all values are text")
    places = {key: _relative(value, file) for key, value in table.items() if key in ("data", "train", "test")}
    return _entry(table | places, where)


def _relative(text: str, file: Path) -> str:
    """A path from the file's folder; sources such as torchvision:CIFAR10 as they are, but for the folder they name."""
    prefix, colon, rest = text.partition(":")
    if is_named(text):
        return text if prefix != PREFIX else f"{prefix}{colon}{file.parent / rest}"
    return text if "://" in text else str(file.parent / text)


def _entry(table: Mapping[str, str], where: str) -> SetEntry:
    """A user's set, of which `table` names the parts."""
    name, metric = table.get("name", ""), table.get("metric", "")
    data, train, test = (table.get(key) for key in ("data", "train", "test"))
    require(_NAME.fullmatch(name) is not None, f"{where}: a set's name has letters, digits, '.', '-' and '_' only")
    require(name.casefold() not in TAKEN, f"{where}: results need the file {name}.json themselves: choose another name")
    require(not metric or metric in METRICS, f"{where}: no metric {metric}; there are {', '.join(METRICS)}")
    require(bool(data or (train and test)), f"{where}: it needs data, or train and test")

    def images(root: Path, note: Note) -> tuple[Images, Images]:
        return train_and_test(data, train, test, data_root=root, note=note)

    usual = MAP if (data or "").startswith(f"{PREFIX}:") else TOP1
    return SetEntry(name, images, data or f"{train}, {test}", METRICS[metric] if metric else usual, "", "")


def _doubts(train: Images, test: Images) -> Ledger:
    """The likely mistakes of a set, which every result of it names."""
    unknown = {name: images for name, images in unknown_classes(train, test).items() if images}
    lacks = "images of classes that train lacks"
    return concerns(train, test) + doubt(lacks, list(unknown), COUNT_AS_WRONG, of="test", count=sum(unknown.values()))


def open_sets(entries: Sequence[SetEntry], root: Path, note: Note) -> tuple[list[OpenSet], dict[str, str]]:
    """The sets whose images are there, and why the others are skipped, by name; all ranks call this.

    Args:
        entries: the sets.
        root: folder of the catalogue's sets.
        note: called with messages for the user.

    Raises:
        UserError: none is there, or a metric does not fit the labels.
    """
    found, skipped = list[OpenSet](), dict[str, str]()
    for entry in entries:
        if entry.open is None:
            skipped[entry.name] = "torchvision has no loader for it"
            continue
        try:
            train, test = all_succeed(partial(entry.open, root, note))
        except UserError as error:
            ours = entry.name in SETS and entry.source
            skipped[entry.name] = f"{error}" + (f"; it should lie in {root / entry.place}" if ours else "")
            continue
        kinds = {has_label_sets(images) for images in (train, test)}
        if kinds != {entry.metric.label_sets}:
            needed = "a set of labels for each image" if entry.metric.label_sets else "one class for each image"
            raise UserError.on_all_ranks(f"set {entry.name}: the metric {entry.metric.name} needs {needed}")
        doubts = run_on_rank0(partial(_doubts, train, test))
        found.append(OpenSet(entry, train, with_doubts(test, doubts)))
    if not found:
        lines = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise UserError.on_all_ranks(f"none of the sets is there ({lines})")
    return found, skipped
