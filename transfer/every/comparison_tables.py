"""A comparison of checkpoints as text: Markdown, CSV, and LaTeX for the package booktabs."""

import csv
import io
import re
from collections.abc import Sequence

from excb.files import markdown

from .comparison import Cell, Comparison, Contender

_LATEX = {
    "\\": r"\textbackslash{}",
    **{each: "\\" + each for each in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}
_COSTS = ("parameters, M", "GFLOPs", "images/s")


def costs(one: Contender) -> list[str]:
    """Parameters in millions, FLOPs of an image in thousand millions, and images a second."""
    cost = one.cost
    flops = "" if cost.flops is None else f"{cost.flops / 1e9:.3g}"
    return [f"{cost.parameters / 1e6:.3g}", flops, f"{cost.images_per_second:,.0f}"]


def headers(comparison: Comparison) -> list[str]:
    """The columns of a table."""
    return ["checkpoint", *(column.title for column in comparison.columns), *_COSTS]


def rows(comparison: Comparison) -> list[list[str]]:
    """A row a checkpoint, then one a reference."""
    table = [
        [
            one.name,
            *(_text(comparison.cells.get((one.name, column.figure))) for column in comparison.columns),
            *costs(one),
        ]
        for one in comparison.contenders
    ]
    return table + [
        [name, *(_short(values.get(column.figure)) for column in comparison.columns), "", "", ""]
        for name, values in comparison.references.items()
    ]


def _text(cell: Cell | None) -> str:
    if cell is None:
        return ""
    interval = "" if cell.interval is None else " ({:.1f} to {:.1f})".format(*cell.interval)
    return f"{cell.value:.2f}{interval}{'' if cell.tier is None else f' *{cell.tier}'}"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def to_markdown(comparison: Comparison, *, picture: str) -> str:
    """The table with its explanation, the picture, costs and notes."""
    parts = [
        "# Checkpoints side by side",
        markdown.cell(comparison.data),
        markdown.markdown_table(headers(comparison), rows(comparison)),
        markdown.cell(comparison.explanation),
        f"![Figures with their intervals]({picture})",
        "Images a second are of the backbone alone; a multiply-add is two FLOPs:",
        markdown.bullets([(one.name, one.cost.where) for one in comparison.contenders]),
    ]
    if comparison.notes:
        parts += ["Notes:", "\n".join(f"- {markdown.cell(note)}" for note in comparison.notes)]
    return "\n\n".join(parts) + "\n"


def to_csv(comparison: Comparison) -> str:
    """One line for every figure of every checkpoint, and of every reference."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    head = [
        "checkpoint",
        "kind",
        "figure",
        "percent",
        "low",
        "high",
        "tier",
        "parameters",
        "flops",
        "images_per_second",
    ]
    writer.writerow(head)
    for one in comparison.contenders:
        cost = [one.cost.parameters, one.cost.flops, one.cost.images_per_second]
        for column in comparison.columns:
            if (cell := comparison.cells.get((one.name, column.figure))) is not None:
                low, high = cell.interval or (None, None)
                writer.writerow(
                    [_harmless(one.name), "measured", column.figure, cell.value, low, high, cell.tier, *cost]
                )
    for name, values in comparison.references.items():
        for column in comparison.columns:
            if column.figure in values:
                line = [_harmless(name), "reference", column.figure, values[column.figure]]
                writer.writerow([*line, None, None, None, None, None, None])
    return stream.getvalue()


def _harmless(value: str) -> str:
    """Text that a spreadsheet would take for a formula gets an apostrophe before it."""
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def to_latex(comparison: Comparison) -> str:
    r"""A `table` environment for `\usepackage{booktabs}`: the first tier is bold, and a rule divides the references."""
    heads = [r"\textbf{" + latex(name) + "}" for name in headers(comparison)]
    figures = len(comparison.columns)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        r"  \caption{" + latex(f"{comparison.data}. {comparison.explanation.replace(' (*1, *2, ...)', '')}") + "}",
        r"  \begin{tabular}{l" + "r" * (figures + len(_COSTS)) + "}",
        r"    \toprule",
        _line(heads),
        r"    \midrule",
        *(
            _line(
                [
                    latex(one.name),
                    *(_latex_cell(comparison.cells.get((one.name, column.figure))) for column in comparison.columns),
                    *map(latex, costs(one)),
                ]
            )
            for one in comparison.contenders
        ),
    ]
    if comparison.references:
        lines.append(r"    \midrule")
        for name, values in comparison.references.items():
            cells = [_short(values.get(column.figure)) for column in comparison.columns]
            lines.append(_line([latex(name), *cells, *[""] * len(_COSTS)]))
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "    " + " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    value = f"{cell.value:.2f}"
    value = rf"\textbf{{{value}}}" if cell.tier == 1 else value
    tier = "" if cell.tier is None else rf"\textsuperscript{{{cell.tier}}}"
    interval = "" if cell.interval is None else r" {\scriptsize(" + "{:.1f}--{:.1f}".format(*cell.interval) + ")}"
    return value + tier + interval


def latex(text: str) -> str:
    """Text as LaTeX shows it, on one line."""
    return re.sub(r"[\\&%$#_{}~^<>|\"]", lambda match: _LATEX[match[0]], markdown.line(text))
