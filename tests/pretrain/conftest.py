"""The run that tests of pretraining share: small, finished, and read by all of them."""

import os
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.made_once import MadeOnce
from tests.pretrain.short_end import VARIABLE
from tests.pretrain.small_runs import OVERRIDES, write_images


@pytest.fixture(scope="session")
def finished_run(made_once: MadeOnce) -> Path:
    """The folder of a finished quickstart with OVERRIDES, to read or to copy; its images lie beside it, in `images`."""

    def train(folder: Path) -> None:
        images = write_images(folder / "images")
        words = ["quickstart", "--data", str(images), "--out", str(folder / "run"), "--quiet", *OVERRIDES]
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        forked.run([sys.executable, "-m", "excb.pretrain", *words], check=True, env=environment)

    return made_once("quickstart", train) / "run"
