"""How our pictures look: colours that colour-blind readers tell apart, plain axes, PNG and SVG written in one way."""

import io
import itertools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.errors import UserError
from excb.files.atomic import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
# Blue, orange and green of Okabe and Ito (2008), "Color Universal Design"; red is for what is wrong, always with words.
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#c0392b", "#8a8f94"
# Ten colours of classes or runs, from Petroff (2021), "Accessible color sequences for data visualization".
SEQUENCE = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)
MARKERS = "os^Dv"  # tell classes apart beyond the ten colours, and in print without colour


def picture(width: float, height: float) -> "Figure":
    """An empty picture of so many inches; it needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Any, title: str = "", *, x: str = "", y: str = "") -> None:
    """Give axes the common look: small type, no frame above and to the right."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def shortened(name: str, most: int) -> str:
    """A name of at most so many characters: one without end would leave its picture no room."""
    return name if len(name) <= most else name[: most - 1] + "…"


def looks(count: int) -> Iterator[tuple[str, str]]:
    """Colour and marker of each of `count` classes or runs, no two alike up to fifty."""
    pairs = ((colour, marker) for marker in MARKERS for colour in SEQUENCE)
    return itertools.islice(itertools.cycle(pairs), count)


def check_formats(files: Sequence[Path]) -> None:
    """Refuse files that are no pictures, before anything is computed.

    Raises:
        UserError: a name ends in neither .png nor .svg.
    """
    for file in files:
        if file.suffix.lower() not in FORMATS:
            raise UserError(f"cannot draw {file}: its name must end in {' or '.join(FORMATS)}")


def write(figure: "Figure", file: Path, *, dpi: int = 150) -> None:
    """Write a picture atomically as PNG or SVG, by the file's name; equal pictures are equal bytes.

    Raises:
        UserError: the name ends in neither, or the file cannot be written.
    """
    from matplotlib import rc_context

    check_formats([file])
    kind = file.suffix.lower().removeprefix(".")
    buffer = io.BytesIO()
    # Names of many scripts may be in a picture, and the font has not all: boxes take their place.
    with rc_context({"svg.hashsalt": "excb"}), warnings.catch_warnings():  # names inside an SVG are random otherwise
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
    write_bytes(buffer.getvalue(), file)
