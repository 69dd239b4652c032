"""Tests of results and their files: valid JSON with all that figures need, written whole or not at all."""

import dataclasses
import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from excb import __version__
from excb.errors import UserError
from excb.files.atomic import write_text
from excb.ledger import doubt
from excb.results.result import ResultRecord, environment


def result(**values: Any) -> ResultRecord:
    given: dict[str, Any] = {
        "protocol": "knn",
        "figures": {"knn_top1_k20": 57.25},
        "settings": {"k": [20], "temperature": 0.07},
        "checkpoint": {"source": "runs/Zürich", "step": 3},
        "data": {"classes": 2},
        "seconds": 1.5,
    }
    return ResultRecord(**given | values)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_claims_are_in_the_file_where_there_are_any() -> None:
    told = {"table1/excb/knn_top1": {"verdict": "PASS", "claimed": "71.0"}}
    answered = dataclasses.replace(result(), claims=told)
    assert json.loads(answered.to_json())["claims"] == told
    assert ResultRecord.from_json(answered.to_json()) == answered
    assert answered.protocol_hash == result().protocol_hash


def test_the_ledger_is_in_the_file_where_there_is_one_and_in_no_hash() -> None:
    plain = result()
    told = dataclasses.replace(plain, ledger=doubt("of 9 images look alike", ["a = b"], "remove them", of="test"))
    assert "ledger" not in json.loads(plain.to_json())
    assert ResultRecord.from_json(plain.to_json()) == plain
    assert ResultRecord.from_json(told.to_json()) == told
    assert told.protocol_hash == plain.protocol_hash
    assert told.remarks == ["test: 1 of 9 images looks alike, such as a = b: remove them"]


@pytest.mark.parametrize("wrong", [[], {"entries": [{"reason": "a"}]}, {"entries": {}}, {"more": 1}])
def test_a_ledger_of_another_form_is_refused(wrong: Any) -> None:
    values = json.loads(result().to_json()) | {"ledger": wrong}
    with pytest.raises(UserError, match="ledger"):
        ResultRecord.from_json(json.dumps(values))


def test_json_holds_everything() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    found = json.loads(result().to_json())
    created = datetime.fromisoformat(found.pop("created"))
    assert before <= created <= datetime.now(UTC)
    assert found.pop("environment") == environment()
    assert found.pop("protocol_hash") == result().protocol_hash
    assert found == {
        "protocol": "knn",
        "figures": {"knn_top1_k20": 57.25},
        "settings": {"k": [20], "temperature": 0.07},
        "checkpoint": {"source": "runs/Zürich", "step": 3},
        "data": {"classes": 2},
        "seconds": 1.5,
        "intervals": {},
        "per_class": {},
        "notes": [],
        "predictions": {},
        "schema": 2,
    }


FULL: dict[str, Any] = {
    "intervals": {"knn_top1_k20": (55.1, 59.4)},
    "per_class": {"knn_top1_k20": {"Käse": 50.0, "not there": None}},
    "notes": ["chosen on the test images"],
    "predictions": {"file": "knn.npz", "sha256": "0" * 64},
}


def test_what_was_written_is_read_again() -> None:
    for written in (result(), result(**FULL)):
        assert ResultRecord.from_json(written.to_json()) == written


def changed(**values: Any) -> str:
    return json.dumps(json.loads(result().to_json()) | values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^FILE is not a result"),
        ("[1]", "^FILE is not a result of `excb-eval`: name a file that --out wrote"),
        ('{"figures": {}}', "^FILE is not a result"),
        (changed(schema=1), "^FILE has schema 1, not 2: evaluate again with this version"),
        (changed(schema=3), "schema 3"),
        (changed(extra=1), r"FILE lacks or adds fields of schema 2 \(extra\)"),
        ('{"schema": 2}', "lacks or adds"),
        (changed(settings={"k": [10]}), "FILE was changed"),
        (changed(figures={"knn_top1_k20": "57.3"}), "FILE: figures.knn_top1_k20 is not of the form"),
        (changed(figures={"knn_top1_k20": True}), "FILE: figures.knn_top1_k20 is not"),
        (changed(figures={"knn_top1_k20": 57.3}).replace("57.3", "NaN"), "FILE: figures.knn_top1_k20 is not"),
        (changed(figures=[57.3]), "FILE: figures is not"),
        (changed(intervals={"knn_top1_k20": [1.0]}), "FILE: intervals.knn_top1_k20 is not"),
        (changed(checkpoint="x"), "FILE: checkpoint is not"),
        (changed(seconds=None), "FILE: seconds is not"),
        (changed(protocol=7), "FILE: protocol is not"),
    ],
)
def test_other_texts_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        ResultRecord.from_json(text, source="FILE")
    assert "\n" not in str(caught.value)


