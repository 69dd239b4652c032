"""The page of many sets: a table for each head, the metrics, and what is missing."""

from collections.abc import Collection, Mapping, Sequence

from excb.results.result import interval_text

from ..reporting.markup import Html, element, join, page
from .standings import Cell, Row, Table
from .tables import EXPLANATION, headers, title


def render(tables: Sequence[Table], metrics: Mapping[str, str], skipped: Mapping[str, str]) -> str:
    """The page.

    Args:
        tables: one a head.
        metrics: in words, by set.
        skipped: why sets have no figures, by name.
    """
    names = [row.name for row in tables[0].rows if not row.reference] if tables else []
    body = join(
        element(
            "header",
            element(
                "h1",
                f"{len(names)} checkpoint{'s' * (len(names) != 1)} on {len(metrics)} set{'s' * (len(metrics) != 1)}",
            ),
            element("p", ", ".join(names), class_="subtitle"),
            class_="masthead",
        ),
        *(element("section", element("h2", title(each.head)), _table(each), class_="panel") for each in tables),
        element("section", element("h2", "Metrics"), _terms(metrics), class_="panel"),
        element("section", element("h2", "Skipped"), _terms(skipped), class_="panel") if skipped else None,
        element("footer", EXPLANATION, " Written by `excb-eval sets`."),
    )
    return page(f"Sets: {', '.join(names)}", body, style="report comparison")


def _counted(things: Collection[str], noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"


def _terms(values: Mapping[str, str]) -> Html:
    return element(
        "dl",
        *(element("div", element("dt", name), element("dd", each)) for name, each in values.items()),
        class_="terms",
    )


def _table(table: Table) -> Html:
    head = [
        element("th", name, scope="col", class_="number" if number else None)
        for number, name in enumerate(headers(table))
    ]
    rows = [_row(table, row) for row in table.rows]
    whole = element("table", element("thead", element("tr", *head)), element("tbody", *rows), class_="comparison")
    return element("div", whole, class_="wide")


def _row(table: Table, row: Row) -> Html:
    cells = [_cell(row.cells.get(name)) for name in table.sets]
    rank = "" if row.rank is None else f"{row.rank:.2f}"
    return element(
        "tr",
        element("th", row.name, scope="row"),
        *cells,
        _cell(row.mean),
        element("td", rank, class_="number"),
        class_="reference" if row.reference else None,
    )


def _cell(cell: Cell | None) -> Html:
    if cell is None:
        return element("td")
    tier = None if cell.tier is None else element("span", f" *{cell.tier}", class_="tier")
    value = element("span", f"{cell.value:.2f}", class_="value" if cell.tier == 1 else None)
    interval = None if cell.interval is None else element("small", interval_text(cell.interval))
    return element("td", value, tier, interval, class_="number")
