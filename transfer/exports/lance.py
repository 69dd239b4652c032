"""Embeddings as a Lance data set, which LanceDB opens as a table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from excb.errors import UserError, require

from .exported_images import ExportedImages


def write_lance(images: ExportedImages, place: Path) -> Path:
    """Write FOLDER.lance with the columns `path`, `vector` (a fixed-size list of float32) and `label`.

    LanceDB opens it as the table FOLDER of the folder that it is in.

    Raises:
        UserError: pylance is not installed, the name ends otherwise, or the place is taken or cannot be written.
    """
    require(place.suffix == ".lance", f"{place}: Lance data sets are folders that end in .lance")
    require(not place.exists(), f"{place} exists: name another place, or remove it")
    try:
        import lance
        import pyarrow
    except ImportError:
        raise UserError("Lance needs pylance: run `pip install 'excb[lance]'`") from None
    fields = [("path", pyarrow.string()), ("vector", pyarrow.list_(pyarrow.float32(), images.rows.width))]
    schema = pyarrow.schema([*fields, ("label", pyarrow.string())], metadata={"excb": images.model})
    try:
        lance.write_dataset(_batches(images, schema), str(place), schema=schema)
    except OSError as error:
        raise UserError(f"cannot write {place}: {error}") from None
    return place


def _batches(images: ExportedImages, schema: Any) -> Iterator[Any]:
    import pyarrow

    for numbers, vectors in images.parts():
        flat = pyarrow.array(vectors.reshape(-1), pyarrow.float32())
        columns = [
            pyarrow.array([images.path(row) for row in numbers], pyarrow.string()),
            pyarrow.FixedSizeListArray.from_arrays(flat, images.rows.width),
            pyarrow.array([images.label(row) for row in numbers], pyarrow.string()),
        ]
        yield pyarrow.record_batch(columns, schema=schema)
