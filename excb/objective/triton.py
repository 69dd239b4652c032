"""The streamed loss by our Triton kernels, for CUDA: no score ever leaves the chip.

Few rows would leave most of a GPU idle, so the clusters are split into groups, each with programs of its own. Their
averages are then merged by their normalisers, which is exact. Rows and centroids are bfloat16. (In float32 the kernels
are correct too, as interpreted in tests, but they spill registers, so `obstacle` refuses it.)

Importing this file needs no Triton.
"""

import importlib.util
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from excb.objective.scores import Average, CentroidGradient, Scores


@dataclass(frozen=True)
class Tile:
    """The tile of scores of one program, and how it is compiled."""

    kept: int  # its side along what one program keeps: rows in `average`, clusters in `centroid_gradient`
    walked: int  # its side along what the program walks over
    warps: int
    stages: int  # of the pipeline that loads what it walks over; where that is two tensors, one fewer


# By the shared memory of a program, in bytes: tiles with which the compiled kernels neither exceed it nor, but for the
# teacher's on compute capabilities 8 and 10, spill registers.
_TILES = {200_000: Tile(128, 64, 8, 3), 110_000: Tile(128, 32, 8, 3), 0: Tile(64, 32, 4, 3)}


def obstacle(rows: Tensor) -> str:
    """Why our kernels cannot score these rows, [..., D]; empty where they can."""
    if rows.dtype != torch.bfloat16:
        return f"takes bfloat16 rows, not {str(rows.dtype).removeprefix('torch.')} (efficiency.precision=bf16)"
    if rows.shape[-1] > 256:
        return f"takes rows of width 256 at most, not {rows.shape[-1]}"
    if rows.device.type != "cuda":
        return "needs a CUDA device"
    if torch.cuda.get_device_capability(rows.device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or newer"
    return "" if importlib.util.find_spec("triton") else "needs Triton, which is not installed"


def average(scores: Scores, values: Tensor | None, *, winners: bool) -> Average:
    """Average `values` by softmax(scores): see `excb.objective.scores.Operations`."""
    from excb.objective import triton_kernels as kernels

    rows, centroids = scores.rows.contiguous(), scores.centroids.contiguous()
    (R, D), K, tile = rows.shape, len(centroids), _tile(rows.device)
    programs, steps = max(1, _ceil(R, tile.kept)), _ceil(K, tile.walked)
    group = tile.walked * _ceil(steps, _groups(programs, steps, rows.device))
    groups = _ceil(K, group)
    others = values is not None and values is not scores.centroids
    flags = {"D": D, "WIDTH": _width(D), "WINNERS": winners, "VALUES": 0 if values is None else 1 + others}

    def memory(*lines: int, integer: torch.dtype) -> tuple[Tensor, ...]:
        """Memory for mean, peak, total, winner, raw peak and raw winner."""
        mean = rows.new_empty(*lines, 0 if values is None else D, dtype=torch.float32)
        peak, total, raw_peak = (rows.new_empty(lines, dtype=torch.float32) for _ in range(3))
        winner, raw_winner = (rows.new_empty(lines, dtype=integer) for _ in range(2))
        return mean, peak, total, winner, raw_peak, raw_winner

    of_groups = memory(groups, R, integer=torch.int32)
    mean, peak, total, winner, _, raw_winner = memory(R, integer=torch.int64)
    if R:
        with _on(rows.device):
            kernels.average[programs, groups](
                rows,
                centroids,
                values.contiguous() if values is not None and others else None,
                *_balancing(scores),
                *of_groups,
                R,
                K,
                group,
                _factor(scores),
                **flags,
                **_switches(scores),
                BALANCED=scores.balance is not None,
                ROWS=tile.kept,
                CLUSTERS=tile.walked,
                num_warps=tile.warps,
                num_stages=tile.stages - others,
                enable_fp_fusion=True,
            )
            kernels.merge[(_ceil(R, 16),)](
                *of_groups,
                mean,
                peak,
                total,
                winner,
                raw_winner,
                groups,
                R,
                _factor(scores),
                **flags,
                ROWS=16,
                enable_fp_fusion=True,
            )
    return Average(mean, peak, total, winner, raw_winner)


def centroid_gradient(student: CentroidGradient, teacher: CentroidGradient) -> Tensor:
    """Sum softmax(scores)^T vectors over student and teacher: see `excb.objective.scores.Operations`."""
    from excb.objective import triton_kernels as kernels

    (K, D), tile = student.scores.centroids.shape, _tile(student.peak.device)
    out = torch.empty(K, D, device=student.peak.device)
    with _on(out.device):
        kernels.centroid_gradient[(_ceil(K, tile.kept),)](
            out,
            student.scores.centroids.contiguous(),
            student.scores.rows.contiguous(),
            student.peak,
            student.weights.contiguous(),
            len(student.peak),
            _factor(student.scores),
            teacher.scores.centroids.contiguous(),
            teacher.scores.rows.contiguous(),
            teacher.peak,
            teacher.weights.contiguous(),
            teacher.vectors.to(student.scores.rows.dtype).contiguous(),
            len(teacher.peak),
            _factor(teacher.scores),
            *_balancing(teacher.scores),
            K,
            **_switches(teacher.scores),
            D=D,
            WIDTH=_width(D),
            ROWS=tile.walked,
            CLUSTERS=tile.kept,
            num_warps=tile.warps,
            num_stages=tile.stages - 1,
            enable_fp_fusion=True,
        )
    return out


def _balancing(scores: Scores) -> list[Any]:
    """Scale, offset, replaced clusters, their scores, lower and upper bound: None where there are none."""
    scale, offset = scores.balance or (None, None)
    return [scale, offset, *(scores.replaced or (None, None)), *(scores.bounds or (0.0, 0.0))]


def _switches(scores: Scores) -> dict[str, bool]:
    return {"BOUNDED": scores.bounds is not None, "REPLACED": scores.replaced is not None}


def _factor(scores: Scores) -> float:
    """Of scores in exponents of 2, the only power that GPUs have."""
    return 1 / (scores.temperature * math.log(2))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _width(D: int) -> int:
    """A tile's columns: a power of two, and enough for a matrix unit."""
    return max(16, 1 << (D - 1).bit_length())


def _tile(device: torch.device) -> Tile:
    """The largest tile that fits."""
    room = 110_000  # where kernels are interpreted
    if device.type == "cuda":
        room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    return next(tile for least, tile in _TILES.items() if room >= least)


def _groups(programs: int, most: int, device: torch.device) -> int:
    """Into how many groups to split the centroids, so that the last wave of programs is as full as can be."""
    processors = 6  # where kernels are interpreted
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    choices = range(1, min(most, _ceil(2 * processors, programs)) + 1)
    return max(choices, key=lambda groups: (programs * groups / _ceil(programs * groups, processors), -groups))


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Kernels are launched on the current GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
