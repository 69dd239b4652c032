"""Tests of the leaderboard's page in a real browser: sorting, filters, the figure, the keyboard, any name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from excb.transfer.leaderboard import figure
from excb.transfer.leaderboard import page as leaderboard_page
from excb.transfer.leaderboard.board import FigureSource, MeasuredResult
from excb.transfer.leaderboard.sorting import boards
from excb.transfer.published.registry import claims
from tests.browser import Page, chromium
from tests.transfer.result_files import HOSTILE, linear, result

pytestmark = pytest.mark.browser
SHOWN = "[...document.querySelectorAll('tbody tr:not(.group)')].filter((r) => r.checkVisibility())"
LINEAR = (
    "[...document.querySelectorAll('.board')].find((b) => b.textContent.startsWith('Linear classification ImageNet'))"
)


def write_page(file: Path) -> None:
    own = [
        linear("mine", 74.1, pretraining={"method": "ExCB", "epochs": 150, "batch": 512, "crops": "2x224"}),
        result({"knn_top1_k20": 61.5}, name=HOSTILE),
        result({"knn_top1_k200": 60.5}, name=HOSTILE, settings={"k": [200], "temperature": [0.07]}),
    ]
    made = boards([MeasuredResult(each, FigureSource("<b>.json", "a%22b.json")) for each in own], claims())
    points, left_out = figure.figure_points(claims(), made)
    file.write_text(leaderboard_page.render_leaderboard(made, points, left_out), encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with chromium() as found:
        found.size(1280, 900)
        yield found


@pytest.fixture
def page(browser: Page, tmp_path: Path) -> Iterator[Page]:
    write_page(tmp_path / "leaderboard.html")
    browser.problems.clear()
    browser.open(tmp_path / "leaderboard.html")
    yield browser
    assert browser.problems == []


def choose(page: Page, select: str, value: str) -> None:
    page.run(
        f"(() => {{ const s = document.getElementById('{select}'); s.value = '{value}'; "
        "s.dispatchEvent(new Event('change')); })()"
    )


def groups(page: Page, board: str, column: str) -> list[list[str]]:
    """The column's values by protocol, as they stand in the table."""
    found: list[list[str]] = page.run(
        f"[...{board}.querySelectorAll('tbody')].map((b) => [...b.querySelectorAll('tr:not(.group) .{column}')]"
        ".map((c) => c.dataset.value ?? ''))"
    )
    return found


def natural(name: str) -> list[tuple[int, str | int]]:
    """As people sort: punctuation, then numbers by their values, then letters."""
    parts = re.findall(r"\d+|\D", name)
    return [(1, int(part)) if part.isdigit() else (2 if part.isalpha() else 0, part) for part in parts]


def press_sort(page: Page, board: str, name: str) -> str:
    page.run(f"[...{board}.querySelectorAll('thead button')].find((b) => b.textContent === '{name}').click()")
    state: str = page.run(f"{board}.querySelector('th[aria-sort]:not([aria-sort=none])').ariaSort")
    return state


def test_sorting_moves_rows_within_their_protocol_only(page: Page) -> None:
    before = groups(page, LINEAR, "model")
    assert press_sort(page, LINEAR, "epochs") == "descending"
    epochs = [[float(text) if text else -1.0 for text in group] for group in groups(page, LINEAR, "epochs")]
    assert epochs == [sorted(group, reverse=True) for group in epochs]
    assert press_sort(page, LINEAR, "epochs") == "ascending"
    up = [[float(text) for text in group if text] for group in groups(page, LINEAR, "epochs")]
    assert up == [sorted(group) for group in up]
    assert [sorted(group) for group in groups(page, LINEAR, "model")] == [sorted(group) for group in before]
    assert press_sort(page, LINEAR, "model") == "ascending"
    assert groups(page, LINEAR, "model") == [sorted(group, key=natural) for group in before]
    assert page.run(f"{LINEAR}.querySelectorAll('th[aria-sort]:not([aria-sort=none])').length") == 1
    assert page.run(f"[...{LINEAR}.querySelectorAll('tbody')].every((b) => b.rows[0].className === 'group')")


def test_unlike_protocols_say_what_keeps_them_apart(page: Page) -> None:
    told = page.run("[...document.querySelectorAll('.apart')].map((e) => e.textContent)")
    assert "Ranked apart: k 200, not 20" in told
    assert "Ranked apart: weight decay 1e-06, not 0" in told


