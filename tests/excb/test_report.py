"""The report for issues: it names what matters here, and nothing that is private."""

import json
import platform
import types
from pathlib import Path

import pytest
import torch

import excb
from excb.__main__ import main
from excb.report import environment_report


def test_versions_and_hardware_of_this_machine() -> None:
    facts = environment_report()
    assert next(iter(facts.items())) == ("excb", excb.__version__)
    assert facts["python"].startswith(platform.python_version())
    assert facts["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert "usable core" in facts["processor"]


def test_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    device = types.SimpleNamespace(name="A GPU", total_memory=80 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: device)
    facts = environment_report()
    assert (facts["gpu 0"], "gpu 2" in facts) == ("A GPU, 80 GiB, compute capability 9.0", False)


def test_nothing_private_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_a_secret")
    monkeypatch.setenv("EXCB_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "https://me:password@hub.example")
    assert main(["--report"]) == 0
    text = capsys.readouterr().out
    assert "EXCB_HOME: set" in text
    assert "HF_ENDPOINT: set" in text
    assert [each for each in ("hf_a_secret", "password", str(tmp_path), f"{Path.home()}/") if each in text] == []


def test_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--report", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts) == list(environment_report())
