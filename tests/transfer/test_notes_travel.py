"""Notes that qualify a figure reach every place that shows it: file, Python, board, card, comparison, sets."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from excb.console import Reporter
from excb.hub.catalogue import checkpoints
from excb.ledger import doubt
from excb.results.result import ResultRecord
from excb.transfer.compare import Side, compare_results
from excb.transfer.evaluate import Result as Evaluated
from excb.transfer.every.comparison import EvaluatedCheckpoint, side_by_side
from excb.transfer.every.cost import Cost
from excb.transfer.every.page import render_report
from excb.transfer.every.suite import PlannedStep, StepOutcome
from excb.transfer.leaderboard import making
from excb.transfer.leaderboard.page import render_leaderboard
from excb.transfer.leaderboard.tables import boards_as_csv, boards_as_markdown
from excb.transfer.reporting.predictions import Predictions
from excb.transfer.sets.gathering import notes_of, write_tables
from excb.transfer.sets.standings import HeadFigures, head_table
from excb.transfer.standings.forms import sheet_as_markdown, sheet_as_page
from excb.zoo.card import card
from tests.transfer.result_files import result

QUALIFIERS = {  # by kind: how it is called in the result
    "few labels": "few labels (296 train images, below 1,000): logistic regression, 5 folds choose its penalty",
    "a failed head": "the head failed, not the checkpoint: k-NN (k = 20) of the same features has 41.25 %",
    "a reference": "beside whitened patches with k-means, the strongest reference: better in knn_top1_k20",
    "chance": "knn_top1_k20 of 1.00 % is below the 2.00 % of always guessing the most frequent class",
    "a warning": "only 9 train images",
}
LEDGER = doubt("images that occur twice", ["cat-1.jpg"], "figures may be too high", of="train")


def qualified() -> ResultRecord:
    return replace(result({"knn_top1_k20": 50.0}), notes=list(QUALIFIERS.values()), ledger=LEDGER)


def scored() -> Predictions:
    guesses = torch.tensor([[0], [1]])
    return Predictions(torch.zeros(2, dtype=torch.int64), ["a", "b"], ("cat", "dog"), {"knn_{}_k20": guesses})


def step_of(found: ResultRecord) -> StepOutcome:
    return StepOutcome(PlannedStep("knn", "k-NN", ["knn"]), Path("absent/knn.json"), found)


def in_report(found: ResultRecord) -> str:
    return render_report([step_of(found)])


def in_card(found: ResultRecord) -> str:
    return card(next(iter(checkpoints())), [found])


def in_comparison(found: ResultRecord) -> str:
    other = replace(found, notes=[], ledger=type(LEDGER)())
    first, second = Side("a.json", found, scored()), Side("b.json", other, scored())
    compared = compare_results(first, second, Reporter(quiet=True), table=False)
    return "\n".join([*compared["notes"], *compared["warnings"]])


def _evaluated(name: str, found: ResultRecord) -> EvaluatedCheckpoint:
    return EvaluatedCheckpoint(name, name, "resnet50", {}, Cost(1, None, 1.0, "CPU"), {"knn": found}, {})


def in_tables_of_all(found: ResultRecord) -> str:
    other = replace(found, notes=[], ledger=type(LEDGER)())
    made = side_by_side([_evaluated("a", found), _evaluated("b", other)])
    sheet = made.sheet("report.html")
    return "\n".join([sheet_as_markdown(sheet), sheet_as_page(sheet), json.dumps(made.to_dict(), ensure_ascii=False)])


def in_tables_of_sets(found: ResultRecord, folder: Path) -> dict[str, str]:
    one = HeadFigures("a", False, {"birds": 50.0}, {}, {})
    notes = notes_of({"a": [step_of(found)]})
    _, files = write_tables([head_table("knn", "k-NN", [one], ["birds"])], {"birds": "top-1"}, {}, folder, notes=notes)
    shown = {file.suffix: file.read_text(encoding="utf-8") for file in files}
    return {".md": shown[".md"], ".html": shown[".html"], ".json": "\n".join(json.loads(shown[".json"])["notes"])}


def in_board(form: str, found: ResultRecord) -> str:
    board = making.make([found])
    own = [each for each in board.boards if any(row.weights for group in each.groups for row in group.rows)]
    table = csv.DictReader(io.StringIO(boards_as_csv(own)))
    forms: dict[str, Callable[[], str]] = {
        "Markdown": lambda: boards_as_markdown(own),
        "CSV": lambda: "\n".join(line["notes"] for line in table),
        "page": lambda: render_leaderboard(own, [], []),
        "JSON": lambda: json.dumps(board.to_dict(), ensure_ascii=False),
    }
    return forms[form]()


def plain(text: str) -> str:
    """Without what HTML and Markdown put before characters, and without line breaks."""
    for written, character in (("&#39;", "'"), ("&amp;", "&"), ("\\", "")):
        text = text.replace(written, character)
    return " ".join(text.split())


PLACES: dict[str, Callable[[ResultRecord], str]] = {
    "file": lambda found: "\n".join(ResultRecord.from_json(found.to_json()).remarks),
    "Python": lambda found: repr(Evaluated(found)),
    "notebook": lambda found: Evaluated(found)._repr_html_(),
    "report": in_report,
    "card": in_card,
    "compare": in_comparison,
    "all": in_tables_of_all,
    **{f"board, {form}": partial(in_board, form) for form in ("Markdown", "CSV", "page", "JSON")},
}


@pytest.mark.parametrize("place", PLACES)
def test_all_that_qualifies_a_figure_is_where_the_figure_is(place: str) -> None:
    text = plain(PLACES[place](qualified()))
    for kind, note in {**QUALIFIERS, "the ledger": LEDGER.lines()[0]}.items():
        assert plain(note) in text, f"{kind} is missing in {place}"


def test_tables_of_sets_have_them_too(tmp_path: Path) -> None:
    for form, text in in_tables_of_sets(qualified(), tmp_path).items():
        for note in [*QUALIFIERS.values(), *LEDGER.lines()]:
            assert f"a on knn: {plain(note)}" in plain(text), form


def test_compare_names_the_side_that_a_note_is_of() -> None:
    noted: Any = replace(qualified(), ledger=type(LEDGER)())
    first, second = Side("a", noted, scored()), Side("b", noted, scored())
    both = compare_results(first, second, Reporter(quiet=True), table=False)
    assert both["notes"] == list(QUALIFIERS.values())
    one = replace(noted, notes=[])
    only = compare_results(Side("a", one, scored()), Side("b", noted, scored()), Reporter(quiet=True), table=False)
    assert only["notes"] == [f"second only: {note}" for note in QUALIFIERS.values()]
    (tested,) = only["figures"].values()
    assert (tested["test"], tested["unit"]) == ("McNemar (mid-P)", "image")


def test_a_result_says_what_its_intervals_are_over() -> None:
    found = replace(result({"a": 1.0}), inference={"a": {"unit": "image", "method": "Wilson"}})
    assert ResultRecord.from_json(found.to_json()) == found
    assert "inference" not in json.loads(result({"a": 1.0}).to_json())
