"""`watch.html`: the watched curve beside the run's own, one row per checkpoint, and what was missed."""

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime

from excb.charts.style import figure_bytes
from excb.console import plural
from excb.pages.frame import Figure, data_address, render_page
from excb.references.guessing import TITLES
from excb.results.result import folder_name

from ..protocols import title
from .chart import draw_watch
from .setup import command_text
from .state import WatchState, steps_in_words

PAGE = "watch.html"
_NOTES = 6  # that the page shows, of all checkpoints


def render_watch(state: WatchState, *, refresh: int | None, now: datetime | None = None) -> str:
    """The page as HTML."""
    drawn, test, best = draw_watch(state), state.setup["test"], state.pointer
    words, written = command_text(state.setup), now or datetime.now(UTC)
    again = f"It loads itself again every {refresh} s." if refresh else "The watch has ended."
    return render_page(
        "watch",
        title=f"Watching {state.run.name}",
        style="base report watch",
        subtitles=[f"{state.run.place} · {words} on {plural(test['images'], 'image')} of {folder_name(test['root'])}"],
        figures=list(_figures(state)),
        footer=f"Written {written.isoformat(' ', 'seconds')} by `excb-eval watch`. {again} Bands and bars are 95 % "
        "intervals over the test images.",
        refresh=refresh,
        picture=None if drawn is None else data_address(figure_bytes(drawn, ".svg"), "image/svg+xml"),
        measured=state.measured,
        figure=title(state.measured[-1].figure) if state.measured else "",
        notes=list(dict.fromkeys(note for one in state.measured for note in one.notes))[:_NOTES],
        kept=state.snapshot.checkpoints,
        missing=list(_missing(state)),
        best=best,
        command="" if best is None else f"excb-eval {words} --ckpt {shlex.quote(best['checkpoint'])} --data ...",
    )


def _figures(state: WatchState) -> Iterator[Figure]:
    yield "checkpoints measured", str(len(state.measured)), None
    if state.pointer is not None:
        best, newest = state.pointer, state.measured[-1]
        at = f"step {best['step']}" + ("" if best["kept"] else ", removed by the run")
        yield f"best {title(best['figure'])}", f"{best['value']:.2f}", at
        yield "newest", f"{newest.value:.2f}", f"step {newest.step}"
        for name, values in newest.references.items():
            if name in TITLES and newest.figure in values:
                yield TITLES[name], f"{values[newest.figure]:.2f}", None
    yield "the run", "finished" if state.snapshot.finished else "not finished", None


def _missing(state: WatchState) -> Iterator[str]:
    if state.missed:
        yield (
            f"{plural(len(state.missed), 'checkpoint was', 'checkpoints were')} gone before being measured: "
            f"{steps_in_words(state.missed, 200)}. The run keeps its newest ones and its best one (run.keep)."
        )
    for step, why in (state.unreadable or {}).items():
        yield f"step {step} cannot be read: {why}"
