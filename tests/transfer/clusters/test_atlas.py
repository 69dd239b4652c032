"""Tests of the atlas: its data, and the page in a real browser as a reader uses it."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from excb.images.image_set import ImageSet
from excb.transfer.clusters import atlas, exemplars
from excb.transfer.clusters.assignment import NOISE, ClusterAssignment, neighbours
from excb.transfer.clusters.statistics import label_figures, noise_figures, sizes_figures
from tests.browser import Page, chromium
from tests.transfer.clusters.hostile import CLASSES, hostile_set

pytestmark = pytest.mark.usefixtures("one_thread")


def shown(images: ImageSet, assignment: ClusterAssignment, *, most: int = 3, budget: int = 10**9) -> dict[str, Any]:
    centroids = F.normalize(torch.randn(assignment.clusters, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    centroids[8] = centroids[2].clone()
    near = neighbours(centroids, most=3, threshold=0.99)
    nearest, border = exemplars.choose_exemplars(assignment, most)
    wanted = list(exemplars.in_turn(nearest, border, assignment.sizes))
    pictures = exemplars.pictures(images, wanted, budget=budget)
    figures = sizes_figures(assignment.sizes) | {"duplicate_pairs": near.pairs, "duplicate_clusters": 2}
    if images.labels is not None:
        figures |= label_figures(assignment, images.labels)
    return atlas.contents(
        assignment,
        images,
        near,
        atlas.Exemplars(nearest, border, pictures),
        figures=figures,
        heading={"checkpoint": "</title><script>window.hurt=5</script>", "data": "a & b"},
        notes=["a note"],
    ) | {"threshold": 0.99}


def data_of(page: str) -> dict[str, Any]:
    """The page's data as a parser of HTML sees it: all up to the first end tag of a script."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script', page, re.DOTALL | re.IGNORECASE)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_whatever_names_hold_is_data(tmp_path: Path) -> None:
    images, assignment = hostile_set(tmp_path / "images")
    found = shown(images, assignment)
    page = atlas.render_atlas(found)
    assert data_of(page) == json.loads(json.dumps(found))
    assert page.lower().count("<script") == page.lower().count("</script") == 2
    assert "{{css}}" not in page
    assert "innerHTML" not in page


def test_data_of_a_large_set_names_what_has_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, assignment = hostile_set(tmp_path / "images")
    whole = shown(images, assignment, most=1)
    monkeypatch.setattr(atlas, "LISTED", 13)
    found = shown(images, assignment, most=1)
    assert len(whole["names"]) == 14
    assert len(found["names"]) == sum(map(len, found["nearest"])) + sum(map(len, found["border"])) < 14
    for cluster in range(10):
        for kind in ("nearest", "border"):
            names = [found["names"][image] for image in found[kind][cluster]]
            assert names == [whole["names"][image] for image in whole[kind][cluster]]
            assert all(found["cluster"][image] == cluster for image in found[kind][cluster])
    assert len(found["pictures"]) == len(found["names"])


# ---------------------------------------------------------------------------------------------------------------------
# In a browser
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as found:
        found.size(1200, 900)
        yield found


def cards(page: Page) -> list[int]:
    found: list[int] = page.run("[...document.querySelectorAll('a.card')].map((a) => Number(a.hash.slice(2)))")
    return found


def choose(page: Page, select: str, value: str) -> None:
    page.run(
        f"(() => {{ const s = document.getElementById('{select}'); s.value = '{value}'; "
        "s.dispatchEvent(new Event('change')); })()"
    )
    page.settle()


def look_for(page: Page, text: str) -> None:
    page.run("(() => { const q = document.getElementById('query'); q.focus(); q.select(); })()")
    if text:
        page.write(text)
    else:
        page.press("Backspace", 8)


