"""Texts by hand and files in the zoo's folder: overrides, catalogues, claims, records of hashes, names."""

import json
import tomllib
from functools import cache, partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import excb
from excb.files import toml
from excb.hub import catalogue
from excb.hub.catalogue import Checkpoint
from excb.pretrain import overrides
from excb.pretrain.__main__ import main as pretrain
from excb.pretrain.recipes import RECIPES
from excb.pretrain.study import studies
from excb.remote import home
from excb.transfer.cli import main as transfer
from excb.transfer.published.registry import claims
from excb.zoo.__main__ import main as zoo
from tests.fuzz import hostile
from tests.fuzz.guard import Guard
from tests.fuzz.lane import fuzz

KIND = "configs"
FIELDS = overrides.field_names(RECIPES["quickstart"]())


# ---------------------------------------------------------------------------------------------------------------------
# The command line
# ---------------------------------------------------------------------------------------------------------------------

VALUES = (
    *(
        "",
        "none",
        "true",
        "0",
        "-1",
        "1e400",
        "nan",
        "inf",
        "1_000",
        "٣",
        "9" * 5000,
        "0x10",
        "1,2",
        "1,2,3",
        "(0.2, 1)",
    ),
    *(
        "{}",
        '{"depth": 1e999}',
        '{"a": NaN}',
        "[1]",
        '{"pretrained": true}',
        "{" * 9000,
        '{"a":' * 9000,
        "0.5,nan",
        "-0",
    ),
)
values = st.one_of(st.sampled_from(VALUES), hostile.names, hostile.numbers.map(str), st.text(max_size=8))
assignments = st.tuples(st.one_of(st.sampled_from(FIELDS), st.sampled_from(FIELDS), hostile.names), values).map(
    "=".join
)
words = st.one_of(assignments, assignments, assignments, hostile.names)


def arguments(drawn: list[str]) -> list[str]:
    """Words that a command line can hold: no system passes a zero byte on."""
    return [word.replace("\0", "0") for word in drawn]


@fuzz(KIND, inputs=120, recipe=st.sampled_from(sorted(RECIPES)), drawn=st.lists(words, min_size=1, max_size=3))
def test_overrides(guard: Guard, recipe: str, drawn: list[str]) -> None:
    guard.command(pretrain, "show", recipe, *arguments(drawn))
    found = guard.run(lambda: overrides.apply(RECIPES[recipe](), drawn))
    if found is not None:
        assert json.loads(json.dumps(found.to_dict())) == found.to_dict()


COMMANDS = (
    *(
        (pretrain, "show"),
        (pretrain, "plan"),
        (pretrain, "doctor"),
        (pretrain, "draw"),
        (pretrain, "study"),
        (pretrain, "list"),
    ),
    *((zoo, "show"), (zoo, "verify"), (zoo, "import"), (zoo, "export"), (zoo, "card"), (zoo, "pull"), (zoo, "list")),
    *(
        (transfer, "compare"),
        (transfer, "leaderboard"),
        (transfer, "reproduce"),
        (transfer, "cache"),
        (transfer, "knn"),
    ),
)
OPTIONS = (
    *(
        "--json",
        "--out",
        "--data",
        "--name",
        "--arch",
        "--layout",
        "--network",
        "--results",
        "--claims",
        "--list",
        "--seed",
    ),
    *(
        "--ckpt",
        "--train",
        "--test",
        "--k",
        "--cache",
        "--markdown",
        "--method",
        "--arch-option",
        "--submit",
        "--check",
    ),
    *(
        "--gpus",
        "--percent",
        "--figure",
        "--format",
        "--allow-global",
        "--cells",
        "--seeds",
        "--dry-run",
        "statistics",
        "tsne",
    ),
)


@fuzz(
    KIND,
    inputs=120,
    command=st.sampled_from(range(len(COMMANDS))),
    drawn=st.lists(st.one_of(st.sampled_from(OPTIONS), hostile.names, values), max_size=5),
)
def test_command_lines(guard: Guard, command: int, drawn: list[str]) -> None:
    """Any words after a command: nothing hangs, nothing is written but where `--out` says, and that is watched."""
    program, name = COMMANDS[command]
    # A place that may be written is one in the input's own folder; help ends by itself.
    place = str(guard.folder / "out")
    given = [
        place if before in ("--out", "--submit", "--cache") else word
        for before, word in zip(["", *drawn], drawn, strict=False)
    ]
    given = [word for word in arguments(given) if not word.startswith(("-h", "--h", "--v"))]
    with_folder(guard, lambda: guard.command(program, name, *given))


def with_folder(guard: Guard, call: Any) -> None:
    """Call from the input's folder, below which relative places then lie."""
    import contextlib

    with contextlib.chdir(guard.folder):
        call()


# ---------------------------------------------------------------------------------------------------------------------
# Catalogues
# ---------------------------------------------------------------------------------------------------------------------


@cache
def rows() -> tuple[dict[str, Any], ...]:
    """Rows of the built-in catalogue, as the tables of a user's."""
    found = [row for row in catalogue.checkpoints(Path("nowhere")) if row.locations][:4]
    return tuple({"aliases": ["short"], "epochs": 3} | row.to_dict() for row in found)


