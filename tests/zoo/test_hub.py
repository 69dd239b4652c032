"""Tests of publishing and loading over a loopback hub with the real client: by LFS, by Xet, and what goes wrong."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from errno import ENOSPC
from io import FileIO
from pathlib import Path
from typing import IO, Any
from unittest import mock

import pytest
import torch

import excb
from excb.checkpoint import exported
from excb.console import Reporter
from excb.hub.backbone import Backbone
from excb.networks.architecture import Architecture
from excb.networks.backbone import feature_width
from excb.networks.preprocessing import Preprocessing
from tests.hub_client import client, publish, refused
from tests.hub_server import Hub
from tests.run_files import TINY_RESNET, features, photograph, pictures, tiny_recipe, write_run

# The client's process has one thread too; on another number, sums would differ in the last bit.
pytestmark = pytest.mark.usefixtures("one_thread")

WEIGHTS = "model.safetensors"
PATHS = [
    "lfs",
    pytest.param("xet", marks=pytest.mark.skipif(not importlib.util.find_spec("hf_xet"), reason="no hf_xet")),
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with Hub(tmp_path_factory.mktemp("hub")) as started:
        yield started


@pytest.fixture(scope="module")
def lfs(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    with client(hub, tmp_path_factory.mktemp("lfs"), xet=False) as started:
        yield started


@pytest.fixture(scope="module")
def xet(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    with client(hub, tmp_path_factory.mktemp("xet"), xet=True) as started:
        yield started


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = tiny_recipe(TINY_RESNET, eval_resize=93, eval_crop=64, std=(0.2, 0.3, 0.4))
    return write_run(tmp_path_factory.mktemp("run") / "tiny", 7, recipe=recipe)


# ---------------------------------------------------------------------------------------------------------------------
# What the client's process does
# ---------------------------------------------------------------------------------------------------------------------


def push_run(run: Path, repo: str, **options: Any) -> dict[str, Any]:
    """Push; the network of a few thousand weights never saw an image, and need not prove that it did."""
    from excb.zoo.push import push

    with mock.patch("excb.hub.selftest.check_trained"):
        return push(str(run), repo, licence="apache-2.0", reporter=Reporter(quiet=True), **options).to_dict()


def pull(place: str, cache: Path, **environment: str) -> tuple[dict[str, Any], torch.Tensor, dict[str, Any]]:
    """Load from the hub with a cache of its own: what was read of it, its features, and its preprocessing."""
    with mock.patch.dict("os.environ", {"HF_HOME": str(cache)} | environment):
        backbone = excb.load(place)
    assert isinstance(backbone, Backbone)
    entry = backbone.entry
    known = {"step": entry.step, "recipe": entry.recipe.get("name"), "source": entry.source}
    return known, features(backbone, pictures()), backbone.transform.to_dict()


def pull_piece_by_piece(place: str, cache: Path) -> torch.Tensor:
    """Pull with a client that keeps every kilobyte that came, not every ten megabytes, and does not wait."""
    with mock.patch("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1024), mock.patch("time.sleep"):
        return pull(place, cache)[1]


class FullDisk(FileIO):
    """A file of which half of the first piece fits on the disk."""

    def write(self, data: Any, /) -> int:
        super().write(bytes(data)[: len(data) // 2])
        raise OSError(ENOSPC, "No space left on device")


def pull_to_full_disk(place: str, cache: Path) -> None:
    opened = Path.open

    def open_file(path: Path, *arguments: Any, **settings: Any) -> IO[Any]:
        is_new = path.name.endswith(".incomplete")
        return FullDisk(path, "wb") if is_new else opened(path, *arguments, **settings)

    with mock.patch.object(Path, "open", open_file):
        pull(place, cache)


def half_written(cache: Path) -> list[str]:
    """Weights, or parts of them, in a client's cache."""
    return [path.name for path in cache.rglob("*") if path.name == WEIGHTS or path.suffix == ".incomplete"]


# ---------------------------------------------------------------------------------------------------------------------
# There and back
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_what_is_pulled_is_what_was_pushed(
    hub: Hub, run: Path, tmp_path: Path, request: pytest.FixtureRequest, path: str
) -> None:
    process: ProcessPoolExecutor = request.getfixturevalue(path)
    first = len(hub.requests)
    repo = f"tester/tiny-{path}"
    entry = process.submit(push_run, run, repo).result()
    requests = "\n".join(hub.requests[first:])
    assert requests.count(f"POST /api/models/{repo}/commit/main") == 1
    assert ("PUT /_lfs/" in requests) == (path == "lfs")
    assert ("xet-write-token" in requests) == (path == "xet")
    stored = hub.repositories[repo]
    tag = f"v{excb.__version__}-step7"
    assert stored.tags == {tag: stored.refs["main"]}
    assert entry["locations"] == [f"hf-hub:{repo}@{stored.refs['main']}"]
    weights = stored.commits[stored.refs["main"]][WEIGHTS]
    assert entry["digest"] == f"sha256:{weights.oid}"
    assert (weights.xet is not None) == (path == "xet")
    loaded = excb.load(run)
    for revision in (f"@{tag}", f"@{stored.refs['main']}", ""):
        known, found, transform = process.submit(pull, f"hf-hub:{repo}{revision}", tmp_path / "second").result()
        assert torch.equal(found, features(loaded, pictures()))
        assert transform == loaded.transform.to_dict()
        assert (known["step"], known["recipe"]) == (7, "quickstart")
        assert str(tmp_path / "second") in known["source"]


