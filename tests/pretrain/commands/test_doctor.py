"""`excb-pretrain doctor` as a user meets it: the table, JSON, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from excb.files.run_files import METRICS
from excb.images.scanning import scan_folder
from excb.pretrain import overrides
from excb.pretrain.__main__ import main
from excb.pretrain.run.remote_mirror import RunLocation
from excb.pretrain.run.run_folder import RunFolder
from tests.pretrain.distil import taught
from tests.pretrain.small_runs import OVERRIDES, write_images

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", classes=2, each=6)


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", *arguments, "--json", "--quiet"])
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def test_a_recipe_and_its_images(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = doctor(
        capsys, "quickstart", "--data", str(images), "--out", str(tmp_path / "run"), "--gpus", "0", *OVERRIDES
    )
    assert code == 0, checks
    assert {"images", "versions", "GPU", "cores", "shared memory", "disk", "step", "pixels"} <= checks.keys()
    assert checks["step"]["verdict"] == "ok"
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_the_run_would_refuse(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(RunLocation(tmp_path / "run"), print)
    recipe = overrides.apply(overrides.find_recipe("quickstart"), OVERRIDES)
    folder.begin(recipe, scan_folder(images))
    folder.close()
    (tmp_path / "run" / METRICS).write_text('{"step": 1}\n', encoding="utf-8")
    arguments = ("quickstart", "--data", str(images), "--gpus", "0", *OVERRIDES)
    for out, override, said in (
        (tmp_path / "run", "run.keep=2", "which the same command resumes"),
        (tmp_path / "run", "optim.epochs=4", "optim.epochs was 3, now 4"),
        (images / "run", "run.keep=2", "among the images"),
    ):
        _code, checks = doctor(capsys, *arguments, "--out", str(out), override)
        assert said in checks["run folder"]["found"]
        assert checks["run folder"]["verdict"] == ("ok" if override == "run.keep=2" and out.exists() else "error")


def test_a_run_with_a_teacher(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teacher = taught.write_teacher(tmp_path, taught.CONV)
    arguments = ["distil", "--data", str(images), "--out", str(tmp_path / "run"), "--gpus", "0", *taught.SMALL]
    arguments += taught.overrides(taught.CONV)
    code, checks = doctor(capsys, *arguments, f"distil.teachers={teacher}")
    assert code == 0, checks
    assert {f"teacher {teacher}", "kept features", "disk", "step"} <= checks.keys()
    assert checks["step"]["verdict"] == "ok"
    code, checks = doctor(capsys, *arguments, f"distil.teachers={tmp_path / 'none.pt'}")
    assert code == 1
    assert checks["teachers"]["verdict"] == "error"
    assert not {"disk", "step"} & checks.keys()  # which need the teacher
    assert "pixels" in checks


def test_an_error_ends_with_1(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (images / "class0" / "0.png").write_bytes(b"")
    code, checks = doctor(capsys, "--data", str(images), "--out", str(tmp_path / "run"), "--gpus", "0")
    assert code == 1
    assert checks["headers"]["verdict"] == "error"
    assert checks["headers"]["names"][0].startswith("class0/0.png (")
    assert "step" not in checks  # no recipe


def test_the_table(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--data", str(images), "--out", str(tmp_path), "--gpus", "0", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "12 images below" in said
    assert said.splitlines()[-1].endswith(" 0 errors")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["quickstart"], "--data DIR"),
        (["quickstartt", "--data", "x"], "did you mean 'quickstart'"),
        (["--data", "x", "optim.epoch=3"], "optim.epoch=3 replaces a value of a recipe: name the recipe before it"),
        (["--data", "nowhere"], "no folder nowhere"),
        (["--data", "x", "--gpus", "-1"], "--gpus takes 0"),
    ],
)
def test_mistakes_end_with_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err