@st.composite
def catalogues(draw: st.DrawFn) -> bytes:
    """A catalogue's text: rows changed, under names of all kinds, and the text damaged now and then."""
    tables: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        row = draw(hostile.changed(draw(st.sampled_from(rows())), most=2))
        if not isinstance(row, dict):
            continue
        name = draw(st.one_of(hostile.names, st.just("mine")))
        try:
            tables.append(toml.toml_table(name, {key: value for key, value in row.items() if key != "name"}))
        except (excb.errors.UserError, AttributeError, TypeError, ValueError):  # no TOML holds it
            tables.append(f"[mine]\nmethod = {draw(st.text(max_size=20))}\n")
    text = "\n".join(tables).encode("utf-8", "surrogatepass")
    match draw(st.integers(0, 9)):
        case 0:
            return draw(hostile.damaged(text))
        case 1:
            return text + b"\na = " + b"[" * draw(st.sampled_from((10, 3000, 100_000)))
        case 2:
            return text + b"\n[" + b".".join([b"a"] * draw(st.sampled_from((10, 3000, 10_000)))) + b"]\nb = 1\n"
    return text


@fuzz("catalogues", inputs=25, text=catalogues(), name=hostile.names)
def test_catalogues(guard: Guard, text: bytes, name: str) -> None:
    place = home.home()
    place.mkdir()
    (place / catalogue.USERS).write_bytes(text)
    found = guard.run(excb.checkpoints) or []
    guard.run(catalogue.damaged)
    guard.command(zoo, "list")
    guard.command(zoo, "list", "--json")
    for row in found:
        if row not in catalogue.checkpoints(Path("nowhere")):
            guard.run(partial(home.folder_of, row.name))
            guard.run(partial(catalogue.add, row, place / "copy.toml"))
            guard.run(partial(excb.load, row.name))
            guard.command(zoo, "show", row.name)


@fuzz("catalogues", inputs=60, values=st.sampled_from((0, 1, 2, 3)).flatmap(lambda n: hostile.changed(rows()[n])))
def test_rows_as_json(guard: Guard, values: Any) -> None:
    """A row as the block of an exported folder has it."""
    row = guard.run(lambda: Checkpoint.from_dict(values) if isinstance(values, dict) else None)
    if row is not None:
        again = tomllib.loads(guard.run(lambda: catalogue.to_toml(row)) or "")
        assert not again or list(again) == [row.name]


@fuzz(
    "catalogues",
    inputs=40,
    text=hostile.json_text({"https://a/b": {"sha256": "0" * 64, "size": 3}, "c": {"sha256": "1"}}),
)
def test_records_of_hashes(guard: Guard, text: bytes) -> None:
    place = home.home()
    place.mkdir()
    (place / home.HASHES).write_bytes(text)
    guard.run(lambda: home.recorded("https://a/b"))
    guard.run(lambda: home.record_hash("https://a/c", "2" * 64, 5))


@fuzz(
    "catalogues",
    inputs=60,
    name=hostile.names,
    prefix=st.sampled_from(("", "hf-hub:", "https://", "http://", "timm:", "./")),
)
def test_names_to_load(guard: Guard, name: str, prefix: str) -> None:
    """Without a network: conftest forbids it, and the guard would see it."""
    with_folder(guard, lambda: guard.run(lambda: excb.load(f"{prefix}{name}")))
    guard.run(lambda: home.folder_of(name))


# ---------------------------------------------------------------------------------------------------------------------
# Claims
# ---------------------------------------------------------------------------------------------------------------------

CLAIMS: dict[str, Any] = {
    "protocols": {
        "p": {
            "command": "knn",
            "options": {"k": [20], "temperature": [0.07]},
            "metrics": ["knn_top1"],
            "spread": 0.1,
            "source": "words",
            "tables": ["mytable"],
            "architectures": ["resnet50"],
        }
    },
    "data": {"photos": {"title": "Photos", "classes": 3, "test": 5}},
    "recipes": {"mine": "quickstart run.seed=1"},
    "mytable": {
        "title": "A table",
        "columns": ["row", "checkpoint", "knn_top1"],
        "rows": [["first", "mine", "45.1"], ["second", "rn50_400ep", "-"]],
        "method": "ExCB",
        "architecture": "resnet50",
        "data": "photos",
        "source": "paper",
        "notes": {"first": "a note"},
    },
}


@fuzz(
    "claims",
    inputs=40,
    values=hostile.changed(CLAIMS),
    flip=st.integers(0, 4000),
    what=st.sampled_from(("", "mine", "mytable")),
)
def test_claims(guard: Guard, values: Any, flip: int, what: str) -> None:
    text = as_toml(values)
    if flip < len(text):
        text = text[:flip] + bytes((text[flip] ^ 1,)) + text[flip + 1 :]
    file = guard.folder / "claims.toml"
    file.write_bytes(text)
    guard.run(lambda: claims([file]))
    guard.command(transfer, "leaderboard", "--claims", str(file), "--out", str(guard.folder / "board"))
    guard.command(transfer, "reproduce", "--list", "--claims", str(file))
    guard.command(transfer, "reproduce", *([what] if what else []), "--claims", str(file), "--data", str(guard.folder))


def as_toml(values: Any) -> bytes:
    """Values as TOML, without what it cannot hold."""
    if not isinstance(values, dict):
        return repr(values).encode("utf-8", "surrogatepass")
    lines: list[str] = []
    for name, table in values.items():
        groups = table if name in ("protocols", "data") and isinstance(table, dict) else {"": table}
        for inner, fields in groups.items():
            try:
                lines.append(toml.toml_table(str(name), {str(inner): fields} if inner else fields))
            except (excb.errors.UserError, AttributeError, TypeError, ValueError):
                lines.append(f"{json.dumps(str(name))} = 1")
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@fuzz(KIND, inputs=20, names=st.lists(hostile.names, min_size=1, max_size=2))
def test_studies(guard: Guard, names: list[str]) -> None:
    guard.command(pretrain, "study", *arguments(names), "--dry-run")
    assert studies.STUDIES
