"""Every form of a standing: Markdown, LaTeX for the package booktabs, and a page; each shows the same tables."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from excb.files import markdown
from excb.pages.frame import data_address, render_page
from excb.results.beside import FileBeside, page_beside, table_beside, text_beside

from .table import FigureCell, FigureTable

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

Term = tuple[str, str, str | None]  # a name, a text, and the address of what it is about, if there is one


@dataclass(frozen=True)
class Sheet:
    """Tables of checkpoints side by side, and all that a reader must know.

    Attributes:
        title: in a few words.
        subject: what was evaluated, in words.
        tables: at least one.
        explanation: how to read them.
        lists: further facts under headings.
        notes: sentences.
        command: of `excb-eval`, that writes it.
    """

    title: str
    subject: str
    tables: Sequence[FigureTable]
    explanation: str
    lists: Sequence[tuple[str, Sequence[Term]]] = ()
    notes: Sequence[str] = ()
    command: str = "all"


def sheet_files(name: str, command: str, columns: Sequence[str]) -> list[FileBeside]:
    """The files of a sheet, NAME.html and others, in a folder of results; their CSV has these columns."""
    tiers = "differ at 5 % from the best of the tier"  # of the explanation
    return [
        page_beside(f"{name}.html", command),
        text_beside(f"{name}.md", "tables", tiers),
        table_beside(f"{name}.csv", "table of figures", columns),
        text_beside(f"{name}.tex", "tables", r"\usepackage{booktabs}", r"\begin{table}"),
    ]


def sheet_as_markdown(sheet: Sheet, *, picture: str = "") -> str:
    """The sheet as Markdown, with a link to a picture where there is one."""
    parts = [f"# {markdown.cell(sheet.title)}", markdown.cell(sheet.subject)]
    for table in sheet.tables:
        parts += [f"## {markdown.cell(table.title)}"] if table.title else []
        parts.append(markdown.markdown_table(table.headings, table.lines))
    parts.append(markdown.cell(sheet.explanation))
    parts += [f"![Figures with their intervals]({picture})"] if picture else []
    for heading, terms in sheet.lists:
        parts += [f"## {heading}", markdown.bullets([(name, text) for name, text, _ in terms])]
    if sheet.notes:
        parts += ["## Notes", "\n".join(f"- {markdown.cell(note)}" for note in sheet.notes)]
    return "\n\n".join(parts) + "\n"


def sheet_as_page(sheet: Sheet, *, picture: bytes | None = None) -> str:
    """The sheet as a page, with a PNG where there is one."""
    return render_page(
        "standings",
        title=sheet.title,
        style="base report comparison",
        subtitles=[sheet.subject],
        footer=f"{sheet.explanation} Written by `excb-eval {sheet.command}`.",
        tables=sheet.tables,
        picture=None if picture is None else data_address(picture),
        lists=sheet.lists,
        notes=sheet.notes,
    )


def sheet_as_latex(sheet: Sheet) -> str:
    r"""A `table` environment for `\usepackage{booktabs}` for each table: the first tier is bold."""
    return r"% needs \usepackage{booktabs}" + "\n" + "\n".join(_environment(sheet, table) for table in sheet.tables)


def _environment(sheet: Sheet, table: FigureTable) -> str:
    """One table; a rule divides the references from the checkpoints."""
    explanation = sheet.explanation.replace(" (*1, *2, ...)", "")
    caption = ". ".join(filter(None, [table.title, sheet.subject, explanation]))
    lines = [[r"\textbf{" + latex(name) + "}" for name in table.headings]]
    for row in table.rows:
        cells = [_cell(row.cells.get(column.key)) for column in table.columns]
        lines.append([latex(row.name), *cells, *map(latex, row.facts or [""] * len(table.facts))])
    first = next((number for number, row in enumerate(table.rows, 1) if row.reference), len(lines))
    head, measured, references = (
        ["    " + " & ".join(line) + r" \\" for line in part] for part in (lines[:1], lines[1:first], lines[first:])
    )
    rule = r"    \midrule"
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            r"  \caption{" + latex(caption) + "}",
            r"  \begin{tabular}{l" + "r" * (len(table.headings) - 1) + "}",
            r"    \toprule",
            *[*head, rule, *measured, *([rule] if references else []), *references],
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _cell(cell: FigureCell | None) -> str:
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
