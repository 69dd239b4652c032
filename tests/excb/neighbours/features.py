"""Features, backends and checks that the tests of neighbours share."""

import importlib.util
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from excb.neighbours.nearest import Neighbours

Backend = Literal["faiss", "torch"]


needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="FAISS is not installed")


both_backends = pytest.mark.parametrize("backend", [pytest.param("faiss", marks=needs_faiss), "torch"])


def random_features(rows: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def assert_same(one: Neighbours, other: Neighbours) -> None:
    assert torch.equal(one.indices, other.indices)
    assert torch.equal(one.similarities, other.similarities)


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return result
