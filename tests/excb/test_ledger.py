"""Tests of the ledger: its lines, its file and its rule."""

import json

import pytest

from excb.console import Reporter
from excb.ledger import NOTHING, RULE, Ledger, LedgerEntry, Tally, doubt


def tallied() -> Ledger:
    tally = Tally()
    for number in range(5):
        tally.add(".txt", f"{number}.txt")
    tally.add(".heic", "a.heic", "pip install 'excb[heic]'")
    return tally.ledger()


def test_lines_say_what_was_left_out_of_each_set_and_what_is_doubted() -> None:
    ledger = tallied().of("train") + doubt("of 9 images are copies", ["a", "b", "c", "d"], "remove them", of="test")
    assert ledger.lines() == [
        "left out of train: 1 .heic (such as a.heic: pip install 'excb[heic]'), 5 .txt",
        "test: 4 of 9 images are copies, such as a, b, c: remove them",
    ]
    assert ledger.left_out == 6
    assert ledger + ledger == ledger


def test_many_kinds_are_summed_up() -> None:
    tally = Tally()
    for number in range(12):
        for _ in range(number + 1):
            tally.add(f".x{number}", "name")
    (line,) = tally.ledger().lines()
    assert line.startswith("left out of the images: 12 .x11, 11 .x10, ")
    assert line.endswith(", 5 .x4, 10 of 4 other kinds")


def test_what_needs_an_extra_is_a_warning_and_other_files_are_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    tallied().tell(Reporter(quiet=True))
    printed = capsys.readouterr()
    assert ".txt" not in printed.out + printed.err
    tallied().tell(Reporter())
    printed = capsys.readouterr()
    assert "5 .txt" in printed.out + printed.err
    assert "pip install 'excb[heic]'" in printed.out + printed.err


def test_its_file_holds_it() -> None:
    ledger = tallied().of("train") + doubt("doubted", ["a"], "look")
    values = json.loads(json.dumps(ledger.to_dict()))
    assert RULE(values) is None
    assert Ledger.from_dict(values) == ledger
    assert NOTHING.to_dict() == {}
    assert Ledger.from_dict({}) == NOTHING


@pytest.mark.parametrize(
    "entry",
    [{"reason": 1, "count": 1}, {"reason": "a"}, {"reason": "a", "count": 1, "more": 1}, {"reason": "a", "count": "1"}],
)
def test_other_entries_are_refused(entry: dict[str, object]) -> None:
    assert RULE({"entries": [entry]}) is not None


def test_an_entry_without_advice_or_names_is_short() -> None:
    assert LedgerEntry("hidden files", 2).line == "2 hidden files"


@pytest.mark.parametrize(
    ("reason", "one"),
    [
        ("hidden files", "1 hidden file"),
        ("pictures of results", "1 picture of results"),
        (".mp4", "1 .mp4"),
        ("without extension", "1 without extension"),
        ("class folders without an image", "1 class folder without an image"),
        ("classes without a test image", "1 class without a test image"),
        ("of 9 images are among the train images too", "1 of 9 images is among the train images too"),
        ("of 9 images look like a train image", "1 of 9 images looks like a train image"),
        ("links to a folder above them", "1 link to a folder above it"),
        ("boxes that do not enclose their masks", "1 box that does not enclose its mask"),
        ("boxes that leave their image", "1 box that leaves its image"),
        ("image files that are listed twice", "1 image file that is listed twice"),
        ("objects whose masks have no area", "1 object whose mask has no area"),
        ("readings of images that cannot be read", "1 reading of images that cannot be read"),
        ("images with values outside the range", "1 image with values outside the range"),
        ("rows of features that are not finite", "1 row of features that is not finite"),
    ],
)
def test_one_is_in_the_singular(reason: str, one: str) -> None:
    assert LedgerEntry(reason, 1).line == one
    assert LedgerEntry(reason, 1200).line == f"1,200 {reason}"
