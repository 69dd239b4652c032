"""The facts for a bug report: versions of the packages, hardware, and the settings that change what runs."""

import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from excb.console import plural
from excb.distributed.machine import available_memory, usable_cores
from excb.version import __version__

PACKAGES = (
    *("torch", "torchvision", "timm", "triton", "numpy", "scikit-learn", "huggingface_hub", "safetensors", "pillow"),
    *("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12", "detectron2", "pycocotools", "peft", "simplejpeg"),
)
# Values of others, such as tokens, are never printed.
SETTINGS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "NCCL_DEBUG"),
    *("PYTORCH_CUDA_ALLOC_CONF", "HF_HUB_OFFLINE", "WORLD_SIZE", "SLURM_JOB_NUM_NODES"),
)
LOCATIONS = ("EXCB_HOME", "EXCB_CACHE", "EXCB_DATA", "EXCB_ENDPOINT", "HF_ENDPOINT", "HF_HOME")  # only: set or not


def environment_report() -> dict[str, str]:
    """Facts by name, in the order in which they are printed. No path, host name or token is among them."""
    import torch

    facts = {
        "excb": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
    }
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    facts["processor"] = (
        f"{_processor()}, {plural(usable_cores(), 'usable core')}, torch uses "
        f"{plural(torch.get_num_threads(), 'thread')}"
    )
    facts["memory"] = f"{available_memory() / 2**30:.1f} GiB available"
    facts["cuda"] = _cuda()
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        gigabytes, capability = device.total_memory / 2**30, f"{device.major}.{device.minor}"
        facts[f"gpu {number}"] = f"{device.name}, {gigabytes:.0f} GiB, compute capability {capability}"
    facts |= {name: os.environ[name] for name in SETTINGS if name in os.environ}
    return facts | {name: "set" for name in LOCATIONS if name in os.environ}


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or "unknown processor"


def _cuda() -> str:
    import torch

    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch is built for {torch.version.cuda}, no usable device"
    return f"torch is built for {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, NCCL {_nccl()}"


def _nccl() -> str:
    import torch

    if sys.platform != "linux" or not torch.distributed.is_nccl_available():
        return "none"
    return ".".join(map(str, torch.cuda.nccl.version()))
