"""The report of `excb-eval all`: one page with every figure, its interval, its picture and how it was measured."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from excb.console import duration
from excb.results.result import Result, folder_name, interval_text

from ..protocols import headline, kind_of, title
from ..reporting.fields import readable
from ..reporting.markup import Html, element, join, page
from ..reporting.references import TITLES
from .suite import Outcome

_FEW = 5  # classes that are named as the best and the worst
_HIDDEN = frozenset({"sweep", "settings"})  # of settings: too long to read


def render(outcomes: Sequence[Outcome]) -> str:
    """The page of what was measured; at least one protocol was."""
    measured = [(one, one.result) for one in outcomes if one.result is not None]
    _, first = measured[0]
    name = str(first.checkpoint.get("name") or first.checkpoint.get("source"))
    environment = first.environment | {"measured": first.created}
    body = join(
        _masthead(name, [result for _, result in measured]),
        element("section", element("h2", "Figures"), _figures(measured), class_="panel"),
        *(_section(one, result) for one, result in measured),
        _absent(outcomes),
        element("section", element("h2", "Environment"), _terms(list(environment.items())), class_="panel"),
        element("footer", "Percent, with 95 % bootstrap intervals of the test images. Written by `excb-eval all`."),
    )
    return page(f"Evaluation of {name}", body, style="report")


def _masthead(name: str, results: Sequence[Result]) -> Html:
    first = results[0]
    images = " and ".join(
        f"{first.data[part]['images']:,} {part} images" for part in ("train", "test") if part in first.data
    )
    data = folder_name(str(first.data.get("test", {}).get("root", ""))).rpartition("/")
    terms = [_headline(result) for result in results]
    network = str(first.checkpoint.get("architecture", "")).removeprefix("timm:")
    return element(
        "header",
        element("h1", f"Evaluation of {name}"),
        element(
            "p", f"{network} · {data[0] or data[2]}: {images}, {first.data.get('classes')} classes", class_="subtitle"
        ),
        element("dl", *terms, class_="figures"),
        class_="masthead",
    )


def _headline(result: Result) -> Html:
    figures, figure = result.figures, headline(result.figures)
    beside = None
    if figure in result.intervals:
        beside = element("small", interval_text(result.intervals[figure]))
    return element("div", element("dt", title(figure)), element("dd", f"{figures[figure]:.2f}", beside))


def _figures(measured: Sequence[tuple[Outcome, Result]]) -> Html:
    known = [name for name in TITLES if any(name in result.references for _, result in measured)]
    names = ("figure", "percent", "", "95 % interval", *(TITLES[name] for name in known), "protocol", "time")
    right = {"percent", *TITLES.values()}
    head = element(
        "tr", *(element("th", name, scope="col", class_="number" if name in right else None) for name in names)
    )
    rows = [
        element(
            "tr",
            element("th", title(figure), scope="row"),
            element("td", f"{value:.2f}", class_="number value"),
            element("td", _bar(value, result.intervals.get(figure)), class_="bar", aria_hidden="true"),
            element("td", _interval(result, figure), class_="range"),
            *(_reference(result, name, figure) for name in known),
            element("td", f"{result.protocol} {result.protocol_hash[:8]}", class_="soft"),
            element("td", duration(result.seconds) if first else "", class_="soft"),
        )
        for _, result in measured
        for first, (figure, value) in _numbered(result.figures)
    ]
    return element("div", element("table", element("thead", head), element("tbody", *rows)), class_="wide")


def _reference(result: Result, name: str, figure: str) -> Html:
    value = result.references.get(name, {}).get(figure)
    return element("td", "" if value is None else f"{value:.2f}", class_="number soft")


def _numbered(figures: Mapping[str, float]) -> Iterator[tuple[bool, tuple[str, float]]]:
    """Figures, and whether each is the first; those of single seeds, and their spread, are no rows of their own."""
    shown = {figure: value for figure, value in figures.items() if kind_of(figure) is not None} or figures
    return ((number == 0, item) for number, item in enumerate(shown.items()))


def _interval(result: Result, figure: str) -> Html:
    text = "{:.2f} to {:.2f}".format(*result.intervals[figure]) if figure in result.intervals else ""
    spread = result.figures.get(f"{figure}_sd")
    seeds = len(result.settings.get("seeds", []))
    return join(text, None if spread is None else element("small", f" ± {spread:.2f} over {seeds} seeds"))


def _bar(value: float, interval: tuple[float, float] | None) -> Html:
    """A bar from 0 to 100 with the interval at its end."""
    parts = [element("rect", x=0, y=4, width=f"{value:.2f}", height=4, rx=1)]
    if interval is not None:
        low, high = interval
        parts.append(element("line", x1=f"{low:.2f}", x2=f"{high:.2f}", y1=6, y2=6))
    return element("svg", *parts, viewBox="0 0 100 12", preserveAspectRatio="none")


def _section(one: Outcome, result: Result) -> Html:
    settings = [(name, value) for name, value in result.settings.items() if name not in _HIDDEN]
    return element(
        "section",
        element("h2", one.step.title),
        *(element("p", note, class_="note") for note in result.notes),
        element("div", _picture(one), _classes(result), class_="sides"),
        element(
            "details", element("summary", "Settings"), _terms([*settings, ("protocol hash", result.protocol_hash)])
        ),
        class_="panel",
    )


def _picture(one: Outcome) -> Html | None:
    """The confusion matrix that lies beside the result."""
    assert one.file is not None
    file = one.file.with_name(f"{one.step.name}.confusion.png")
    if not file.is_file():
        return None
    data = base64.b64encode(file.read_bytes()).decode()
    picture = element("img", src=f"data:image/png;base64,{data}", alt=f"Confusion matrix of {one.step.title}")
    return element("figure", picture)


def _classes(result: Result) -> Html | None:
    """The best and the worst classes of the headline's figure."""
    figure = headline(result.figures)
    by_class = result.per_class.get(figure, {})
    ranked = sorted(
        ((value, name) for name, value in by_class.items() if value is not None), key=lambda each: (-each[0], each[1])
    )
    if len(ranked) < 2:
        return None
    most, name = min(_FEW, len(ranked) // 2), title(figure)
    best, worst = _ends(f"Best classes, {name}", ranked[:most]), _ends(f"Worst classes, {name}", ranked[-most:])
    return element("div", *best, *worst)


def _ends(heading: str, classes: Sequence[tuple[float, str]]) -> list[Html]:
    rows = [
        element(
            "tr",
            element("td", name),
            element("td", f"{value:.1f}", class_="number"),
            element("td", _bar(value, None), class_="bar"),
        )
        for value, name in classes
    ]
    return [element("h3", heading), element("table", element("tbody", *rows), class_="small")]


def _absent(outcomes: Sequence[Outcome]) -> Html | None:
    reasons = [(one.step.title, one.step.skipped or one.failed) for one in outcomes if one.result is None]
    if not reasons:
        return None
    return element("section", element("h2", "Not measured"), _terms(reasons), class_="panel")


def _terms(values: Sequence[tuple[str, Any]]) -> Html:
    parts = [
        element("div", element("dt", name.replace("_", " ")), element("dd", _readable(value))) for name, value in values
    ]
    return element("dl", *parts, class_="terms")


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_readable(each)}" for name, each in value.items())
    return readable(value)
