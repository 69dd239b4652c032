"""The precision that a run computes in: what `auto` means on a device, and how its GPUs multiply float32 in a step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from excb.distributed.collectives import gather_numbers

from .recipe import EfficiencySettings, Recipe

T = TypeVar("T")
BF16_CAPABILITY = (8, 0)  # the first of NVIDIA's GPUs that compute in bf16 (Ampere)


def resolved(recipe: Recipe, device: torch.device, *, begun: str | None = None) -> Recipe:
    """The recipe with a precision in place of `auto`: bf16 on GPUs that compute in it, else fp32.

    All ranks call it, and get the same: bf16 only where each of them has such a GPU.

    Args:
        recipe: of the run.
        device: where this rank computes.
        begun: precision of the same run so far, maybe on another machine, which it keeps; None for a new run.

    Raises:
        UserError: the loss backend that the recipe names does not take this precision.
    """
    if recipe.efficiency.precision != "auto":
        return recipe
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= BF16_CAPABILITY
    everywhere = bool(gather_numbers([capable]).all())
    return recipe.change(efficiency={"precision": begun or ("bf16" if everywhere else "fp32")})


@contextmanager
def gpu_products(efficiency: EfficiencySettings, device: torch.device) -> Iterator[None]:
    """Multiply as a recipe says on a GPU: float32 in TF32 or exactly, with cuDNN's usual or its quickest algorithms.

    Torch keeps these settings for the process, so they are as before afterwards: a program that trains by `excb.train`
    keeps its own. On the CPU nothing changes. `excb.exact.exact_products` is exact in here too.
    """
    if device.type != "cuda":
        yield
        return
    restore = _remember()
    # Torch's older interface, in which the compiler asks too. It sets the newer one, `fp32_precision`, as well.
    torch.set_float32_matmul_precision("high" if efficiency.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = efficiency.tf32
    torch.backends.cudnn.benchmark = efficiency.cudnn_benchmark
    try:
        yield
    finally:
        restore()


def _remember() -> Callable[[], None]:
    """A function that restores what `gpu_products` changes."""
    backends: Any = torch.backends
    newer = [backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    precisions = [setting.fp32_precision for setting in newer]
    products = _asked(torch.get_float32_matmul_precision, usual="highest")
    convolutions = _asked(lambda: backends.cudnn.allow_tf32, usual=True)
    benchmark = backends.cudnn.benchmark

    def restore() -> None:
        torch.set_float32_matmul_precision(products)
        backends.cudnn.allow_tf32 = convolutions
        backends.cudnn.benchmark = benchmark
        for setting, precision in zip(newer, precisions, strict=True):
            setting.fp32_precision = precision

    return restore


def _asked(older: Callable[[], T], *, usual: T) -> T:
    """A setting by torch's older interface; the usual value where a program chose by the newer one alone."""
    try:
        return older()
    except RuntimeError:  # the older one cannot express what the newer one says, so it was never used
        return usual
