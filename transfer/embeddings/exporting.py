"""Embeddings for other programs: a FAISS index, and as maps and exports take them, with their labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from excb.console import plural
from excb.errors import UserError, require
from excb.files import json_text
from excb.files.atomic import new_file, read_again
from excb.files.foreign import parsing
from excb.neighbours.backends import import_faiss

from ..exports.exported_images import ExportedImages
from .table.vectors import Vectors

Labels = Sequence[Any] | Mapping[str, Any]  # one per image in their order, or by path; None without


def exported(made: Vectors, labels: Labels | None = None) -> ExportedImages:
    """Embeddings to hand over. Raises UserError if there are other labels than images."""
    return ExportedImages(
        made.rows, made.paths, made.root, labels_or_folders(made, labels), str(made.model.get("name"))
    )


def labels_or_folders(made: Vectors, labels: Labels | None = None) -> list[str | None] | None:
    """The label of every image: given, or its own, or its class folder; None where no image has any.

    Raises:
        UserError: there are other labels than images.
    """
    given = made.labels if labels is None else labels
    if isinstance(given, Mapping):
        given = [given.get(path) for path in made.paths]
    if given is not None:
        require(
            len(given) == len(made),
            f"{plural(len(given), 'label')} for {plural(len(made), 'image')}: pass one for each, or a mapping from "
            "paths to labels",
        )
        if any(label is not None for label in given):
            return [None if label is None else str(label) for label in given]
    return _class_folders(made.paths)


def _class_folders(paths: Sequence[str]) -> list[str | None] | None:
    """The first folder of every path, where each has one and there are at least two; else None."""
    tops = list[str | None](path.split("/", 1)[0] for path in paths)
    return tops if len(set(tops)) > 1 and all("/" in path for path in paths) else None


def write_index(made: Vectors, file: Path) -> list[Path]:
    """Write an exact index of unit vectors: its inner products are cosines, and its numbers are rows of the paths.

    FAISS holds the whole index in memory while it is made, N x D x 4 bytes.

    Returns:
        The index, and FILE.json with "paths", "root" and "model".

    Raises:
        UserError: FAISS is not installed, or a file cannot be written.
    """
    require_faiss()
    faiss = import_faiss()
    index = faiss.IndexFlatIP(made.rows.width)
    for part in made.parts():
        unit = torch.nn.functional.normalize(torch.from_numpy(part).double(), dim=1)
        index.add(np.ascontiguousarray(unit.float().numpy()))
    with new_file(file, advice="name another file") as temporary:
        faiss.write_index(index, str(temporary))
        with read_again(file):
            _check_index(temporary, index)
    names = names_beside(file)
    json_text.write_json(made.describe() | {"paths": list(made.paths)}, names, indent=1)
    return [file, names]


def names_beside(index: Path) -> Path:
    """FILE.json of an index, with the paths of its rows."""
    return index.with_name(f"{index.name}.json")


def _check_index(file: Path, index: Any) -> None:
    """Raise ValueError unless a file holds as many vectors of the same width, the first and the last being the same."""
    faiss = import_faiss()
    with parsing():
        read = faiss.read_index(str(file), faiss.IO_FLAG_MMAP)  # the vectors stay on the disk
        if (read.ntotal, read.d, read.metric_type) != (index.ntotal, index.d, index.metric_type):
            raise ValueError("other vectors")
        for row in {0, index.ntotal - 1} if index.ntotal else ():
            if not np.array_equal(read.reconstruct(row), index.reconstruct(row)):
                raise ValueError("other vectors")


def require_faiss() -> None:
    """Raise UserError unless FAISS is installed."""
    try:
        import_faiss()
    except ImportError:
        raise UserError("an index needs FAISS: run `pip install 'excb[faiss-cpu]'`, or leave --index out") from None
