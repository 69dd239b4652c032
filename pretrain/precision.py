"""The precision that a run computes in: what `auto` means on a device, and how its GPUs multiply float32 in a step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from excb.distributed.collectives import all_succeed, gather_numbers
from excb.networks.backbone import Uninitialised, bf16_pays_on_cpus, strides_over_one_pixel

from .recipe import EfficiencySettings, Recipe

T = TypeVar("T")
BF16_CAPABILITY = (8, 0)  # the first of NVIDIA's GPUs that compute in bf16 (Ampere)


def resolved(
    recipe: Recipe,
    device: torch.device,
    *,
    begun: str | None = None,
    note: Callable[[str], None] = lambda _message: None,
) -> Recipe:
    """The recipe with a precision in place of `auto`: bf16 where the device computes in it and is faster so, else fp32.

    GPUs that compute in bf16 always are. CPUs that do are for networks of dense convolutions (`bf16_pays_on_cpus`).
    All ranks call it, and get the same: bf16 only where it is each rank's choice.

    Args:
        recipe: of the run.
        device: where this rank computes.
        begun: precision of the same run so far, maybe on another machine, which it keeps; None for a new run.
        note: called with a message where that is another one than this machine's.

    Raises:
        UserError: the loss backend that the recipe names does not take this precision; or, on a CPU, there is no such
            backbone, or it cannot take the recipe's views.
    """
    if recipe.efficiency.precision != "auto":
        return recipe
    if device.type == "cuda":
        faster = torch.cuda.get_device_capability(device) >= BF16_CAPABILITY
    else:
        faster = all_succeed(lambda: device.type == "cpu" and cpu_computes_in_bf16() and _faster_on_cpu(recipe))
    here = "bf16" if bool(gather_numbers([faster]).all()) else "fp32"
    if begun and begun != here:
        note(
            f"the run stays in {begun}, in which it began, where efficiency.precision=auto would be {here} on this "
            f"machine: efficiency.precision={here} changes it"
        )
    return recipe.change(efficiency={"precision": begun or here})


def cpu_computes_in_bf16() -> bool:
    """Whether this CPU has instructions for products of bfloat16 (AVX-512 or AMX); Arm's were not measured."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _faster_on_cpu(recipe: Recipe) -> bool:
    # One image computed takes milliseconds. On the meta device torch would import sympy, which takes seconds.
    with Uninitialised():  # type: ignore[no-untyped-call, unused-ignore]
        backbone = recipe.model.architecture.build()
    return bf16_pays_on_cpus(backbone, recipe.views.global_size) and view_of_one_pixel(backbone, recipe) is None


def view_of_one_pixel(backbone: nn.Module, recipe: Recipe) -> int | None:
    """The size of views in which a strided convolution sees one pixel, of which CPUs compute wrong numbers in bf16."""
    views = recipe.views
    sizes = {views.global_size} | ({views.local_size} if views.local_views else set())
    return next((size for size in sorted(sizes) if strides_over_one_pixel(backbone, size)), None)


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
