"""Images with several labels: their table, scores, guesses, thresholds and doubted labels."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import label_ranking_average_precision_score

import excb
from excb import UserError
from excb.images.scanning import scan_folder
from excb.transfer.photos.comparison import effective
from excb.transfer.photos.label_errors import doubted_label, suspicious_sets
from excb.transfer.photos.label_kinds import SEVERAL, ranked
from excb.transfer.photos.labels import UNLABELLED, photo_labels
from excb.transfer.photos.prediction import certainty_of
from excb.transfer.photos.validation import cross_validate, validation_parts
from tests.transfer.photos.test_photos import NETWORK, write_colours, write_labels

TRUE = {"red": "warm; red", "green": "green", "blue": "cold; blue"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("several") / "colours")


def table_of(rows: Sequence[Sequence[str]], folder: Path, columns: Sequence[str] = ("path", "labels")) -> Path:
    return write_labels(folder / "labels.csv", rows, columns)


def test_a_table_gives_sets_of_labels(folder: Path, tmp_path: Path) -> None:
    rows = [
        ("red00.png", "warm; red"),
        ("red01.png", "warm"),
        ("red01.png", "red"),  # again: the labels of both rows
        ("green00.png", "-"),
        ("blue00.png", ""),
    ]
    images = scan_folder(folder)
    found = photo_labels(images, table_of([*rows, ("green01.png", "red")], tmp_path), None)
    place = {path: index for index, path in enumerate(images.paths)}
    assert found.classes == ("red", "warm")
    assert found.sets is not None
    assert found.sets[[place[f"{name}.png"] for name in ("red00", "red01", "green00", "green01")]].tolist() == [
        [1, 1],
        [1, 1],
        [0, 0],
        [0, 1][::-1],
    ]
    assert found.of[[place[name] for name in ("red00.png", "green00.png", "blue00.png")]].tolist() == [1, 2, UNLABELLED]
    assert found.counts.tolist() == [3, 2]
    assert [found.name(place[name]) for name in ("red01.png", "green00.png", "blue00.png")] == ["red; warm", "-", ""]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("red00.png", "a;b"), ("red01.png", "a|c")], "use one of them"),
        ([("red00.png", "a;-")], "has labels and -"),
        ([("nowhere.png", "a;b")], "name no image"),
    ],
)
def test_mistakes_of_a_table(rows: list[tuple[str, str]], message: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        photo_labels(scan_folder(folder), table_of(rows, tmp_path), None)


def test_lists_in_parquet_are_labels(folder: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="reads Parquet; pip install 'excb[parquet]'")
    from pyarrow import parquet

    columns = {"path": ["red00.png", "red01.png", "red02.png"], "labels": [["b", "a"], [], None]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "labels.parquet")
    found = photo_labels(scan_folder(folder), tmp_path / "labels.parquet", None)
    names = [found.name(scan_folder(folder).paths.index(f"red0{number}.png")) for number in range(3)]
    assert names == ["a; b", "-", ""]


def test_ranking_is_scikit_learns() -> None:
    random = np.random.default_rng(0)
    scores = np.round(random.normal(size=(60, 5)), 1)  # with ties
    labels = (random.random((60, 5)) < 0.4).astype(np.int8)
    labels[:2] = [[0] * 5, [1] * 5]
    found = ranked(torch.from_numpy(scores), torch.from_numpy(labels))
    for own, given, value in zip(scores, labels, found.tolist(), strict=True):
        assert value == pytest.approx(label_ranking_average_precision_score(given[None], own[None]))


def test_shares_are_worth_as_many_images_as_their_spread_says() -> None:
    """The units at which a share's variance is that of the mean."""
    hits = torch.from_numpy(np.random.default_rng(0).beta(3, 2, 400))
    units = effective(hits, np.arange(400))
    share = float(hits.mean())
    assert math.sqrt(share * (1 - share) / units) == pytest.approx(float(hits.std()) / 20, rel=1e-6)


def test_separable_labels_are_found_and_a_missing_one_is_doubted() -> None:
    random = np.random.default_rng(0)
    truth = torch.from_numpy((random.random((120, 3)) < 0.5).astype(np.int8))
    rows = torch.cat([4.0 * truth - 2 + 0.3 * torch.from_numpy(random.normal(size=(120, 3))), torch.zeros(120, 2)], 1)
    given = truth.clone()
    given[7, 1] = 1 - given[7, 1]
    parts = validation_parts(given.sum(1).numpy(), np.arange(120), 0)
    found = cross_validate(rows.float(), given, parts, classes=3)
    assert torch.equal(SEVERAL.truth(truth, 3), found.probabilities > 0.5)
    assert suspicious_sets(found.probabilities, given)[0] == (7, 1)
    doubted = doubted_label("a.png", "cat", found.probabilities[7, 1], given[7, 1])
    assert (doubted.label, doubted.suggestion) in {("cat", "not cat"), ("not cat", "cat")}
    assert doubted.probability < 0.5 < doubted.of_suggestion
    certainty = certainty_of(found, 0.9)
    assert certainty.right > 0.95
    assert certainty.interval is not None


def test_photographs_with_several_labels(folder: Path, tmp_path: Path) -> None:
    rows = [(f"{name}{number:02}.png", TRUE[name]) for name in TRUE for number in range(8)]
    table = table_of(rows, tmp_path)
    photos = excb.Photos(folder, table, networks=[NETWORK], device="cpu", quiet=True)
    comparison = photos.compare()
    assert comparison.figure == "label ranking average precision"
    assert comparison.best.accuracy > 90
    guessed = dict[str, set[str]]()
    for guess in photos.predict().guesses:
        guessed.setdefault(guess.path, set()).add(guess.label)
    right = [guessed[path] == {*TRUE[path[:-6]].split("; ")} for path in guessed]
    assert len(guessed) == 18
    assert sum(right) >= 16
    assert len(photos.label_next(4).paths) == 4
    page = photos.report(tmp_path / "out")
    with (page.parent / "photos.csv").open(newline="") as stream:
        written = {row["path"]: row for row in csv.DictReader(stream)}
    assert written["red00.png"]["label"] == "red; warm"
    assert {*written["red13.png"]["guess"].split("; ")} == guessed["red13.png"]
    assert len(written["red13.png"]["probability"].split("; ")) == len(guessed["red13.png"])
    assert "label ranking average precision, %" in page.read_text()
    train, test = photos.split(0.25)
    assert sorted(train + test) == sorted(path for path, _ in rows)