@pytest.fixture
def hostile_page(page: Page, tmp_path: Path) -> Page:
    images, assignment = hostile_set(tmp_path / "images")
    file = tmp_path / "atlas.html"
    file.write_text(atlas.render_atlas(shown(images, assignment)), encoding="utf-8")
    page.problems.clear()
    page.open(file)
    return page


@pytest.mark.browser
def test_hostile_names_are_shown_and_harmless(hostile_page: Page) -> None:
    page = hostile_page
    assert cards(page) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert page.run("getComputedStyle(document.getElementById('pages')).display") == "none"  # of one page
    for k in cards(page):
        page.run(f"location.hash = 'c{k}'")
        page.settle()
        assert page.run("document.getElementById('detail').open")
    page.run("location.hash = 'c0'")
    page.settle()
    assert page.run("document.getElementById('detail-title').textContent") == CLASSES[0]
    assert page.run("document.querySelectorAll('.names li').length") == 5
    assert page.run("document.getElementById('subtitle').textContent").startswith("</title><script>")
    assert page.run("window.hurt === undefined && document.scripts.length === 2")
    assert page.problems == []


@pytest.mark.browser
def test_search_sort_and_filter(hostile_page: Page) -> None:
    page = hostile_page
    look_for(page, "QUOTED")
    assert cards(page) == [0, 3]
    look_for(page, "#7")
    assert cards(page) == [7]
    look_for(page, "break,comma")
    assert len(cards(page)) == 2
    assert page.run("document.getElementById('count').textContent") == "2 of 10 clusters"
    look_for(page, "no such thing")
    assert cards(page) == []
    look_for(page, "")
    choose(page, "filter", "empty")
    assert cards(page) == [6, 7, 8, 9]
    choose(page, "filter", "twins")
    assert cards(page) == [2, 8]
    choose(page, "filter", "all")
    choose(page, "sort", "smallest")
    assert cards(page)[:2] == [3, 4]
    assert cards(page)[-4:] == [6, 7, 8, 9]
    choose(page, "sort", "number")
    assert cards(page) == list(range(10))
    purity = page.run("(() => { const f = (k) => purity(k); return [0, 1, 2, 3, 4, 5].map(f); })()")
    choose(page, "sort", "pure")
    assert [purity[k] for k in cards(page)[:6]] == sorted(purity, reverse=True)
    assert page.problems == []


@pytest.mark.browser
def test_all_by_keyboard(hostile_page: Page) -> None:
    page = hostile_page
    page.press("/", 191, "/")
    assert page.run("document.activeElement.id") == "query"
    assert page.run("document.activeElement.value") == ""
    for _ in range(3):
        page.press("Tab", 9)
    assert page.run("document.activeElement.hash") == "#c0"
    page.press("Enter", 13, "\r")
    assert page.run("document.getElementById('detail').open")
    page.press("ArrowRight", 39)
    assert page.run("location.hash") == "#c1"
    page.press("ArrowLeft", 37)
    page.press("ArrowLeft", 37)  # there is none before
    assert page.run("location.hash") == "#c0"
    page.press("Escape", 27)
    page.settle()
    assert not page.run("document.getElementById('detail').open")
    assert page.run("document.activeElement.hash") == "#c0"
    assert page.problems == []


@pytest.mark.browser
def test_neighbours_lead_on_and_back(hostile_page: Page) -> None:
    page = hostile_page
    page.run("document.querySelector('a.card[href=\"#c2\"]').click()")
    page.settle()
    first = page.run("document.querySelector('#near a').hash")
    assert first == "#c8"  # its twin
    page.run("document.querySelector('#near a').click()")
    page.settle()
    assert page.run("location.hash") == "#c8"
    assert "near duplicate" in page.run("document.getElementById('detail-facts').textContent")
    page.run("new Promise((r) => { addEventListener('hashchange', r, { once: true }); history.back(); })")
    page.settle()
    assert page.run("location.hash") == "#c2"
    page.run("document.getElementById('close').click()")
    page.settle()
    assert not page.run("document.getElementById('detail').open")
    assert page.problems == []


