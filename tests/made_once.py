"""Folders that one worker of a test run fills and all workers read, such as that of a finished run."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MadeOnce:
    """`made_once(NAME, fill)` is a folder that `fill` has filled, in this worker or in another.

    NAME says what it holds: whoever gives the same name gets the same folder. A test copies what it changes.

    Args:
        base: where the folders lie, the same place for all workers.
    """

    base: Path

    def __call__(self, name: str, fill: Callable[[Path], object]) -> Path:
        from excb.files.atomic import locked  # not where tests are collected

        folder, done = self.base / name, self.base / f"{name}.done"
        with locked(done):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder
