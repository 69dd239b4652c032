"""The backends that propose neighbours: which one is available and faster here, and calls into FAISS."""

import functools
import timeit
import warnings
from typing import Any, Literal

import torch
from torch import Tensor

from excb.errors import UserError


def available_backend(
    backend: Literal["auto", "faiss", "torch"], device: torch.device | str = "cpu", width: int = 384
) -> Literal["faiss", "torch"]:
    """Return the backend to use: "auto" is FAISS where it can be imported, unless torch is quicker here.

    torch is quicker on a GPU that FAISS cannot use, and on processors that multiply bfloat16 matrices quickly.

    Raises:
        UserError: FAISS is requested but not installed, or there is no such backend.
    """
    if backend not in {"auto", "faiss", "torch"}:
        raise UserError(f"there is no k-NN backend {backend!r}: choose auto, faiss or torch")
    if backend == "torch" or (backend == "auto" and bfloat16_pays(torch.device(device), width)):
        return "torch"
    try:
        import_faiss()
        if backend == "auto" and torch.device(device).type == "cuda" and not faiss_gpus():
            return "torch"
    except ImportError as error:
        if backend == "auto":
            return "torch"
        raise UserError(
            "FAISS is not installed: run `pip install faiss-cpu` or `pip install 'excb[faiss-cpu]'` (never next to "
            "faiss-gpu, they share one module), or choose the backend torch, whose results are the same"
        ) from error
    return "faiss"


@functools.cache
def bfloat16_pays(device: torch.device, width: int) -> bool:
    """Whether this processor multiplies bfloat16 matrices several times faster than float32 ones, measured."""
    if device.type != "cpu":
        return False  # a GPU spends most of its time on other steps
    seconds = []
    for kind in (torch.bfloat16, torch.float32):
        left, right = torch.ones(512, width, dtype=kind), torch.ones(2048, width, dtype=kind)
        seconds.append(min(timeit.repeat(functools.partial(torch.matmul, left, right.T), repeat=3, number=1)))
    return seconds[0] < seconds[1] / 2


def import_faiss() -> Any:
    """The module faiss; ImportError where it is not installed."""
    with warnings.catch_warnings():
        # SWIG, which wraps FAISS, triggers a warning of Python 3.12 and newer that no user can fix.
        warnings.filterwarnings("ignore", message="builtin type swig", category=DeprecationWarning)
        import faiss
    return faiss


def faiss_gpus() -> int:
    """The GPUs that FAISS can use."""
    return int(getattr(import_faiss(), "get_num_gpus", int)())


def faiss_search(rows: Tensor, queries: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` rows of highest dot product with each query [Q, D]: values and indices, [Q, count] each."""
    faiss = import_faiss()
    search = functools.partial(faiss.knn_gpu, _gpu_memory()) if faiss_gpus() else faiss.knn
    values, indices = search(queries.numpy(), rows.numpy(), count, metric=faiss.METRIC_INNER_PRODUCT)
    return torch.from_numpy(values), torch.from_numpy(indices)


@functools.cache
def _gpu_memory() -> Any:
    return import_faiss().StandardGpuResources()
