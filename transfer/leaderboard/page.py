"""The leaderboard as one page that needs nothing else: Figure 2, and a table for every task, sortable and filtered."""

import re
from collections.abc import Iterable, Sequence

from excb.results.result import interval_text

from ..reporting import fields
from ..reporting.markup import Html, element, join, page
from . import figure
from .board import FAILED, REPRODUCED, STATUSES, Board, Group, LeaderboardCell, LeaderboardRow, Source
from .figure import Point

TITLE = "Leaderboard"
_MANY = 3  # metrics beside which crops have no room
_COLUMNS = ("model", "network", "epochs", "batch", "crops")
_CLASSES = {REPRODUCED: "reproduced", FAILED: "failed"}


def render(boards: Sequence[Board], points: Sequence[Point], left_out: Sequence[str]) -> str:
    """The page.

    Args:
        boards: with at least one row.
        points: of Figure 2.
        left_out: measured runs that Figure 2 cannot show, and why.
    """
    rows = [row for board in boards for group in board.groups for row in group.rows]
    body = join(
        _masthead(boards, rows),
        _own(boards),
        _figure(points, left_out),
        _filters(boards, rows),
        element("p", "", id="count", role="status"),
        element("main", *(_board(number, board) for number, board in enumerate(boards))),
        element("p", "No figure fits these filters.", id="nothing", hidden=True),
        element(
            "footer",
            "Ranks are given among figures of one protocol only, and none where its settings are stated nowhere. "
            "A measured figure ranks before a published one of the same checkpoint. Intervals are 95 %, of the images.",
        ),
    )
    return page(TITLE, body, style="leaderboard", script="leaderboard")


def _masthead(boards: Sequence[Board], rows: Sequence[LeaderboardRow]) -> Html:
    cells = [cell for row in rows for cell in row.cells.values()]
    figures = {
        "Published figures": sum(len(cell.published) for cell in cells),
        "Measured figures": sum(cell.measured is not None for cell in cells),
        "Reproduced rows": sum(row.status == REPRODUCED for row in rows),
        "Protocols": sum(len(board.groups) for board in boards),
    }
    terms = [element("div", element("dt", name), element("dd", f"{value:,}")) for name, value in figures.items()]
    return element(
        "header",
        element("h1", TITLE),
        element("p", "Published figures beside reproduced ones, ranked only where protocols agree", class_="subtitle"),
        element("dl", *terms, class_="figures"),
        class_="masthead",
    )


def _own(boards: Sequence[Board]) -> Html | None:
    """The reader's own figures, each with its rank and the best one of its protocol; none where there are none."""
    lines = [
        element(
            "li",
            element("strong", row.model),
            " ",
            element("a", f"{board.title} {board.images}", href=f"#board{number}"),
            f": {metric} {cell.measured:.2f}",
            _ends(cell),
            _place(row, rank, group, metric),
        )
        for number, board in enumerate(boards)
        for group in board.groups
        for row, rank in zip(group.rows, group.ranks, strict=True)
        if row.own
        for metric, cell in row.cells.items()
        if cell.measured is not None and metric == next(name for name in board.metrics if name in row.cells)
    ]
    if not lines:
        return None
    return element("section", element("h2", "Your results"), element("ul", *lines), class_="panel", id="own")


def _ends(cell: LeaderboardCell) -> str:
    return "" if cell.interval is None else " ({:.1f} to {:.1f})".format(*cell.interval)


def _place(row: LeaderboardRow, rank: int | None, group: Group, metric: str) -> str:
    """Where a row stands among those of its protocol."""
    ranked = sum(each is not None for each in group.ranks)
    if rank is None or ranked == 1:
        return ", which nothing else here compares with"
    first = group.rows[0]
    best = first.cells[metric].value if metric in first.cells else None
    beside = "" if first is row or best is None else f"; the best is {first.model}, {best:.2f}"
    return f", rank {rank} of {ranked} by the same protocol{beside}"


def _figure(points: Sequence[Point], left_out: Sequence[str]) -> Html | None:
    if not points:
        return None
    caption = [
        "Figure 2 of the paper: linear accuracy on ImageNet with ResNet-50, each method under its authors' protocol. "
        "A circle's area is the batch of pretraining; your own runs are rings."
    ]
    if left_out:
        caption.append(f" Not shown: {'; '.join(left_out)}.")
    return element(
        "figure",
        element("h2", "Accuracy against epochs"),
        figure.draw(points, width=1100, height=420, name="wide"),
        figure.draw(points, width=400, height=400, name="narrow"),
        element("p", "", id="summary", aria_live="polite"),
        element("figcaption", *caption),
        class_="panel",
        id="figure",
    )


def _filters(boards: Sequence[Board], rows: Sequence[LeaderboardRow]) -> Html:
    protocols = [name for board in boards for group in board.groups for name in group.names]
    search = element(
        "label",
        element("span", "Search"),
        element(
            "input",
            id="query",
            type="search",
            placeholder="model, source or note",
            autocomplete="off",
            spellcheck="false",
        ),
        class_="grow",
    )
    return element(
        "search",
        search,
        _select("method", "Method", sorted({row.method for row in rows if row.method}, key=str.casefold)),
        _select("network", "Network", sorted({_network(row) for row in rows if row.architecture})),
        _select("protocol", "Protocol", list(dict.fromkeys(protocols))),
        _select("status", "Status", [each for each in STATUSES if any(row.status == each for row in rows)]),
        class_="toolbar",
    )


