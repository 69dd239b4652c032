"""Figures of the docs against their records: the tables of some pages hold nothing that no measurement has."""

import csv
import datetime
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t

from tests.clone import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path.stem for path in (DOCS / "figures").glob("*.toml"))
NUMBER = r"[+-]?\d+\.\d+"
FIGURE = re.compile(rf"{NUMBER}(?: ± \d+\.\d+)?(?: \({NUMBER} to {NUMBER}\))?")
KEYS = {"sections", "command", "hardware", "date", "seeds", "spread"}
SPREADS = (
    "95 % interval of the mean over seeds, t",
    "95 % interval over test images",
    "95 % intervals: over seeds (t) with ±, over test images in brackets",
    "none: one seed",
)


def measurements(page: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = tomllib.loads((DOCS / "figures" / f"{page}.toml").read_text(encoding="utf-8"))[
        "measurement"
    ]
    return records


def tables(page: str) -> dict[str, list[str]]:
    """The rows of the tables of a page by section, without what is code."""
    section, fenced, rows = "", False, dict[str, list[str]]()
    for line in (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        if not fenced and line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("|"):
            rows.setdefault(section, []).append(re.sub(r"`[^`]*`", "", line.replace("**", "")))
    return rows


def of_csv(files: list[str]) -> list[tuple[float, float]]:
    """Mean and half of the 95 % interval of every figure of studies' CSV files."""
    pairs = []
    for file in files:
        with (DOCS / file).open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                for name in (each.removesuffix("_mean") for each in row if each.endswith("_mean")):
                    if row[f"{name}_mean"] and row.get(f"{name}_sd") and row["seeds"]:
                        seeds = int(row["seeds"])
                        half = t.ppf(0.975, seeds - 1) * float(row[f"{name}_sd"]) / seeds**0.5 if seeds > 1 else 0.0
                        pairs.append((float(row[f"{name}_mean"]), half))
    return pairs


def is_of_csv(figure: str, pairs: list[tuple[float, float]]) -> bool:
    mean, _, half = figure.partition(" ± ")
    digits = [len(each.partition(".")[2]) for each in (mean, half)]
    return any(
        f"{value:.{digits[0]}f}" == mean and (not half or f"{spread:.{digits[1]}f}" == half) for value, spread in pairs
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_of_a_table_has_its_record(page: str) -> None:
    records, used = measurements(page), set[str]()
    for section, rows in tables(page).items():
        own = [record for record in records if section in record["sections"]]
        pairs = of_csv([file for record in own for file in record.get("csv", [])])
        known = {figure for record in own for figure in record.get("figures", [])}
        found = {figure for row in rows for figure in FIGURE.findall(row)}
        if not own:
            assert not any("±" in figure or " to " in figure for figure in found), (section, "has no record")
            continue
        beyond = {figure for figure in found - known if not is_of_csv(figure, pairs)}
        assert not beyond, (section, "figures that no record has", beyond)
        used |= {f"{section}: {figure}" for figure in known & found}
    recorded = {(figure, *record["sections"]) for record in records for figure in record.get("figures", [])}
    idle = {figure for figure, *sections in recorded if not any(f"{each}: {figure}" in used for each in sections)}
    assert not idle, "records of figures that the page does not have"


@pytest.mark.parametrize("page", PAGES)
def test_records_say_how_they_were_measured(page: str) -> None:
    for record in measurements(page):
        assert KEYS <= set(record) <= KEYS | {"csv", "figures"}, record["sections"]
        assert record["spread"] in SPREADS, record["spread"]
        assert isinstance(record["date"], datetime.date)
        assert record["command"].strip(), record["sections"]
        assert re.search(r"Intel|AMD|x86", record["hardware"]), record["hardware"]
        assert record["seeds"] >= 1, record["sections"]
        for file in record.get("csv", []):
            assert (DOCS / file).is_file(), file


def test_a_figure_beyond_its_record_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "figures").mkdir()
    record = '[[measurement]]\nsections = ["One"]\nfigures = ["1.5 ± 0.2", "2.0"]\n'
    (tmp_path / "figures" / "page.toml").write_text(record, encoding="utf-8")
    monkeypatch.setattr("tests.test_figures.DOCS", tmp_path)
    for text, right in (("1.5 ± 0.2 | 2.0", True), ("1.6 ± 0.2 | 2.0", False), ("1.5 ± 0.2", False)):
        (tmp_path / "page.md").write_text(f"## One\n\n| a | b |\n| {text} |\n", encoding="utf-8")
        if right:
            test_every_figure_of_a_table_has_its_record("page")
        else:
            with pytest.raises(AssertionError):
                test_every_figure_of_a_table_has_its_record("page")
