"""The documentation site in a browser: from disk, on a desk and a phone, in light and dark, and its search."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Page, chromium
from tests.clone import ROOT

pytest.importorskip("furo", reason="the site needs `pip install '.[docs]'`")
pytestmark = pytest.mark.browser

PAGES = (
    "index.html",
    "python.html",
    "photographs.html",
    "distil.html",
    "evaluation.html",
    "method.html",
    "equations.html",
    "reference/api.html",
    "reference/options.html",
)


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built := request.config.getoption("--site"):
        return Path(built).resolve()
    folder = tmp_path_factory.mktemp("site")
    # Notebooks are not run here: .ci/run builds the whole site, and names it with --site.
    # A new interpreter: Sphinx changes it for good.
    command = [sys.executable, "-m", "sphinx", "-q", "-D", "nb_execution_mode=off", ROOT / "docs", folder]
    subprocess.run([*map(str, command)], check=True)
    return folder


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1440])
def test_pages_fit_and_are_readable(site: Path, page: Page, width: int, scheme: str) -> None:
    page.size(width, 900, phone=width < 600)
    page.prefer(scheme)
    for name in PAGES:
        page.open(site / name)
        wide = page.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} scrolls sideways by {wide} pixels"
        dark = page.run(
            "getComputedStyle(document.querySelector('.page')).color.match(/\\d+/g).slice(0, 3).map(Number)"
            ".reduce((a, b) => a + b) > 384"
        )
        assert dark == (scheme == "dark"), f"{name}: text is as bright as on a {'dark' if dark else 'light'} page"
    assert page.problems == []


@pytest.mark.parametrize("name", ["equations.html", "distil.html"])
def test_equations_are_not_cut_off(site: Path, page: Page, name: str) -> None:
    page.size(1440, 900)
    page.open(site / name)
    heights = "[...document.querySelectorAll('.math-wrapper')].map((box) => [box.scrollHeight, box.clientHeight])"
    found = page.run(heights)
    assert len(found) > 3
    assert [box for box in found if box[0] > box[1]] == []


def test_search_finds_k_nn(site: Path, page: Page) -> None:
    page.size(1440, 900)
    page.open(site / "search.html")
    page.run("location.href = 'search.html?q=k-NN'")
    page.wait_until_loaded()
    summary = "document.querySelector('.search-summary')?.innerText"
    page.run(
        f"new Promise((r) => {{ const wait = () => /finished/.test({summary}) ? r() : setTimeout(wait, 50); wait() }})"
    )
    found = page.run("[...document.querySelectorAll('#search-results li a')].map((link) => link.getAttribute('href'))")
    assert any(link.startswith("evaluation.html") for link in found), found  # from disk without excerpts
