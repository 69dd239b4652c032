"""Tests of the assignments' files: what a reader gets back, and what a spreadsheet must not be given."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from excb.images.image_set import ImageSet
from excb.transfer.clusters.files import HEADER, to_csv, to_parquet
from tests.transfer.clusters.hostile import CLASSES, hostile_set


def test_csv_gives_every_name_back_and_no_formula(tmp_path: Path) -> None:
    images, assignment = hostile_set(tmp_path / "images")
    rows = list(csv.reader(io.StringIO(to_csv(assignment, images).decode(), newline="")))
    assert rows[0] == list(HEADER)
    assert len(rows) == 15
    for number, (path, cluster, similarity, second, margin, label) in enumerate(rows[1:]):
        assert path[0] not in "=+-@\t\r"
        assert label[0] not in "=+-@\t\r"
        original = images.paths[number].encode("utf-8", "backslashreplace").decode()
        assert path.removeprefix("./") == original
        assert label.removeprefix("'") == CLASSES[number % 7]
        assert (int(cluster), int(second)) == (assignment.first[number], assignment.second[number])
        assert float(similarity) == pytest.approx(assignment.similarity[number], abs=1e-6)
        assert float(margin) == pytest.approx(assignment.margin[number], abs=1e-6)
    assert rows[2][0] == "./=1+1.png"


def test_csv_without_labels(tmp_path: Path) -> None:
    images, assignment = hostile_set(tmp_path / "images")
    text = to_csv(assignment, ImageSet(images.root, images.paths)).decode()
    assert all(row[-1] == "" for row in list(csv.reader(io.StringIO(text, newline="")))[1:])


def test_parquet_holds_the_same_columns_typed(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    images, assignment = hostile_set(tmp_path / "images")
    table = parquet.read_table(io.BytesIO(to_parquet(assignment, images)))
    assert table.column_names == list(HEADER)
    assert [str(field.type) for field in table.schema] == ["string", "int32", "float", "int32", "float", "string"]
    assert table["label"].to_pylist() == [CLASSES[number % 7] for number in range(14)]
    np.testing.assert_array_equal(table["cluster"].to_numpy(), assignment.first)
    np.testing.assert_array_equal(table["similarity"].to_numpy(), assignment.similarity)
