"""Columns: categories and numbers, by order and by path, and tables as people write them."""

from pathlib import Path

import numpy as np
import pytest

from excb.errors import UserError
from excb.transfer.map.columns import column_of, read_columns

PATHS = ["a/1.jpg", "a/2.jpg", "b/3.jpg"]


def test_words_and_whole_numbers_are_categories_and_fractions_are_numbers() -> None:
    words = column_of("label", ["pear", None, "apple"], PATHS)
    assert words.values == ("apple", "pear")
    assert words.codes.tolist() == [1, -1, 0]
    clusters = column_of("cluster", np.array([10, 9, 10]), PATHS)
    assert clusters.values == ("9", "10")
    assert clusters.codes.tolist() == [1, 0, 1]
    scores = column_of("score", {"a/1.jpg": 0.25, "b/3.jpg": 2}, PATHS)
    assert scores.numbers is not None
    assert scores.numbers[[0, 2]].tolist() == [0.25, 2]
    assert np.isnan(scores.numbers[1])
    assert scores.known == 2


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="label has 2 values for 3 images"):
        column_of("label", ["a", "b"], PATHS)
    with pytest.raises(UserError, match="label has no value for any of the 3 images"):
        column_of("label", {"elsewhere.jpg": "a"}, PATHS)


def test_a_table_has_a_column_for_each_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "known.csv"
    rows = ["pear;a\\1.jpg;0.5;", f"fig;{tmp_path}/photos/b/3.jpg;1;", "nut;no/where.jpg;0;"]
    file.write_text("\n".join(["Label;file_name;Probability;empty", *rows]))
    columns, strangers = read_columns(file, PATHS, str(tmp_path / "photos"))
    assert [column.name for column in columns] == ["label", "probability"]
    assert columns[0].values == ("fig", "pear")
    assert columns[0].codes.tolist() == [1, -1, 0]
    assert columns[1].numbers is not None
    assert columns[1].numbers[[0, 2]].tolist() == [0.5, 1]
    assert strangers == 1


def test_parquet_has_the_same_columns(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra parquet)")
    from pyarrow import parquet

    table = pyarrow.table({"path": PATHS, "vector": [[1.0], [2.0], [3.0]], "Cluster": [4, None, 4]})
    parquet.write_table(table, tmp_path / "known.parquet")
    columns, _ = read_columns(tmp_path / "known.parquet", PATHS, "photos")
    assert [(column.name, column.values, column.codes.tolist()) for column in columns] == [
        ("cluster", ("4",), [0, -1, 0])
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\na,b\n", r"has the columns name, label: it needs path \(or file_name\) and others"),
        ("path\na/1.jpg\n", "has the columns path: it needs path"),
        ("path,label\nphotos/a/1.jpg,x\n", "its paths are such as photos/a/1.jpg, theirs as a/1.jpg"),
    ],
)
def test_tables_without_such_columns_or_images_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "known.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_columns(tmp_path / "known.csv", PATHS, "photos")
