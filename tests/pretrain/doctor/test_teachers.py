"""Frozen teachers in the doctor's table: whether they load, fit recipe and images, and have room in the cache."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from excb.pretrain.doctor.finding import Finding
from excb.pretrain.doctor.teachers import LOADED, check_teachers
from excb.pretrain.overrides import find_recipe
from excb.pretrain.plan import frozen_teachers
from tests.pretrain.distil import taught

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(taught.write_teacher(tmp_path_factory.mktemp("teacher"), taught.CONV))


def check(*values: str, images: int = 100) -> dict[str, Finding]:
    recipe = taught.recipe(*values)
    findings = check_teachers(recipe, images, lambda: frozen_teachers.frozen_teachers_of(recipe))
    return {finding.name: finding for finding in findings}


def test_a_recipe_without_teachers_has_no_such_checks() -> None:
    assert check_teachers(find_recipe("quickstart"), 100, lambda: pytest.fail("nothing to load")) == []


def test_a_teacher_that_fits(teacher: str) -> None:
    found = check(f"distil.teachers={teacher}")
    assert list(found) == [f"teacher {teacher}", "kept features"]
    assert {finding.verdict for finding in found.values()} == {"ok"}
    assert "12 features, images of 40 pixels" in found[f"teacher {teacher}"].found


def test_a_teacher_that_cannot_be_loaded_is_one_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "broken.pt").write_bytes(b"no checkpoint")
    for values, problem, fix in (
        ((), "this recipe learns from a teacher", "name one"),
        (("distil.teachers=mobilnetv2",), "no checkpoint is called 'mobilnetv2'", "did you mean 'mobilenetv2'"),
        (("distil.teachers=mobilenetv2",), "is not here yet and HF_HUB_OFFLINE is set", "unset it, or download it"),
        ((f"distil.teachers={tmp_path / 'broken.pt'}",), "broken.pt", ""),
    ):
        (finding,) = check(*values).values()
        assert (finding.name, finding.verdict) == (LOADED, "error")
        assert problem in finding.found
        assert finding.fix
        assert fix in finding.fix


def test_a_size_that_is_far_from_the_trained_one(teacher: str) -> None:
    for side, verdict in ((20, "ok"), (80, "ok"), (16, "warning"), (88, "warning")):
        finding = check(f"distil.teachers={teacher}", f"distil.teacher_size={side}")[f"teacher {teacher}"]
        assert finding.verdict == verdict
    assert finding.found.endswith("images of 88 pixels; it was trained for 40")
    assert finding.fix == "distil.teacher_size=none, or between 20 and 80"


def test_a_student_that_starts_from_its_teacher(teacher: str) -> None:
    other = f"{Path(teacher).parent}/../{Path(teacher).parent.name}/teacher.pt"
    assert check(f"distil.teachers={teacher}", f"init={teacher}")[f"teacher {teacher}"].verdict == "warning"
    assert check(f"distil.teachers={teacher}", f"init={other}")[f"teacher {teacher}"].verdict == "warning"
    assert check(f"distil.teachers={teacher}", "init=tiny_grocery")[f"teacher {teacher}"].verdict == "ok"


@pytest.mark.parametrize(
    ("values", "verdict", "words"),
    [
        ((), "ok", "5 clusters start from 20 images each"),
        (("distil.samples=20",), "warning", "5 clusters start from 4 images each"),
        (("distil.clusters=101",), "error", "set distil.clusters to at most 100"),
        (("distil.clusters=51", "distil.samples=50"), "error", "set distil.clusters to at most 50, or raise"),
    ],
)
def test_clusters_against_images(teacher: str, values: tuple[str, ...], verdict: str, words: str) -> None:
    finding = check(f"distil.teachers={teacher}", "distil.assignments=1", *values)["clusters of features"]
    assert finding.verdict == verdict
    assert words in f"{finding.found} {finding.fix}"


def test_the_room_that_features_need(teacher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = 1_000_000 * 12 * 4
    for free, verdict in ((need, "ok"), (need - 1, "error")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _place, free=free: SimpleNamespace(free=free))
        finding = check(f"distil.teachers={teacher}", images=1_000_000)["kept features"]
        assert finding.verdict == verdict
        assert f"{need / 2**20:,.1f} MiB" in finding.found
    assert "EXCB_CACHE" in finding.fix
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "file"))
    finding = check(f"distil.teachers={teacher}")["kept features"]
    assert (finding.verdict, finding.fix) == ("error", "name a folder elsewhere in EXCB_CACHE")
    assert f"cannot write in {tmp_path / 'file'}" in finding.found
