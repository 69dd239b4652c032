"""Checkpoints side by side: corrected tests and tiers against other code, every form of the table, the picture."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from excb.charts.style import figure_bytes
from excb.inference.accuracy import mcnemar
from excb.transfer.every import several
from excb.transfer.every.comparison import Comparison, EvaluatedCheckpoint, side_by_side
from excb.transfer.standings.chart import draw_table
from excb.transfer.standings.forms import Sheet, latex, sheet_as_latex, sheet_as_markdown, sheet_as_page
from excb.transfer.standings.table import FigureCell, FigureColumn, FigureRow, FigureTable
from tests.browser import chromium
from tests.transfer.evaluated_checkpoints import FIGURE, evaluated
from tests.transfer.result_files import HOSTILE

IMAGES = 400


def hits(right: int, *, seed: int = 0) -> Tensor:
    """As many images right, the same ones for larger numbers, but for a few that a seed chooses."""
    values = np.arange(IMAGES) < right
    if seed:
        swapped = np.random.default_rng(seed).choice(IMAGES, 10, replace=False)
        values[swapped] = ~values[swapped]
    return torch.from_numpy(values)


def comparison(*checkpoints: EvaluatedCheckpoint, notes: Sequence[str] = ()) -> Comparison:
    usual = [evaluated(name, hits(right, seed=right)) for name, right in (("good", 300), ("close", 298), ("bad", 100))]
    return side_by_side(checkpoints or usual, notes=notes)


def cell(found: Comparison, name: str, figure: str = FIGURE) -> FigureCell:
    (row,) = [row for row in found.table.rows if row.name == name]
    return row.cells[figure]


def references(found: Comparison) -> dict[str, dict[str, float]]:
    values: dict[str, dict[str, float]] = found.to_dict()["references"]
    return values


def test_tiers_hold_what_does_not_differ() -> None:
    found = comparison()
    pairs = found.table.p_values
    assert {figure for figure, *_ in pairs} == {FIGURE}
    assert len(pairs) == 3
    raw = [mcnemar(hits(300, seed=300), hits(right, seed=right)) for right in (298, 100)]
    assert pairs[FIGURE, "good", "bad"] == pytest.approx(min(1.0, 3 * raw[1]), abs=1e-12)
    assert pairs[FIGURE, "good", "close"] >= raw[0] > 0.05
    assert [cell(found, name).tier for name in ("good", "close", "bad")] == [1, 1, 2]
    assert cell(found, "good", "bbox_AP").tier is None  # nothing to test it by


def test_a_difference_may_vanish_among_many_comparisons() -> None:
    """Two differ at 5 % when they are alone, and no longer among ten pairs."""
    scores = [hits(200), hits(207)]
    assert 0.006 < mcnemar(*scores) < 0.05
    alone = comparison(evaluated("a", scores[0]), evaluated("b", scores[1]))
    assert cell(alone, "a").tier == 2
    others = [evaluated(str(number), hits(200, seed=number)) for number in range(1, 4)]
    among = comparison(evaluated("a", scores[0]), evaluated("b", scores[1]), *others)
    assert len(among.table.p_values) == 10
    assert cell(among, "a").tier == 1


def test_a_checkpoint_without_a_figure_has_an_empty_cell() -> None:
    found = comparison(evaluated("a", hits(10)), evaluated("b", None))
    assert FIGURE not in found.table.rows[1].cells
    assert found.table.columns[0].title == "k-NN top-1, k 20"


def test_rows_of_untrained_networks_that_are_equal_are_one() -> None:
    def beside(name: str, untrained: float) -> EvaluatedCheckpoint:
        one = evaluated(name, hits(100))
        references = {"majority": {FIGURE: 12.5}, "untrained": {FIGURE: untrained}}
        return replace(one, results={"knn": replace(one.results["knn"], references=references, notes=["shared", name])})

    same = comparison(beside("a", 30.0), beside("b", 30.0))
    assert references(same) == {"majority class": {FIGURE: 12.5}, "untrained": {FIGURE: 30.0}}
    assert same.notes == ["shared", "a: a", "b: b"]
    unlike = comparison(beside("a", 30.0), beside("b", 31.0), beside("c", 30.0))
    assert list(references(unlike)) == ["majority class", "a, c, untrained", "b, untrained"]


def test_raw_pixels_are_one_row_where_images_are_prepared_alike() -> None:
    def beside(name: str, pixels: float) -> EvaluatedCheckpoint:
        one = evaluated(name, hits(100))
        references = {"pixels": {FIGURE: pixels}, "colour_histogram": {FIGURE: 20.0}, "patches": {FIGURE: 30.0}}
        return replace(one, results={"knn": replace(one.results["knn"], references=references)})

    assert references(comparison(beside("a", 9.0), beside("b", 9.0))) == {
        "whitened patches with k-means": {FIGURE: 30.0},
        "colour histogram": {FIGURE: 20.0},
        "raw pixels": {FIGURE: 9.0},
    }
    assert list(references(comparison(beside("a", 9.0), beside("b", 8.0)))) == [
        "a, raw pixels",
        "b, raw pixels",
        "colour histogram",
        "whitened patches with k-means",
    ]


def test_csv_has_a_line_a_figure() -> None:
    lines = list(csv.DictReader(io.StringIO(comparison().to_csv())))
    assert len(lines) == 7  # three checkpoints with two figures, and the majority class
    (good,) = [line for line in lines if line["checkpoint"] == "good" and line["figure"] == FIGURE]
    assert (good["tier"], good["parameters"], good["flops"]) == ("1", "5400000", "1200000000")
    assert float(good["low"]) < float(good["percent"]) < float(good["high"])
    assert lines[-1]["checkpoint"] == "majority class"
    assert comparison(evaluated("=1+1", hits(9)), evaluated("b", hits(8))).to_csv().splitlines()[1].startswith("'=1+1")


def test_markdown_is_one_table_that_names_the_picture() -> None:
    text = sheet_as_markdown(comparison(notes=["a note"]).sheet("report.html"), picture="comparison.png")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {7}
    assert len(table) == 2 + 3 + 1
    assert "| majority class | 12.50 |" in text
    assert "![Figures with their intervals](comparison.png)" in text
    assert "- a note" in text


def parsed(text: str) -> tuple[list[list[str]], str]:
    """The rows of the one `tabular` of a LaTeX text, and its columns; refuses what LaTeX would refuse.

    Environments and braces must match, rows must fit the columns, and no special character may stand unescaped.
    """
    code = "\n".join(re.sub(r"(?<!\\)%.*", "", line) for line in text.splitlines())
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", code):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    plain = re.sub(r"\\[{}\\&%$#_]", "", code)
    depth = 0
    for letter in plain:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert depth == 0
    assert not set('$#_^~<>|"') & set(plain)
    known = {"begin", "end", "centering", "caption", "toprule", "midrule", "bottomrule", "textbf", "textsuperscript"}
    known |= {"scriptsize"} | {f"text{name}" for name in ("backslash", "asciitilde", "asciicircum", "less", "greater")}
    known |= {"textbar", "textquotedbl"}
    assert set(re.findall(r"\\([A-Za-z]+)", code)) <= known
    match = re.search(r"\\begin\{tabular\}\{(\w+)\}(.*)\\end\{tabular\}", code, re.DOTALL)
    assert match is not None
    body = re.sub(r"\\(top|mid|bottom)rule", "", match[2]).strip()
    assert body.endswith(r"\\")
    rows = [re.split(r"(?<!\\)&", row) for row in re.split(r"\\\\", body)[:-1]]
    assert {len(row) for row in rows} == {len(match[1])}
    return [[cell.strip() for cell in row] for row in rows], match[1]


def test_latex_parses_and_the_first_tier_is_bold() -> None:
    rows, columns = parsed(sheet_as_latex(comparison().sheet("report.html")))
    assert columns == "lrrrrr"
    assert [row[0] for row in rows[1:]] == ["good", "close", "bad", "majority class"]
    assert rows[1][1].startswith(r"\textbf{7")
    assert rows[3][1].startswith("2")
    assert r"\textsuperscript{2}" in rows[3][1]
    assert rows[1][3:] == ["5.4", "1.2", "1,234"]
    assert rows[4][1:] == ["12.50", "", "", "", ""]


@pytest.mark.parametrize("name", [HOSTILE, r"a_b & 50 % $x$ #1 {~^}\input{x}", "\\", "é ü 漢", "a\nb\x1b[2J"])
def test_any_name_is_text_in_every_form(name: str) -> None:
    found = comparison(evaluated(name, hits(30)), evaluated("b", hits(9)))
    rows, _ = parsed(sheet_as_latex(found.sheet("report.html")))
    assert rows[1][0] == latex(name)
    assert "<img src=x" not in sheet_as_page(found.sheet("report.html"), picture=b"")
    assert len(list(csv.reader(io.StringIO(found.to_csv())))) == 6
    assert figure_bytes(draw_table(found.table))[:4] == b"\x89PNG"


def test_the_picture_has_a_panel_a_figure_and_a_point_a_checkpoint() -> None:
    figure = draw_table(comparison().table)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [column.title for column in comparison().table.columns]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["good", "close", "bad"]
    containers: list[Any] = list(figure.axes[0].containers)
    points = [container.lines[0].get_xdata()[0] for container in containers]
    assert points == pytest.approx([cell(comparison(), name).value for name in ("good", "close", "bad")])


def test_all_forms_are_written(tmp_path: Path) -> None:
    files = several.write_comparison(comparison(), tmp_path, report="report.html")
    assert sorted(file.name for file in files) == [
        f"comparison.{suffix}" for suffix in ("csv", "html", "json", "md", "png", "svg", "tex")
    ]
    assert 'href="good/report.html"' in (tmp_path / "comparison.html").read_text(encoding="utf-8")


@pytest.mark.browser
def test_the_page_in_a_browser_fits_a_phone(tmp_path: Path) -> None:
    several.write_comparison(comparison(), tmp_path, report="report.html")
    with chromium() as page:
        page.size(360, 740, phone=True)
        page.open(tmp_path / "comparison.html")
        assert page.run("document.documentElement.scrollWidth") <= 360
        assert page.run("document.scripts.length") == 0
        assert page.problems == []


@pytest.mark.browser
def test_many_figures_fit_a_screen_and_move_below_the_names_on_a_phone(tmp_path: Path) -> None:
    columns = [FigureColumn(str(number), f"Semi-supervised {number} % top-1") for number in range(9)]
    cells = {column.key: FigureCell(60.12, (55.1, 66.2), 1) for column in columns}
    rows = [FigureRow("runs/resnet50_of_photographs", cells, ("2.22", "0.11", "1,238"))]
    rows.append(FigureRow("runs/resnet50_of_photographs, k-NN of the same features", cells, reference=True))
    table = FigureTable(columns, rows, facts=("parameters, M", "GFLOPs", "images/s"))
    (tmp_path / "page.html").write_text(sheet_as_page(Sheet("Two", "some images", [table], "Percent.")))
    wide = "document.querySelector('.wide')"
    with chromium() as page:
        page.size(1440, 900)
        page.open(tmp_path / "page.html")
        assert page.run(f"{wide}.scrollWidth <= {wide}.clientWidth")
        page.size(400, 800, phone=True)
        page.settle()
        assert page.run(f"{wide}.scrollWidth > 2 * {wide}.clientWidth")
        assert page.run("document.documentElement.scrollWidth") <= 400
        left = "document.querySelector('tbody th').getBoundingClientRect().left"
        before = page.run(left)
        page.run(f"{wide}.scrollLeft = 300")
        page.settle()
        assert page.run(left) == before
        assert page.run("document.querySelector('tbody th').clientWidth") < 180
        assert page.problems == []
