"""Embeddings in a notebook: how many, of which network, a few thumbnails, and what was left out."""

from pathlib import Path

from excb.console import plural
from excb.images.picture import as_channels
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.pages.frame import render_fragment
from excb.pages.gallery import Picture

from .table.vectors import Vectors

THUMBNAILS = 8  # evenly spaced in the order of the images


def embeddings_html(embeddings: Vectors) -> str:
    """HTML without a page around it. Images whose files are gone have no thumbnail."""
    prepared = embeddings.model.get("preprocessing") or {}
    pixels = Pixels.from_dict(prepared["pixels"]) if "pixels" in prepared else EIGHT_BIT
    root, step = Path(embeddings.root), max(1, len(embeddings) // THUMBNAILS)
    shown = [
        Picture.of(path, lambda path=path: as_channels(root / path, pixels))  # type: ignore[misc]
        for path in embeddings.paths[::step][:THUMBNAILS]
    ]
    lines = [f"{plural(embeddings.rows.width, 'number')} each, by {embeddings.model.get('name')}"]
    if embeddings.labels is not None:
        known = [label for label in embeddings.labels if label is not None]
        lines.append(f"{plural(len(known), 'label')} of {plural(len(set(known)), 'class', 'classes')}")
    if embeddings.unreadable:
        lines.append(f"{plural(len(embeddings.unreadable), 'image')} could not be read and have no vector")
    return render_fragment(
        "embeddings",
        title=f"{plural(len(embeddings), 'image')} of {embeddings.root}",
        lines=lines,
        pictures=[picture for picture in shown if picture.source],
        notes=embeddings.ledger.lines(),
    )
