"""Peak figures of GPUs and of what connects them, for a model of a step's time; needs no torch.

The makers' documents that figures come from are named with each GPU. They were compared with public pages that quote
these documents, not with the documents themselves, except for NVIDIA's reference architecture "DGX BasePOD", which was
read: it states the networks of DGX H100, H200 and B200. Rates are dense, with sums in float32. Links are in one
direction, half of what data sheets print for NVLink. No network belongs to a GeForce card: one of 100 Gbit/s for eight
cards is assumed.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Peaks:
    """Of one GPU."""

    half: float  # TFLOP/s in bf16 and fp16
    tf32: float  # TFLOP/s
    fp32: float  # TFLOP/s outside of tensor cores
    fp64: float  # TFLOP/s, with tensor cores where they have it
    bandwidth: float  # of the GPU's memory, GB/s
    link: float  # to other GPUs of the node, GB/s
    network: float  # its share of the node's network, Gbit/s
    source: str  # of these figures, for those who read a plan

    def rate(self, precision: str, *, tf32: bool) -> float:
        """FLOP/s of products."""
        if precision in ("bf16", "fp16"):
            return 1e12 * self.half
        return 1e12 * (self.fp64 if precision == "fp64" else self.tf32 if tf32 else self.fp32)


_A100 = "data sheet of the A100 80 GB SXM as public pages quote it, HDR InfiniBand of DGX A100"
_HOPPER = "data sheet of the {} SXM as public pages quote it, network of DGX {} (NVIDIA DGX BasePOD)"
# Public pages agree on bf16 and NVLink only: fp32 is 75 to 80, TF32 1,100 to 1,125, fp64 35 to 40, memory 7.7 to 8.
_B200 = (
    "NVIDIA's Blackwell brief for HGX B200 as public pages quote it, which differ by up to 14 %; network of DGX B200 "
    "(NVIDIA DGX BasePOD)"
)
_RTX4090 = "Ada architecture paper as public pages quote it, PCIe 4.0 x16; network assumed"
# The pages print 838 TFLOP/s with sparsity and sums in float16: each of the two halves it. TF32 is half of that again.
_RTX5090 = "public pages, tensor rates derived from a printed one, PCIe 5.0 x16; network assumed"

PEAKS = {
    "a100": Peaks(312, 156, 19.5, 19.5, 2039, 300, 200, _A100),
    "h100": Peaks(989, 495, 67, 67, 3350, 450, 400, _HOPPER.format("H100", "H100")),
    "h200": Peaks(989, 495, 67, 67, 4800, 450, 400, _HOPPER.format("H200", "H200")),
    "b200": Peaks(2250, 1100, 80, 40, 8000, 900, 400, _B200),
    "rtx4090": Peaks(165, 82.6, 82.6, 1.3, 1008, 32, 12.5, _RTX4090),
    "rtx5090": Peaks(209.5, 104.8, 104.8, 1.6, 1792, 64, 12.5, _RTX5090),
}
