"""Records that a run keeps on the disk, changed by whatever there is: `recipe.json`, `cell.json`, a download's."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from excb.checkpoint import run_checkpoint
from excb.pretrain.run.remote_mirror import RunLocation
from excb.pretrain.run.run_folder import refuse_other_run
from excb.pretrain.study.cell import FILE, SCHEMA, CellRun
from excb.remote.download import _Known, _read_known
from tests.fuzz import hostile
from tests.fuzz.guard import Guard
from tests.fuzz.lane import fuzz
from tests.run_files import tiny_recipe

KIND = "records"
RECIPE = tiny_recipe()
DATA = {"root": "photos", "images": 27, "fingerprint": "a" * 64, "classes": ["a", "b"]}
STORED = {"excb_version": "0.1.0", "recipe": RECIPE.to_dict(), "data": DATA}
CELL = {
    "schema": SCHEMA,
    "cell": "linear",
    "seed": 0,
    "figures": {"loss": 1.5},
    "seconds": {"training": 2.0, "measuring": 1.0},
    "recipe": RECIPE.to_dict(),
    "data": {"train": DATA, "held_out": None, "judged_on": "train"},
    "data_digest": "b" * 64,
    "environment": {"device": "cpu", "threads": 1, "torch": "2", "excb": "0"},
}


class Sets:
    """The sets that a job compares a cell with."""

    digest = "c" * 64


SETS: Any = Sets()


@fuzz(KIND, inputs=100, text=hostile.json_text(STORED))
def test_recipes_of_runs(guard: Guard, text: bytes) -> None:
    run = guard.folder / "run"
    (run / run_checkpoint.FOLDER).mkdir(parents=True)
    (run / "recipe.json").write_bytes(text)
    guard.run(lambda: refuse_other_run(RunLocation(run), RECIPE, DATA, extends=False, remote=None))


@fuzz(KIND, inputs=100, text=hostile.json_text(CELL), begun=hostile.json_text(STORED))
def test_cells_of_studies(guard: Guard, text: bytes, begun: bytes) -> None:
    job = CellRun("linear", (), (), RECIPE, guard.folder / "cell")
    job.folder.mkdir()
    (job.folder / "recipe.json").write_bytes(begun)
    guard.run(lambda: job.changes(SETS))
    (job.folder / FILE).write_bytes(text)
    guard.run(lambda: job.changes(SETS))


@fuzz(KIND, inputs=100, text=hostile.json_text(asdict(_Known("net.pth", 40, '"1"'))))
def test_what_is_known_of_a_download(guard: Guard, text: bytes) -> None:
    part = guard.folder / "a.part"
    part.write_bytes(bytes(20))
    Path(guard.folder / "a.json").write_bytes(text)
    known = guard.run(lambda: _read_known(part))
    assert known is None or json.loads(json.dumps(asdict(known))) == asdict(known)
