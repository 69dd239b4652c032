"""One style for all figures: colours that colour-blind readers can distinguish, plain axes, reproducible files."""

import io
import itertools
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.errors import UserError
from excb.files.atomic import write_bytes
from excb.results.pictures import PROGRAM

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
# Blue, orange and green of Okabe and Ito (2008), "Color Universal Design"; red is for what is wrong, always with words.
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#c0392b", "#8a8f94"
# Ten colours of classes or runs, from Petroff (2021), "Accessible color sequences for data visualization".
SEQUENCE = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"),
)
MARKERS = "os^Dv"  # distinguish classes beyond the ten colours, and in print without colour


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, sizes in inches. It needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Any, title: str = "", *, x: str = "", y: str = "", frame: bool = False) -> None:
    """Give axes the common look: small type and, without `frame`, no lines at the top and right."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    if not frame:
        axes.spines[["top", "right"]].set_visible(False)


def shortened(name: str, most: int) -> str:
    """A name cut to at most `most` characters."""
    return name if len(name) <= most else name[: most - 1] + "…"


def drawable(name: str) -> str:
    """A name that can be drawn even if it comes from a file name that is not UTF-8."""
    return name.encode("utf-8", "replace").decode("utf-8")


def distinct_styles(count: int) -> Iterator[tuple[str, str]]:
    """Colour and marker of each of `count` classes or runs. Up to fifty are all different."""
    pairs = ((colour, marker) for marker in MARKERS for colour in SEQUENCE)
    return itertools.islice(itertools.cycle(pairs), count)


def check_formats(files: Sequence[Path]) -> None:
    """Raise UserError, before anything is computed, for a file whose name ends in neither .png nor .svg."""
    for file in files:
        if file.suffix.lower() not in FORMATS:
            raise UserError(f"cannot draw {file}: its name must end in {' or '.join(FORMATS)}")


def figure_bytes(figure: "Figure", suffix: str = ".png", *, dpi: int = 150) -> bytes:
    """The contents of a figure's .png or .svg file. Equal figures give equal bytes."""
    from matplotlib import rc_context

    # By its program a command knows a picture that it may replace.
    facts = {"Date": None, "Creator": PROGRAM} if suffix == ".svg" else {"Software": PROGRAM}
    buffer = io.BytesIO()
    # Names may be in scripts that the font lacks. It draws boxes for them.
    with rc_context({"svg.hashsalt": "excb"}), warnings.catch_warnings():  # element ids of an SVG are random otherwise
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=suffix.removeprefix("."), dpi=dpi, metadata=facts)
    return buffer.getvalue()


def save_figure(figure: "Figure", file: Path, *, dpi: int = 150) -> None:
    """Write a figure as PNG or SVG, atomically. Raises UserError for any other ending, or if it cannot be written."""
    check_formats([file])
    write_bytes(figure_bytes(figure, file.suffix.lower(), dpi=dpi), file)
