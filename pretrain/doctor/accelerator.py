"""GPUs: driver, devices, memory that others hold, bf16, NCCL; each judged by what the run asks for."""

from pathlib import Path

import torch
import torch.distributed as dist

from .finding import Finding, plural, size

DRIVER = Path("/proc/driver/nvidia/version")
OTHERS = 0.1  # share of a GPU's memory held by other programs, from which on it is worth a word


def check_accelerator(device: str, precision: str, gpus: int | None) -> list[Finding]:
    """All checks of GPUs.

    Args:
        device: the recipe's: cpu, cuda, or auto.
        precision: the recipe's.
        gpus: as `--gpus`: how many the run is to use; None for one if there is one.
    """
    if device == "cpu" or gpus == 0:
        return [Finding("GPU", "ok", "not asked for: the run trains on the CPU")]
    if not torch.cuda.is_available():
        return [_none(demanded=device != "auto" or bool(gpus))]
    found = torch.cuda.device_count()
    if gpus is not None and gpus > found:
        return [Finding("GPU", "error", f"{plural(found, 'GPU')} here, and {gpus} are asked for", f"--gpus {found}")]
    used = range(gpus or 1)
    checks = [_device(index) for index in used]
    if precision == "bf16" and not all(_bf16(index) for index in used):
        checks.append(Finding("bf16", "error", "this GPU has no bf16", "efficiency.precision=fp16"))
    return [*checks, _nccl(len(used))]


def _none(*, demanded: bool) -> Finding:
    """Why there is no GPU."""
    driver = driver_version()
    if driver is None:
        found, fix = "no NVIDIA driver", "install the driver, or start the container with --gpus all (docker)"
    elif torch.version.cuda is None:
        found = f"driver {driver}, but torch {torch.__version__} was built without CUDA"
        fix = "install torch for CUDA: https://pytorch.org/get-started/locally"
    else:
        found = f"driver {driver}, torch for CUDA {torch.version.cuda}, but no GPU can be used"
        fix = "is CUDA_VISIBLE_DEVICES empty, or the driver older than this CUDA? nvidia-smi tells"
    if demanded:
        return Finding("GPU", "error", found, fix)
    return Finding("GPU", "warning", f"{found}: the run would train on the CPU", f"{fix}; --gpus 0 where that is meant")


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None where there is none."""
    try:
        line = DRIVER.read_text(encoding="ascii", errors="replace").partition("\n")[0]
    except OSError:
        return None
    return next((word for word in line.split() if word[0].isdigit() and "." in word), "of unknown version")


def _device(index: int) -> Finding:
    """One GPU: it computes, and its memory is free."""
    name = f"GPU {index}"
    try:
        torch.ones(8, device=f"cuda:{index}").sum().item()
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        return Finding(name, "error", f"does not compute: {reason}", "a torch built for this GPU, or another GPU")
    found = f"{torch.cuda.get_device_name(index)}, {size(total)}, CUDA {torch.version.cuda}, driver {driver_version()}"
    if total - free > OTHERS * total:
        fix = "end other programs (nvidia-smi lists them), or choose another GPU by CUDA_VISIBLE_DEVICES"
        return Finding(name, "warning", f"{found}; only {size(free)} are free", fix)
    return Finding(name, "ok", found)


def _bf16(index: int) -> bool:
    with torch.cuda.device(index):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def _nccl(gpus: int) -> Finding:
    if dist.is_available() and dist.is_nccl_available():
        return Finding("NCCL", "ok", ".".join(map(str, torch.cuda.nccl.version())))
    if gpus > 1:
        return Finding("NCCL", "error", "this torch has none, and several GPUs need it", "install torch's own wheels")
    return Finding("NCCL", "ok", "this torch has none; one GPU needs none")
