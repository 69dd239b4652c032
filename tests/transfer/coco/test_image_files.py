"""Tests of finding image files by the names that exporters write, however long these are."""

import os
from pathlib import Path
from typing import Any

import pytest

from excb.transfer.coco.image_files import DEEPEST, ImageFiles


def test_folders_around_a_name_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "a b.jpg").touch()
    deep = "/".join(map(str, range(1000)))
    for name in (
        "1/a b.jpg",
        "images\\1\\a%20b.jpg",
        f"{deep}/1/a b.jpg",
        "http://host/1/a%20b.jpg",
        "/elsewhere/a b.jpg",
    ):
        assert ImageFiles(tmp_path).find(name) == "1/a b.jpg"
    assert ImageFiles(tmp_path).find(f"{deep}/b.jpg") is None


def test_a_name_of_many_folders_takes_few_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, scandir = list[Any](), os.scandir

    def counted(folder: Any) -> Any:
        looks.append(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counted)
    assert ImageFiles(tmp_path).find("a/" * 20_000 + "x.jpg") is None
    assert len(looks) <= DEEPEST + 2  # the name itself, and the walk for its last part
