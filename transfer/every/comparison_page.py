"""The page of a comparison: the table with tiers, the picture, costs, and a link to the report of each checkpoint."""

import base64
from urllib.parse import quote

from excb.results.result import interval_text

from ..reporting.markup import Html, element, join, page
from . import comparison_tables as tables
from .comparison import Comparison, Contender


def render(comparison: Comparison, picture: bytes, *, report: str) -> str:
    """The page.

    Args:
        comparison: what it shows.
        picture: a PNG.
        report: name of the report page in each checkpoint's folder.
    """
    names = [one.name for one in comparison.contenders]
    data = base64.b64encode(picture).decode()
    drawn = element("img", src=f"data:image/png;base64,{data}", alt="Figures of every checkpoint with their intervals")
    body = join(
        element(
            "header",
            element("h1", f"{len(names)} checkpoints side by side"),
            element("p", comparison.data, class_="subtitle"),
            class_="masthead",
        ),
        element("section", element("h2", "Figures"), _table(comparison), class_="panel"),
        element("section", element("figure", drawn), class_="panel"),
        element("section", element("h2", "Checkpoints"), _checkpoints(comparison, report), class_="panel"),
        _notes(comparison),
        element("footer", comparison.explanation, " Written by `excb-eval all`."),
    )
    return page(f"Comparison of {', '.join(names)}", body, style="report comparison")


def _table(comparison: Comparison) -> Html:
    head = [element("th", name, scope="col", class_="number" if number else None)
            for number, name in enumerate(tables.headers(comparison))]  # fmt: skip
    rows = [_row(comparison, one) for one in comparison.contenders]
    rows += [
        element(
            "tr",
            element("th", name, scope="row"),
            *(
                element("td", f"{values[column.figure]:.2f}" if column.figure in values else "", class_="number")
                for column in comparison.columns
            ),
            *[element("td")] * 3,
            class_="reference",
        )
        for name, values in comparison.references.items()
    ]
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows), class_="comparison")
    return element("div", table, class_="wide")


def _row(comparison: Comparison, one: Contender) -> Html:
    cells = []
    for column in comparison.columns:
        cell = comparison.cells.get((one.name, column.figure))
        if cell is None:
            cells.append(element("td"))
            continue
        tier = None if cell.tier is None else element("span", f" *{cell.tier}", class_="tier")
        value = element("span", f"{cell.value:.2f}", class_="value" if cell.tier == 1 else None)
        interval = None if cell.interval is None else element("small", interval_text(cell.interval))
        cells.append(element("td", value, tier, interval, class_="number"))
    return element(
        "tr",
        element("th", one.name, scope="row"),
        *cells,
        *(element("td", text, class_="number") for text in tables.costs(one)),
    )


def _checkpoints(comparison: Comparison, report: str) -> Html:
    parts = []
    for one in comparison.contenders:
        prepared = one.preprocessing
        link = element("a", "its own report", href=f"{quote(one.folder)}/{report}")
        words = [
            one.architecture.removeprefix("timm:"),
            f"images {prepared.get('resize')} → {prepared.get('crop')} px, {prepared.get('interpolation')}",
            one.cost.where,
        ]
        parts.append(element("div", element("dt", one.name), element("dd", " · ".join(words), " · ", link)))
    return element("dl", *parts, class_="terms")


def _notes(comparison: Comparison) -> Html | None:
    if not comparison.notes:
        return None
    notes = [element("p", note, class_="note") for note in comparison.notes]
    return element("section", element("h2", "Notes"), *notes, class_="panel")
