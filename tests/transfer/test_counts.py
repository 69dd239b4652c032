"""Whole commands, counted: work grows as the files do, and a command that is repeated opens none of them."""

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from excb.hub.backbone import Backbone
from excb.images import copies, digests
from excb.pretrain.__main__ import main as pretrain
from excb.transfer.cli import main as evaluate

pytestmark = pytest.mark.usefixtures("one_thread")
FEW, MORE = 24, 100  # files of the smaller set, for `choose` some more; the larger one has twice as many
COMMANDS: dict[str, Callable[[Path, Path], int]] = {
    "knn": lambda data, out: evaluate([*_on("knn", data), "--out", f"{out}.json", "--overwrite"]),
    "embed": lambda data, out: evaluate([*_on("embed", data), "--out", f"{out}.npz", "--overwrite"]),
    "search": lambda data, out: evaluate(
        [*_on("search", data / "train"), "--query", f"{data}/test/a/0.bmp", "--out", f"{out}.html", "--overwrite"]
    ),
    "linear": lambda data, out: evaluate(
        [*_on("linear", data), "--protocol", "logreg", "--out", f"{out}.json", "--overwrite"]
    ),
    "near-duplicates": lambda data, _out: evaluate([*_on("search", data / "train"), "--near-duplicates", "0.95"]),
    "dense": lambda data, out: evaluate(
        [*_on("dense", data), "--size", "32", "--heads", "knn", "--out", f"{out}.json", "--overwrite"]
    ),
    "doctor": lambda data, _out: pretrain(["doctor", "--data", f"{data}/train"]),
    "choose": lambda data, out: pretrain(
        ["choose", "--no-pilots", "--data", f"{data}/train", "--out", f"{out}-choose"]
    ),
}
PICTURES = {"search": 2 * 13, "dense": 2 * 8 + 2}  # on a page or a picture, however many images there are
READS = {"dense": 2, "near-duplicates": 2}  # of each image: one of other commands; of its mask; of a group's members
# In each call the doctor decodes a sample of images, `choose` looks at one, and masks are no features.
OPENS = {"doctor": 1, "choose": 1, "dense": 1}


def _on(command: str, data: Path) -> list[str]:
    return [command, "--ckpt", "conv4_photos", "--data", str(data), "--workers", "0", "--device", "cpu"]


class Counts:
    """Numbers of operations on the files of one folder, and of images that went through a network."""

    def __init__(self) -> None:
        self.folder, self.counts = "", Counter[str]()
        sys.addaudithook(self._on_event)  # stays until Python ends, and does nothing without a folder

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        # The door of files of others has a second event without a mode, that of `os.open`.
        opened = Path(str(args[0])) if self.folder and event == "open" and args[1] is not None else None
        if opened is not None and opened.suffix and opened.is_relative_to(self.folder):
            self.counts["opened"] += 1

    def of(self, call: Callable[[], int], folder: Path) -> Counter[str]:
        """The counts of a command."""
        self.folder, self.counts = str(folder), Counter()
        try:
            assert call() in (0, 1)  # 1: the doctor has doubts
        finally:
            self.folder = ""
        return self.counts


COUNTS = Counts()


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Counts of what follows, with a cache of its own, and a clock far ahead of all files."""
    monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "UNSETTLED", -3600.0)
    stat, sha256, forward = os.stat, hashlib.sha256, Backbone.forward

    def counted_stat(path: Any, *args: Any, **named: Any) -> os.stat_result:
        COUNTS.counts["looked at"] += bool(COUNTS.folder) and str(path).startswith(COUNTS.folder)
        return stat(path, *args, **named)

    def counted_sha256(*args: Any, **named: Any) -> Any:
        COUNTS.counts["hashed"] += 1
        return sha256(*args, **named)

    def counted_forward(backbone: Backbone, images: torch.Tensor) -> torch.Tensor:
        COUNTS.counts["through the network"] += len(images)
        return forward(backbone, images)

    monkeypatch.setattr(os, "stat", counted_stat)
    monkeypatch.setattr(hashlib, "sha256", counted_sha256)
    monkeypatch.setattr(Backbone, "forward", counted_forward)
    return COUNTS


def write_images(folder: Path, count: int) -> Path:
    """`count` train images of two classes and half as many test images, random pixels in files of one size."""
    random = np.random.default_rng(count)
    for split, number in (("train", count), ("test", count // 2)):
        for place in range(number):
            file = folder / split / "ab"[place % 2] / f"{place // 2}.bmp"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(file)
    return folder


def write_masked(folder: Path, count: int) -> Path:
    """The same number of images with masks of two classes, in the layout `folders` of dense evaluation."""
    random = np.random.default_rng(count)
    for split, number in (("train", count), ("test", count // 2)):
        for kind, shape in (("images", (24, 24, 3)), ("masks", (24, 24))):
            (folder / split / kind).mkdir(parents=True)
            for place in range(number):
                values = random.integers(0, 256 if kind == "images" else 2, shape, dtype=np.uint8)
                Image.fromarray(values).save(folder / split / kind / f"{place}.png")
    (folder / "classes.txt").write_text("first\nsecond\n")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_counts_grow_with_the_files_and_no_faster(command: str, counts: Counts, tmp_path: Path) -> None:
    run, cold = COMMANDS[command], list[Counter[str]]()
    few = MORE if command == "choose" else FEW
    for number in (few, 2 * few):
        data = (write_masked if command == "dense" else write_images)(tmp_path / str(number), number)
        cold.append(counts.of(lambda data=data: run(data, tmp_path / "out"), data))  # type: ignore[misc]
    files, fixed = few + few // 2, PICTURES.get(command, 0)
    for kind, count in cold[0].items():
        assert cold[1][kind] <= 2 * count + 16, kind  # groups of near-duplicates hold more than twice as many here
    assert cold[0]["opened"] <= READS.get(command, 1) * files + fixed  # by whoever looks first, who holds the content
    data = tmp_path / str(2 * few)
    warm = counts.of(lambda: run(data, tmp_path / "out"), data)
    assert warm["opened"] <= OPENS.get(command, 0) * 2 * files + fixed
    assert warm["through the network"] <= 1  # of a query
    assert warm["hashed"] < FEW  # keys of the cache, and fingerprints: as many of any number of files


@pytest.mark.parametrize("near", [True, False], ids=["searched for near-copies", "for copies only"])
def test_files_that_are_searched_for_copies_are_opened_once(
    near: bool, counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MOST_NEAR", 10_000 if near else 0)
    data = write_images(tmp_path / "data", FEW)
    cold = counts.of(lambda: COMMANDS["knn"](data, tmp_path / "out"), data)
    assert cold["opened"] == FEW + FEW // 2