def _select(name: str, label: str, values: Iterable[str]) -> Html:
    options = [element("option", "all", value="")] + [element("option", each, value=each) for each in values]
    return element("label", element("span", label), element("select", *options, id=name, aria_label=label))


def _network(row: LeaderboardRow) -> str:
    return row.architecture.removeprefix("timm:")


def _board(number: int, board: Board) -> Html:
    columns = ["#", *_COLUMNS, *board.metrics, "status", "source"]
    head = [
        element("th", "#", scope="col", class_="rank"),
        *(_sortable(name, name in ("epochs", "batch")) for name in _COLUMNS),
        *(_sortable(f"{name} %" if name.startswith("top") else name, True) for name in board.metrics),
        _sortable("status", False),
        element("th", "source", scope="col", class_="source"),
    ]
    return element(
        "section",
        element("h2", board.title, " ", element("span", board.images, class_="images"), id=f"board{number}"),
        element(
            "div",
            element(
                "table",
                element("thead", element("tr", *head)),
                *(_group(group, board, len(columns)) for group in board.groups),
                aria_labelledby=f"board{number}",
            ),
            class_="panel",
        ),
        class_="board many" if len(board.metrics) > _MANY else "board",
    )


def _sortable(name: str, numeric: bool) -> Html:
    classes = f"{'number ' if numeric else ''}{name.partition(' ')[0]}"
    return element("th", element("button", name, type="button"), scope="col", class_=classes, aria_sort="none")


def _group(group: Group, board: Board, columns: int) -> Html:
    title = [element("strong", ", ".join(group.names)), " ", element("span", fields.headline(group.fields))]
    if group.why_apart:
        title.append(element("span", group.why_apart, class_="apart"))
    shown = {name: value for name, value in group.fields.items() if name not in (fields.OTHER, "protocol")}
    if shown:
        settings = [
            element("span", f"{name.replace('_', ' ')}: {fields.readable(value)}") for name, value in shown.items()
        ]
        title.append(element("details", element("summary", "All settings"), element("p", *_spaced(settings))))
    head = element("tr", element("th", *title, colspan=columns, scope="rowgroup"), class_="group")
    rows = [_row(row, rank, group, board.metrics) for row, rank in zip(group.rows, group.ranks, strict=True)]
    return element("tbody", head, *rows)


def _row(row: LeaderboardRow, rank: int | None, group: Group, metrics: Sequence[str]) -> Html:
    cells = [
        element("td", "" if rank is None else rank, class_="rank number"),
        element("th", _model(row), scope="row", class_="model", data_value=row.model.casefold()),
        element("td", _network(row), class_="network", data_value=_network(row)),
        _number(row.epochs, "epochs"),
        _number(row.batch, "batch"),
        element("td", (row.crops or "").replace("+", " + "), class_="crops", data_value=row.crops or ""),
        *(_figure_cell(row.cells.get(metric), metric) for metric in metrics),
        element("td", row.status, class_=f"status {_CLASSES.get(row.status, '')}".strip(), data_value=row.status),
        element("td", *_spaced(map(_link, row.sources)), class_="source"),
    ]
    searchable = " ".join([row.model, row.method, *(source.text for source in row.sources), *row.notes]).casefold()
    return element(
        "tr",
        *cells,
        class_="own" if row.weights else None,
        data_method=row.method,
        data_network=_network(row),
        data_protocol="\n".join(group.names),
        data_status=row.status,
        data_text=searchable,
    )


def _model(row: LeaderboardRow) -> Html:
    small = row.method + (f" · {row.weights[:8]}" if row.weights else "")
    title = f"sha256 of the weights: {row.weights}" if row.weights else None
    notes = [element("details", element("summary", "Note"), element("p", "; ".join(row.notes)))] if row.notes else []
    facts = [_network(row), row.epochs and f"{row.epochs:,} epochs", row.batch and f"batch {row.batch:,}"]
    facts.append(element("span", row.status, class_=_CLASSES.get(row.status)))
    brief = element("span", *_spaced([element("span", each) for each in facts if each]), class_="brief")
    return join(row.model, element("small", small, title=title), brief, *notes)


def _number(value: int | None, name: str) -> Html:
    return element(
        "td", "" if value is None else f"{value:,}", class_=f"{name} number", data_value=value, data_label=name
    )


def _figure_cell(cell: LeaderboardCell | None, metric: str) -> Html:
    if cell is None or cell.value is None:
        return element("td", class_="figure number empty")
    if cell.measured is None:
        main, others = cell.published[0], [f"also {value}" for value in cell.published[1:]]
    else:
        main, others = f"{cell.measured:.2f}", [f"published {value}" for value in cell.published]
        if cell.interval is not None:
            others.insert(0, interval_text(cell.interval))
    return element(
        "td",
        element("span", main, class_="value"),
        *(element("span", text, class_="interval") for text in others),
        class_="figure number",
        data_value=cell.value,
        data_label=metric,
    )


def _link(source: Source) -> Html:
    # A repository without its commit and file; the title has all.
    text = re.split(r"[@#:]", source.text.removeprefix("paper, "))[0]
    text = text.rpartition("/")[2] if text.endswith(".json") else text
    if source.address is None:
        return element("span", text, title=source.text)
    return element("a", text, href=source.address, title=source.text)


def _spaced(parts: Iterable[Html]) -> list[Html | str]:
    """Parts with a space after each, where lines may break."""
    return [each for part in parts for each in (part, " ")]