TIMM = """
import json, sys, timm, torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
model = timm.create_model(sys.argv[1], pretrained=True).eval()
config = resolve_data_config({}, model=model)
image = create_transform(**config, is_training=False)(Image.open(sys.argv[2]))
pictures = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    features = model(torch.cat([pictures, image[None]]))
assert "excb" not in sys.modules
print(json.dumps({"features": features.tolist(), "config": config}))
"""


def test_plain_timm_reads_the_repository(hub: Hub, run: Path, lfs: ProcessPoolExecutor, tmp_path: Path) -> None:
    lfs.submit(push_run, run, "tester/for-timm").result()
    photograph(120).save(tmp_path / "image.png")
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "PATH": "", "HF_HUB_DISABLE_XET": "1"}
    # A new interpreter: our package is not imported, and the hub's client reads variables on import.
    done = subprocess.run(
        [sys.executable, "-c", TIMM, "hf-hub:tester/for-timm", str(tmp_path / "image.png")],
        env=environment | {"HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    loaded = excb.load(run)
    image = loaded.transform(photograph(120))
    with torch.no_grad():
        expected = loaded(torch.cat([pictures(), image[None]]))
    torch.testing.assert_close(torch.tensor(told["features"]), expected, rtol=1e-5, atol=1e-5)
    config, transform = told["config"], loaded.transform
    assert (tuple(config["mean"]), tuple(config["std"])) == (transform.mean, transform.std)
    assert (config["interpolation"], config["input_size"]) == ("bilinear", [3, 64, 64])
    assert int(64 / config["crop_pct"]) == 93


# ---------------------------------------------------------------------------------------------------------------------
# When it goes wrong
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported folder."""
    network = Architecture("timm:resnet10t", TINY_RESNET["options"]).build()
    return exported.write_exported(
        tmp_path_factory.mktemp("folders") / "tiny",
        tensors=network.state_dict(),
        architecture=Architecture("timm:resnet10t", TINY_RESNET["options"]),
        preprocessing=Preprocessing(64, 64),
        width=feature_width(network),
        facts={},
    )


@pytest.fixture(scope="module")
def published(hub: Hub, lfs: ProcessPoolExecutor, folder: Path) -> str:
    lfs.submit(publish, folder, "tester/there").result()
    return "hf-hub:tester/there"


def refused_leaving_nothing(process: ProcessPoolExecutor, *call: Any, cache: Path, **options: Any) -> str:
    """The one line that a call ends in; nothing half-written may be left."""
    line = refused(process, *call, **options)
    assert half_written(cache) == []
    return line


@pytest.mark.parametrize("path", PATHS)
def test_private_repository_needs_a_token(
    hub: Hub, folder: Path, tmp_path: Path, request: pytest.FixtureRequest, path: str
) -> None:
    process: ProcessPoolExecutor = request.getfixturevalue(path)
    repo = f"tester/private-{path}"
    process.submit(publish, folder, repo, private=True).result()
    assert hub.repositories[repo].private
    line = refused_leaving_nothing(process, pull, f"hf-hub:{repo}", tmp_path, cache=tmp_path, HF_TOKEN="")
    assert "does not exist" in line
    assert "private" in line
    assert "HF_TOKEN" in line
    process.submit(pull, f"hf-hub:{repo}", tmp_path).result()
    assert half_written(tmp_path) == [WEIGHTS]


def test_what_does_not_exist(hub: Hub, published: str, folder: Path, lfs: ProcessPoolExecutor, tmp_path: Path) -> None:
    line = refused_leaving_nothing(lfs, pull, "hf-hub:tester/nowhere", tmp_path, cache=tmp_path)
    assert "tester/nowhere does not exist" in line
    line = refused_leaving_nothing(lfs, pull, f"{published}@v9", tmp_path, cache=tmp_path)
    assert "tester/there@v9 does not exist" in line
    incomplete = tmp_path / "incomplete"
    incomplete.mkdir()
    (incomplete / "config.json").write_bytes((folder / "config.json").read_bytes())
    lfs.submit(publish, incomplete, "tester/incomplete").result()
    assert "has no model.safetensors" in refused_leaving_nothing(
        lfs, pull, "hf-hub:tester/incomplete", tmp_path, cache=tmp_path
    )


def test_full_disk(published: str, lfs: ProcessPoolExecutor, tmp_path: Path) -> None:
    line = refused_leaving_nothing(lfs, pull_to_full_disk, published, tmp_path, cache=tmp_path)
    assert "the disk is full" in line
    assert str(tmp_path) in line
    lfs.submit(pull, published, tmp_path).result()


def test_cut_connection_is_resumed(
    hub: Hub, published: str, folder: Path, lfs: ProcessPoolExecutor, tmp_path: Path
) -> None:
    first, size = len(hub.requests), (folder / WEIGHTS).stat().st_size
    hub.cut[WEIGHTS] = 1
    found = lfs.submit(pull_piece_by_piece, published, tmp_path).result()
    assert torch.equal(found, features(excb.load(folder), pictures()))
    asked = [line.partition("bytes=")[2] for line in hub.requests[first:] if line.startswith("GET") and WEIGHTS in line]
    assert len(asked) == 2
    assert asked[0] == ""
    assert size // 2 - 1024 <= int(asked[1].rstrip("-")) <= size // 2


def test_connection_that_stays_cut(hub: Hub, published: str, lfs: ProcessPoolExecutor, tmp_path: Path) -> None:
    hub.cut[WEIGHTS] = 1000
    line = refused_leaving_nothing(lfs, pull_piece_by_piece, published, tmp_path, cache=tmp_path)
    hub.cut.clear()
    assert "no connection" in line
    assert "run again" in line
    lfs.submit(pull, published, tmp_path).result()
