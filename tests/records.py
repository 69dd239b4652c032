"""Records of measured figures, `docs/figures/PAGE.toml`: CONTRIBUTING.md says how one is written."""

import csv
import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import t

from tests.figures import Figure, figure_of, figures_in, of_images, of_seeds


@dataclass(frozen=True)
class Record:
    """One `[[measurement]]`.

    `about` is its table. `lines` are the figures of each line of its `figures`, `others` those of studies' CSV files
    and of `stated`, `results` the differences that its claims compute.
    """

    about: dict[str, Any]
    lines: list[tuple[str, list[Figure]]]
    others: list[Figure]
    results: list[Figure]

    @classmethod
    def of(cls, about: dict[str, Any], docs: Path) -> "Record":
        """The record of a table of TOML. CSV files are found from `docs`."""
        lines = [(line, figures_in(line)) for line in about.get("figures", "").splitlines() if line]
        others = [figure for file in about.get("csv", []) for figure in _of_csv(docs / file)]
        expressions = [each for listed in claims(about).values() for each in listed if " = " in each]
        results = [figure_of(each.partition(" = ")[2]) for each in expressions]
        return cls(about, lines, others + figures_in(about.get("stated", "")), results)

    @functools.cached_property
    def measured(self) -> list[Figure]:
        """All figures but `results`, and the ends of their intervals."""
        known = [figure for _, line in self.lines for figure in line] + self.others
        return known + [end for figure in known for end in figure.ends()]

    def fault_of(self, expression: str) -> str:
        """Why an expression, such as `2.3 ± 0.9 > 0` or `63.6 - 53.5 = 10.1`, does not hold; "" if it does."""
        if len(parts := re.split(r" ([=><~]) ", expression)) != 3:
            return "not of the form A > B, A < B, A ~ B or A - B = C"
        left, sign, right = parts
        try:
            difference = self._difference(left)
            if sign != "=" and right != "0":
                difference = difference.minus(self._term(right))
        except ValueError as error:
            return str(error)
        if sign == "=":
            return _fault_of_result(difference, figure_of(right), terms=1 + (" - " in left))
        if not (ends := difference.ends()):
            return "there is no interval to judge by"
        low, high = (end.value for end in ends)
        holds = {">": low > 0, "<": high < 0, "~": low <= 0 <= high}[sign]
        return "" if holds else f"the 95 % interval is {low:.2f} to {high:.2f}"

    def _difference(self, text: str) -> Figure:
        minuend, _, subtrahend = text.partition(" - ")
        if not subtrahend:
            return self._term(minuend)
        first, second = self._term(minuend), self._term(subtrahend)
        of_first, of_second = _seeds(minuend), _seeds(subtrahend)
        if of_first and len(of_first) == len(of_second):
            return of_seeds([a - b for a, b in zip(of_first, of_second, strict=True)], first.decimals)
        return first.minus(second)

    def _term(self, text: str) -> Figure:
        """A figure of the record, sign included, a share `OF IMAGES`, or the mean of `[SEEDS]`; else ValueError."""
        share, _, images = text.partition(" of ")
        seeds = _seeds(text)
        figures = figures_in(text) if seeds else [figure_of(share)]
        for figure in figures:
            if not any(figure.rounds(known) and figure.value * known.value >= 0 for known in self.measured):
                raise ValueError(f"{text} is not in the record")
        if seeds:
            return of_seeds(seeds, figures[0].decimals)
        return of_images(figures[0], int(images.replace(",", ""))) if images else figures[0]


def claims(about: dict[str, Any]) -> dict[str, list[str]]:
    """The expressions of each claim of a record's table."""
    return {words: [each] if isinstance(each, str) else each for words, each in about.get("claims", {}).items()}


def load(docs: Path, page: str) -> list[Record]:
    """The records of a page."""
    text = (docs / "figures" / f"{page}.toml").read_text(encoding="utf-8")
    return [Record.of(about, docs) for about in tomllib.loads(text)["measurement"]]


def _fault_of_result(exact: Figure, printed: Figure, terms: int) -> str:
    """Why a page's figure is not the result of terms that are rounded as it is, "" if it is."""
    rounding = 0.5 * 10**-printed.decimals + terms * 0.5 * 10**-exact.decimals + 1e-6
    if abs(abs(exact.value) - abs(printed.value)) > rounding:
        return f"it is {exact.value:.{printed.decimals}f}"
    if printed.down is not None and (exact.down is None or abs(exact.down - printed.down) > 3 * rounding):
        return f"half its interval is {exact.down}"
    return ""


def _seeds(text: str) -> list[float]:
    return [float(each) for each in text.strip("[]").split(", ")] if text.startswith("[") else []


def _of_csv(file: Path) -> Iterator[Figure]:
    """Mean and 95 % interval of every figure of a study."""
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            for name in (each.removesuffix("_mean") for each in row if each.endswith("_mean")):
                if row[f"{name}_mean"] and row.get(f"{name}_sd") and row["seeds"]:
                    seeds = int(row["seeds"])
                    half = t.ppf(0.975, seeds - 1) * float(row[f"{name}_sd"]) / seeds**0.5 if seeds > 1 else None
                    yield Figure(float(row[f"{name}_mean"]), 9, half, half)
