"""Make the map of images from their vectors: the plane, columns, pictures, page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from excb.console import Reporter, plural
from excb.files.atomic import write_text
from excb.images.decoding import open_smaller
from excb.images.picture import visible_rgb
from excb.images.pixels import EIGHT_BIT, Pixels
from excb.pages.origin import PageOrigin
from excb.results.result import folder_name

from .columns import LABEL, Column, Values, column_of, read_columns
from .page import render_map, require_bokeh
from .projection import Projection, ProjectionMethod, project
from .sprites import OpenPicture, make_sprites


@dataclass(frozen=True)
class MapResult:
    """A map that was written.

    Attributes:
        file: the page.
        projection: the points, in the order of the images.
        columns: names of what the page colours, searches and exports.
        notes: what it leaves out.
    """

    file: Path
    projection: Projection
    columns: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the points."""
        layout = {"method": self.projection.method, "seconds": round(self.projection.seconds, 2)}
        counted = {"file": str(self.file), "images": len(self.projection.points)}
        return counted | layout | {"columns": list(self.columns), "notes": list(self.notes)}


def make_map(
    vectors: np.ndarray,
    paths: Sequence[str],
    file: Path,
    *,
    root: str,
    network: str,
    columns: Sequence[Column] = (),
    colour_by: str | None = None,
    method: ProjectionMethod = "auto",
    seed: int = 0,
    pictures_mb: float,
    open_picture: OpenPicture | None = None,
    notes: Iterable[str] = (),
    origin: PageOrigin | None = None,
    reporter: Reporter,
) -> MapResult:
    """Lay out images in the plane and write the page.

    Args:
        vectors: [N, D].
        paths: of the images, below `root`.
        file: to write.
        root: the images' folder, or the name of their source.
        network: the name of what made the vectors.
        columns: what is known of the images.
        colour_by: the column that colours the points at first.
        method: see `project`.
        seed: of the layout.
        pictures_mb: megabytes of pictures at most.
        open_picture: opens an image by its row; by default its file below `root`.
        notes: for the reader.
        origin: as `excb.pages.frame.render_page` takes it.
        reporter: prints notes and progress.

    Raises:
        UserError: Bokeh is not installed, the method or a column is unknown, or the file cannot be written.
    """
    require_bokeh()
    projection = project(vectors, method, seed=seed)
    reporter.note(f"{projection.method} of {plural(len(paths), 'image')} took {projection.seconds:,.1f} s")
    opener = open_picture or files_below(root, paths)
    with reporter.progress("pictures of the map", len(paths)) as bar:
        sprites = make_sprites(len(paths), opener, budget=round(1e6 * pictures_mb), progress=bar.advance)
    reported = list(notes)
    if sprites.unread:
        reported.append(f"no picture of {plural(sprites.unread, 'image')}: cannot be opened below {root}")
    if sprites.left:
        reported.append(
            f"no picture of {sprites.left:,} of {plural(len(paths), 'image')}: {pictures_mb:g} MB are full "
            "(--pictures-mb takes more)"
        )
    for line in reported:
        reporter.note(line)
    page = render_map(
        projection,
        paths,
        columns,
        sprites,
        title=f"Map of {folder_name(root)}",
        subtitles=[f"{plural(len(paths), 'image')} in {folder_name(root)}", f"features of {network}"],
        colour_by=colour_by,
        notes=reported,
        origin=origin,
    )
    write_text(page, file)
    return MapResult(file, projection, tuple(column.name for column in columns), tuple(reported))


def files_below(root: str, paths: Sequence[str], pixels: Pixels = EIGHT_BIT) -> OpenPicture:
    """Opens files below a folder by their rows; JPEGs at a fraction of their size."""

    def open_picture(row: int, side: int) -> Image.Image:
        def divisor(size: tuple[int, int]) -> int:
            return next((each for each in (8, 4, 2) if max(size) >= 2 * each * side), 1)

        return visible_rgb(open_smaller(Path(root) / paths[row], divisor, pixels)[0])

    return open_picture


def known_columns(
    paths: Sequence[str],
    labels: Values | None,
    colours: Mapping[str, Values],
    tables: Sequence[Path] = (),
    *,
    root: str,
    note: Callable[[str], Any],
) -> list[Column]:
    """The columns of a map: labels; then what was given by name, then tables.

    Of two columns of one name the later counts.

    Raises:
        UserError: a column does not fit the images, or a table cannot be used.
    """
    columns = dict[str, Column]()
    if labels is not None:
        columns[LABEL] = column_of(LABEL, labels, paths)
    columns |= {name: column_of(name, values, paths) for name, values in colours.items()}
    for table in tables:
        read, strangers = read_columns(table, paths, root)
        columns |= {column.name: column for column in read}
        if strangers:
            note(f"{plural(strangers, 'row')} of {table} without an image here")
    gaps = [
        f"{column.name} ({len(paths) - column.known:,})" for column in columns.values() if column.known < len(paths)
    ]
    if gaps:
        note(f"images without a value are shown in grey: {', '.join(gaps)}")
    return list(columns.values())
