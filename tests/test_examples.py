"""Every script of `examples/` runs as its first lines say, on a few patches of photographs."""

import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from excb.images import photographs
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from tests import forked
from tests.clone import ROOT
from tests.pretrain.small_runs import OVERRIDES

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "photos"
    photographs.write_patches(folder, train=8, test=3)
    return folder


def run(*words: object, folder: Path) -> str:
    """The output of a Python program."""
    command = [sys.executable, *map(str, words)]
    inherited = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = forked.run(command, cwd=folder, env=inherited, capture_output=True, check=False, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_script_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [file.name for file in EXAMPLES.iterdir() if file.is_file() and file.stem not in text] == []


def test_a_sklearn_pipeline(photos: Path, tmp_path: Path) -> None:
    lines = run(EXAMPLES / "sklearn_pipeline.py", "--data", photos, folder=tmp_path).splitlines()
    reached, majority = (float(line.rpartition(" ")[2].rstrip("%")) for line in lines[1:])
    assert lines[0].startswith("chosen on train images: {")
    assert majority == pytest.approx(100 / 13, abs=0.1)
    assert reached > 50


def test_a_set_of_copies(photos: Path, tmp_path: Path) -> None:
    printed = run(EXAMPLES / "make_copies.py", photos / "train", "copies", "--queries", 20, folder=tmp_path)
    assert printed.startswith("20 queries, 4 of them without a reference, ")
    out = tmp_path / "out" / "copies.json"
    words = ["instances", "--ckpt", "conv4_photos", "--data", tmp_path / "copies", "--out", out, "--device", "cpu"]
    assert main([*map(str, words), "--no-cache", "--workers", "0", "--json", "--quiet"]) == 0
    result = ResultRecord.read(out)
    assert set(result.per_class["copies_mAP"]) == {"crop", "flip", "jpeg", "strong"}
    assert result.figures["copies_mAP"] > 20


@pytest.mark.parametrize(
    ("script", "package"), [("lightning_finetune.py", "lightning"), ("transformers_trainer.py", "transformers")]
)
def test_fine_tuning(script: str, package: str, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    printed = run(EXAMPLES / script, "--data", photos, "--epochs", 1, folder=tmp_path)
    assert "accuracy" in printed


def test_the_search_service(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("fastapi", "httpx", "python_multipart"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from fastapi.testclient import TestClient

    monkeypatch.setenv("PHOTOS", str(photos / "test"))
    monkeypatch.syspath_prepend(EXAMPLES)
    import search_service

    query = photos / "test" / "cat" / "000.png"
    with TestClient(search_service.app) as client:
        found = client.post("/search", params={"k": 3}, files={"image": query.read_bytes()}).json()
        assert [match["path"] for match in found][:1] == ["cat/000.png"]
        assert found[0]["cosine"] == pytest.approx(1, abs=1e-6)
        assert len(found) == 3
        refused = client.post("/search", files={"image": io.BytesIO(b"no image").read()})
        assert (refused.status_code, "not an image" in refused.text) == (422, True)
        assert client.post("/search", params={"k": 0}, files={"image": query.read_bytes()}).status_code == 422


@pytest.mark.usefixtures("short_end")
def test_the_slurm_job(photos: Path, tmp_path: Path) -> None:
    """Where Slurm's two programs are stand-ins, the job trains in two processes and evaluates.

    So are torchrun and `excb-eval`, which note their arguments: then they are run with these, without new interpreters.
    """
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    noted = 'printf "%s\\0" "$@" > "$(basename "$0")"'
    for name, script in (
        *(("srun", 'exec "$@"'), ("scontrol", "echo localhost")),
        *((name, noted) for name in ("torchrun", "excb-eval")),
    ):
        (stand_ins / name).write_text(f"#!/bin/bash\n{script}\n")
        (stand_ins / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": "1", "SLURM_JOB_ID": "7", "PROCESSES": "2"}
    job |= {"RECIPE": "quickstart", "DATA": str(photos / "train"), "OUT": "runs/job", "LABELLED": str(photos)}
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        job["PORT"] = str(probe.getsockname()[1])
    small = (*OVERRIDES, "optim.epochs=1", "optim.batch=26", "monitor.images=26")
    job |= {"PATH": f"{stand_ins}:{os.environ['PATH']}", "OPTIONS": " ".join(word.replace(" ", "") for word in small)}
    subprocess.run(["bash", EXAMPLES / "slurm_job.sh"], cwd=tmp_path, env=os.environ | job, check=True, timeout=60)
    for name, module in (("torchrun", "torch.distributed.run"), ("excb-eval", "excb.transfer")):
        arguments = (tmp_path / name).read_text(encoding="utf-8").split("\0")[:-1]
        run("-m", module, *arguments, folder=tmp_path)
    assert (tmp_path / "runs" / "job" / "knn.json").is_file()
