"""A study's finished cells as one table: means and standard deviations over seeds, in Markdown, CSV and JSON."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from excb.console import duration, plural
from excb.files.csv_text import csv_table
from excb.files.markdown import markdown_table
from excb.inference.estimate import Estimate
from excb.ledger import Ledger

from .studies import Study, StudyCell

# Figure of a cell -> heading and decimals.
FIGURES = {
    "knn_top1": ("k-NN, %", 2),
    "knn_leave_one_out": ("k-NN of train, %", 2),
    "neighbour_agreement": ("agreement of neighbours, %", 2),
    "effective_rank": ("effective rank", 1),
    "smallest_cluster": ("smallest", 2),
    "largest_cluster": ("largest", 2),
    "empty_share": ("empty after balancing, %", 1),
    "smallest_size": ("smallest by z", 2),
    "largest_size": ("largest by z", 2),
    "unused_share": ("empty before balancing, %", 1),
    "confidence": ("confidence", 3),
    "agreement": ("agreement", 3),
    "purity": ("purity", 3),
    "same_winner": ("same winner", 2),
    "loss": ("loss", 3),
}
SPREAD = "mean ± sample standard deviation over seeds (n - 1 in the denominator); no spread with one seed"


@dataclass(frozen=True)
class Spread:
    """One figure over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Arithmetic mean."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """Sample standard deviation; NaN with one value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    @property
    def interval(self) -> float:
        """Half the width of the 95 % interval of the mean, by Student's t; NaN with one value."""
        return Estimate.of_mean(self.values).margin()

    def text(self, decimals: int) -> str:
        """As "37.70 ± 0.41"."""
        spread = f" ± {self.deviation:.{decimals}f}" if len(self.values) > 1 else ""
        return f"{self.mean:.{decimals}f}{spread}"


@dataclass(frozen=True)
class CellResults:
    """One cell's finished seeds."""

    cell: StudyCell
    runs: Sequence[dict[str, Any]]  # contents of `cell.json`, by seed

    @property
    def seconds(self) -> float:
        """Computing time of all seeds."""
        return float(sum(sum(one["seconds"].values()) for one in self.runs))

    def spread(self, figure: str) -> Spread | None:
        """A figure over the seeds, or None if not measured."""
        values = [one["figures"][figure] for one in self.runs if figure in one["figures"]]
        return Spread(tuple(values)) if values else None

    def text(self, figure: str) -> str:
        """A figure as the table has it."""
        spread = self.spread(figure)
        return spread.text(FIGURES[figure][1]) if spread else ""


