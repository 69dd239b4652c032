"""The map in a real browser: pictures, colours, lasso, search and export; hostile names are text; no request."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from excb.errors import UserError
from tests.browser import Page, chromium

pytest.importorskip("bokeh", reason="Bokeh is not installed (the extra map)")

from excb.transfer.map.columns import column_of
from excb.transfer.map.page import render_map
from excb.transfer.map.projection import Projection
from excb.transfer.map.sprites import make_sprites

HOSTILE = [
    "</script><script>window.hurt=1</script>.jpg",
    '"><img src=x onerror="window.hurt=2">.jpg',
    "=cmd|'/c calc'!A1.jpg",
    'a,b "quoted"\nnew line.jpg',
    "bytes \udcff.jpg",
    "{{ 7 * 7 }} <!-- .jpg",
]
PATHS = [*HOSTILE, *(f"{'left' if number < 20 else 'right'}/{number:02}.jpg" for number in range(40))]
N = len(PATHS)


def points() -> np.ndarray:
    """Two groups: hostile names and left/ are at the left, right/ is at the right."""
    random = np.random.default_rng(0)
    centre = np.array([[3.0 if path.startswith("right") else -3.0, 0.0] for path in PATHS])
    return (centre + 0.4 * random.normal(size=(N, 2))).astype(np.float32)


def render(**values: Any) -> str:
    columns = [
        column_of("label", [f"<b>{path[:5]}</b>" for path in PATHS], PATHS),
        column_of("score", np.linspace(0, 1, N), PATHS),
    ]
    sprites = make_sprites(N, lambda row, _: Image.new("RGB", (60, 40), (5 * row, 0, 99)), budget=10**7)
    made = Projection(points(), "t-SNE", 1.0)
    return render_map(made, PATHS, columns, sprites, title="<script>window.hurt=3</script>", **values)


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with chromium() as page:
        yield page


@pytest.fixture
def page(browser: Page, tmp_path: Path) -> Page:
    file = tmp_path / "map.html"
    file.write_text(render(notes=["<i>a note</i>"]), encoding="utf-8")
    browser.problems.clear()
    browser.size(1440, 900)
    browser.open(file)
    browser.run("ready")
    browser.settle()
    return browser


def selected(page: Page) -> list[int]:
    found: list[int] = page.run("selection().sort((a, b) => a - b)")
    return found


def test_the_page_names_no_place_elsewhere() -> None:
    page = render()
    ours = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)  # Bokeh's own text names its home page
    assert "://" not in ours
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; img-src data:;")
    assert "unsafe-eval" not in policy[1]
    assert page.count("<script>") == 2


def test_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="no column colour to colour by: there are label, score"):
        render(colour_by="colour")


@pytest.mark.browser
def test_hostile_names_are_text(page: Page) -> None:
    for row in range(len(HOSTILE)):
        page.run(f"showCard({row})")
        assert page.run("$('card').querySelector('figcaption').textContent").startswith(
            HOSTILE[row].replace("\udcff", "\\udcff")
        )
    page.run("select(images(() => true))")
    page.settle()
    assert page.run("window.hurt === undefined")
    assert page.run("document.querySelectorAll('main b, main i, aside img').length") == 0
    assert page.run("document.scripts.length") == 2 + 1 + 1  # libraries and ours, one sheet, the data
    assert page.problems == []


@pytest.mark.browser
def test_search_selects_by_path_and_by_label(page: Page) -> None:
    page.run("search('RIGHT/2')")
    assert selected(page) == [row for row, path in enumerate(PATHS) if path.startswith("right/2")]
    page.run("search('<b>left')")
    assert selected(page) == [row for row, path in enumerate(PATHS) if path.startswith("left")]
    assert page.run("$('count').textContent") == f"20 of {N} images selected"
    page.run("search('no such thing')")
    page.settle()
    assert selected(page) == []
    assert page.run("$('count').textContent") == "no image matches"
    page.press("/", 191, "/")
    assert page.run("document.activeElement.id") == "query"


@pytest.mark.browser
def test_both_directions_have_one_scale(page: Page) -> None:
    shown = page.run(
        "(() => { const { width, height } = plotView.frame.bbox, { x_range, y_range } = plot;"
        " return [width / (x_range.end - x_range.start), height / (y_range.end - y_range.start)]; })()"
    )
    assert shown[0] == pytest.approx(shown[1], rel=1e-3)


@pytest.mark.browser
def test_a_lasso_selects_what_it_surrounds(page: Page) -> None:
    page.run(
        "(() => { for (const tool of plot.toolbar.tools) if (tool.type === 'LassoSelectTool') tool.active = true; })()"
    )
    page.settle()
    box = page.run("(() => { const b = $('plot').getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()")
    left, top, width, height = box
    corners = [(0.52, 0.08), (0.97, 0.08), (0.97, 0.97), (0.52, 0.97), (0.52, 0.1)]
    around = [(left + x * width, top + y * height) for x, y in corners]
    page.mouse("mousePressed", *around[0])
    for corner in around[1:]:
        page.mouse("mouseMoved", *corner)
        page.settle()  # moves within one frame are one
    page.mouse("mouseReleased", *around[-1])
    page.settle()
    assert selected(page) == [row for row, path in enumerate(PATHS) if path.startswith("right")]
    assert page.run("[...document.querySelectorAll('#chosen canvas')].length") == 20
    assert page.problems == []


@pytest.mark.browser
def test_the_wheel_zooms_and_hovering_shows_the_picture(page: Page) -> None:
    before = page.run("plot.x_range.end - plot.x_range.start")
    x, y = page.run(
        "(() => { const b = document.querySelector('#plot').getBoundingClientRect(), f = plotView.frame.bbox;"
        " const g = plotView.owner.find_one(plot.renderers[0]).glyph, c = plotView.el.getBoundingClientRect();"
        " return [c.x + g.sx[30], c.y + g.sy[30]]; })()"
    )
    page.mouse("mouseMoved", x - 40, y)
    page.mouse("mouseMoved", x, y)
    page.settle()
    caption = page.run("$('card').hidden ? '' : $('card').querySelector('figcaption').textContent")
    assert caption.split("\n")[0].startswith("right/")
    assert page.run("$('card').querySelector('canvas').width") > 0
    page.wheel(x, y, -300)
    page.settle()
    assert page.run("plot.x_range.end - plot.x_range.start") < before
    assert page.problems == []


@pytest.mark.browser
def test_points_have_the_colours_of_their_values(page: Page) -> None:
    page.run(
        "window.painted = (point) => {"
        " const glyph = plotView.owner.find_one(plot.renderers[0]).glyph, { left, top } = plotView.frame.bbox;"
        " const at = [glyph.sx[point] - left, glyph.sy[point] - top].map(Math.round);"
        " return [...raster.getContext('2d').getImageData(...at, 1, 1).data].slice(0, 3); }"
    )
    for column in (0, 1):
        page.run(f"$('colour').value = {column}; $('colour').onchange()")
        page.settle()
        wanted = page.run("[0, 8, 16].map((shift) => (colours[20] >> shift) & 255)")
        assert np.abs(np.array(page.run("painted(20)")) - wanted).max() <= 2
    assert page.run("new Set(colours).size") > 30  # a scale
    assert page.run("document.querySelectorAll('#legend .scale').length") == 1


@pytest.mark.browser
def test_the_selection_is_exported_as_csv(page: Page) -> None:
    page.run("select([0, 2, 3, 4, 45])")
    page.run(
        "HTMLAnchorElement.prototype.click = function () { window.named = this.download; };"
        " window.made = new Promise((done) => {"
        " URL.createObjectURL = (blob) => { blob.text().then(done); return 'data:,'; }; }); 0"
    )
    page.run("$('export').click()")
    rows = list(csv.reader(io.StringIO(page.run("made"), newline="")))
    assert page.run("named") == "selection.csv"
    assert rows[0] == ["path", "label", "score"]
    assert [row[0] for row in rows[1:]] == [
        HOSTILE[0],
        f"./{HOSTILE[2]}",
        HOSTILE[3],
        HOSTILE[4].replace("\udcff", "\\udcff"),
        PATHS[45],
    ]
    assert float(rows[-1][2]) == pytest.approx(1)


@pytest.mark.browser
def test_the_page_fits_a_phone(page: Page, tmp_path: Path) -> None:
    page.size(400, 800, phone=True)
    page.open(tmp_path / "map.html")
    page.run("ready")
    page.settle()
    assert page.run("document.documentElement.scrollWidth") <= 400
    assert page.run("$('plot').getBoundingClientRect().height") > 300
    assert page.problems == []


@pytest.mark.browser
def test_the_legend_says_which_points_have_no_value(browser: Page, tmp_path: Path) -> None:
    labels = [None if row % 3 else "a" for row in range(N)]
    sprites = make_sprites(N, lambda row, _: Image.new("RGB", (60, 40)), budget=10**7)
    page = render_map(Projection(points(), "t-SNE", 1.0), PATHS, [column_of("label", labels, PATHS)], sprites, title="")
    (tmp_path / "map.html").write_text(page, encoding="utf-8")
    browser.open(tmp_path / "map.html")
    browser.run("ready")
    without = labels.count(None)
    assert browser.run("[...$('legend').children].map((each) => each.innerText.replace(/\\s+/g, ' '))") == [
        f"no label {without}",
        f"a {N - without}",
    ]
    browser.run("document.querySelector('#legend button').click()")
    assert selected(browser) == [row for row, label in enumerate(labels) if label is None]
