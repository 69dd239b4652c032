"""Embeddings as a collection of Qdrant, on a server, or in a folder in its local mode."""

import os
from pathlib import Path
from typing import Any

from excb.errors import UserError

from .exported_images import ExportedImages


def write_qdrant(images: ExportedImages, client: Any, collection: str) -> int:
    """Fill a new collection: a point for every image, its row as id, cosine distance, and `path`, `root`, `label`.

    Args:
        images: to hand over.
        client: a `qdrant_client.QdrantClient`; or a folder, in which Qdrant's local mode keeps the collection.
        collection: its name.

    Returns:
        The number of points.

    Raises:
        UserError: qdrant-client is not installed, there is such a collection already, or it cannot be written.
    """
    try:
        from qdrant_client import QdrantClient
    except ImportError:
        raise UserError("Qdrant needs its client: run `pip install 'excb[qdrant]'`") from None
    if not isinstance(client, str | os.PathLike):
        return _fill(images, client, collection)
    try:
        opened = QdrantClient(path=os.fspath(Path(client)))
    except (OSError, RuntimeError, ValueError) as error:  # taken by another client, or a file
        raise UserError(f"cannot open Qdrant in {client}: {error}") from None
    try:
        return _fill(images, opened, collection)
    finally:
        opened.close()


def _fill(images: ExportedImages, client: Any, collection: str) -> int:
    from qdrant_client.models import Distance, PointStruct, VectorParams

    if client.collection_exists(collection):
        raise UserError(f"Qdrant has a collection {collection} already: name another, or delete it")
    client.create_collection(collection, vectors_config=VectorParams(size=images.rows.width, distance=Distance.COSINE))
    for numbers, vectors in images.parts():
        points = [
            PointStruct(id=row, vector=vector.tolist(), payload=_payload(images, row))
            for row, vector in zip(numbers, vectors, strict=True)
        ]
        client.upload_points(collection, points, wait=True)
    return len(images)


def _payload(images: ExportedImages, row: int) -> dict[str, str]:
    label = images.label(row)
    return {"path": images.path(row), "root": images.root} | ({} if label is None else {"label": label})
