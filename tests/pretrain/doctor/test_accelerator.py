"""The doctor's look at GPUs, with torch's answers replaced; and once at a real one where there is one."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from excb.pretrain.doctor import accelerator
from excb.pretrain.doctor.accelerator import check_accelerator
from excb.pretrain.doctor.finding import Finding

GIB = 2**30
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 03:01:58 UTC 2026\n"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "version"
    file.write_text(DRIVER)
    monkeypatch.setattr(accelerator, "DRIVER", file)
    return file


@pytest.fixture
def gpus(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs with 80 GiB each."""
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "get_device_name": lambda _: "GPU of a test",
        "mem_get_info": lambda _: (79 * GIB, 80 * GIB),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.zeros(1))
    monkeypatch.setattr(accelerator, "_bf16", lambda _: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))


def judged(device: str = "auto", precision: str = "bf16", gpus: int | None = None) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_accelerator(device, precision, gpus)}


def no_gpu(monkeypatch: pytest.MonkeyPatch, built_for: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)


def test_the_cpu_needs_no_gpu() -> None:
    assert [finding.verdict for finding in check_accelerator("cpu", "fp32", None)] == ["ok"]
    assert [finding.verdict for finding in check_accelerator("auto", "fp32", 0)] == ["ok"]


@pytest.mark.parametrize(
    ("built_for", "present", "words"),
    [("13.0", False, "no NVIDIA driver"), (None, True, "built without CUDA"), ("13.0", True, "no usable GPU")],
)
def test_no_gpu_and_why(
    driver: Path, monkeypatch: pytest.MonkeyPatch, built_for: str | None, present: bool, words: str
) -> None:
    if not present:
        driver.unlink()
    no_gpu(monkeypatch, built_for)
    finding = judged()["GPU"]
    assert finding.verdict == "warning"
    assert words in finding.found
    assert ("570.86.15" in finding.found) == present
    assert judged("cuda")["GPU"].verdict == judged(gpus=2)["GPU"].verdict == "error"


def test_sound_gpus(gpus: None) -> None:
    findings = judged(gpus=2)
    assert {name: finding.verdict for name, finding in findings.items()} == {"GPU 0": "ok", "GPU 1": "ok", "NCCL": "ok"}
    assert "80.0 GiB" in findings["GPU 0"].found
    assert findings["NCCL"].found == "2.28.9"


def test_more_gpus_than_there_are(gpus: None) -> None:
    finding = judged(gpus=3)["GPU"]
    assert finding.verdict == "error"
    assert finding.fix == "--gpus 2"


def test_memory_that_others_hold(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: ((79 - 20 * index) * GIB, 80 * GIB))
    findings = judged(gpus=2)
    assert (findings["GPU 0"].verdict, findings["GPU 1"].verdict) == ("ok", "warning")
    assert "only 59.0 GiB free" in findings["GPU 1"].found


def test_a_gpu_that_does_not_compute(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: no kernel image is available\nsecond line")

    monkeypatch.setattr(torch, "ones", broken)
    finding = judged()["GPU 0"]
    assert finding.verdict == "error"
    assert finding.found.endswith("no kernel image is available")


def test_auto_finds_bf16(gpus: None) -> None:
    assert "bf16" not in judged(precision="auto")


def test_no_bf16(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "_bf16", lambda _: False)
    assert judged()["bf16"].fix == "efficiency.precision=fp16"
    assert "bf16" not in judged(precision="fp32")
    assert (judged(precision="auto")["bf16"].verdict, judged(precision="auto")["bf16"].fix) == (
        "warning",
        "efficiency.precision=fp16 for less time and memory",
    )


def test_no_nccl(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert judged(gpus=2)["NCCL"].verdict == "error"
    assert judged()["NCCL"].verdict == "ok"


@pytest.mark.gpu
def test_this_machines_gpu() -> None:
    findings = judged(gpus=1)
    assert {finding.verdict for finding in findings.values()} <= {"ok", "warning"}
    assert torch.cuda.get_device_name() in findings["GPU 0"].found
    assert findings["NCCL"].found.startswith("2.")
