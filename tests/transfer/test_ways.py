"""Tests of the way from a command to its result: which files of the package it enters."""

import subprocess
import sys
from pathlib import Path

import pytest

from excb.transfer.protocols import PROTOCOLS
from tests.run_files import tiny_recipe, write_run
from tests.transfer.labelled_images import write_folder

PROGRAM = """
import sys
from excb.transfer.cli import main
code = main(sys.argv[1:])
print(*(name for name in sys.modules if name.startswith("excb.transfer.")))
sys.exit(code)
"""
OTHERS = ("every", "sets", "watch", "leaderboard", "reproduce", "overlap", "embeddings", "standings")


@pytest.mark.parametrize("own", ["knn"])
def test_a_protocol_enters_no_file_of_another(own: str, tmp_path: Path) -> None:
    write_run(tmp_path / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(tmp_path / "data" / "train", each=4, seed=1)
    write_folder(tmp_path / "data" / "test", each=2, seed=2)
    words = [
        own,
        "--ckpt",
        "run",
        "--data",
        "data",
        "--out",
        "r.json",
        "--no-cache",
        "--workers",
        "0",
        "--device",
        "cpu",
    ]
    # A new interpreter, because the test is about what is imported.
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, "--json", "--quiet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert (tmp_path / "r.json").is_file()
    entered = {name.split(".")[2] for name in made.stdout.splitlines()[-1].split()}
    rooms = {record.open.__module__.split(".")[2] for record in PROTOCOLS.values()} | set(PROTOCOLS)
    assert own in entered
    assert entered & ((rooms | set(OTHERS)) - {own, "opening"}) == set()
