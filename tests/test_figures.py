"""Pages against the records of their figures: nothing measured without its record, no claim beyond it."""

import datetime
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from tests.clone import ROOT
from tests.pages import faults, sections
from tests.records import Record, load

DOCS = ROOT / "docs"
EXEMPT = tomllib.loads((DOCS / "figures" / "exempt.toml").read_text(encoding="utf-8"))
RECORDED = sorted(path.stem for path in (DOCS / "figures").glob("*.toml") if path.stem != "exempt")
KEYS = {"sections", "command", "hardware", "date", "seeds", "spread"}
MORE = {"figures", "csv", "claims", "unjudged", "stated"}
SPREADS = (
    "± 95 % interval of the mean over seeds (t)",
    "95 % interval over test images",
    "± 95 % interval of the mean over seeds (t); brackets: 95 % interval over test images",
    "95 % interval of the mean over rounds (t)",
    "none",
)


def page_of(name: str) -> Path:
    return ROOT / "README.md" if name == "README" else DOCS / f"{name}.md"


@pytest.mark.parametrize("name", RECORDED)
def test_figures_and_claims_of_a_page_are_those_of_its_records(name: str) -> None:
    assert not list(faults(page_of(name), load(DOCS, name), EXEMPT["sections"].get(name, {})))


@pytest.mark.parametrize("name", RECORDED)
def test_records_say_how_they_were_measured(name: str) -> None:
    for record in load(DOCS, name):
        about = record.about
        assert KEYS <= set(about) <= KEYS | MORE, about["sections"]
        assert about["spread"] in SPREADS, about["spread"]
        assert isinstance(about["date"], datetime.date) or about["date"] == "not stated"
        assert all(about[key].strip() for key in ("command", "hardware")), about["sections"]
        assert re.search(r"^\d|not stated", str(about["seeds"])), about["sections"]
        assert all((DOCS / file).is_file() for file in about.get("csv", []))
        assert all(about.get("unjudged", {"": "why"}).values()), about["sections"]


@pytest.mark.parametrize("name", RECORDED)
def test_a_page_says_what_plus_minus_means(name: str) -> None:
    text = " ".join(page_of(name).read_text(encoding="utf-8").split())
    if "±" in text:
        assert re.search(r"±[^.|]{0,80} 95 % interval|95 % intervals?[^.|]{0,80} ±", text)


def test_every_page_with_figures_has_records_or_a_reason() -> None:
    pages = {path.stem for path in DOCS.glob("*.md")} | {"README"}
    measured = {name for name in pages if any(part.figures for part in sections(page_of(name)).values())}
    assert measured - set(RECORDED) == set(EXEMPT["pages"])
    assert set(EXEMPT["sections"]) <= set(RECORDED)


def test_the_site_shows_records_below_their_sections() -> None:
    with_records = runpy.run_path(str(DOCS / "records.py"))["with_records"]
    record = {"sections": ["One"], "command": "f '<a>'", "hardware": "a CPU", "date": 1, "seeds": 0, "spread": "none"}
    page = "# Page\n\n## One\n\n```bash\n# Two\n```\n\n| 1.5 |\n\n## Two\n\n- a\n"
    note = with_records(page, [record])
    before, _, after = note.partition("\n<details>")
    details, _, rest = after.partition("</details>\n\n")
    assert before + rest == page
    assert rest.startswith("## Two")
    assert "f &#x27;&lt;a&gt;&#x27;" in details


PAGE = "## One\n\n| a | b | c |\n| one | 1.5 ± 0.2 | 2.0 |\n\nIt is ahead by 1.5 ± 0.2.\nIt takes 3 s in `f(0.5)`.\n"
RECORD = {"sections": ["One"], "figures": "one: 1.5 ± 0.2, 2.0\ntime: 3 s", "claims": {"ahead": "1.5 ± 0.2 > 0"}}


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("2.0", "2.0", None),
        ("2.0", "2.1", "no line of a record"),
        ("| 1.5 ± 0.2 | 2.0", "| 2.0 | 1.5 ± 0.2", "no line of a record"),
        ("3 s", "4 s", "is in no record"),
        ("by 1.5 ± 0.2", "by 1.5 ± 0.3", "is in no record"),
        ("by 1.5 ± 0.2", "by 2 points", None),
        ("ahead", "level", "does not say"),
        ("It takes", "It beats all. It takes", "with < or > is about"),
        ("It takes 3 s", "It runs", "without a figure of the page"),
        ("## One", "## Two\n\n1.5 s\n\n## One", "no record"),
    ],
)
def test_what_is_beyond_its_record_is_found(tmp_path: Path, before: str, after: str, fault: str | None) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(before, after), encoding="utf-8")
    found = list(faults(page, [Record.of(dict(RECORD), tmp_path)], {}))
    assert not found if fault is None else any(fault in each for each in found), found


@pytest.mark.parametrize(
    ("claim", "expression", "holds"),
    [
        ("ahead", "1.5 ± 0.2 > 0", True),
        ("ahead", "1.5 ± 0.2 ~ 0", False),
        ("ahead", "9.0 > 0", False),
        ("level", "1.0 ± 1.2 ~ 0", True),
        ("level", "1.5 ± 0.2 ~ 0", False),
        ("ahead", "1.0 ± 1.2 > 0", False),
        ("ahead", "81.0 (80.2 to 81.8) > 72.8 (71.9 to 73.6)", True),
        ("ahead", "72.8 (71.9 to 73.6) > 72.0 (71.1 to 72.9)", False),
        ("level", "72.8 (71.9 to 73.6) ~ 72.0 (71.1 to 72.9)", True),
        ("8.2 more", "81.0 (80.2 to 81.8) - 72.8 (71.9 to 73.6) = 8.2", True),
        ("8.4 more", "81.0 (80.2 to 81.8) - 72.8 (71.9 to 73.6) = 8.4", False),
        ("ahead", "81.1 > 72.8 (71.9 to 73.6)", False),
        ("ahead", "81.0 (80.2 to 81.8) > 9.0 of 400", True),
        ("level", "9.0 of 400 ~ 9.0 of 400", True),
        ("no lead", "1.0 ± 1.2 ~ 0", True),
        ("ahead", "[57.8, 57.4, 57.5] > 1.5 ± 0.2", True),
        ("mean", "[57.8, 57.4, 57.5] = 57.6 ± 0.5", True),
        ("mean", "[57.8, 57.4, 57.5] = 57.6 ± 0.9", False),
        ("ahead", "[57.8, 57.4, 57.5] - [56.7, 56.4, 56.4] > 0", True),
        ("fine", "8.2 = 8.2", False),
        ("fine", "8.2 - 0.0 = 8.2", False),
        ("ahead", "-1.5 ± 0.2 < 0", False),
        ("ahead", "9.0", False),
    ],
)
def test_a_claim_holds_as_its_record_has_it(tmp_path: Path, claim: str, expression: str, holds: bool) -> None:
    figures = (
        "1.5 ± 0.2, 1.0 ± 1.2, 9.0, 81.0 (80.2 to 81.8)\n72.8 (71.9 to 73.6), 72.0 (71.1 to 72.9)\n"
        "57.8, 57.4, 57.5, 56.7, 56.4, 56.4"
    )
    page = tmp_path / "page.md"
    page.write_text(f"## One\n\nIt is {claim}.\n\n{figures}\n", encoding="utf-8")
    record = Record.of({"sections": ["One"], "figures": figures, "claims": {claim: expression}}, tmp_path)
    found = list(faults(page, [record], {}))
    assert bool(found) != holds, found
