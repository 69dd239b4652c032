"""GPUs by name, from their data sheets, and how fast training is estimated to be on them; needs no torch."""

from dataclasses import dataclass

from excb.errors import UserError, nearest_name

CORE_TFLOPS = 0.025  # of one CPU core on small networks: about what the studies in docs/studies.md ran at
CORES = 4  # of the machine that `excb-pretrain list` estimates hours for
GPU = "a100"  # and its GPU
# What of a data sheet's rate training reaches: convolutions of small networks and crops wait for memory.
REACHED = {"fp32": 0.35, "tensor": 0.15}


@dataclass(frozen=True)
class Gpu:
    """A GPU, by its data sheet."""

    name: str
    memory: float  # GiB
    fp32: float  # TFLOP/s
    half: float  # TFLOP/s in bf16 or fp16, dense, on tensor cores
    bf16: bool = True  # whether it computes in bf16, and in TF32 at half that rate: compute capability 8.0 or newer

    def rate(self, precision: str, *, tf32: bool = False) -> float:
        """Estimated TFLOP/s of a training step; `tf32`: whether networks in fp32 multiply in TF32."""
        if precision in ("bf16", "fp16"):
            return self.half * REACHED["tensor"]
        plain = self.fp32 * REACHED["fp32"]
        if precision == "fp32" and tf32 and self.bf16:
            return max(plain, self.half / 2 * REACHED["tensor"])
        return plain * (0.5 if precision == "fp64" else 1.0)


_ALL = (
    Gpu("v100", 16, 15.7, 125, bf16=False),
    Gpu("t4", 16, 8.1, 65, bf16=False),
    Gpu("a10", 24, 31.2, 125),
    Gpu("l4", 24, 30.3, 121),
    Gpu("rtx3090", 24, 35.6, 71),
    Gpu("rtx4090", 24, 82.6, 165),
    Gpu("rtx5090", 32, 104.8, 209.5),
    Gpu("a6000", 48, 38.7, 155),
    Gpu("l40s", 48, 91.6, 362),
    Gpu("a100-40gb", 40, 19.5, 312),
    Gpu("a100", 80, 19.5, 312),
    Gpu("h100", 80, 67, 989),
    Gpu("h200", 141, 67, 989),
    Gpu("b200", 180, 80, 2250),
)
GPUS = {gpu.name: gpu for gpu in _ALL}


def find_gpu(name: str) -> Gpu:
    """The GPU of a name. Raises UserError if none is called so."""
    key = name.lower().replace(" ", "")
    if key not in GPUS:
        raise UserError(f"--device {name}: no GPU is called so{nearest_name(key, GPUS)} (it knows {', '.join(GPUS)})")
    return GPUS[key]


def hours(tflop: float, rate: float) -> float:
    """Hours for so many TFLOP at so many TFLOP/s."""
    return tflop / rate / 3600
