"""Embeddings as a FAISS index, for searches by other programs."""

import json
from pathlib import Path

import numpy as np
import torch

from excb.errors import UserError
from excb.files.atomic import new_file, write_text
from excb.neighbours.backends import import_faiss

from .vectors import Vectors


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
    names = file.with_name(f"{file.name}.json")
    write_text(json.dumps(made.describe() | {"paths": list(made.paths)}, indent=1) + "\n", names)
    return [file, names]


def require_faiss() -> None:
    """Raise UserError unless FAISS is installed."""
    try:
        import_faiss()
    except ImportError:
        raise UserError("an index needs FAISS: run `pip install 'excb[faiss-cpu]'`, or leave --index out") from None
