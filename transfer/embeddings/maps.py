"""The map of embeddings: laid out in the plane, and written as one page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from excb.console import Reporter

from .table.vectors import Vectors

if TYPE_CHECKING:
    from ..map.columns import Values
    from ..map.making import MapResult
    from ..map.projection import ProjectionMethod
    from ..map.sprites import OpenPicture
    from .exporting import Labels

PICTURES_MB = 32.0  # of pictures on a page


def draw_map(
    made: Vectors,
    file: Path,
    *,
    labels: "Labels | None" = None,
    colours: "Mapping[str, Values] | None" = None,
    tables: Sequence[Path] = (),
    colour_by: str | None = None,
    method: "ProjectionMethod" = "auto",
    seed: int = 0,
    pictures_mb: float = PICTURES_MB,
    open_picture: "OpenPicture | None" = None,
    reporter: Reporter,
) -> "MapResult":
    """Lay out the images of embeddings in the plane and write the page.

    Args:
        made: the embeddings.
        file: the page to write.
        labels: see `Embeddings.map`.
        colours: likewise.
        tables: files with a column of paths and others, each a column of the map.
        colour_by: the column that colours the map at first.
        method: of the layout.
        seed: likewise.
        pictures_mb: megabytes of pictures at most.
        open_picture: opens an image by its row; by default its file below the root.
        reporter: prints notes and progress.

    Raises:
        UserError: see `Embeddings.map`.
    """
    from excb.images.pixels import EIGHT_BIT, Pixels

    from ..map.making import files_below, known_columns, make_map
    from .exporting import labels_or_folders
    from .replacing import Source

    prepared = made.model.get("preprocessing") or {}
    pixels = Pixels.from_dict(prepared["pixels"]) if "pixels" in prepared else EIGHT_BIT
    notes, own = list[str](), labels_or_folders(made, labels)
    columns = known_columns(made.paths, own, colours or {}, tables, root=made.root, note=notes.append)
    return make_map(
        np.concatenate(list(made.parts())),
        made.paths,
        file,
        root=made.root,
        network=str(made.model.get("name")),
        columns=columns,
        colour_by=colour_by,
        method=method,
        seed=seed,
        pictures_mb=pictures_mb,
        open_picture=open_picture or files_below(made.root, made.paths, pixels),
        notes=notes,
        origin=Source.of(made).page("map"),
        reporter=reporter,
    )
