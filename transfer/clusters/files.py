"""Assignments as files: CSV, Parquet where pyarrow is installed, and sizes read back for a comparison."""

import csv
import hashlib
import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from excb.errors import UserError
from excb.files.csv_text import check_cells, path_cell, plain_table, text_cell
from excb.files.foreign import read_bytes, read_text
from excb.images.image_set import Images
from excb.results.pictures import CLUSTERS
from excb.results.result import ResultRecord

from .assignment import NOISE, ClusterAssignment

RESULT, TABLE, PARQUET, ATLAS = CLUSTERS, "assignments.csv", "assignments.parquet", "atlas.html"
HEADER = ("path", "cluster", "similarity", "second_cluster", "margin", "label")


def has_parquet() -> bool:
    """Whether Parquet can be written."""
    return importlib.util.find_spec("pyarrow") is not None


def path_names(images: Images) -> list[str]:
    """Every image's path; bytes that are not UTF-8 become escapes."""
    return [path.encode("utf-8", "backslashreplace").decode("utf-8") for path in images.paths]


def labels_of(images: Images) -> list[str]:
    """Every image's label, empty where there are none."""
    if images.labels is None or images.classes is None:
        return [""] * len(images)
    classes = [name.encode("utf-8", "backslashreplace").decode("utf-8") for name in images.classes]
    return [classes[label] for label in images.labels.tolist()]


@dataclass(frozen=True)
class Assigned:
    """The clusters of a set's images, as `Result.predictions` shows them."""

    assignment: ClusterAssignment
    images: Images

    def columns(self, _figure: str) -> dict[str, list[Any]]:
        """The columns of the files, in the set's order; all figures come from the same assignment."""
        assignment = self.assignment
        values = (
            path_names(self.images),
            assignment.first.tolist(),
            assignment.similarity.tolist(),
            assignment.second.tolist(),
            assignment.margin.tolist(),
            labels_of(self.images),
        )
        return dict(zip(HEADER, values, strict=True))


def to_csv(assignment: ClusterAssignment, images: Images) -> bytes:
    """A row for every image, in the set's order.

    Spreadsheets cannot take a cell for a formula: a path that begins like one is written ./PATH, which is the same
    file, and such a label gets an apostrophe before it.
    """
    columns = Assigned(assignment, images).columns("")
    columns["path"] = list(map(path_cell, columns["path"]))
    for name in ("similarity", "margin"):
        columns[name] = [f"{value:.6f}" for value in columns[name]]
    columns["label"] = list(map(text_cell, columns["label"]))
    return plain_table(HEADER, zip(*columns.values(), strict=True), ends="\r\n").encode()


def to_parquet(assignment: ClusterAssignment, images: Images) -> bytes:
    """The same columns as in CSV, typed: int32 clusters, float32 similarities, and a dictionary of labels."""
    import pyarrow
    from pyarrow import parquet

    columns = (
        pyarrow.array(path_names(images)),
        pyarrow.array(assignment.first.astype(np.int32)),
        pyarrow.array(assignment.similarity),
        pyarrow.array(assignment.second.astype(np.int32)),
        pyarrow.array(assignment.margin),
        pyarrow.array(labels_of(images) if images.labels is not None else [None] * len(images), pyarrow.string()),
    )
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(zip(HEADER, columns, strict=True))), buffer)
    return buffer.getvalue()


def read_sizes(folder: Path) -> tuple[ResultRecord, np.ndarray]:
    """The result in a folder that `excb-eval clusters` wrote, and its cluster sizes [K].

    Raises:
        UserError: it is not such a folder, or an earlier version's with noise as a cluster; or the assignments are not
            those of the result.
    """
    file = folder / RESULT if folder.is_dir() else folder
    try:
        result = ResultRecord.from_json(read_text(file), source=str(file))
        if result.protocol != "clusters":
            raise UserError(f"{file} is of protocol {result.protocol}: name a folder of `excb-eval clusters --out`")
        if result.settings.get("method") == "hdbscan" and "noise_images" not in result.figures:
            raise UserError(f"{file} is of an earlier version, which counted noise as a cluster: evaluate again")
        table = file.with_name(result.predictions["file"])
        packed = read_bytes(table)
    except (OSError, KeyError) as error:
        raise UserError(
            f"cannot read the clusters in {folder} ({error}): name a folder of `excb-eval clusters --out`"
        ) from None
    if hashlib.sha256(packed).hexdigest() != result.predictions["sha256"]:
        raise UserError(f"{table} does not hold the assignments of {file} (their sha256 differ): evaluate again")
    text = packed.decode()
    check_cells(text)
    rows: Sequence[list[str]] = list(csv.reader(io.StringIO(text, newline="")))[1:]
    inside = [number for row in rows if (number := int(row[1])) != NOISE]
    return result, np.bincount(inside, minlength=int(result.settings["clusters"]))