@dataclass(frozen=True)
class StudyTable:
    """All finished cells of a study, and the references: the network that they start from, pixels, a histogram."""

    study: Study
    rows: Sequence[CellResults]
    references: Sequence[CellResults]
    tried: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # cell -> setting -> the tuning's criterion

    @property
    def score(self) -> str:
        """The figure that cells are compared by: k-NN, or agreement of neighbours without labels."""
        return "knn_top1" if any(row.spread("knn_top1") for row in self._all) else "neighbour_agreement"

    @property
    def _all(self) -> list[CellResults]:
        return [row for row in (*self.rows, *self.references) if row.runs]

    @property
    def figures(self) -> list[str]:
        """All figures that were measured."""
        return [name for name in FIGURES if any(row.spread(name) for row in self._all)]

    @property
    def shown(self) -> list[str]:
        """The figures of the Markdown table; CSV and JSON have all."""
        return [name for name in self.figures if name in (self.score, "knn_leave_one_out", *self.study.figures)]

    @property
    def seconds(self) -> float:
        """Computing time of all cells."""
        return sum(row.seconds for row in self._all)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Heading and rows: every finished cell with the study's figures, and the references last."""
        columns = [*self.study.factors, *(["tuned"] if self.tried else [])]
        header = ["cell", *columns, "seeds", *(FIGURES[name][0] for name in self.shown)]
        rows = []
        for row in self._all:
            factors = [row.cell.factors.get(name, "") for name in columns]
            rows.append([row.cell.name, *factors, str(len(row.runs)), *map(row.text, self.shown)])
        return header, rows

    def tuning(self) -> tuple[list[str], list[list[str]]] | None:
        """Heading and rows: what every cell reached with every setting that it tried; None without tuning."""
        settings = list(dict.fromkeys(setting for tried in self.tried.values() for setting in tried))
        rows = [
            [name, *(f"{tried[setting]:.2f}" if setting in tried else "" for setting in settings)]
            for name, tried in self.tried.items()
            if tried
        ]
        return (["tuning", *settings], rows) if rows else None

    def all(self) -> list[tuple[list[str], list[list[str]]]]:
        """Every table that has a row."""
        tables = (self.paper_form(), self.cells(), self.contrasts(), self.tuning())
        return [table for table in tables if table is not None]

    def contrasts(self) -> tuple[list[str], list[list[str]]] | None:
        """Heading and rows: the study's contrasts, paired by seed; None without a contrast of two seeds."""
        rows = []
        for title, weights in self.study.contrasts.items():
            if len(values := self.paired(weights)) > 1:
                spread = Spread(values)
                rows.append([title, f"{spread.mean:+.2f}", f"± {spread.interval:.2f}", str(len(values))])
        return ([f"paired by seed, {FIGURES[self.score][0]}", "mean", "95 % interval", "seeds"], rows) if rows else None

    def paired(self, weights: Mapping[str, int]) -> tuple[float, ...]:
        """A weighted sum of cells' scores for every seed that all of them have."""
        scores = {
            row.cell.name: {one["seed"]: one["figures"][self.score] for one in row.runs if self.score in one["figures"]}
            for row in self.rows
            if row.cell.name in weights
        }
        if scores.keys() != weights.keys():
            return ()
        seeds = sorted(set.intersection(*(set(of_cell) for of_cell in scores.values())))
        return tuple(sum(weight * scores[name][seed] for name, weight in weights.items()) for seed in seeds)

    def paper_form(self) -> tuple[list[str], list[list[str]]] | None:
        """Heading and rows with one factor's levels across, as the paper has them; None if no factor goes across."""
        across = self.study.across
        if across is None or not any(row.runs for row in self.rows):
            return None
        down = [name for name in self.study.factors if name != across]
        levels = list(dict.fromkeys(row.cell.factors[across] for row in self.rows))
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for row in self.rows:
            key = tuple(row.cell.factors[name] for name in down) or (FIGURES[self.score][0],)
            lines.setdefault(key, {})[row.cell.factors[across]] = row.text(self.score)
        header = [*(down or [across]), *levels]
        return header, [[*key, *(texts.get(level, "") for level in levels)] for key, texts in lines.items()]

    def footnotes(self) -> list[str]:
        """How the figures were measured."""
        runs = [one for row in self._all for one in row.runs]
        judged = sorted({one["data"]["judged_on"] for one in runs})
        machines = sorted(
            {
                f"{one['environment']['device']}, {plural(one['environment']['threads'], 'thread')}, "
                f"torch {one['environment']['torch']}, excb {one['environment']['excb']}"
                for one in runs
            }
        )
        images = sorted({f"{one['data']['train']['images']:,}" for one in runs})
        counts = sorted({len(tried) for tried in self.tried.values() if tried})
        tuning = [
            f"Tuning: each cell tried {' or '.join(map(str, counts))} settings with one seed, "
            f"{plural(sum(map(len, self.tried.values())), 'run')} in all; the best by k-NN of the training images, "
            "each by the others (agreement of neighbours without labels), is in the table at all seeds. Held-out "
            "images decided nothing."
        ]
        return [
            *(tuning if counts else []),
            f"Figures: {SPREAD}.",
            f"k-NN, %: {', '.join(judged)}; k = 20, temperature 0.07, the teacher after the last epoch. "
            f"k-NN of train: each of the {', '.join(images)} training images by the others.",
            "Cluster sizes are relative to 1/K: those of the last epoch's global views as training assigned them, "
            "after balancing; by z: of the training images by the teacher's highest similarity, without balancing.",
            f"Computing time: {duration(self.seconds)} in all, on {'; '.join(machines)}.",
            *self.remarks(),
        ]

    def remarks(self) -> list[str]:
        """All that runs left out of their images, or doubt, and the first run that says it, where not all do."""
        runs = [(f"{row.cell.name}, seed {one['seed']}", one) for row in self._all for one in row.runs]
        of_line: dict[str, list[str]] = {}
        for name, one in runs:
            for line in Ledger.from_dict(one.get("ledger", {})).lines():
                of_line.setdefault(line, []).append(name)
        return [
            line
            if len(names) == len(runs)
            else f"{line} ({len(names)} of {plural(len(runs), 'run')}, such as {names[0]})"
            for line, names in of_line.items()
        ]

    def markdown(self) -> str:
        """The table as Markdown."""
        parts = [f"# {self.study.asks}", f"In the paper: {self.study.paper}."]
        parts += [markdown_table(header, rows) for header, rows in self.all()]
        parts.append("\n".join(f"- {note}" for note in self.footnotes()))
        return "\n\n".join(parts) + "\n"

    def csv(self) -> str:
        """One line per cell, with the mean and the standard deviation of every figure."""
        pairs = [f"{name}_{part}" for name in self.figures for part in ("mean", "sd")]
        lines = []
        for row in self._all:
            numbers: list[Any] = []
            for name in self.figures:
                spread = row.spread(name)
                numbers += [spread.mean, "" if len(spread.values) < 2 else spread.deviation] if spread else ["", ""]
            factors = [row.cell.factors.get(name, "") for name in self.study.factors]
            lines.append([row.cell.name, *factors, len(row.runs), *numbers, round(row.seconds, 1)])
        return csv_table(["cell", *self.study.factors, "seeds", *pairs, "seconds"], lines)

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values: every figure with its mean, standard deviation (null with one seed) and values."""
        cells = []
        for row in self._all:
            figures = {}
            for name in self.figures:
                if spread := row.spread(name):
                    deviation = spread.deviation if len(spread.values) > 1 else None
                    figures[name] = {"mean": spread.mean, "sd": deviation, "values": list(spread.values)}
            cells.append(
                {
                    "cell": row.cell.name,
                    "factors": dict(row.cell.factors),
                    "overrides": list(row.cell.overrides),
                    "seeds": [one["seed"] for one in row.runs],
                    "figures": figures,
                    "seconds": round(row.seconds, 1),
                }
            )
        contrasts = {title: list(self.paired(weights)) for title, weights in self.study.contrasts.items()}
        return {
            "study": self.study.name,
            "score": self.score,
            "cells": cells,
            "contrasts": contrasts,
            "tuning": {name: dict(tried) for name, tried in self.tried.items()},
            "notes": self.footnotes(),
        }
