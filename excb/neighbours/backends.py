"""The backends that propose neighbours: which one is available and faster here, and calls into FAISS."""

import functools
import timeit
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from excb.errors import UserError
from excb.neighbours import tiling

FEW_BYTES = 2**23  # of rows for which measuring, a tenth of a second, costs more than it brings
MEASURED_BYTES = 2**26  # of the rows that are multiplied to find the quickest way: more than caches hold


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
        seconds.append(times(functools.partial(torch.matmul, left, right.T)))
    return seconds[0] < seconds[1] / 2


def times(call: Callable[[], object]) -> float:
    """The least seconds of three calls, after one that does not count."""
    call()
    return min(timeit.repeat(call, repeat=3, number=1))


def few_products(rows: Tensor, queries: Tensor) -> Tensor:
    """The dot products [n, Q] of rows [n, D] with queries [Q, D], float32 on a CPU, of a few by the quickest way here.

    Few queries wait for memory. NumPy's BLAS reads as fast as memory is on some processors; on AMD's its products with
    a vector take twice as long as torch's with a matrix of two columns, or as FAISS's.
    """
    if rows.nbytes < FEW_BYTES or len(queries) > tiling.FEW:
        return _with_numpy(rows, queries)
    return _quickest_product(rows.shape[1], len(queries))(rows, queries)


@functools.cache
def _quickest_product(width: int, queries: int) -> Callable[[Tensor, Tensor], Tensor]:
    """One of the ways to multiply, measured once for each number of queries."""
    rows, asked = torch.ones(MEASURED_BYTES // (4 * width) + 1, width), torch.ones(queries, width)
    ways = [_with_numpy, _with_torch]
    if faiss_is_there():
        ways.append(_with_faiss)
    return min(ways, key=lambda way: times(lambda: way(rows, asked)))


def _with_numpy(rows: Tensor, queries: Tensor) -> Tensor:
    return torch.from_numpy(rows.numpy() @ queries.numpy().T)


def _with_torch(rows: Tensor, queries: Tensor) -> Tensor:
    """With two columns at least, in memory: of one that is expanded products are slow."""
    columns = queries if len(queries) > 1 else queries.repeat(2, 1)
    return (rows @ columns.T)[:, : len(queries)]


def _with_faiss(rows: Tensor, queries: Tensor) -> Tensor:
    faiss, rows, queries = import_faiss(), rows.contiguous(), queries.contiguous()
    products = torch.empty(len(queries), len(rows))
    for number in range(len(queries)):
        faiss.fvec_inner_products_ny(
            faiss.swig_ptr(products[number].numpy()),
            faiss.swig_ptr(queries[number].numpy()),
            faiss.swig_ptr(rows.numpy()),
            rows.shape[1],
            len(rows),
        )
    return products.T


def import_faiss() -> Any:
    """The module faiss; ImportError where it is not installed."""
    with warnings.catch_warnings():
        # SWIG, which wraps FAISS, triggers a warning of Python 3.12 and newer that no user can fix.
        warnings.filterwarnings("ignore", message="builtin type swig", category=DeprecationWarning)
        import faiss
    return faiss


def faiss_is_there() -> bool:
    """Whether FAISS can be imported."""
    try:
        import_faiss()
    except ImportError:
        return False
    return True


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
