"""Tests of results and their files: valid JSON with all that figures need, written whole or not at all."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from excb.errors import UserError
from excb.results import Result, environment, write_text


def result(**values: Any) -> Result:
    given: dict[str, Any] = {
        "protocol": "knn",
        "figures": {"knn_top1_k20": 57.25},
        "settings": {"k": [20], "temperature": 0.07},
        "checkpoint": {"source": "runs/Zürich", "step": 3},
        "data": {"classes": 2},
        "seconds": 1.5,
    }
    return Result(**given | values)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_json_holds_everything() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    found = json.loads(result().to_json())
    created = datetime.fromisoformat(found.pop("created"))
    assert before <= created <= datetime.now(UTC)
    assert found.pop("environment") == environment()
    assert found == {
        "protocol": "knn",
        "figures": {"knn_top1_k20": 57.25},
        "settings": {"k": [20], "temperature": 0.07},
        "checkpoint": {"source": "runs/Zürich", "step": 3},
        "data": {"classes": 2},
        "seconds": 1.5,
        "schema": 1,
    }


def test_figure_that_is_no_number_never_becomes_a_file_that_is_no_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        result(figures={"knn_top1_k20": float("nan")}).to_json()


def test_environment_names_versions_and_hardware() -> None:
    found = environment()
    assert found["torch"] == torch.__version__.partition("+")[0] or found["torch"] == torch.__version__
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


@pytest.mark.parametrize("method", ["write_text", "replace"])
def test_failing_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    file = tmp_path / "result.json"
    write_text("old\n", file)
    write = Path.write_text

    def fail(path: Path, *_values: Any, **_options: Any) -> None:
        write(path, "half of it", encoding="utf-8")
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
