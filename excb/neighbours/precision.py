"""Error bounds of similarities in each precision, and dot products that do not depend on the order of summing.

Letters: D feature width.
"""

import math

import torch
from torch import Tensor

GRID = 2.0**-36  # similarities are rounded to multiples of it: see `Search._compare`
SINGLE = 6.1 * 2.0**-24  # error of `UnitRows.approximate`


def lowered(single: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return rows of about unit length in a lower precision, and a bound [n] float64 on the length of each one's error.

    By Cauchy-Schwarz that length bounds the error of any similarity.
    """
    low = single.to(kind)
    if kind == torch.float32:
        return low, torch.full_like(single[:, 0], SINGLE, dtype=torch.float64)
    return low, torch.linalg.vector_norm(single.sub_(low), dim=1).double().mul_(1.01).add_(SINGLE)


def float32_error(D: int) -> float:
    """Return a bound on the error of a dot product of D terms, in float32, of rows of about unit length.

    Let u = 2^-24. In any order of summing, with or without fused multiply-adds, D products are off by at most
    D u / (1 - D u) times both norms (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). The rows' own error
    is counted separately. The added u and the factor 1.02 cover smaller terms: norms that bfloat16 moves from 1 (below
    2^-8 each), underflow (D 2^-120) and the rounding of the similarities in float64 (2^-51 D).
    """
    u = 2.0**-24
    return 1.02 * (D / (1 - D * u) + 1) * u


def float64_error(D: int) -> float:
    """Return a bound on the difference of quick similarities in float64 from those of `dots`.

    As in `float32_error` with u = 2^-53: D u from summing, 8 u from scaling, and 2^-51 D from what `dots` leaves out.
    """
    return 1.01 * (5 * D + 8) * 2.0**-53


def dots(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """Return the dot products [..., m, n] of split unit rows, left [..., m, D] and right [..., n, D], in float64.

    Matrix kernels add in an order that depends on shapes and device, so rounding could make equal rows differ. Here no
    sum rounds. Every coordinate is split into a coarse part, a multiple of 2^-26 up to 1, and a fine one, a multiple of
    2^-s up to 2^-27. By Cauchy-Schwarz, partial sums of coarse x coarse stay below 2 in steps of 2^-52, and those of
    coarse x fine below 2^-26 sqrt(D) in steps of 2^-(26 + s). With 2^s <= 2^52 / sqrt(D) none needs more than the 53
    bits of float64. The terms left out (finer than 2^-s, or fine x fine) amount to less than 2^-51 D, typically 1e-14.
    """
    (a, b), (c, d) = left, right
    return a @ c.mT + (a @ d.mT + b @ c.mT)


def rounded_dots(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """Return `dots` rounded to GRID."""
    return dots(left, right).div_(GRID).round_().mul_(GRID)


def split(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Split unit rows [..., D] in float64 into the coarse and fine parts of `dots`. `rows` is overwritten."""
    fine_step = 52 - math.ceil(math.log2(rows.shape[-1]) / 2)
    coarse_round, fine_round = 1.5 * 2.0**26, 1.5 * 2.0 ** (52 - fine_step)
    coarse = (rows + coarse_round).sub_(coarse_round)  # the sum has no room for finer bits
    return coarse, rows.sub_(coarse).add_(fine_round).sub_(fine_round)
