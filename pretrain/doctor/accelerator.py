"""GPUs: driver, devices, memory in use by others, bf16, NCCL, against what the run asks for."""

from pathlib import Path

import torch
import torch.distributed as dist

from excb.console import plural

from .finding import Finding, size

DRIVER = Path("/proc/driver/nvidia/version")
OTHERS = 0.1  # share of a GPU's memory in use by other programs that is worth a warning


def check_accelerator(device: str, precision: str, gpus: int | None) -> list[Finding]:
    """All checks of GPUs. `gpus` is the value of `--gpus`: how many the run will use; None for one if there is one."""
    if device == "cpu" or gpus == 0:
        return [Finding("GPU", "ok", "not requested: the run trains on the CPU")]
    if not torch.cuda.is_available():
        return [_no_gpu(required=device != "auto" or bool(gpus))]
    count = torch.cuda.device_count()
    if gpus is not None and gpus > count:
        return [Finding("GPU", "error", f"{plural(count, 'GPU')} here, but {gpus} are requested", f"--gpus {count}")]
    used = range(gpus or 1)
    checks = [_device(index) for index in used]
    bf16 = precision not in ("auto", "bf16") or all(_bf16(index) for index in used)
    if precision == "bf16" and not bf16:
        checks.append(Finding("bf16", "error", "this GPU does not support bf16", "efficiency.precision=fp16"))
    elif not bf16:
        found = "this GPU does not support bf16: efficiency.precision=auto is fp32"
        checks.append(Finding("bf16", "warning", found, "efficiency.precision=fp16 for less time and memory"))
    return [*checks, _nccl(len(used))]


def _no_gpu(*, required: bool) -> Finding:
    if (driver := driver_version()) is None:
        found, fix = "no NVIDIA driver", "install the driver, or start the container with --gpus all (docker)"
    elif torch.version.cuda is None:
        found = f"driver {driver}, but torch {torch.__version__} was built without CUDA"
        fix = "install torch for CUDA: https://pytorch.org/get-started/locally"
    else:
        found = f"driver {driver}, torch for CUDA {torch.version.cuda}, but no usable GPU"
        fix = "check that CUDA_VISIBLE_DEVICES is not empty, and with nvidia-smi that the driver supports this CUDA"
    if required:
        return Finding("GPU", "error", found, fix)
    found = f"{found}: the run would train on the CPU"
    return Finding("GPU", "warning", found, f"{fix}; or train on the CPU with --gpus 0")


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None without one."""
    try:
        line = DRIVER.read_text(encoding="ascii", errors="replace").partition("\n")[0]
    except OSError:
        return None
    return next((word for word in line.split() if word[0].isdigit() and "." in word), "of unknown version")


def _device(index: int) -> Finding:
    name = f"GPU {index}"
    try:
        torch.ones(8, device=f"cuda:{index}").sum().item()
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        fix = "install a torch built for this GPU, or choose another GPU"
        return Finding(name, "error", f"does not compute: {reason}", fix)
    found = f"{torch.cuda.get_device_name(index)}, {size(total)}, CUDA {torch.version.cuda}, driver {driver_version()}"
    if total - free > OTHERS * total:
        fix = "end other programs (nvidia-smi lists them), or choose another GPU by CUDA_VISIBLE_DEVICES"
        return Finding(name, "warning", f"{found}; only {size(free)} free", fix)
    return Finding(name, "ok", found)


def _bf16(index: int) -> bool:
    with torch.cuda.device(index):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def _nccl(gpus: int) -> Finding:
    if dist.is_available() and dist.is_nccl_available():
        return Finding("NCCL", "ok", ".".join(map(str, torch.cuda.nccl.version())))
    if gpus > 1:
        return Finding("NCCL", "error", "this torch lacks it, and several GPUs need it", "install torch's own wheels")
    return Finding("NCCL", "ok", "this torch lacks it; one GPU does not need it")
