"""Embeddings as a table: rows that are chosen, several sets joined, and what other programs take."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from excb.console import plural
from excb.errors import UserError, require
from excb.neighbours.unit_rows import Rows

from .csv_table import columns_of
from .files import arrow_columns
from .vectors import ArrayRows, ChosenRows, Vectors

if TYPE_CHECKING:
    import pandas
    import pyarrow

_SAME = ("weights_sha256", "preprocessing", "network", "features")  # facts of networks whose vectors are comparable


def row_of(made: Vectors, key: str | int | np.integer) -> int:
    """The number of the row that a path or a number names; a negative number counts from the end.

    Raises:
        KeyError: there is no such path.
        IndexError: there is no such row.
    """
    if isinstance(key, str):
        if (row := made.numbers.get(key)) is None:
            raise KeyError(f"no image {key} below {made.root}")
        return row
    if not -len(made) <= key < len(made):
        raise IndexError(f"row {key} of {len(made):,}")
    return int(key) % len(made)


def chosen_rows(made: Vectors, key: Any) -> np.ndarray:
    """Numbers of the rows, int64 [n], that a slice, a mask [N] or a sequence of paths and numbers chooses.

    Raises:
        KeyError, IndexError: there is no such path or row, or the mask has another length.
    """
    if isinstance(key, slice):
        return np.arange(len(made))[key].astype(np.int64)
    several = np.asarray(key) if not isinstance(key, np.ndarray) else key
    if several.dtype == bool:
        if several.shape != (len(made),):
            raise IndexError(f"a mask of shape {list(several.shape)} for {plural(len(made), 'row')}")
        return np.flatnonzero(several).astype(np.int64)
    return np.array([row_of(made, each) for each in several.tolist()], np.int64)


def labels_for(made: Vectors, labels: Sequence[str | None] | Mapping[str, str | None]) -> list[str | None]:
    """A label for each image: those that are given, in order or by path.

    Raises:
        UserError: a path is none of these.
    """
    if not isinstance(labels, Mapping):
        return list(labels)
    if unknown := [path for path in labels if path not in made.numbers]:
        raise UserError(f"{plural(len(unknown), 'label')} of no image below {made.root}, such as {unknown[0]}")
    return [labels.get(path) for path in made.paths]


def subset_of(rows: Rows, numbers: np.ndarray) -> Rows:
    """Some rows in an order of their own; ascending ones are read when they are needed."""
    if len(numbers) < 2 or (np.diff(numbers) > 0).all():
        return ChosenRows(rows, numbers)
    order = np.unique(numbers)
    held = ChosenRows(rows, order).rows(0, len(order))
    return ArrayRows(held[torch.from_numpy(np.searchsorted(order, numbers))].numpy())


def joined_embeddings(several: Sequence[Vectors]) -> Vectors:
    """Several embeddings as one, in their order; paths start from the folder that holds all of their roots.

    Raises:
        UserError: there are none, other networks made them, or an image is in two of them.
    """
    require(bool(several), "there is nothing to concatenate: pass one or several embeddings")
    first = several[0]
    for other in several[1:]:
        if unlike := [name for name in _SAME if first.model.get(name) != other.model.get(name)]:
            raise UserError(
                f"vectors of {first.root} and of {other.root} were made in different ways ({', '.join(unlike)}): embed "
                "both with the same network"
            )
    roots = [each.root for each in several]
    if len(set(roots)) == 1:
        root, paths = first.root, [path for each in several for path in each.paths]
    else:
        try:
            root = os.path.commonpath([Path(each).absolute() for each in roots])
        except ValueError:  # of several disks
            root = ""
        starts = [os.path.relpath(each, root) if root else each for each in roots]
        paths = [
            path if start == os.curdir else f"{Path(start).as_posix()}/{path}"
            for start, each in zip(starts, several, strict=True)
            for path in each.paths
        ]
    again, times = Counter(paths).most_common(1)[0] if paths else ("", 1)
    require(times == 1, f"{again} is in two of these embeddings: leave it out of one")
    unreadable = {path: why for each in several for path, why in each.unreadable.items()}
    ledger = sum((each.ledger for each in several[1:]), first.ledger)
    labels = [label for each in several for label in each.labels or [None] * len(each)]
    return Vectors(JoinedRows([each.rows for each in several]), paths, root, first.model, unreadable, ledger, labels)


class JoinedRows:
    """Rows of several sources, one after the other."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *map(len, parts)])

    @property
    def width(self) -> int:
        """D."""
        return self._parts[0].width

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Rows [stop - start, D]."""
        stop = min(stop, len(self))
        pieces = [
            part.rows(max(0, start - first), min(len(part), stop - first))
            for first, part in zip(self._starts.tolist(), self._parts, strict=False)
            if start < first + len(part) and first < stop
        ]
        return torch.cat(pieces) if pieces else torch.empty(0, self.width)


def to_pandas(made: Vectors, vectors: np.ndarray) -> "pandas.DataFrame":
    """A data frame with a row for each image: its path as the index, its label where there are some, and v0, v1, ...

    Raises:
        UserError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UserError("to_pandas needs pandas: pip install pandas") from None
    index = pandas.Index(list(made.paths), name="path")
    frame = pandas.DataFrame(vectors, index=index, columns=columns_of(made.rows.width))
    if made.labels is not None:
        frame.insert(0, "label", list(made.labels))
    return frame


def to_arrow(made: Vectors, vectors: np.ndarray) -> "pyarrow.Table":
    """A table of Arrow with the columns `path`, `label` where there are some, and `vector`, a list of float32.

    Raises:
        UserError: pyarrow is not installed.
    """
    columns = arrow_columns(made.paths, vectors, made.labels)
    import pyarrow

    return pyarrow.table(columns)
