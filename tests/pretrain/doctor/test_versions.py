"""The doctor's look at versions: packages that are missing, old, doubled, or not made for one another."""

import tomllib
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.io
from packaging.requirements import Requirement

from excb.pretrain.doctor import versions
from excb.pretrain.doctor.finding import Finding
from excb.pretrain.doctor.versions import OLDEST, check_versions
from tests.clone import ROOT

GOOD = {"torch": "2.15.0", "torchvision": "0.29.2", "timm": "1.0.31", "numpy": "2.4.6", "pillow": "13.0.0"}
NEEDS = {"torchvision": ["torch (>=2.14.0)", "numpy", "pillow (!=8.3.*,>=5.3.0)", "gdown ; extra == 'gdown'"]}


def judged(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> Finding:
    """The finding of versions where these are installed."""
    have = {name: version for name, version in (GOOD | changes).items() if version is not None}

    def version(package: str) -> str:
        if package not in have:
            raise metadata.PackageNotFoundError(package)
        return have[package]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", NEEDS.get)
    return check_versions()[0]


def test_the_oldest_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {found.name: str(found.specifier) for found in map(Requirement, project["dependencies"])}
    assert {name: f">={oldest}" for name, oldest in OLDEST.items()} == {
        name: specifier for name, specifier in asked.items() if specifier and name in versions.SHOWN
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch": "2.10.1"}, "torch 2.10.1 is older than 2.11"),
        ({"torch": "2.12.0+cu128"}, "torchvision 0.29.2 needs torch>=2.14.0"),
        ({"pillow": "8.3.1"}, "torchvision 0.29.2 needs pillow!=8.3.*,>=5.3.0"),
        ({"timm": None}, "timm is not installed"),
        ({"faiss-cpu": "1.9", "faiss-gpu-cu12": "1.9"}, "faiss-cpu and faiss-gpu-cu12 exclude each other"),
    ],
)
def test_bad_combinations(monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], words: str) -> None:
    finding = judged(monkeypatch, **changes)
    assert finding.verdict == "error"
    assert words in finding.found


def test_good_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = judged(monkeypatch, torch="2.15.0+cu130")
    assert finding.verdict == "ok"
    assert "torch 2.15.0+cu130, torchvision 0.29.2" in finding.found


def test_decoders_that_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    decode: Callable[..., Any] = torchvision.io.decode_jpeg

    def darker(*given: Any) -> torch.Tensor:
        pixels: torch.Tensor = decode(*given)
        return (pixels.int() - 3).clamp(0, 255).byte()

    assert check_versions()[1].verdict in {"ok", "warning"}  # the machine's own
    monkeypatch.setattr(torchvision.io, "decode_jpeg", darker)
    finding = check_versions()[1]
    assert finding.verdict == "warning"
    assert "differs by up to" in finding.found


def test_a_decoder_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("operator image::decode_jpeg does not exist\nin a second line")

    monkeypatch.setattr(torchvision.io, "decode_jpeg", broken)
    finding = check_versions()[1]
    assert finding.verdict == "error"
    assert "does not exist)" in finding.found


def test_a_simplejpeg_that_disagrees_or_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    simplejpeg = pytest.importorskip("simplejpeg")
    decode: Callable[..., Any] = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *given, **options: decode(*given, **options) // 2)
    finding = check_versions()[1]
    assert finding.verdict == "warning"
    assert "differs by up to" in finding.found

    def old(*_: object) -> np.ndarray:
        raise TypeError("unexpected")

    monkeypatch.setattr(simplejpeg, "decode_jpeg", old)
    finding = check_versions()[1]
    assert finding.verdict == "error"
    assert "simplejpeg" in finding.found
