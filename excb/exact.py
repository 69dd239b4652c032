"""Products of float32 that stay float32, for what must not be rounded: scores of clusters, bounds of neighbours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Multiply float32 as float32, whatever the caller allows: neither autocast nor TF32 may round."""
    settings: list[Any] = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for setting, precision in zip(settings, before, strict=True):
            setting.fp32_precision = precision
