"""The map as one page without requests: Bokeh's plot of the points, and our script around it."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from excb.console import plural
from excb.errors import UserError
from excb.pages.frame import render_page
from excb.pages.origin import PageOrigin

from .columns import Column
from .projection import Projection
from .sprites import ACROSS, Sprites

SMALLEST, LARGEST = 4.0, 9.0  # diameters of points in pixels


def require_bokeh() -> None:
    """Raise UserError unless Bokeh is installed."""
    try:
        import bokeh  # noqa: F401
    except ImportError:
        raise UserError("a map needs Bokeh: run `pip install 'excb[map]'`") from None


def render_map(
    projection: Projection,
    paths: Sequence[str],
    columns: Sequence[Column],
    sprites: Sprites,
    *,
    title: str,
    subtitles: Sequence[str] = (),
    colour_by: str | None = None,
    notes: Sequence[str] = (),
    origin: PageOrigin | None = None,
) -> str:
    """The page. Paths and values are data in it, never markup or script, whatever they contain.

    Args:
        projection: of the images.
        paths: of the images, as the page shows and exports them.
        columns: what colours the points, is searched, shown and exported.
        sprites: pictures of the images.
        title: of the page.
        subtitles: below it.
        colour_by: the column that colours the points at first; by default the first one.
        notes: for the reader, such as what was left out.
        origin: as `frame.render_page` takes it.

    Raises:
        UserError: Bokeh is not installed, or there is no such column.
    """
    require_bokeh()
    names = [column.name for column in columns]
    if colour_by is not None and colour_by not in names:
        raise UserError(f"no column {colour_by} to colour by: there are {', '.join(names) or 'none'}")
    data = {
        "paths": [_valid(path) for path in paths],
        "columns": [_column(column) for column in columns],
        "first": names.index(colour_by) if colour_by is not None else 0,
        "side": sprites.side,
        "across": ACROSS,
        "places": _packed(sprites.places, "<i4"),
        "sizes": _packed(sprites.sizes, "u1"),
        "size": (size := float(np.clip(120 / np.sqrt(len(paths)), SMALLEST, LARGEST))),
        "plot": _plot(projection.points, size),
    }
    return render_page(
        "map",
        title=title,
        style="base map",
        script="map",
        library=_bokeh_script(),
        subtitles=subtitles,
        footer=(
            f"{plural(len(paths), 'image')} laid out by {projection.method}. Only who is near whom means something: "
            "not distances between groups, their sizes, or directions."
        ),
        notes=notes,
        origin=origin,
        sheets=[Markup(sheet) for sheet in sprites.sheets],  # noqa: S704  # base64
        data=Markup(_as_json(data)),  # noqa: S704
    )


def _as_json(data: Any) -> str:
    """Data for a script element: "</script" would end it, so that every "<" is escaped."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _valid(text: str) -> str:
    """Text without bytes that are not UTF-8, which become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _packed(array: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, kind).tobytes()).decode()


def _column(column: Column) -> dict[str, Any]:
    name = _valid(column.name)
    if column.numbers is not None:
        return {"name": name, "numbers": _packed(column.numbers, "<f4")}
    return {"name": name, "values": [_valid(value) for value in column.values], "codes": _packed(column.codes, "<i4")}


def _plot(points: np.ndarray, size: float) -> Any:
    """Bokeh's plot of the points, of a diameter in pixels, as its script takes it."""
    from bokeh.embed import json_item
    from bokeh.models import ColumnDataSource, LassoSelectTool, Range1d
    from bokeh.plotting import figure

    scaled = _scaled(points)
    source = ColumnDataSource({"x": scaled[:, 0], "y": scaled[:, 1]})
    plot = figure(
        sizing_mode="stretch_both",
        tools="pan,wheel_zoom,lasso_select,tap,hover,reset",
        active_scroll="wheel_zoom",
        toolbar_location="above",
        x_range=Range1d(-1.05, 1.05),
        y_range=Range1d(-1.05, 1.05),
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border=0,
        lod_threshold=None,
    )
    plot.toolbar.logo = None
    plot.axis.visible, plot.grid.visible = False, False
    plot.hover.tooltips = None  # the page shows the picture
    plot.select_one(LassoSelectTool).continuous = False
    plot.scatter("x", "y", source=source, size=size, line_color=None)  # painted by the page's script
    return json_item(plot)


def _scaled(points: np.ndarray) -> np.ndarray:
    """Points moved and scaled alike in both directions, to -1 .. 1."""
    low, high = points.min(0), points.max(0)
    half = max(float((high - low).max()) / 2, 1e-12)
    scaled: np.ndarray = (points - (low + high) / 2) / half
    return scaled.astype(np.float32)


def _bokeh_script() -> str:
    """Bokeh's script from its installed package, without the part for GPUs: that makes code, which no page may."""
    import bokeh

    return (Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js").read_text(encoding="utf-8")
