"""Embeddings as a CSV for spreadsheets and other programs: a row for each image, a column for each number."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from excb.files import json_text
from excb.files.atomic import new_file, read_again
from excb.files.csv_text import check_table, path_cell, text_cell
from excb.files.foreign import parsing, read_bytes, sha256_of

from .vectors import Vectors

SUFFIX = ".csv"
FORMAT = "excb-embeddings-csv-1"
DIGEST = "table_sha256"  # in the facts, by which a table that was changed since is known
_ADVICE = "name another file"


def facts_beside(table: Path) -> Path:
    """FILE.csv.json, which says what made the vectors of FILE.csv: readers of CSV take no such lines in it."""
    return table.with_name(f"{table.name}.json")


def read_facts(table: Path) -> dict[str, Any]:
    """The facts beside a table: "model", "root", and the table's digest.

    Raises:
        FileNotFoundError: there are none, as of earlier versions.
        OSError, ValueError and others of `npy.DAMAGE`: the file beside it is something else.
    """
    facts = json_text.parse(read_bytes(facts_beside(table)))
    return {"model": dict(facts["model"]), "root": str(facts["root"]), DIGEST: str(facts[DIGEST])}


def columns_of(width: int) -> list[str]:
    """Names of the columns of vectors: v0, v1, ..."""
    return [f"v{number}" for number in range(width)]


def paths_of(file: Path) -> Iterator[str]:
    """The cells of the paths in a table of this module.

    Raises:
        OSError: it cannot be read.
        ValueError: it is another table.
    """
    with parsing(), file.open(newline="", encoding="utf-8", errors="surrogateescape") as stream:
        rows = csv.reader(stream)
        head = next(rows, [])
        numbers = head[2:] if head[1:2] == ["label"] else head[1:]
        if head[:1] != ["path"] or not numbers or numbers != columns_of(len(numbers)):
            raise ValueError("other columns")
        yield from (row[0] for row in rows if row)


def write_csv(made: Vectors, file: Path) -> Path:
    """Write path, label if there are some, v0, v1, ..., some thousand rows at a time; it appears whole or not at all.

    FILE.csv.json beside it says what made the vectors. It is removed first and written last: after a crash in between,
    the new table must not be taken for one of the earlier network, or for a changed one.

    Raises:
        UserError: it cannot be written.
    """
    with new_file(file, advice=_ADVICE) as temporary:
        with temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream:
            csv.writer(stream).writerows(_lines(made))
        with read_again(file), temporary.open(newline="", encoding="utf-8", errors="surrogateescape") as stream:
            check_table(stream, _lines(made))
        digest = sha256_of(temporary)
        facts_beside(file).unlink(missing_ok=True)
    facts = {"format": FORMAT} | made.describe() | {DIGEST: digest}
    json_text.write_json(facts, facts_beside(file), advice=_ADVICE)
    return file


def _lines(made: Vectors) -> Iterator[list[Any]]:
    labelled = [] if made.labels is None else ["label"]
    yield ["path", *labelled, *columns_of(made.rows.width)]
    start = 0
    for part in made.parts():
        for number, row in enumerate(part, start):
            label = [] if made.labels is None else [text_cell(made.labels[number] or "")]
            yield [path_cell(made.paths[number]), *label, *(f"{value:.9g}" for value in row.tolist())]
        start += len(part)