def test_filters_and_search(page: Page) -> None:
    every = page.run(f"{SHOWN}.length")
    choose(page, "status", "measured")
    assert page.run(f"{SHOWN}.map((r) => r.dataset.status)") == ["measured"] * 3
    assert page.run("document.getElementById('count').textContent") == f"3 of {every} rows"
    choose(page, "status", "")
    choose(page, "method", "MIRA")
    assert set(page.run(f"{SHOWN}.map((r) => r.dataset.method)")) == {"MIRA"}
    clear = "[...document.querySelectorAll('.point:not(.away)')].map((p) => p.dataset.method)"
    assert set(page.run(clear)) == {"MIRA"}
    choose(page, "network", "vit_small")
    assert page.run(f"{SHOWN}.length") == 0
    assert page.run("document.getElementById('nothing').checkVisibility()")
    choose(page, "network", "")
    choose(page, "method", "")
    choose(page, "protocol", "linear_swav")
    assert page.run(f"[...new Set({SHOWN}.map((r) => r.dataset.protocol))]") == ["linear_swav"]
    choose(page, "protocol", "")
    page.press("/", 191, "/")
    page.write("Table 9")
    assert page.run(f"{SHOWN}.map((r) => r.querySelector('.model').dataset.value).sort()") == [
        "rn50_100ep",
        "rn50_100ep_squared",
    ]


def test_the_figure_shows_what_the_registry_says(page: Page) -> None:
    found: list[dict[str, Any]] = page.run(
        "[...document.querySelectorAll('#figure svg.wide .point')].map((p) => { const c = p.querySelector('circle');"
        "return { told: p.getAttribute('aria-label'), x: +c.getAttribute('cx'), y: +c.getAttribute('cy'),"
        "r: +c.getAttribute('r'), own: p.classList.contains('own') }; })"
    )
    wanted = {f"{c.method}: {c.value} % after {c.epochs:,} epochs": c for c in claims() if c.table == "figure2"}
    published = {each["told"].partition(", batch")[0]: each for each in found if not each["own"]}
    assert published.keys() == wanted.keys()
    for axis, value in (("x", "epochs"), ("y", "number")):  # places are linear in epochs and accuracy
        places = np.array([published[key][axis] for key in wanted])
        values = np.array([float(getattr(claim, value)) for claim in wanted.values()])
        slope, start = np.polyfit(values, places, 1)
        assert abs(slope * values + start - places).max() < 0.11
        assert (slope > 0) == (axis == "x")
    areas = [published[key]["r"] ** 2 / (claim.batch or 1) for key, claim in wanted.items()]
    assert max(areas) / min(areas) < 1.01
    assert [each["told"] for each in found if each["own"]] == ["mine: 74.10 % after 150 epochs, batch 512 (measured)"]
    assert page.run("document.querySelector('figcaption').textContent.includes('of photos')") is False


def test_all_by_keyboard(page: Page) -> None:
    page.press("/", 191, "/")
    assert page.run("document.activeElement.id") == "query"
    for name in ("method", "network", "protocol", "status"):
        page.press("Tab", 9)
        assert page.run("document.activeElement.id") == name
    page.press("Tab", 9)
    assert page.run("[document.activeElement.tagName, document.activeElement.textContent]") == ["BUTTON", "model"]
    page.press("Enter", 13, "\r")
    assert page.run("document.activeElement.parentElement.ariaSort") == "ascending"
    page.run("document.querySelector('#figure svg.wide .point').focus()")
    assert page.run(
        "document.getElementById('summary').textContent === document.activeElement.getAttribute('aria-label')"
    )


def test_hostile_names_are_shown_and_harmless(page: Page) -> None:
    names = page.run("[...document.querySelectorAll('tr.own .model')].map((m) => m.firstChild.textContent)")
    assert HOSTILE.replace("\u202e", "\ufffd") in names
    assert page.run("window.hurt === undefined && document.scripts.length === 1 && document.images.length === 0")
    link = page.run("document.querySelector('tr.own .source a').getAttribute('href')")
    assert link == "a%22b.json"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(page: Page, scheme: str) -> None:
    page.prefer(scheme)
    page.size(360, 740, phone=True)
    try:
        page.settle()
        assert page.run("document.documentElement.scrollWidth") <= 360
        assert page.run("[...document.querySelectorAll('.panel')].every((p) => p.scrollWidth <= p.clientWidth)")
        assert page.run("document.querySelector('svg.narrow').checkVisibility()")
        assert not page.run("document.querySelector('svg.wide').checkVisibility()")
        ground = page.run("getComputedStyle(document.body).backgroundColor")
        assert (np.mean([int(part) for part in re.findall(r"\d+", ground)]) < 128) == (scheme == "dark")
    finally:
        page.size(1280, 900)
        page.prefer("light")
