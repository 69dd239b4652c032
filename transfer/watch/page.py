"""`watch.html`: the watched curve beside the run's own, a row a checkpoint, and what is missing; it reloads itself."""

import base64
import shlex
from datetime import UTC, datetime
from pathlib import Path

from excb.charts.style import figure_bytes
from excb.console import duration
from excb.files.atomic import write_text
from excb.references.guessing import TITLES
from excb.results.result import folder_name

from ..protocols import title
from ..reporting.markup import Html, element, join, page
from .chart import draw
from .log import Measurement
from .setup import command
from .state import State, steps_in_words

PAGE = "watch.html"


def write(state: State, folder: Path, *, refresh: int | None) -> None:
    """Write the page.

    Args:
        state: what it shows.
        folder: of the watch.
        refresh: seconds after which a browser loads it again; None once the watch has ended.

    Raises:
        UserError: it cannot be written.
    """
    write_text(render(state, refresh=refresh), folder / PAGE)


def render(state: State, *, refresh: int | None, now: datetime | None = None) -> str:
    """The page as HTML."""
    figure = draw(state)
    picture = None
    if figure is not None:
        data = base64.b64encode(figure_bytes(figure, ".svg")).decode()
        words = f"Watched figure of {len(state.measured)} checkpoints with intervals, above the run's own curves"
        picture = element("figure", element("img", src=f"data:image/svg+xml;base64,{data}", alt=words))
    body = join(
        _masthead(state),
        element("section", picture or element("p", "Nothing is measured yet.", class_="note"), class_="panel"),
        _table(state),
        _missing(state),
        _by_hand(state),
        _footer(refresh, now or datetime.now(UTC)),
    )
    return page(f"Watching {state.name}", body, style="report watch", refresh=refresh)


def _masthead(state: State) -> Html:
    test = state.setup["test"]
    words = f"{command(state.setup)} on {test['images']:,} images of {folder_name(test['root'])}"
    terms = [_term("checkpoints measured", str(len(state.measured)))]
    if state.pointer is not None:
        best, newest = state.pointer, state.measured[-1]
        at = f"step {best['step']}" + ("" if best["kept"] else ", removed by the run")
        terms += [
            _term(f"best {title(best['figure'])}", f"{best['value']:.2f}", at),
            _term("newest", f"{newest.value:.2f}", f"step {newest.step}"),
        ]
        terms += [
            _term(TITLES[name], f"{values[newest.figure]:.2f}")
            for name, values in newest.references.items()
            if name in TITLES and newest.figure in values
        ]
    terms.append(_term("the run", "finished" if state.snapshot.finished else "not finished"))
    return element(
        "header",
        element("h1", f"Watching {state.name}"),
        element("p", f"{state.place} · {words}", class_="subtitle"),
        element("dl", *terms, class_="figures"),
        class_="masthead",
    )


def _term(name: str, value: str, beside: str | None = None) -> Html:
    return element(
        "div", element("dt", name), element("dd", value, None if beside is None else element("small", beside))
    )


def _table(state: State) -> Html | None:
    if not state.measured:
        return None
    names = ("checkpoint", "value", "", "95 % interval", "epoch", "file", "time")
    head = element(
        "tr", *(element("th", name, scope="col", class_="number" if name == "value" else None) for name in names)
    )
    rows = [_row(state, one) for one in reversed(state.measured)]
    heading = element("h2", f"{title(state.measured[-1].figure)}, newest first")
    table = element("table", element("thead", head), element("tbody", *rows))
    notes = dict.fromkeys(note for one in state.measured for note in one.notes)
    few = [element("p", note, class_="note") for note in list(notes)[:6]]
    return element("section", heading, element("div", table, class_="wide"), *few, class_="panel")


def _row(state: State, one: Measurement) -> Html:
    best = state.pointer is not None and state.pointer["step"] == one.step
    ends = one.interval
    kept = "kept" if one.step in state.snapshot.checkpoints else "removed since"
    return element(
        "tr",
        element("th", f"step {one.step}", element("span", "best", class_="badge") if best else None, scope="row"),
        element("td", f"{one.value:.2f}", class_="number value"),
        element("td", _bar(one), class_="bar", aria_hidden="true"),
        element("td", "" if ends is None else f"{ends[0]:.2f} to {ends[1]:.2f}", class_="range"),
        element("td", "" if one.epoch is None else f"{one.epoch:g}", class_="soft"),
        element("td", kept, class_="soft"),
        element("td", duration(one.seconds), class_="soft"),
    )


def _bar(one: Measurement) -> Html:
    """A bar from 0 to 100 with the interval at its end."""
    parts = [element("rect", x=0, y=4, width=f"{min(100.0, max(0.0, one.value)):.2f}", height=4, rx=1)]
    if one.interval is not None:
        low, high = one.interval
        parts.append(element("line", x1=f"{low:.2f}", x2=f"{high:.2f}", y1=6, y2=6))
    return element("svg", *parts, viewBox="0 0 100 12", preserveAspectRatio="none")


def _missing(state: State) -> Html | None:
    lines = []
    if state.missed:
        lines.append(
            f"{len(state.missed)} checkpoints were gone before they were measured: "
            f"{steps_in_words(state.missed, 200)}. The run keeps its newest ones and its best one (run.keep)."
        )
    lines += [f"step {step} cannot be read: {why}" for step, why in state.unreadable.items()]
    if not lines:
        return None
    return element(
        "section", element("h2", "Not measured"), *(element("p", line, class_="note") for line in lines), class_="panel"
    )


def _by_hand(state: State) -> Html | None:
    """How the best checkpoint is loaded, and evaluated once more."""
    if state.pointer is None:
        return None
    where = f"best.json points to {state.pointer['checkpoint']}"
    gone = "" if state.pointer["kept"] else ", which the run has removed"
    words = f"excb-eval {command(state.setup)} --ckpt {shlex.quote(state.pointer['checkpoint'])} --data ..."
    return element(
        "section",
        element("h2", "The best checkpoint"),
        element("p", f"{where}{gone}."),
        element("p", element("code", words), class_="note"),
        class_="panel",
    )


def _footer(refresh: int | None, now: datetime) -> Html:
    again = f"It loads itself again every {refresh} s." if refresh else "The watch has ended."
    return element(
        "footer",
        f"Written {now.isoformat(' ', 'seconds')} by `excb-eval watch`. {again} Bands and bars are 95 % intervals over "
        "the test images.",
    )
