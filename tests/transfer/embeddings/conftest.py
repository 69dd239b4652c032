"""A small network and photographs that the tests of embeddings share."""

from pathlib import Path

import pytest

from tests.transfer.embeddings.photos import write_network, write_photos


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("network") / "run")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))
