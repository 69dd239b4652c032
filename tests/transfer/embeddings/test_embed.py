"""`excb-eval embed` and `excb.embed`: the vectors of a loop, whatever the file, the processes and the interruptions."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

import excb
from excb.errors import UserError
from excb.features import cache, extraction
from excb.networks import features
from excb.networks.backbone import weights_hash
from excb.transfer.cli import main
from excb.transfer.embeddings.table import vectors as vectors_module
from tests.forked import launch
from tests.transfer.embeddings.photos import Means, by_loop

pytestmark = pytest.mark.usefixtures("one_thread")

FORMATS = ("npz", "parquet", "safetensors")


@pytest.fixture(scope="module")
def expected(run: Path, photos: Path) -> dict[str, np.ndarray]:
    return by_loop(run, photos)


def words(run: Path, photos: Path, out: Path, *more: str) -> list[str]:
    cache = [] if "--no-cache" in more else ["--cache", str(out.parent / "cache")]
    usual = ["--workers", "0", "--batch-size", "4", "--device", "cpu", *cache]
    return ["embed", "--ckpt", str(run), "--data", str(photos), "--out", str(out), *usual, *more]


def assert_vectors(found: excb.Embeddings, expected: dict[str, np.ndarray]) -> None:
    assert list(found.paths) == sorted(expected)
    assert found.vectors.dtype == np.float32
    assert found.vectors.shape == (len(expected), 32)
    np.testing.assert_allclose(found.vectors, [expected[path] for path in found.paths], rtol=1e-4, atol=1e-5)


def counted(patch: pytest.MonkeyPatch) -> list[int]:
    """The batches that pass through networks from now on."""
    seen: list[int] = []
    usual = features.stream

    def stream(*args: Any, **options: Any) -> Any:
        for part in usual(*args, **options):
            seen.append(len(part.samples))
            yield part

    patch.setattr(extraction, "stream", stream)
    return seen


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_holds_every_vector_and_says_what_made_it(
    run: Path,
    photos: Path,
    expected: dict[str, np.ndarray],
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
) -> None:
    pytest.importorskip("pyarrow" if suffix == "parquet" else "numpy")
    monkeypatch.setattr(vectors_module, "AT_ONCE", 5)  # several parts
    out = tmp_path / f"photos.{suffix}"
    assert main(words(run, photos, out, "--quiet")) == 0
    found = excb.Embeddings.load(out)
    assert_vectors(found, expected)
    backbone = excb.load(run)
    assert found.model["name"] == "run step 5"
    assert found.model["weights_sha256"] == weights_hash(backbone.network)
    assert found.model["preprocessing"] == backbone.transform.to_dict()
    assert (found.root, dict(found.unreadable)) == (str(photos), {})


def test_every_format_is_read_without_this_package(
    run: Path, photos: Path, expected: dict[str, np.ndarray], tmp_path: Path
) -> None:
    embeddings = excb.embed(run, photos, workers=0, quiet=True)
    paths = sorted(expected)
    with np.load(embeddings.save(tmp_path / "a.npz"), allow_pickle=False) as arrays:
        assert arrays["paths"].tolist() == paths
        np.testing.assert_array_equal(arrays["vectors"], embeddings.vectors)
        assert json.loads(str(arrays["meta"]))["images"] == len(paths)
    tensors = load_file(embeddings.save(tmp_path / "a.safetensors"))
    np.testing.assert_array_equal(tensors["vectors"], embeddings.vectors)
    assert tensors["paths"].tobytes().decode().split("\0") == paths
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(embeddings.save(tmp_path / "a.parquet"))
    assert table.column_names == ["path", "vector"]
    assert table.column("path").to_pylist() == paths
    np.testing.assert_array_equal(np.array(table.column("vector").to_pylist(), np.float32), embeddings.vectors)
    assert json.loads(table.schema.metadata[b"excb"])["model"]["name"] == "run step 5"


def test_the_command_says_what_it_wrote(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(run, photos, tmp_path / "a.npz", "--dry-run")) == 0
    assert "images: 12 images, none cached" in capsys.readouterr().out
    assert not (tmp_path / "a.npz").exists()
    assert main(words(run, photos, tmp_path / "a.npz", "--json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["files"], answer["images"], answer["width"]) == ([str(tmp_path / "a.npz")], 12, 32)
    assert main(words(run, photos, tmp_path / "a.npz")) == 0
    assert f"12 vectors of 32 numbers in {tmp_path / 'a.npz'}" in capsys.readouterr().out


def test_labelled_folders_and_splits_are_all_taken(run: Path, photos: Path, tmp_path: Path) -> None:
    for part in ("train/cat", "train/dog", "test/cat"):
        shutil.copytree(photos / "c", tmp_path / part)
    found = excb.embed(run, tmp_path, workers=0, quiet=True)
    assert {path.rpartition("/")[0] for path in found.paths} == {"train/cat", "train/dog", "test/cat"}


def test_a_list_and_several_files_keep_their_order(
    run: Path, photos: Path, expected: dict[str, np.ndarray], tmp_path: Path
) -> None:
    names = ["c/twin.png", "a/b/00.png", "01.png"]
    (tmp_path / "list.txt").write_text("\n".join(names))
    listed = excb.embed(run, photos, listed=tmp_path / "list.txt", workers=0, quiet=True)
    files = excb.embed(run, [photos / name for name in names], workers=0, quiet=True)
    assert (list(listed.paths), list(files.paths)) == (names, [str(photos / name) for name in names])
    for found in (listed, files):
        np.testing.assert_allclose(found.vectors, [expected[name] for name in names], rtol=1e-4, atol=1e-5)


def test_pictures_in_memory_of_mixed_sizes(run: Path, photos: Path, expected: dict[str, np.ndarray]) -> None:
    images: list[Any] = [
        Image.open(photos / "01.png"),
        np.asarray(Image.open(photos / "a/b/00.png")),
        str(photos / "c/02.png"),
    ]
    found = excb.embed(run, images, quiet=True)
    wanted = [expected[name] for name in ("01.png", "a/b/00.png", "c/02.png")]
    np.testing.assert_allclose(found.vectors, wanted, rtol=1e-4, atol=1e-5)
    assert found.paths[:2] == ["0", "1"]
    np.testing.assert_allclose(excb.embed(run, images[0], quiet=True).vectors, wanted[:1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(excb.embed(run, photos / "01.png", quiet=True).vectors, wanted[:1], rtol=1e-4, atol=1e-5)


def test_a_network_of_ones_own(photos: Path, tmp_path: Path) -> None:
    network = Means().train()
    found = excb.embed(network, photos, workers=0, quiet=True)
    for row, path in zip(found.vectors, found.paths, strict=True):
        with Image.open(photos / path) as image:
            np.testing.assert_allclose(row, Means.transform(image).mean((1, 2)), rtol=1e-5)
    assert network.training
    assert found.search(photos / "01.png", k=1)[0].path == "01.png"
    loaded = excb.Embeddings.load(found.save(tmp_path / "a.npz"))
    assert loaded.search(found.vectors[2], k=1)[0].row == 2
    with pytest.raises(UserError, match="these vectors were made by a network in memory: search by vectors"):
        loaded.search(photos / "01.png")
    with torch.no_grad():
        network.scale.mul_(2)
    np.testing.assert_allclose(excb.embed(network, photos, workers=0, quiet=True).vectors, 2 * found.vectors)


def test_an_unreadable_image_is_left_out_and_named(
    run: Path, photos: Path, expected: dict[str, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    (folder / "05broken.jpg").write_text("no image")
    (folder / "c" / "cut.png").write_bytes((photos / "01.png").read_bytes()[:200])
    for _ in range(2):  # computed, then from the cache
        found = excb.embed(run, folder, workers=0, batch_size=4, out=tmp_path / "a.npz", cache=tmp_path / "cache")
        assert "2 of 14 images cannot be read and have no vector: 05broken.jpg (" in capsys.readouterr().err
        assert_vectors(found, expected)
    assert set(excb.Embeddings.load(tmp_path / "a.npz").unreadable) == {"05broken.jpg", "c/cut.png"}
    assert found.search(found.vectors[7], k=1)[0].path == found.paths[7]
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.png").write_text("no image")
    with pytest.raises(UserError, match=r"no image of .* can be read"):
        excb.embed(run, tmp_path / "none", workers=0, quiet=True)


def test_a_network_that_gives_nan_is_not_an_unreadable_image(photos: Path) -> None:
    network = Means()
    network.scale.data.fill_(float("nan"))
    with pytest.raises(UserError, match=r"the network gives NaN for 01\.png, which can be read"):
        excb.embed(network, photos, workers=0, quiet=True)


@pytest.mark.parametrize("kept", ["in the cache", "beside the file"])
def test_an_interrupted_call_continues_where_it_was(
    run: Path,
    photos: Path,
    expected: dict[str, np.ndarray],
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: str,
) -> None:
    monkeypatch.setattr(cache, "SHARD_BYTES", 4 * 32 * 4)  # four rows
    more = ["--no-cache"] if kept == "beside the file" else []
    usual, written = cache.FeatureStore.write, list[int]()

    def write(store: cache.FeatureStore, number: int, rows: np.ndarray) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        usual(store, number, rows)
        written.append(number)

    with monkeypatch.context() as patch:
        patch.setattr(cache.FeatureStore, "write", write)
        assert main(words(run, photos, tmp_path / "a.npz", "--quiet", *more)) == 130
    assert not (tmp_path / "a.npz").exists()
    seen = counted(monkeypatch)
    assert main(words(run, photos, tmp_path / "a.npz", "--quiet", *more)) == 0
    assert sum(seen) == 4  # of twelve
    assert_vectors(excb.Embeddings.load(tmp_path / "a.npz"), expected)
    left = {"a.npz"} if kept == "beside the file" else {"a.npz", "cache"}
    assert {entry.name for entry in tmp_path.iterdir()} == left


def test_vectors_are_never_all_in_memory(
    run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SHARD_BYTES", 4 * 32 * 4)
    monkeypatch.setattr(vectors_module, "AT_ONCE", 4)
    most: list[int] = []
    usual = cache.CachedFeatures.rows

    def rows(features: cache.CachedFeatures, start: int, stop: int) -> torch.Tensor:
        part = usual(features, start, stop)
        most.append(len(part))
        return part

    monkeypatch.setattr(cache.CachedFeatures, "rows", rows)
    monkeypatch.setattr("excb.transfer.embeddings.computing.AT_ONCE", 4)
    for suffix in ("npz", "safetensors"):
        assert main(words(run, photos, tmp_path / f"a.{suffix}", "--quiet")) == 0
    assert max(most) == 4


def test_two_processes_write_the_file_of_one(run: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    assert launch("excb.transfer.cli", words(run, photos, tmp_path / "two" / "a.npz", "--quiet"), 2) == 0
    assert main(words(run, photos, tmp_path / "a.npz", "--quiet")) == 0
    one, two = (excb.Embeddings.load(file) for file in (tmp_path / "a.npz", tmp_path / "two" / "a.npz"))
    assert list(one.paths) == list(two.paths)
    np.testing.assert_array_equal(one.vectors, two.vectors)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--out", "a.txt"], "embeddings are written to a file that ends in .npz, .parquet, .safetensors, .csv"),
        (["--data", "nowhere"], "no folder nowhere"),
        (["--crop", "4"], "--resize and --crop must be at least 8 pixels"),
    ],
)
def test_mistakes_end_in_one_line(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, more: list[str], message: str
) -> None:
    assert main(words(run, photos, tmp_path / "a.npz", *more)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_what_is_no_image_is_told_clearly(run: Path, tmp_path: Path) -> None:
    number: Any = 3
    with pytest.raises(UserError, match="images are a folder, files, PIL images or arrays, not a int"):
        excb.embed(run, number)
    with pytest.raises(UserError, match="there is no image to embed"):
        excb.embed(run, [])
    with pytest.raises(UserError, match=r"images are files, PIL images or arrays \[H, W, 3\], not a NoneType"):
        excb.embed(run, [tmp_path / "a.png", None])
    with pytest.raises(UserError, match="index is not an option in Python"):
        excb.embed(run, tmp_path, index="a.faiss")


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("harm", ["cut", "other"])
def test_a_damaged_file_is_told_clearly(run: Path, photos: Path, tmp_path: Path, suffix: str, harm: str) -> None:
    pytest.importorskip("pyarrow" if suffix == "parquet" else "numpy")
    file = excb.embed(run, photos, workers=0, quiet=True).save(tmp_path / f"a.{suffix}")
    packed = file.read_bytes()
    file.write_bytes(packed[:-40] if harm == "cut" else b"x" * 300)
    with pytest.raises(UserError, match=r"holds no embeddings of `excb-eval embed` \(.*\): embed the images again"):
        excb.Embeddings.load(file)
