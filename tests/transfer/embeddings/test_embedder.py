"""`excb.Embedder`: the vectors of one machine, and on a cluster that loses a worker every image once."""

import io
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import excb
from excb.errors import UserError
from tests.clone import ROOT
from tests.excb.images.deep_files import ramp, write
from tests.transfer.embeddings.photos import by_loop

pytestmark = pytest.mark.usefixtures("one_thread")


def objects(values: list[Any]) -> np.ndarray:
    """An array of objects, as Ray gives columns of bytes."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.mark.parametrize("kind", ["bytes", "path", "array"])
def test_a_batch_gets_the_vectors_of_a_loop(run: Path, photos: Path, kind: str) -> None:
    expected = by_loop(run, photos)
    if kind == "bytes":
        images: list[Any] = [(photos / name).read_bytes() for name in expected]
    elif kind == "path":
        images = [str(photos / name) for name in expected]
    else:
        images = [np.asarray(Image.open(photos / name)) for name in expected]
    rows = {kind: objects(images), "id": np.arange(len(expected))}
    made = excb.Embedder(run, column=kind, batch=5, device="cpu")(rows)
    assert list(made) == [kind, "id", "vector", "error"]
    assert made["vector"].dtype == np.float32
    np.testing.assert_allclose(made["vector"], list(expected.values()), rtol=1e-4, atol=1e-5)
    assert made["error"].tolist() == [""] * len(expected)
    assert made["id"] is rows["id"]


def test_a_broken_image_does_not_end_the_job(run: Path, photos: Path) -> None:
    good = (photos / "01.png").read_bytes()
    made = excb.Embedder(run, device="cpu")({"bytes": objects([good, b"no image", good[:90], good, None])})
    assert [bool(error) for error in made["error"]] == [False, True, True, False, True]
    assert np.isnan(made["vector"]).all(1).tolist() == [False, True, True, False, True]
    np.testing.assert_array_equal(made["vector"][0], made["vector"][3])
    assert made["error"][4].startswith("an image is a PIL image")


def test_images_of_more_than_8_bits_need_a_range(run: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "deep.png", ramp(0, 4095, np.uint16, 40))
    flat = Image.fromarray((ramp(0, 4095, np.uint16, 40) * (255 / 4095)).round().astype(np.uint8))
    expected = excb.load(run).embed(flat)[0].numpy()
    contents = {"bytes": file.read_bytes(), "path": str(file), "array": ramp(0, 4095, np.uint16, 40)}
    for column, content in contents.items():
        made = excb.Embedder(run, column=column, device="cpu")({column: objects([content])})
        assert np.isnan(made["vector"]).all()
        assert "range" in made["error"][0]
        made = excb.Embedder(run, column=column, device="cpu", range="0..4095")({column: objects([content])})
        np.testing.assert_allclose(made["vector"][0], expected, rtol=1e-4, atol=1e-5)


def test_a_missing_column_is_told_clearly(run: Path) -> None:
    with pytest.raises(UserError, match="no column 'bytes': there are image, id; name it with column="):
        excb.Embedder(run, device="cpu")({"image": objects([]), "id": objects([])})


class DyingOnce:
    """An embedder whose first process to reach a certain image is killed there, as by a machine that fails."""

    def __init__(self, mark: str, **options: Any) -> None:
        self.embedder, self.mark = excb.Embedder(**options), Path(mark)

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, Any]:
        if 30 in rows["id"]:
            try:
                self.mark.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.embedder(rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_ray_cluster_that_loses_a_worker_embeds_every_image_once(run: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    import pyarrow
    from pyarrow import parquet

    random, packed = np.random.default_rng(0), []
    for _ in range(60):
        buffer = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (40, 44, 3), dtype=np.uint8)).save(buffer, "PNG")
        packed.append(buffer.getvalue())
    (tmp_path / "photos").mkdir()
    for part in range(6):  # six files, so that both workers have some
        own = slice(10 * part, 10 * part + 10)
        table = pyarrow.table({"id": list(range(60))[own], "bytes": packed[own]})
        parquet.write_table(table, tmp_path / "photos" / f"{part}.parquet")

    paths = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
    )
    try:
        options = {"mark": str(tmp_path / "died"), "ckpt": str(run), "column": "bytes", "device": "cpu"}
        vectors = ray.data.read_parquet(str(tmp_path / "photos"), override_num_blocks=6).map_batches(
            DyingOnce,
            fn_constructor_kwargs=options,
            batch_size=5,
            num_cpus=0.5,
            compute=ray.data.ActorPoolStrategy(size=2),
        )
        vectors.drop_columns(["bytes"]).write_parquet(str(tmp_path / "vectors"))
    finally:
        ray.shutdown()
    assert (tmp_path / "died").exists()
    table = parquet.read_table(tmp_path / "vectors")
    ids = table.column("id").to_pylist()
    assert sorted(ids) == list(range(60))
    assert set(table.column("error").to_pylist()) == {""}
    made = np.array(table.column("vector").to_pylist(), np.float32)
    backbone = excb.load(run)
    expected = backbone.embed([Image.open(io.BytesIO(packed[number])) for number in ids]).numpy()
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