@pytest.mark.browser
def test_many_clusters_without_labels_come_a_page_at_a_time(page: Page, tmp_path: Path) -> None:
    images, few = hostile_set(tmp_path / "images")
    assignment = replace(few, clusters=5000, first=few.first * 300, second=few.second * 300)
    plain = ImageSet(images.root, images.paths)
    near = neighbours(torch.eye(5000)[:, :64] + 0.01, most=3, threshold=0.99)
    found = atlas.contents(
        assignment,
        plain,
        near,
        atlas.Exemplars(*exemplars.choose_exemplars(assignment, 3), {}),
        figures=sizes_figures(assignment.sizes) | {"duplicate_pairs": 0, "duplicate_clusters": 0},
        heading={"checkpoint": "many", "data": "few"},
    )
    file = tmp_path / "atlas.html"
    file.write_text(atlas.render_atlas(found | {"threshold": 0.99, "balanced": False}), encoding="utf-8")
    page.problems.clear()
    page.open(file)
    assert "balancing" not in page.run("document.getElementById('figures').textContent")
    assert len(cards(page)) == 48
    assert page.run("document.getElementById('page').textContent") == "Page 1 of 105"
    page.run("document.getElementById('next').click()")
    page.settle()
    assert page.run("document.getElementById('page').textContent") == "Page 2 of 105"
    assert len(cards(page)) == 48
    assert page.run("document.querySelector('#sort [value=pure]')") is None
    assert page.problems == []


@pytest.mark.browser
def test_noise_has_a_card_of_its_own_and_is_no_cluster(page: Page, tmp_path: Path) -> None:
    images, whole = hostile_set(tmp_path / "images")
    assignment = replace(whole, first=np.where(whole.first == 1, NOISE, whole.first))
    found = shown(images, assignment.with_noise_as_cluster())
    found = atlas.contents(
        assignment,
        images,
        neighbours(torch.eye(10), most=3, threshold=0.99),
        atlas.Exemplars(*exemplars.choose_exemplars(assignment.with_noise_as_cluster(), 3), {}),
        figures=found["figures"] | noise_figures(assignment),
        heading={"checkpoint": "some", "data": "few"},
    )
    file = tmp_path / "noise.html"
    file.write_text(atlas.render_atlas(found | {"threshold": 0.99, "balanced": False}), encoding="utf-8")
    page.problems.clear()
    page.open(file)
    for order in ("largest", "smallest", "number", "pure"):
        choose(page, "sort", order)
        assert (cards(page)[-1], len(cards(page))) == (10, 11)
    assert page.run("document.getElementById('count').textContent") == "10 of 10 clusters"
    assert "14 28.6 % noise" in page.run("document.getElementById('figures').textContent")
    assert "All (10)" in page.run("document.getElementById('filter').textContent")
    page.run("location.hash = 'c10'")
    page.settle()
    assert page.run("document.getElementById('detail-title').textContent") == "Noise"
    assert page.run("document.getElementById('detail-facts').textContent") == "4 images · 28.6 % of all, in no cluster"
    assert page.run("document.querySelector('#detail-body figcaption a').textContent").startswith("nearly #")
    assert page.run("document.getElementById('near')") is None
    assert page.problems == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(hostile_page: Page, scheme: str) -> None:
    page = hostile_page
    page.prefer(scheme)
    page.size(360, 740, phone=True)
    try:
        page.run("document.querySelector('a.card').click()")
        page.settle()
        for place in ("document.documentElement", "document.getElementById('detail-body')"):
            assert page.run(f"{place}.scrollWidth <= {place}.clientWidth"), place
        ground = page.run("getComputedStyle(document.body).backgroundColor")
        assert (np.mean([int(part) for part in re.findall(r"\d+", ground)]) < 128) == (scheme == "dark")
    finally:
        page.size(1200, 900)
        page.prefer("light")