def test_names_that_are_not_utf8_are_read_again() -> None:
    for name, readable in ((os.fsdecode(b"caf\xe9"), True), ("\ud800", False)):
        written = result(data={"test": {"root": name}})
        if readable:
            assert ResultRecord.from_json(written.to_json()) == written
        else:
            with pytest.raises(UserError, match="half a character"):
                ResultRecord.from_json(written.to_json())


def test_protocol_hash_is_of_protocol_and_settings_alone() -> None:
    # Written out by hand: compact JSON, keys in order, so that any program can make it.
    text = b'["knn",{"k":[20],"temperature":0.07}]'
    assert result().protocol_hash == hashlib.sha256(text).hexdigest()[:16]
    same = result(settings={"temperature": 0.07, "k": (20,)}, figures={}, checkpoint={}, data={}, seconds=2.0)
    assert same.protocol_hash == result().protocol_hash
    others = [result(protocol="linear"), result(settings={"k": [20], "temperature": 0.1}), result(settings={})]
    assert len({other.protocol_hash for other in (*others, same)}) == 4


def test_protocol_hash_survives_the_file_where_keys_are_numbers() -> None:
    written = result(settings={"rate": {2: 0.1, 10: 0.2}})
    assert ResultRecord.from_json(written.to_json()).protocol_hash == written.protocol_hash


def test_figure_that_is_no_number_never_becomes_a_file_that_is_no_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        result(figures={"knn_top1_k20": float("nan")}).to_json()


def test_environment_names_versions_and_hardware() -> None:
    found = environment()
    assert found["torch"] == torch.__version__.partition("+")[0] or found["torch"] == torch.__version__
    assert found["excb"] == __version__
    assert {"python", "torch", "torchvision", "timm", "numpy", "device", "cores"} <= set(found)
    assert found["cores"] == os.cpu_count()
    assert found["device"]
    assert json.loads(json.dumps(found)) == found


def test_text_is_written_with_its_folder_and_replaces_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "result.json"
    write_text("one\n", file)
    write_text("zwölf\n", file)
    assert file.read_bytes() == "zwölf\n".encode()
    assert names(file.parent) == ["result.json"]


@pytest.mark.parametrize("method", ["write_bytes", "replace"])
def test_failing_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    file = tmp_path / "result.json"
    write_text("old\n", file)
    write = Path.write_bytes

    def fail(path: Path, *_values: Any, **_options: Any) -> None:
        write(path, b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, method, fail)
    with pytest.raises(UserError, match=r"cannot write .*No space left"):
        write_text("new\n", file)
    monkeypatch.undo()
    assert file.read_text(encoding="utf-8") == "old\n"
    assert names(tmp_path) == ["result.json"]


def test_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "full").mkdir(parents=True)
    for path in (tmp_path / "file" / "result.json", tmp_path / "folder"):
        with pytest.raises(UserError, match="cannot write") as caught:
            write_text("text", path)
        assert str(path) in str(caught.value)
    assert names(tmp_path) == ["file", "folder"]


def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    with pytest.raises(UserError, match=r"cannot read the result .*result\.json"):
        ResultRecord.read(file)
    file.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"cannot read the result .*result\.json"):
        ResultRecord.read(file)
    write_text(result().to_json(), file)
    assert ResultRecord.read(file) == result(created=ResultRecord.read(file).created)
