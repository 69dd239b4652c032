"""A careless caller in Python gives values of wrong types: each one clear message, and nothing begun."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import excb
from excb.hub.catalogue import BUNDLED
from tests.pretrain.small_runs import write_images

NAME = "tiny_grocery"
WRONG = (3, None, b"photos", ["a"], {"a": 1}, np.zeros(2), object(), "a\0b")  # for one name or path
Call = Callable[[Any], object]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), each=3)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Calls with the value in the place of a name or path, and whether they take None or several as well.
CALLS: dict[str, tuple[Call, set[type]]] = {
    "train": (lambda value: excb.train(value, data="x"), set()),
    "train data": (lambda value: excb.train("conv4_tiny", data=value), set()),
    "train out": (lambda value: excb.train("conv4_tiny", data="x", out=value), {type(None)}),
    "train init": (lambda value: excb.train("conv4_tiny", data="x", init=value), {type(None)}),
    "train teacher": (lambda value: excb.train("distil", data="x", teacher=value), {type(None), list, str}),
    "train listed": (lambda value: excb.train("conv4_tiny", listed=value), set()),
    "train against": (lambda value: excb.train("conv4_tiny", data="x", against=value), {type(None), list}),
    "plan": (excb.plan, set()),
    "plan data": (lambda value: excb.plan("conv4_tiny", data=value), {type(None)}),
    "plan device": (lambda value: excb.plan("conv4_tiny", device=value), {type(None)}),
    "Run": (excb.Run, set()),
    "load": (excb.load, set()),
    "load empty": (lambda _value: excb.load(""), set()),
    "evaluate": (lambda value: excb.evaluate(value, "knn", data="x"), set()),
    "evaluate protocol": (lambda value: excb.evaluate(NAME, value, data="x"), set()),
    "evaluate data": (lambda value: excb.evaluate(NAME, "knn", data=value), set()),
    "embed": (lambda value: excb.embed(value, "x"), set()),
    "embed out": (lambda value: excb.embed(NAME, "x", out=value), {type(None)}),
    "compare": (lambda value: excb.compare(value, value), set()),
    "leaderboard": (excb.leaderboard, {list}),
    "reproduce": (lambda value: excb.reproduce("table1", data=value), {dict}),
    "Embedder": (excb.Embedder, set()),
    "Embeddings": (excb.Embeddings.load, set()),
    "Photos": (excb.Photos, set()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_name_or_a_path_of_another_type_is_one_line(name: str) -> None:
    call, taken = CALLS[name]
    for value in WRONG:
        if type(value) not in taken:
            with pytest.raises(excb.UserError) as error:
                call(value)
            assert "\n" not in str(error.value), value
            assert len(str(error.value)) < 400, value


def test_a_network_in_the_place_of_a_name_does_not_fill_the_message() -> None:
    network: Any = excb.load(NAME)
    with pytest.raises(excb.UserError, match=r"not a value of type Backbone$"):
        excb.train("conv4_tiny", data="x", init=network)


def test_counts_of_another_type(images: Path) -> None:
    found = excb.embed(NAME, images, quiet=True)
    two: Any = np.int64(2)  # what NumPy counts is a number
    assert len(found.clusters(two).sizes) == 2
    calls: tuple[Call, ...] = (
        found.clusters,
        lambda value: found.search(0, k=value),
        lambda value: excb.load(NAME).embed(images, batch=value),
        lambda value: excb.load(NAME, img_size=value),
        lambda value: excb.plan("conv4_tiny", gpus=value),
        lambda value: excb.train("conv4_tiny", data=images, extend=value),
        lambda value: excb.Photos(images, networks=NAME, quiet=True).label_next(value),
    )
    for call in calls:
        for value in ("3", 2.5, [3], -1):
            with pytest.raises(excb.UserError):
                call(value)


def test_several_may_come_one_by_one(images: Path) -> None:
    assert excb.Photos(images, networks=(name for name in [NAME]), quiet=True).networks == (NAME,)
    board = excb.leaderboard(BUNDLED.rglob("results/*.json"), claims=iter(()))
    assert repr(board) == repr(excb.leaderboard(list(BUNDLED.rglob("results/*.json"))))


class Tiles:
    """Images by their numbers, as a data set of torch's has them."""

    def __getitem__(self, number: int) -> np.ndarray:
        return [np.zeros((9, 9, 3), np.uint8), np.ones((9, 9, 3), np.uint8)][number]


def test_numbers_of_numpy_and_data_sets_of_torch_are_taken(images: Path) -> None:
    found = excb.embed(NAME, images, quiet=True)
    half: Any = np.float32(0.5)
    assert found.near_duplicates(half, quiet=True) == found.near_duplicates(0.5, quiet=True)
    tiles: Any = Tiles()  # which has no __iter__
    assert len(excb.load(NAME).embed(tiles)) == 2


def test_one_checkpoint_to_compare_with_may_be_a_path(images: Path) -> None:
    with pytest.raises(excb.UserError, match="no checkpoint nowhere/at/all"):
        excb.train("conv4_tiny", data=images, against=Path("nowhere/at/all"), quiet=True)
