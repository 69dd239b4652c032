"""Files of embeddings that are damaged, hostile or of older versions, and names that no text of UTF-8 holds."""

import json
import os
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import excb
from excb.errors import UserError
from excb.transfer.embeddings.table import files, vectors
from excb.transfer.embeddings.table.vectors import ArrayRows, CheckedRows

VECTORS = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
ODD = ["two\nlines.png", "=1+1.png", " a .png", "\u202egnp.png", "a\x01b", "'.png"]
PATHS = [f"a/{number}.png" for number in range(43)] + ODD + [os.fsdecode(b"caf\xe9/1.png")]
LABELS = [None, *["kiwi"] * 48, os.fsdecode(b"caf\xe9")]
FORMATS = ("npz", "parquet", "safetensors")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "AT_ONCE", 8)


def made(**model: Any) -> Any:
    return excb.Embeddings(ArrayRows(VECTORS), PATHS, "photos", {"name": "some"} | model, labels=LABELS)


def contents(embeddings: Any) -> tuple[Any, ...]:
    return embeddings.vectors.tobytes(), embeddings.paths, embeddings.labels, embeddings.root, embeddings.model


@pytest.mark.parametrize("ending", FORMATS)
def test_written_means_readable(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a file takes its name, its paths and labels are read and compared with those that were to be written."""
    file = made().save(tmp_path / f"a.{ending}")
    before = file.read_bytes()
    writer, reader = files.FORMATS[f".{ending}"]
    for wrong in (
        lambda made, file, meta: file.write_bytes(b"x"),
        lambda made, file, meta: writer(made[:40], file, meta),
    ):
        monkeypatch.setitem(files.FORMATS, f".{ending}", (wrong, reader))
        with pytest.raises(UserError, match="is not written, since it could not be read again"):
            made().save(file)
        assert file.read_bytes() == before
        assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("ending", FORMATS)
def test_all_names_survive(ending: str, tmp_path: Path) -> None:
    loaded = excb.Embeddings.load(made().save(tmp_path / f"a.{ending}"))
    assert contents(loaded) == (VECTORS.tobytes(), PATHS, LABELS, "photos", {"name": "some"})


@pytest.mark.parametrize("ending", FORMATS)
def test_no_flipped_bit_loads_as_something_else(ending: str, tmp_path: Path) -> None:
    file = made().save(tmp_path / f"a.{ending}")
    right, whole, chance = contents(excb.Embeddings.load(file)), file.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        try:
            loaded = contents(excb.Embeddings.load(file))
        except UserError:
            refused += 1
        else:
            assert loaded == right
    assert refused > 75


def test_vectors_are_compared_when_they_are_read(tmp_path: Path) -> None:
    file = made().save(tmp_path / "a.safetensors")
    whole = file.read_bytes()
    place = whole.index(VECTORS[20].tobytes())
    file.write_bytes(whole[:place] + b"\0" + whole[place + 1 :])
    loaded = excb.Embeddings.load(file)
    assert np.array_equal(loaded[3], VECTORS[3])
    with pytest.raises(UserError, match=r"a\.safetensors is damaged: its vectors have another checksum"):
        loaded[20]


@pytest.mark.parametrize("ending", ["parquet", "safetensors"])
def test_parts_may_be_of_other_sizes(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = made().save(tmp_path / f"a.{ending}")
    monkeypatch.setattr(vectors, "AT_ONCE", 3)
    assert contents(excb.Embeddings.load(file))[0] == VECTORS.tobytes()


@pytest.mark.parametrize("ending", ["parquet", "safetensors"])
def test_files_without_checksums_are_read_as_before(ending: str, tmp_path: Path) -> None:
    file = made().save(tmp_path / f"a.{ending}")
    file.write_bytes(file.read_bytes().replace(b"excb_xxh3", b"other_one"))
    assert isinstance(excb.Embeddings.load(file).rows, vectors.ArrayRows)
    assert contents(excb.Embeddings.load(file))[0] == VECTORS.tobytes()


def write_as_before(file: Path) -> None:
    """A file as versions before XXH3 wrote it, by its description: CRC-32 of every 8 rows, and of all texts."""
    texts = [os.fsencode("\0".join(each)) for each in (PATHS, [label or "" for label in LABELS])]
    meta = json.dumps({"format": files.FORMAT, "root": "photos", "model": {"name": "some"}, "unreadable": {}})
    every = "\0".join([meta, *PATHS, *((label or "") for label in LABELS)])
    parts = [f"{zlib.crc32(VECTORS[start : start + 8].tobytes()):08x}" for start in range(0, 50, 8)]
    whole = f"{zlib.crc32(every.encode('utf-8', 'surrogatepass')):08x}"
    facts = {"excb": meta, "excb_crc32": json.dumps({"texts": whole, "rows": 8, "vectors": parts})}
    entries, end = {"vectors": {"dtype": "F32", "shape": [50, 4], "data_offsets": [0, 800]}}, 800
    for name, text in zip(("paths", "labels"), texts, strict=True):
        entries[name] = {"dtype": "U8", "shape": [len(text)], "data_offsets": [end, end + len(text)]}
        end += len(text)
    header = json.dumps({"__metadata__": facts} | entries).encode()
    header += b" " * (-len(header) % 8)
    file.write_bytes(struct.pack("<Q", len(header)) + header + VECTORS.tobytes() + b"".join(texts))


def test_files_with_crc32_are_compared_as_before(tmp_path: Path) -> None:
    write_as_before(file := tmp_path / "a.safetensors")
    loaded = excb.Embeddings.load(file)
    assert contents(loaded) == (VECTORS.tobytes(), PATHS, LABELS, "photos", {"name": "some"})
    file.write_bytes(file.read_bytes().replace(VECTORS[20].tobytes(), VECTORS[21].tobytes()))
    with pytest.raises(UserError, match="its vectors have another checksum"):
        excb.Embeddings.load(file)[20]


@pytest.mark.parametrize(("start", "stop"), [(0, 50), (0, 8), (3, 20), (8, 24), (45, 60), (50, 60)])
def test_any_rows_are_compared_and_copied(start: int, stop: int, tmp_path: Path) -> None:
    file = made().save(tmp_path / "a.safetensors")
    rows = excb.Embeddings.load(file).rows
    assert isinstance(rows, CheckedRows)
    assert np.array_equal(rows.rows(start, stop), VECTORS[start:stop])
    assert rows.intact == set(range(start // 8, -(-min(stop, 50) // 8)))


def test_list_columns_of_varying_length_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = made().save(tmp_path / "a.parquet")
    table = parquet.read_table(file)
    for rows in ([[1.0] * (number % 3) for number in range(50)], [[[1.0]]] * 50, ["a"] * 50, [None] * 50):
        parquet.write_table(table.set_column(2, "vector", pyarrow.array(rows)), file)
        with pytest.raises(UserError, match="holds no embeddings"):
            excb.Embeddings.load(file)


@pytest.mark.parametrize(
    "place",
    ["http://127.0.0.1:9/x.pt", "s3://bucket/run", "hf-hub:some/one", "timm:hf-hub:some/one", "zip://a::http://b"],
)
def test_addresses_in_a_file_are_not_contacted(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("excb.hub.loading.load", lambda *_given, **_named: pytest.fail("it was loaded"))
    loaded = excb.Embeddings.load(made(loads=place, weights_sha256="1").save(tmp_path / "a.npz"))
    with pytest.raises(UserError, match=r"names a network elsewhere.*backbone=excb.load") as caught:
        loaded.search(np.zeros((8, 8, 3), np.uint8))
    assert place in str(caught.value)


@pytest.mark.parametrize("wrong", [None, 3, {"crop": -1}, {"mean": "no"}, [1], {"crop": "8"}])
def test_wrong_preprocessing_is_refused(wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loaded:
        network = None

    monkeypatch.setattr("excb.hub.loading.load", lambda *_given, **_named: Loaded())
    monkeypatch.setattr("excb.networks.backbone.weights_hash", lambda _network: "1")
    file = made(loads="untrained:resnet18", weights_sha256="1", preprocessing=wrong).save(tmp_path / "a.npz")
    with pytest.raises(UserError, match="the preprocessing of these vectors is damaged"):
        excb.Embeddings.load(file).network  # noqa: B018
