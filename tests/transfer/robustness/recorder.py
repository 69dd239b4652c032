"""Records which images are corrupted, for tests of what is computed again."""

import numpy as np
import pytest

from excb.transfer.robustness.imagenet_c import table


class Recorder:
    """The corruptions and severities that were applied, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self._corrupted = table.corrupted

    def __call__(self, pixels: np.ndarray, name: str, severity: int, seed: int, *, stored: bool = False) -> np.ndarray:
        self.calls.append((name, severity))
        return self._corrupted(pixels, name, severity, seed, stored=stored)


def install(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Record from now on."""
    recorder = Recorder()
    monkeypatch.setattr(table, "corrupted", recorder)
    return recorder
