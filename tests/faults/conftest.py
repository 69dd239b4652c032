"""Fixtures of all tests of faults: images, and an undisturbed run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runs import STARTED, run
from tests.made_once import MadeOnce
from tests.pretrain.small_runs import write_images


@pytest.fixture(autouse=True, scope="session")
def one_thread_each() -> Iterator[None]:
    """Processes beside each other are quickest with a thread each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(autouse=True)
def nothing_left_over(short_end: None, tmp_path: Path) -> Iterator[None]:
    """Whatever a test has left running or stopped is ended; most runs end without curves and verdict.

    It is found by its log, so before `tmp_path` is removed.
    """
    yield
    while STARTED:
        STARTED.pop().kill_all()


@pytest.fixture(scope="session")
def undisturbed(made_once: MadeOnce) -> Path:
    """A run from beginning to end."""

    def train(folder: Path) -> None:
        ended = run(write_images(folder / "images"), folder / "run")
        assert ended.code == 0, ended.said

    return made_once("undisturbed", train) / "run"


@pytest.fixture(scope="session")
def images(undisturbed: Path) -> Path:
    """27 labelled pictures."""
    return undisturbed.parent / "images"
