"""The streamed loss by our Triton kernels, for CUDA: no score ever leaves the chip.

Few rows would leave most of a GPU idle, so the clusters are split into groups, each with programs of its own. Their
averages are then merged by their normalisers, which is exact. Rows and centroids are bfloat16 or float32, which is
multiplied as three products of TF32; float16 is widened to it.

Importing this file needs no Triton.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from excb.distributed.machine import current_device, triton_obstacle
from excb.objective.scores import Average, CentroidGradient, Scores


@dataclass(frozen=True)
class Tile:
    """The tile of scores of one program."""

    kept: int  # its side along what one program keeps: rows in `average`, clusters in `centroid_gradient`
    walked: int  # its side along what the program walks over
    step: int | None = None  # columns of which scores are summed at a time; None: all, which then stay on the chip


@dataclass(frozen=True)
class Tiles:
    """The tiles of both kernels."""

    average: Tile
    gradient: Tile


_WARPS = 8
_MERGED = 8  # rows that one program merges
# By compute capability and type: large tiles with which no kernel spills registers or exceeds the shared memory of a
# program. They were compiled (`python -m benchmarks.kernels`), not timed.
TILES = {
    ((8, 0), torch.bfloat16): Tiles(Tile(64, 64), Tile(64, 64)),
    ((9, 0), torch.bfloat16): Tiles(Tile(128, 64), Tile(128, 64)),
    ((10, 0), torch.bfloat16): Tiles(Tile(64, 64), Tile(128, 64)),
    ((12, 0), torch.bfloat16): Tiles(Tile(64, 32), Tile(64, 32)),
    ((8, 0), torch.float32): Tiles(Tile(32, 32, step=32), Tile(32, 32, step=32)),
    ((9, 0), torch.float32): Tiles(Tile(32, 32, step=32), Tile(32, 32, step=32)),
    ((10, 0), torch.float32): Tiles(Tile(64, 64, step=32), Tile(64, 64, step=32)),
    ((12, 0), torch.float32): Tiles(Tile(32, 16, step=32), Tile(32, 32, step=32)),
}
_SMALLEST = (12, 0)  # in 99 KiB of shared memory, which every GPU from 8.0 on has
_TYPES = (torch.bfloat16, torch.float32, torch.float16)


def obstacle(rows: Tensor) -> str:
    """Why our kernels cannot score these rows, [..., D]; empty where they can."""
    if rows.dtype not in _TYPES:
        return f"takes bfloat16, float16 and float32 rows, not {str(rows.dtype).removeprefix('torch.')}"
    if rows.shape[-1] > 256:
        return f"takes rows of width 256 at most, not {rows.shape[-1]}"
    return triton_obstacle(rows.device)


def average(scores: Scores, values: Tensor | None, *, winners: bool) -> Average:
    """Average `values` by softmax(scores): see `excb.objective.scores.Operations`."""
    from excb.objective import triton_kernels as kernels

    rows, centroids = _operand(scores.rows), _operand(scores.centroids)
    (R, D), K, tile = rows.shape, len(centroids), _tiles(rows).average
    programs, steps = max(1, _ceil(R, tile.kept)), _ceil(K, tile.walked)
    group = tile.walked * _ceil(steps, _groups(programs, steps, rows.device))
    groups = _ceil(K, group)
    others = values is not None and values is not scores.centroids
    width = _width(D)
    flags = {"D": D, "WIDTH": width, "WINNERS": winners, "VALUES": 0 if values is None else 1 + others}

    def memory(*lines: int, integer: torch.dtype) -> tuple[Tensor, ...]:
        """Memory for mean, peak, total, winner, raw peak and raw winner."""
        mean = rows.new_empty(*lines, 0 if values is None else D, dtype=torch.float32)
        peak, total, raw_peak = (rows.new_empty(lines, dtype=torch.float32) for _ in range(3))
        winner, raw_winner = (rows.new_empty(lines, dtype=integer) for _ in range(2))
        return mean, peak, total, winner, raw_peak, raw_winner

    of_groups = memory(groups, R, integer=torch.int32)
    mean, peak, total, winner, _, raw_winner = memory(R, integer=torch.int64)
    if R:
        with current_device(rows.device):
            kernels.average_kernel[programs, groups](
                rows,
                centroids,
                _operand(values) if values is not None and others else None,
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
                STEP=_step(tile, width),
                num_warps=_WARPS,
                num_stages=_stages(tile, 1 + others),
                enable_fp_fusion=True,
            )
            kernels.merge[(_ceil(R, _MERGED),)](
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
                ROWS=_MERGED,
                enable_fp_fusion=True,
            )
    return Average(mean, peak, total, winner, raw_winner)


def centroid_gradient(student: CentroidGradient, teacher: CentroidGradient) -> Tensor:
    """Sum softmax(scores)^T vectors over student and teacher: see `excb.objective.scores.Operations`."""
    from excb.objective import triton_kernels as kernels

    rows, centroids, teacher_rows = map(_operand, (student.scores.rows, student.scores.centroids, teacher.scores.rows))
    (K, D), tile = centroids.shape, _tiles(rows).gradient
    width = _width(D)
    out = torch.empty(K, D, device=rows.device)
    with current_device(out.device):
        kernels.centroid_gradient_kernel[(_ceil(K, tile.kept),)](
            out,
            centroids,
            rows,
            student.peak,
            student.weights.contiguous(),
            len(student.peak),
            _factor(student.scores),
            _operand(teacher.scores.centroids),
            teacher_rows,
            teacher.peak,
            teacher.weights.contiguous(),
            teacher.vectors.to(rows.dtype).contiguous(),
            len(teacher.peak),
            _factor(teacher.scores),
            *_balancing(teacher.scores),
            K,
            **_switches(teacher.scores),
            D=D,
            WIDTH=width,
            ROWS=tile.walked,
            CLUSTERS=tile.kept,
            STEP=_step(tile, width),
            num_warps=_WARPS,
            num_stages=_stages(tile, 2),
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


def _operand(vectors: Tensor) -> Tensor:
    """The vectors in a type that kernels multiply."""
    return (vectors if vectors.dtype == torch.bfloat16 else vectors.float()).contiguous()


def _tiles(rows: Tensor) -> Tiles:
    """The tiles for these rows on their device."""
    capability = _SMALLEST  # where kernels are interpreted
    if rows.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(rows.device)
        capability = (major, minor if major == 8 else 0)  # 8.6 and 8.9 have less shared memory than 8.0
    return TILES.get((capability, rows.dtype)) or TILES[_SMALLEST, rows.dtype]


def _step(tile: Tile, width: int) -> int:
    """Columns of which scores are summed at a time."""
    return min(tile.step or width, width)


def _stages(tile: Tile, tensors: int) -> int:
    """Of the pipeline that loads what a program walks over. Where scores are summed in steps, those have their own."""
    return 1 if tile.step else 4 - tensors


def _groups(programs: int, most: int, device: torch.device) -> int:
    """Into how many groups to split the centroids, so that the last wave of programs is as full as can be."""
    processors = 6  # where kernels are interpreted
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    choices = range(1, min(most, _ceil(2 * processors, programs)) + 1)
    return max(choices, key=lambda groups: (programs * groups / _ceil(programs * groups, processors), -groups))
