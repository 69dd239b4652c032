"""The record of teachers in a student's files: carried from run to folder, refused in one line where it is hostile."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from excb.checkpoint import exported, reading
from excb.checkpoint.teachers import LARGEST_RECORD, MOST, TEACHERS, labels_of_teachers, strongest, teachers_in
from excb.errors import UserError
from excb.zoo.export import export
from tests.run_files import write_run

TEACHER: dict[str, Any] = {
    "name": "mobilenetv2",
    "method": "Supervised",
    "labels": "used",
    "licence": "BSD-3-Clause",
    "pretrained_on": "ImageNet-1k",
    "source": "https://github.com/pytorch/vision",
    "sha256": "ab" * 32,
    "architecture": {"name": "torchvision:mobilenet_v2", "options": {}},
    "parameters": 2_223_872,
    "input": [256, 224],
}
UNKNOWN = TEACHER | dict.fromkeys(("method", "licence", "pretrained_on", "source")) | {"labels": "unknown"}
DEEP: list[Any] = []
WIDE: list[Any] = []  # a few lists that are a million billion values as text
for _ in range(100):
    DEEP = [DEEP]
for _ in range(15):
    WIDE = [WIDE] * 10
HOSTILE: dict[str, Any] = {
    "no list": {"name": "one"},
    "text": "mobilenetv2",
    "no tables": ["mobilenetv2"],
    "empty table": [{}],
    "lacks labels": [{name: value for name, value in TEACHER.items() if name != "labels"}],
    "other labels": [TEACHER | {"labels": "some"}],
    "labels no text": [TEACHER | {"labels": True}],
    "two lines": [TEACHER | {"name": "a\nb"}],
    "no name": [TEACHER | {"name": " "}],
    "escape": [TEACHER | {"licence": "\x1b[31mMIT"}],
    "long name": [TEACHER | {"name": "a" * 5_000}],
    "long text": [TEACHER | {"source": "https://" + "a" * 5_000}],
    "hash": [TEACHER | {"sha256": "../../etc"}],
    "parameters": [TEACHER | {"parameters": -1}],
    "endless": [TEACHER | {"parameters": 10**400}],
    "true": [TEACHER | {"parameters": True}],
    "input": [TEACHER | {"input": [256]}],
    "sides": [TEACHER | {"input": [256, 10**9]}],
    "architecture": [TEACHER | {"architecture": "mobilenet"}],
    "options": [TEACHER | {"architecture": {"name": "a", "options": [1]}}],
    "deep": [TEACHER | {"architecture": {"name": "a", "options": {"deep": DEEP}}}],
    "wide": [TEACHER | {"architecture": {"name": "a", "options": {"wide": WIDE}}}],
    "nothing but lists": WIDE,
    "not a number": [TEACHER | {"more": float("nan")}],
    "many": [TEACHER] * (MOST + 1),
    "large": [TEACHER | {"more": "a" * LARGEST_RECORD}],
    "one of them": [TEACHER, UNKNOWN, {"name": "third"}],
}
IN_PICKLES = ("wide", "nothing but lists", "endless", "deep")  # JSON has no values that repeat, or is refused itself
REFUSAL = f"teachers must be a list of up to {MOST} tables that each describe a teacher"


def rewritten(folder: Path, **facts: Any) -> Path:
    """The folder with other facts in its block, as somebody may have published it."""
    file = folder / exported.CONFIG
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(config | {"excb": config["excb"] | facts}), encoding="utf-8")
    return folder


def test_what_is_known_or_not_of_a_teacher_passes_and_so_does_what_later_versions_add() -> None:
    for teachers in (None, [], [TEACHER], [TEACHER, UNKNOWN], [TEACHER | {"added": [1, {"a": None}]}] * MOST):
        assert TEACHERS.rule(teachers) is None


@pytest.mark.parametrize("teachers", HOSTILE.values(), ids=HOSTILE)
def test_a_run_with_a_hostile_record_is_refused_in_one_line(tmp_path: Path, teachers: Any) -> None:
    run = write_run(tmp_path / "run", 1, teachers=teachers)
    with pytest.raises(UserError, match=re.escape(REFUSAL)) as error:
        reading.read(run)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """config.json of a student."""
    place = tmp_path_factory.mktemp("student")
    export(str(write_run(place / "run", 1, teachers=[TEACHER])), place / "out")
    return (place / "out" / exported.CONFIG).read_text(encoding="utf-8")


@pytest.mark.parametrize("teachers", [HOSTILE[name] for name in HOSTILE if name not in IN_PICKLES])
def test_a_folder_with_a_hostile_record_is_refused_before_its_weights_are_read(
    tmp_path: Path, config: str, teachers: Any
) -> None:
    (tmp_path / exported.CONFIG).write_text(config, encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(REFUSAL)) as error:
        exported.read(rewritten(tmp_path, teachers=teachers))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600


def test_a_folder_nested_without_end_is_refused(tmp_path: Path, config: str) -> None:
    nested = "[" * 100_000 + "]" * 100_000
    text = config.replace('"teachers": [', f'"teachers": [{nested},')
    assert text != config
    (tmp_path / exported.CONFIG).write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        exported.read(tmp_path)
    assert "\n" not in str(error.value)


def test_run_and_export_carry_the_record_unchanged(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1, teachers=[TEACHER, UNKNOWN])
    assert reading.read(run).facts["teachers"] == [TEACHER, UNKNOWN]
    first = export(str(run), tmp_path / "first")
    second = export(str(first), tmp_path / "second")
    for folder in (first, second):
        block = exported.read_config(folder)["excb"]
        assert block["teachers"] == [TEACHER, UNKNOWN]
        assert reading.read(folder).facts["teachers"] == [TEACHER, UNKNOWN]


def test_runs_without_teachers_say_nothing_of_them_and_exports_name_their_images(tmp_path: Path) -> None:
    data = {"root": "/home/someone/photos", "images": 2, "fingerprint": "0" * 64, "classes": None}
    run = write_run(tmp_path / "run", 1, data=data)
    block = exported.read_config(export(str(run), tmp_path / "out"))["excb"]
    assert "teachers" not in block
    assert block["training"] == {"data": "photos", "images": 2, "fingerprint": "0" * 64, "seconds": 1.0}


def test_recipes_name_their_teachers_and_older_ones_have_none() -> None:
    assert (
        teachers_in(None)
        == teachers_in({})
        == teachers_in({"distil": None})
        == teachers_in({"distil": {"teachers": []}})
        == []
    )
    assert teachers_in({"distil": {"teachers": "mobilenetv2"}}) == []
    assert teachers_in({"distil": {"teachers": ("a", "b")}}) == ["a", "b"]


def test_one_use_of_labels_is_enough_and_one_unknown_leaves_it_unknown() -> None:
    expected = {("none", "none"): "none", ("none", "unknown"): "unknown", ("unknown", "used"): "used"}
    for pair, whole in expected.items():
        teachers = [TEACHER | {"labels": each} for each in pair]
        assert labels_of_teachers(teachers) == labels_of_teachers(teachers[::-1]) == whole
    assert strongest() == labels_of_teachers([]) == "none"


def test_a_teacher_that_the_record_lacks_is_unknown() -> None:
    recipe = {"distil": {"teachers": ["one", "other"]}}
    none = TEACHER | {"labels": "none"}
    assert labels_of_teachers([none], recipe) == "unknown"
    assert labels_of_teachers([none, none], recipe) == "none"
    assert labels_of_teachers([TEACHER], recipe) == "used"
