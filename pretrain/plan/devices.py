"""GPUs by name, from their data sheets: their memory, and whether they compute in bf16; needs no torch."""

from dataclasses import dataclass

from excb.errors import UserError, in_short, nearest_name, require


@dataclass(frozen=True)
class Gpu:
    """A GPU, by its data sheet."""

    name: str
    memory: float  # GiB
    bf16: bool = True  # whether it computes in bf16: compute capability 8.0 or newer


_ALL = (
    Gpu("v100", 16, bf16=False),
    Gpu("t4", 16, bf16=False),
    Gpu("a10", 24),
    Gpu("l4", 24),
    Gpu("rtx3090", 24),
    Gpu("rtx4090", 24),
    Gpu("rtx5090", 32),
    Gpu("a6000", 48),
    Gpu("l40s", 48),
    Gpu("a100-40gb", 40),
    Gpu("a100", 80),
    Gpu("h100", 80),
    Gpu("h200", 141),
    Gpu("b200", 180),
)
GPUS = {gpu.name: gpu for gpu in _ALL}


def find_gpu(name: str) -> Gpu:
    """The GPU of a name. Raises UserError if none is called so."""
    require(isinstance(name, str), f"a device is the name of a GPU, such as h100, not {in_short(name)}")
    key = name.lower().replace(" ", "")
    if key not in GPUS:
        raise UserError(f"--device {name}: no GPU is called so{nearest_name(key, GPUS)} (it knows {', '.join(GPUS)})")
    return GPUS[key]
