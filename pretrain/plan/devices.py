"""GPUs by name, from their data sheets, and how fast training is estimated to be on them; needs no torch."""

from dataclasses import dataclass

from excb.errors import UserError, nearest_name

CORE_TFLOPS = 0.025  # of one CPU core on small networks: about what the studies in docs/studies.md ran at
CORES = 4  # of the machine that `excb-pretrain list` estimates hours for
GPU = "a100"  # and its GPU
# What of a data sheet's rate training reaches: convolutions of small networks and crops wait for memory.
REACHED = {"fp32": 0.35, "half": 0.15}


@dataclass(frozen=True)
class Gpu:
    """A GPU, by its data sheet."""

    memory: float  # GiB
    fp32: float  # TFLOP/s
    half: float  # TFLOP/s in bf16 or fp16, dense, on tensor cores
    bf16: bool = True  # whether it computes in bf16

    def rate(self, precision: str) -> float:
        """Estimated TFLOP/s of a training step."""
        if precision in ("bf16", "fp16"):
            return self.half * REACHED["half"]
        return self.fp32 * REACHED["fp32"] * (0.5 if precision == "fp64" else 1.0)


GPUS = {
    "v100": Gpu(16, 15.7, 125, bf16=False),
    "t4": Gpu(16, 8.1, 65, bf16=False),
    "a10": Gpu(24, 31.2, 125),
    "l4": Gpu(24, 30.3, 121),
    "rtx3090": Gpu(24, 35.6, 71),
    "rtx4090": Gpu(24, 82.6, 165),
    "a6000": Gpu(48, 38.7, 155),
    "l40s": Gpu(48, 91.6, 362),
    "a100-40gb": Gpu(40, 19.5, 312),
    "a100": Gpu(80, 19.5, 312),
    "h100": Gpu(80, 67, 989),
    "h200": Gpu(141, 67, 989),
    "b200": Gpu(180, 80, 2250),
}


def find_gpu(name: str) -> Gpu:
    """The GPU of a name. Raises UserError if none is called so."""
    key = name.lower().replace(" ", "")
    if key not in GPUS:
        raise UserError(f"--device {name}: no GPU is called so{nearest_name(key, GPUS)} (it knows {', '.join(GPUS)})")
    return GPUS[key]


def hours(tflop: float, rate: float) -> float:
    """Hours for so many TFLOP at so many TFLOP/s."""
    return tflop / rate / 3600
