"""Which backend proposes neighbours, and what is said where FAISS is missing."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from excb.errors import UserError
from excb.neighbours import backends
from excb.neighbours.backends import available_backend
from excb.neighbours.nearest import nearest
from tests.excb.neighbours.features import needs_faiss

pytestmark = pytest.mark.usefixtures("one_thread")


def test_backend_without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(backends, "bfloat16_pays", lambda _device, _width: False)
    assert available_backend("auto") == "torch"
    assert available_backend("torch") == "torch"
    with pytest.raises(UserError, match=r"pip install faiss-cpu.*pip install 'excb\[faiss-cpu\]'"):
        available_backend("faiss")
    assert nearest(torch.eye(3), torch.eye(3), 1).indices.tolist() == [[0], [1], [2]]


@needs_faiss
@pytest.mark.parametrize(
    ("quick", "device", "gpus", "chosen"),
    [
        (False, "cpu", 0, "faiss"),
        (True, "cpu", 0, "torch"),
        (False, "cuda", 0, "torch"),  # FAISS of the CPU beside a GPU
        (False, "cuda", 1, "faiss"),
    ],
)
def test_backend_with_faiss(quick: bool, device: str, gpus: int, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "bfloat16_pays", lambda _device, _width: quick)
    monkeypatch.setattr(backends, "faiss_gpus", lambda: gpus)
    assert available_backend("auto", device) == chosen
    assert available_backend("faiss", device) == "faiss"
    assert available_backend("torch", device) == "torch"


def test_unknown_backend() -> None:
    with pytest.raises(UserError, match="choose auto, faiss or torch"):
        available_backend("scann")  # type: ignore[arg-type]


@pytest.mark.parametrize("message", ["builtin type SwigPyPacked has no __module__ attribute", "anything else"])
def test_only_the_warning_of_swig_is_silenced(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faiss.py").write_text(f"import warnings\nwarnings.warn({message!r}, DeprecationWarning)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "faiss", None)  # so that the module imported below is forgotten afterwards
    monkeypatch.delitem(sys.modules, "faiss")
    if message.startswith("builtin"):
        assert available_backend("faiss") == "faiss"
    else:
        with pytest.raises(DeprecationWarning, match=message):
            available_backend("faiss")


@pytest.mark.parametrize("queries", [1, 2, 3, 16])
@pytest.mark.parametrize(
    "way",
    [
        backends._with_numpy,
        backends._with_torch,
        pytest.param(backends._with_faiss, marks=needs_faiss),
        backends.few_products,
    ],
)
def test_products_with_few_queries_are_those_of_float64(
    way: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "FEW_BYTES", 0)
    monkeypatch.setattr(backends, "MEASURED_BYTES", 2**16)
    rows, asked = (torch.randn(n, 37, generator=torch.Generator().manual_seed(n)) for n in (50, queries))
    found = way(rows, asked)
    assert found.shape == (50, queries)
    torch.testing.assert_close(found.double(), rows.double() @ asked.double().T, rtol=1e-5, atol=1e-5)


def test_products_of_few_rows_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "times", lambda _call: pytest.fail("measured"))
    assert backends.few_products(torch.ones(1000, 16), torch.ones(1, 16)).tolist() == [[16.0]] * 1000


def test_products_with_many_queries_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_quickest_product", lambda *_: pytest.fail("it was measured"))
    rows, queries = torch.randn(70_000, 32), torch.randn(17, 32)
    torch.testing.assert_close(backends.few_products(rows, queries), rows @ queries.T)
