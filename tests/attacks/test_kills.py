"""Tests of how files of a killed command are compared with those of an undisturbed one: by value, times apart."""

from pathlib import Path
from typing import Any

import torch

from tests.attacks.kills import leaves


def state(names: list[str], rate: float) -> dict[str, Any]:
    """An optimizer's, whose groups have values of these names."""
    return {"state": {0: torch.arange(4.0)}, "param_groups": [{name: rate} for name in names]}


def test_checkpoints_are_compared_by_value(tmp_path: Path) -> None:
    """A loaded state repeats strings that a new one shares: torch stores them twice, in a longer file."""
    shared, repeated = ["momentum"] * 2, ["momentum", "".join(["momen", "tum"])]
    files = [tmp_path / name / "out" / "model.pth" for name in ("undisturbed", "resumed", "other")]
    for file, values in zip(files, (state(shared, 0.9), state(repeated, 0.9), state(shared, 0.8)), strict=True):
        file.parent.mkdir(parents=True)
        torch.save(values, file)
    undisturbed, resumed, other = (leaves(file.parent.parent) for file in files)
    assert files[0].read_bytes() != files[1].read_bytes()
    assert undisturbed == resumed
    assert [leaf for leaf in undisturbed if undisturbed[leaf] != other[leaf]] == [
        "out/model.pth:.param_groups[0].momentum",
        "out/model.pth:.param_groups[1].momentum",
    ]


def test_times_and_files_that_every_start_adds_to_are_left_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "table.csv").write_text("cell,accuracy,seconds\nnone,71.5,3.25\n")
    (out / "detectron2.log").write_text("12:00:00 started\n")
    (out / "events.out.tfevents.1").write_bytes(b"0")
    assert leaves(tmp_path) == {"out/table.csv:[0].cell": "none", "out/table.csv:[0].accuracy": "71.5"}
