"""From the results of all checkpoints on many sets to one table per head, and their files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from excb.console import plural
from excb.files.atomic import write_text
from excb.files.csv_text import csv_table
from excb.references.guessing import MAJORITY, TITLES
from excb.results.beside import FileBeside, text_beside
from excb.results.result import ResultRecord

from ..every.suite import StepOutcome
from ..standings.forms import Sheet, sheet_as_latex, sheet_as_markdown, sheet_as_page, sheet_files
from .choosing import OpenSet
from .heads import KNN, LOGREG
from .running import Candidate, answers_of
from .standings import MEAN, HeadFigures, HeadTable, SetAnswers, head_table

NAME = "sets"  # of the files with all figures
_TITLES = {LOGREG: "Logistic regression", KNN: "k-NN"}
_CSV = ("name", "kind", "head", "set", "percent", "low", "high", "tier", "mean_rank")
EXPLANATION = (
    "Percent, each set by its own metric, with 95 % intervals: of logistic regression and k-NN over the "
    "test images, of n-shot figures over the episodes. The mean gives every set the same weight, and so does "
    "the mean rank. Figures of one tier (*1, *2, ...) do not differ at 5 % from the best of the tier: paired tests on "
    "the same images, McNemar's of top-1 and the jackknife of other metrics and of the mean, "
    "corrected for all pairs of a table by Holm's method."
)


def gathered_tables(
    candidates: Sequence[Candidate], outcomes: Mapping[str, Sequence[StepOutcome]], opened: Sequence[OpenSet]
) -> list[HeadTable]:
    """A table for each head, with all that could be measured.

    Args:
        candidates: checkpoints and references.
        outcomes: of all of them, by name.
        opened: the sets.

    Raises:
        UserError: the answers of a result are gone.
    """
    results = {
        one.name: {made.step.name: made for made in outcomes[one.name] if made.result is not None} for one in candidates
    }
    everything = [made for each in results.values() for made in each.values()]
    heads = dict.fromkeys(head for made in everything if made.result for head in made.result.figures)
    answers = {name: {key: _answers(made[key], opened) for key in made} for name, made in results.items()}
    sets = [each.entry.name for each in opened]
    return [
        head_table(
            head,
            head_title(head),
            [
                *(_figures(one, head, results[one.name], answers[one.name]) for one in candidates),
                _majority(head, everything),
            ],
            sets,
        )
        for head in heads
    ]


def notes_of(outcomes: Mapping[str, Sequence[StepOutcome]]) -> list[str]:
    """The notes on any result's figures, each once, with the checkpoints and sets that it is of."""
    places: dict[str, list[str]] = {}
    for name, made in outcomes.items():
        for each in made:
            for note in [] if each.result is None else each.result.remarks:
                places.setdefault(note, []).append(f"{name} on {each.step.name}")
    return [f"{', '.join(where)}: {note}" for note, where in places.items()]


def head_title(head: str) -> str:
    """The words that people call a head by."""
    return _TITLES.get(head) or f"{plural(int(head.removeprefix('shot')), 'image')} of each class"


def _answers(made: StepOutcome, opened: Sequence[OpenSet]) -> dict[str, SetAnswers]:
    """The answers of a result by head."""
    assert made.result is not None
    assert made.file is not None
    metric = next(each.entry.metric for each in opened if each.entry.name == made.step.name)
    targets, answers = answers_of(made.result, made.file)
    return {head: SetAnswers(metric, each, targets) for head, each in answers.items()}


def _figures(
    one: Candidate, head: str, made: Mapping[str, StepOutcome], answers: Mapping[str, Mapping[str, SetAnswers]]
) -> HeadFigures:
    there = {name: each.result for name, each in made.items() if each.result and head in each.result.figures}
    return HeadFigures(
        one.name,
        one.reference,
        {name: result.figures[head] for name, result in there.items()},
        {name: result.intervals[head] for name, result in there.items() if head in result.intervals},
        {name: answers[name][head] for name in there if head in answers[name]},
    )


def _majority(head: str, made: Sequence[StepOutcome]) -> HeadFigures:
    """The figures of answers without a look at an image, which are the same for all checkpoints."""

    def of(result: ResultRecord | None) -> float | None:
        return None if result is None else result.references[MAJORITY].get(head)

    figures = {each.step.name: value for each in made if (value := of(each.result)) is not None}
    return HeadFigures(TITLES[MAJORITY], True, figures, {}, {})


def write_tables(
    tables: Sequence[HeadTable],
    metrics: Mapping[str, str],
    skipped: Mapping[str, str],
    folder: Path,
    *,
    notes: Sequence[str] = (),
) -> tuple[dict[str, Any], list[Path]]:
    """Write all tables as a page, Markdown, CSV, LaTeX and JSON.

    Args:
        tables: at least one.
        metrics: in words, by set.
        skipped: why sets have no figures, by name.
        folder: for the files.
        notes: what qualifies the figures; see `notes_of`.

    Returns:
        Plain values as in the JSON, and the files.

    Raises:
        UserError: a file cannot be written.
    """
    names = [row.name for row in tables[0].table.rows if not row.reference]
    lists = [("Metrics", metrics), ("Skipped", skipped)]
    sheet = Sheet(
        f"{plural(len(names), 'checkpoint')} on {plural(len(metrics), 'set')}",
        ", ".join(names),
        [each.table for each in tables],
        EXPLANATION,
        [(heading, [(name, text, None) for name, text in each.items()]) for heading, each in lists if each],
        list(notes),
        command=NAME,
    )
    plain: dict[str, Any] = {"tables": [each.to_dict() for each in tables], "metrics": dict(metrics)}
    plain |= {"skipped": dict(skipped), "notes": list(notes)}
    texts = {
        "html": sheet_as_page(sheet),
        "md": sheet_as_markdown(sheet),
        "csv": tables_as_csv(tables),
        "tex": sheet_as_latex(sheet),
        "json": json.dumps(plain, indent=2) + "\n",
    }
    for suffix, text in texts.items():
        write_text(text, folder / f"{NAME}.{suffix}")
    return plain, [folder / f"{NAME}.{suffix}" for suffix in texts]


def files_of_tables() -> list[FileBeside]:
    """The files that `write_tables` writes."""
    return [*sheet_files(NAME, NAME, _CSV), text_beside(f"{NAME}.json", "tables", '"tables": [', '"metrics": {')]


def tables_as_csv(tables: Sequence[HeadTable]) -> str:
    """A line for every figure."""
    lines = []
    for each in tables:
        for row in each.table.rows:
            kind = "reference" if row.reference else "measured"
            for key, cell in row.cells.items():
                name, rank = ("mean", each.ranks.get(row.name)) if key == MEAN else (key, None)
                ends = cell.interval or (None, None)
                lines.append([row.name, kind, each.head, name, cell.value, *ends, cell.tier, rank])
    return csv_table(_CSV, lines)
