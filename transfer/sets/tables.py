"""Standings as text: tables for a terminal, Markdown and CSV."""

import csv
import io
from collections.abc import Mapping, Sequence

from excb.files import markdown

from .heads import KNN, LOGREG
from .standings import Cell, Row, Table

TITLES = {LOGREG: "Logistic regression", KNN: "k-NN"}
EXPLANATION = (
    "Percent, each set by its own metric, with 95 % intervals: of logistic regression and k-NN by bootstrap over the "
    "test images, of n-shot figures over the episodes. The mean gives every set the same weight, and so does "
    "the mean rank. Checkpoints of one tier (*1, *2, ...) do not differ from the best of the tier: the 95 % "
    "interval of their difference, by a bootstrap with the same images for both, holds 0."
)


def title(head: str) -> str:
    """What people call a head."""
    return TITLES.get(head) or f"{head.removeprefix('shot')} image{'s' * (head != 'shot1')} of each class"


def headers(table: Table) -> list[str]:
    """The columns of a table."""
    return ["", *table.sets, f"mean of {len(table.common)}", "mean rank"]


def cells(table: Table) -> list[list[str]]:
    """The lines of a table."""
    return [
        [row.name, *(text(row.cells.get(name)) for name in table.sets), text(row.mean), _rank(row)]
        for row in table.rows
    ]


def text(cell: Cell | None) -> str:
    """A figure with its interval and tier."""
    if cell is None:
        return ""
    interval = "" if cell.interval is None else " ({:.1f} to {:.1f})".format(*cell.interval)
    return f"{cell.value:.2f}{interval}{'' if cell.tier is None else f' *{cell.tier}'}"


def _rank(row: Row) -> str:
    return "" if row.rank is None else f"{row.rank:.2f}"


def to_markdown(tables: Sequence[Table], metrics: Mapping[str, str], skipped: Mapping[str, str]) -> str:
    """All tables, how to read them, the metrics and what is missing."""
    parts = ["# Checkpoints on many sets"]
    for each in tables:
        parts += [f"## {title(each.head)}", markdown.markdown_table(headers(each), cells(each))]
    parts += [markdown.cell(EXPLANATION), "Metrics:", markdown.bullets(list(metrics.items()))]
    if skipped:
        parts += ["Skipped:", markdown.bullets(list(skipped.items()))]
    return "\n\n".join(parts) + "\n"


def to_csv(tables: Sequence[Table]) -> str:
    """A line for every figure."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["name", "kind", "head", "set", "percent", "low", "high", "tier", "mean_rank"])
    for table in tables:
        for row in table.rows:
            kind = "reference" if row.reference else "measured"
            named = f"'{row.name}" if row.name[:1] in ("=", "+", "-", "@") else row.name  # no formula of a spreadsheet
            for name, cell in [*row.cells.items(), *([("mean", row.mean)] if row.mean is not None else [])]:
                low, high = cell.interval or (None, None)
                rank = row.rank if name == "mean" else None
                writer.writerow([named, kind, table.head, name, cell.value, low, high, cell.tier, rank])
    return stream.getvalue()
