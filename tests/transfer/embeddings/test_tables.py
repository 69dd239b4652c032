"""Embeddings as a table: rows that are chosen, joined and handed on, and every result taken as a query."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import excb
from excb.errors import UserError
from excb.transfer.embeddings.table.vectors import ArrayRows
from tests.transfer.embeddings.photos import Means

VECTORS = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
PATHS = [f"{'ab'[number % 2]}/{number}.png" for number in range(7)]
MODEL = {"name": "some", "weights_sha256": "1", "preprocessing": {"crop": 8}}


def made(root: str = "photos", vectors: np.ndarray = VECTORS, paths: list[str] | None = None, **model: Any) -> Any:
    return excb.Embeddings(ArrayRows(vectors.copy()), paths or PATHS, root, MODEL | model)


def test_one_row_is_a_vector() -> None:
    table = made()
    for key, row in (("b/3.png", 3), (3, 3), (-1, 6), (np.int64(2), 2)):
        assert np.array_equal(table[key], VECTORS[row])
    for key, error in (("b/99.png", KeyError), (7, IndexError), (-8, IndexError)):
        with pytest.raises(error):
            table[key]
    assert "b/3.png" in table
    assert "3.png" not in table


@pytest.mark.parametrize(
    ("key", "rows"),
    [
        (slice(1, None, 2), [1, 3, 5]),
        (np.array([True, False, False, True, False, False, True]), [0, 3, 6]),
        ([5, 2, 2], [5, 2, 2]),
        (["b/5.png", "a/0.png"], [5, 0]),
        (np.array([-1, 0]), [6, 0]),
        ([], []),
        (slice(9, 9), []),
    ],
)
def test_several_rows_are_embeddings(key: Any, rows: list[int]) -> None:
    chosen = made()[key]
    assert np.array_equal(chosen.vectors, VECTORS[rows])
    assert list(chosen.paths) == [PATHS[row] for row in rows]
    assert (chosen.root, chosen.model) == ("photos", MODEL)


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(IndexError, match=r"a mask of shape \[3\] for 7 rows"):
        made()[np.array([True, False, True])]


def test_numpy_takes_it() -> None:
    table = made()
    assert np.array_equal(np.asarray(table), VECTORS)
    assert np.asarray(table, dtype=np.float64).dtype == np.float64
    assert np.array_equal(np.stack(list(table)), VECTORS)
    assert torch.equal(torch.as_tensor(np.asarray(table)), torch.from_numpy(VECTORS))


def test_pandas_arrow_and_csv_hold_paths_and_vectors(tmp_path: Path) -> None:
    table = made()
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = table.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.index.tolist() == PATHS
    assert np.array_equal(frame.to_numpy(), VECTORS)
    arrow = pyarrow.table(table)
    assert arrow.column("path").to_pylist() == PATHS
    assert np.array_equal(np.array(arrow.column("vector").to_pylist(), np.float32), VECTORS)
    with table.to_csv(tmp_path / "a.csv").open(newline="", encoding="utf-8") as stream:
        head, *rows = csv.reader(stream)
    assert head == ["path", "v0", "v1", "v2", "v3"]
    assert [row[0] for row in rows] == PATHS
    assert np.array_equal(np.array([row[1:] for row in rows], np.float32), VECTORS)


def test_a_saved_csv_is_the_same_table_and_is_not_loaded(tmp_path: Path) -> None:
    table = made().with_labels({"b/3.png": "ant"})
    assert table.save(tmp_path / "a.csv").read_bytes() == table.to_csv(tmp_path / "b.csv").read_bytes()
    with pytest.raises(
        UserError,
        match=r"a\.csv: a CSV is for other programs, .*; save the embeddings as \.npz, \.parq",
    ):
        excb.Embeddings.load(tmp_path / "a.csv")


def test_a_csv_that_would_be_read_as_another_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(csv.excel):
        quoting = csv.QUOTE_NONE
        escapechar = "!"

    file, writer = made().to_csv(tmp_path / "a.csv"), csv.writer
    before = file.read_bytes()
    monkeypatch.setattr(csv, "writer", lambda stream: writer(stream, dialect=Deaf))
    odd = excb.Embeddings.concatenate([made()[:1]]).with_labels(["two, three"])
    with pytest.raises(UserError, match=r"not written, since it could not be read again .row 2 of a table"):
        odd.to_csv(file, overwrite=True)
    assert file.read_bytes() == before


LABELS = ["ant", None, "bee", "ant", "", "bee", None]
KNOWN = ["ant", None, "bee", "ant", None, "bee", None]


def test_labels_travel_with_the_images(tmp_path: Path) -> None:
    table = made().with_labels(LABELS)
    assert table.labels == KNOWN
    assert table[[5, 0, 1]].labels == ["bee", "ant", None]
    assert table[1:2].labels is None  # none of these has one
    assert made().labels is None
    both = excb.Embeddings.concatenate([table[:3], made()[3:]])
    assert both.labels == [*KNOWN[:3], None, None, None, None]
    by_path = made().with_labels({"b/3.png": "ant", "a/0.png": "bee"})
    assert by_path.labels == ["bee", None, None, "ant", None, None, None]
    frame, arrow = table.to_pandas(), pytest.importorskip("pyarrow").table(table)
    assert frame.columns.tolist() == ["label", "v0", "v1", "v2", "v3"]
    assert [label if isinstance(label, str) else None for label in frame["label"]] == KNOWN
    assert arrow.column("label").to_pylist() == KNOWN
    with table.to_csv(tmp_path / "a.csv").open(newline="", encoding="utf-8") as stream:
        head, *rows = csv.reader(stream)
    assert head == ["path", "label", "v0", "v1", "v2", "v3"]
    assert [row[1] for row in rows] == [label or "" for label in KNOWN]
    assert np.array_equal(np.array([row[2:] for row in rows], np.float32), VECTORS)


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors"])
def test_files_keep_labels_and_those_without_have_none(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("pyarrow")
    for labels, known in ((LABELS, KNOWN), ([None] * 7, None)):
        read = excb.Embeddings.load(made().with_labels(labels).save(tmp_path / f"a{suffix}"))
        assert read.labels == known
        assert np.array_equal(read.vectors, VECTORS)
        assert list(read.paths) == PATHS


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["ant"], "1 label for 7 images: pass one for each"),
        ([1] * 7, "a label is a class name or None, not 1"),
        ({"nothing.png": "ant"}, r"1 label of no image below photos, such as nothing\.png"),
    ],
)
def test_labels_that_do_not_fit_are_one_line(labels: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        made().with_labels(labels)


def test_class_folders_are_labels_and_splits_are_none(tmp_path: Path) -> None:
    for name in ("train/ant/1.png", "train/bee/2.png", "test/ant/3.png", "test/4.png"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9)).save(file)
    assert excb.embed(Means(), tmp_path, workers=0, quiet=True).labels == [None, "ant", "ant", "bee"]
    assert excb.embed(Means(), tmp_path / "train", workers=0, quiet=True).labels == ["ant", "bee"]
    assert excb.embed(Means(), tmp_path / "test" / "4.png", workers=0, quiet=True).labels is None


def test_a_notebook_shows_counts_labels_and_thumbnails(tmp_path: Path) -> None:
    for number in range(20):
        Image.new("RGB", (9, 9), (number, 0, 0)).save(tmp_path / f"<{number:02}>.png")
    table = excb.embed(Means(), tmp_path, workers=0, quiet=True)
    page = table.with_labels(["ant", "bee"] + [None] * 18)._repr_html_()
    assert page.count('<img src="data:image/jpeg;base64,') == 8
    assert "20 images of" in page
    assert "2 labels of 2 classes" in page
    assert "&lt;00&gt;.png" in page
    assert "<00>" not in page
    assert "<img" not in made()._repr_html_()  # its files are nowhere


def test_concatenated_paths_start_from_a_common_folder(tmp_path: Path) -> None:
    first, second = made(str(tmp_path / "x")), made(str(tmp_path / "y" / "z"))
    both = excb.Embeddings.concatenate([first, second])
    assert np.array_equal(both.vectors, np.concatenate([VECTORS, VECTORS]))
    assert Path(both.root) == tmp_path
    assert list(both.paths) == [f"x/{path}" for path in PATHS] + [f"y/z/{path}" for path in PATHS]
    assert np.array_equal(both[5:9].vectors, np.concatenate([VECTORS, VECTORS])[5:9])
    assert both.files(both.search("x/b/3.png", k=1)) == [tmp_path / "x" / "b" / "3.png"]
    parts = excb.Embeddings.concatenate([first[:3], first[3:]])
    assert (list(parts.paths), parts.root) == (PATHS, first.root)


def test_what_does_not_belong_together_is_not_concatenated() -> None:
    with pytest.raises(UserError, match=r"a/0\.png is in two of these embeddings"):
        excb.Embeddings.concatenate([made(), made()])
    with pytest.raises(UserError, match=r"in different ways \(weights_sha256\): embed both with the same network"):
        excb.Embeddings.concatenate([made(), made("others", weights_sha256="2")])
    with pytest.raises(UserError, match="nothing to concatenate"):
        excb.Embeddings.concatenate([])


def test_every_result_is_a_query() -> None:
    table = made()
    wanted = table.search(VECTORS[3], k=3)
    assert wanted[0].row == 3
    queries = ["b/3.png", 3, np.int64(3), -4, wanted[0], torch.from_numpy(VECTORS[3]), VECTORS[3].astype(np.float64)]
    for query in queries:
        assert table.search(query, k=3) == wanted
    for several in (VECTORS[3:4], torch.from_numpy(VECTORS[3:4]), ["b/3.png"], [wanted[0]]):
        assert table.search(several, k=3) == [wanted]
    assert table.search([wanted[0], 5, "a/0.png"], k=2) == [table.search(row, k=2) for row in (3, 5, 0)]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (99, "there is no row 99: these are 7 rows"),
        (b"nothing", "the bytes of the query are no image"),
        ([], "there is no query"),
        (VECTORS[0, :3], r"queries of shape \[1, 3\] do not fit: these vectors have 4 numbers"),
        (object(), "a query is an image .* not a object"),
    ],
)
def test_wrong_queries_are_one_line(query: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        made().search(query)


def test_an_image_in_bytes_is_a_query(run: Path, photos: Path) -> None:
    table = excb.embed(run, photos, workers=0, quiet=True)
    content = io.BytesIO()
    Image.open(photos / "04.png").save(content, format="png")
    assert table.search(content.getvalue(), k=3) == table.search(photos / "04.png", k=3)
    assert table.search("04.png", k=1)[0].path == "04.png"
