"""`--profile`: a trace of a few steps, and a summary that adds up."""

import json
import re
from pathlib import Path

import pytest

from excb.pretrain.__main__ import main
from excb.pretrain.run.profiling import RECORDED, SKIPPED
from tests.pretrain.small_runs import OVERRIDES, write_images

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")


def test_a_profile_is_written_and_reported_and_the_run_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_images(tmp_path / "images", each=12)
    command = ["quickstart", "--data", str(images), "--out", str(tmp_path / "run"), "--profile", *OVERRIDES]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert f"profile of {RECORDED} steps (CPU time by operation" in said
    shares = [float(share) for share in re.findall(r"^ +([\d.]+) %  \S", said, re.MULTILINE)]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100
    step, waiting = re.search(r"a step takes ([\d.]+) ms and waits ([\d.]+) ms", said).groups()  # type: ignore[union-attr]
    assert float(step) > 0
    assert float(waiting) >= 0
    trace = json.loads((tmp_path / "run" / "profile" / "trace.json").read_text())
    names = {event.get("name", "") for event in trace["traceEvents"]}
    assert any("conv" in name for name in names)
    assert {f"ProfilerStep#{number}" for number in range(SKIPPED, SKIPPED + RECORDED)} <= names
    assert json.loads((tmp_path / "run" / "report.json").read_text())["steps"] == 12


def test_a_run_too_short_for_a_profile_still_ends_well(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", each=4)
    out = tmp_path / "run"
    assert main(["quickstart", "--data", str(images), "--out", str(out), "--profile", *OVERRIDES]) == 0
    assert not (out / "profile").exists()
