"""Stands in for the library of corruptions, which is an extra: noise and loss of contrast by severity."""

import numpy as np
import pytest

from excb.transfer.robustness import corruptions


class FakeLibrary:
    """Counts what it corrupts."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def corrupt(self, image: np.ndarray, *, corruption_name: str, severity: int, seed: int | None = None) -> np.ndarray:
        self.calls.append((corruption_name, severity))
        random = np.random.default_rng(seed) if seed is not None else np.random
        noise = random.normal(0, 12 * severity, image.shape)
        lost = image * (1 - severity / 6) if corruption_name == "contrast" else image
        return np.clip(lost + noise, 0, 255).astype(np.uint8)


def install(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    """Use it instead of the real one, whether that is installed or not."""
    fake = FakeLibrary()
    monkeypatch.setattr(corruptions, "library", lambda: fake)
    monkeypatch.setattr(corruptions, "version", lambda: "fake 1")
    return fake
