"""torch.hub reads this clone, from any folder, as `excb.load` does."""

import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import excb
from excb.errors import UserError
from tests.clone import ROOT
from tests.run_files import features, pictures, write_run

# What a user types, in a folder where no excb lies; the answer is one line of JSON.
LOAD = """
import json, sys, torch
clone, name = sys.argv[1:]
backbone = torch.hub.load(clone, "backbone", name, source="local", trust_repo=True)
images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    rows = backbone(images)
print(json.dumps({"rows": rows.tolist(), "excb": sys.modules["excb"].__file__}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("hub") / "run", 1)


def hub(entry: str, *arguments: object, **options: object) -> object:
    found: object = torch.hub.load(str(ROOT), entry, *arguments, source="local", trust_repo=True, **options)
    return found


def test_backbone_is_that_of_load(run: Path) -> None:
    found = hub("backbone", str(run))
    assert isinstance(found, excb.Backbone)
    assert not found.training
    assert torch.equal(features(found, pictures()), features(excb.load(run), pictures()))


def test_options_go_on_to_load(run: Path) -> None:
    found = hub("backbone", str(run), features="map", img_size=96)
    assert isinstance(found, excb.Backbone)
    assert features(found, pictures(side=96)).shape == (3, 32, 3, 3)
    student = hub("backbone", str(run), network="student")
    assert isinstance(student, excb.Backbone)
    assert student.entry.network == "student"
    with pytest.raises(UserError, match="network is"):
        hub("backbone", str(run), network="both")


def test_checkpoints_are_those_of_the_catalogue() -> None:
    found = hub("checkpoints")
    assert found == excb.checkpoints()
    assert "rn50_400ep" in [row.name for row in excb.checkpoints()]


def test_entry_points_are_what_the_file_says() -> None:
    public = {name: value for name, value in runpy.run_path(str(ROOT / "hubconf.py")).items() if name[0] != "_"}
    assert {name for name, value in public.items() if callable(value)} == {"backbone", "checkpoints"}
    assert all(importlib.util.find_spec(name) for name in public["dependencies"])


def test_clone_is_used_from_any_folder(run: Path, tmp_path: Path) -> None:
    # A new interpreter: which `excb` it imports is tested.
    result = subprocess.run(
        [sys.executable, "-c", LOAD, str(ROOT), str(run)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert Path(answer["excb"]) == ROOT / "excb" / "__init__.py"
    torch.testing.assert_close(torch.tensor(answer["rows"]), features(excb.load(run), pictures()))
