"""Queries, references and a list of the pairs that are copies, as DISC21 (Image Similarity Challenge 2021) has it."""

import io
from pathlib import Path

import numpy as np

from excb.errors import UserError
from excb.files.csv_text import read_listing, read_rows
from excb.images.formats.known import EXTENSIONS
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder

from .instance_set import InstanceLayout, InstanceSet, Truth

QUERIES, REFERENCES, PAIRS = "queries", "references", "ground_truth.csv"
HEADER = ["query_id", "reference_id"]


def _open(root: Path, named: Path | None) -> InstanceSet:
    file = named or root / PAIRS
    queries, gallery = (scan_folder(root / folder) for folder in (QUERIES, REFERENCES))
    numbers, places = _by_name(queries), _by_name(gallery)
    pairs: dict[int, set[int]] = {}
    for line, query, reference in _rows(file):
        for name, known, folder in ((query, numbers, QUERIES), (reference, places, REFERENCES)):
            if name and name not in known:
                raise UserError(f"{file}, line {line}: no image {name} in {root / folder}")
        if reference:  # DISC21 lists queries without a match, too
            pairs.setdefault(numbers[query], set()).add(places[reference])
    if not pairs:
        raise UserError(f"{file} has no pair: write a line QUERY,REFERENCE with the names of both files")
    truth = [Truth(np.array(sorted(pairs.get(query, ())), np.int64)) for query in range(len(queries))]
    groups = [path.partition("/")[0] if "/" in path else QUERIES for path in queries.paths]  # queries/crop/1.jpg
    return InstanceSet("copies", queries, gallery, {"": truth}, groups)


def _by_name(images: ImageSet) -> dict[str, int]:
    """Every image by its file's name without the ending. Raises UserError if two have the same."""
    numbers: dict[str, int] = {}
    for index, path in enumerate(images.paths):
        name = Path(path).stem
        if name in numbers:
            raise UserError(f"{images.root} has two images called {name}: names must differ, for the ground truth")
        numbers[name] = index
    return numbers


def _rows(file: Path) -> list[tuple[int, str, str]]:
    """Line number, query and reference of every row; the reference may be empty."""
    try:
        lines = read_rows(io.StringIO(read_listing(file)))
        rows = [(number, [cell.strip() for cell in row]) for number, row in enumerate(lines, 1) if row]
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read the pairs {file} ({error}): name the file of lines QUERY,REFERENCE with --ground-truth"
        ) from None
    rows = [row for row in rows if row[1] != HEADER]
    for number, cells in rows:
        if len(cells) != 2 or not cells[0]:
            raise UserError(f"{file}, line {number}: expected QUERY,REFERENCE and not {','.join(cells)[:80]}")
    return [(number, _name(query), _name(reference)) for number, (query, reference) in rows]


def _name(text: str) -> str:
    """A file's name without its ending, which names of images may lack."""
    return Path(text).stem if text.lower().endswith(EXTENSIONS) else text


LAYOUT = InstanceLayout(
    name="pairs",
    title="queries/, references/ and ground_truth.csv, as DISC21",
    matches=lambda root: (root / QUERIES).is_dir() and (root / REFERENCES).is_dir(),
    open=_open,
)
