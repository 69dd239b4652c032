"""The doctor's look at limits of the system, which the tests set."""

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from excb.pretrain.doctor import limits
from excb.pretrain.doctor.limits import check_cores, check_open_files, check_shared_memory

pytestmark = pytest.mark.usefixtures("one_thread")
MIB = 2**20


@pytest.mark.parametrize(
    ("soft", "hard", "verdict", "fix"),
    [
        (1024, 4096, "ok", ""),
        (256, 4096, "error", "ulimit -n 4096"),
        (256, resource.RLIM_INFINITY, "error", "ulimit -n 65536"),
        (256, 300, "error", "administrator"),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, "ok", ""),
    ],
)
def test_open_files(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, verdict: str, fix: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    finding = check_open_files(workers=8, prefetch=2)
    assert finding.verdict == verdict
    assert fix in finding.fix


@pytest.mark.parametrize(("free", "verdict"), [(47, "error"), (48, "warning"), (72, "ok")])
def test_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, verdict: str) -> None:
    monkeypatch.setattr(limits, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=MIB))
    # two processes of four workers, each with two batches read and a third in work
    finding = check_shared_memory(2 * MIB, workers=4, prefetch=2, processes=2)
    assert "48.0 MiB" in finding.found
    assert finding.verdict == verdict


def test_shared_memory_that_nobody_uses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_shared_memory(2**50, workers=0, prefetch=2, processes=8).verdict == "ok"
    monkeypatch.setattr(limits, "SHARED_MEMORY", tmp_path / "none")
    assert check_shared_memory(2**50, workers=8, prefetch=2, processes=8).verdict == "ok"


@pytest.mark.parametrize(
    ("quota", "asked", "expected"),
    [
        ("max 100000", (8, 8), ("ok", "")),
        ("max 100000", (9, 8), ("warning", "efficiency.workers=8")),
        ("200000 100000", (2, 8), ("warning", "OMP_NUM_THREADS=2")),
        ("200000 100000", (2, 2), ("ok", "")),
        ("nonsense", (8, 1), ("ok", "")),
    ],
)
def test_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, asked: tuple[int, int], expected: tuple[str, str]
) -> None:
    workers, threads = asked
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(limits, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(limits, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    finding = check_cores(workers, 1)
    verdict, fix = expected
    assert finding.verdict == verdict
    assert fix in finding.fix


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "usable_cores", lambda: 8)
    monkeypatch.setattr(limits, "quota", lambda: None)
    assert check_cores(4, 2).verdict == "ok"
    assert check_cores(4, 3).fix.startswith("efficiency.workers=2")


def test_threads_set_for_one_process_are_too_many_for_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "usable_cores", lambda: 16)
    monkeypatch.setattr(limits, "quota", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert check_cores(2, 8).fix == "OMP_NUM_THREADS=2"
