"""Images to watch runs on, and the store that fails when a test says so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from excb.remote import object_store
from excb.transfer.watch import page, watching
from tests.faulty_store import FaultyStore
from tests.transfer.labelled_images import write_folder


@pytest.fixture(scope="package")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled images of seven classes, 35 to train on and 21 to test on."""
    data = tmp_path_factory.mktemp("watch") / "data"
    write_folder(data / "train", each=5, seed=1)
    write_folder(data / "test", each=3, seed=2)
    return data


@pytest.fixture
def drawn() -> None:
    """Pages have their picture, which takes most of the time of a small watch."""


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has its own folder and store. None waits, and none draws unless it asks for `drawn`."""

    def waiting(_seconds: float) -> None:
        raise AssertionError("the watch waits")

    monkeypatch.setattr(watching, "pause", waiting)
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(page, "draw_watch", lambda _state: None)
    monkeypatch.setattr(object_store, "PAUSES", (0.0,))
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    FaultyStore.reset()
    yield
    FaultyStore.reset()
