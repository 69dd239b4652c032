# Triton reads names and constants from signatures, not types, and a kernel takes whatever it needs by position.
# ruff: noqa: ANN001, ANN201, ANN202, C901, PLR0912, PLR0915, PLR0917
# mypy: ignore-errors
"""Triton kernels of `excb.objective.triton`: softmax averages over centroids, their merging, the transposed product.

Where vectors are both factors of a product (keys and values, or rows and vectors), a tile is loaded once. Products
accumulate in float32, in which everything else is computed. Those of float32 need many registers for their factors, so
scores sum over columns STEP by STEP, and no tile of rows stays in registers.
"""

import triton
import triton.language as tl

# Of products of float32: three of TF32, exact to the last bits of float32. Products of bfloat16 are exact anyway.
PRECISION = tl.constexpr("tf32x3")


@triton.jit
def _vectors(pointer, line, lines, first, D: tl.constexpr, WIDTH: tl.constexpr):
    """Some lines of a contiguous [lines, D] as a tile of WIDTH columns; zero beyond its ends.

    The first column is a multiple of WIDTH.
    """
    column = first + tl.arange(0, WIDTH)
    if D % WIDTH == 0:
        return tl.load(pointer + line[:, None] * D + column[None, :], mask=line[:, None] < lines, other=0.0)
    inside = (line[:, None] < lines) & (column[None, :] < D)
    return tl.load(pointer + line[:, None] * D + column[None, :], mask=inside, other=0.0)


@triton.jit
def _similarities(a, i, A, b, j, B, D: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr):
    """Products of lines i of [A, D] and lines j of [B, D], STEP columns at a time."""
    sums = tl.zeros([i.shape[0], j.shape[0]], tl.float32)
    for first in tl.range(0, WIDTH, STEP, num_stages=2):
        x, y = _vectors(a, i, A, first, D, STEP), _vectors(b, j, B, first, D, STEP)
        sums = tl.dot(x, tl.trans(y), sums, input_precision=PRECISION)
    return sums


@triton.jit
def _balance(scores, k, scale, offset, cluster, score, low, high, BOUNDED: tl.constexpr, REPLACED: tl.constexpr):
    """Balanced scores of similarities. k, scale and offset lie along the clusters, cluster and score along the rows."""
    scores = scores * scale + offset
    if BOUNDED:  # comparisons let NaN through
        scores = tl.where(scores > high, high, scores)
        scores = tl.where(scores < low, low, scores)
    if REPLACED:
        scores = tl.where(k == cluster, score, scores)
    return scores


@triton.jit
def average_kernel(
    rows,  # [R, D]
    centroids,  # [K, D]
    values,  # [K, D]
    scale,  # [K]
    offset,  # [K]
    cluster,  # [R]
    score,  # [R]
    low,
    high,
    mean,  # [groups, R, D], before division by the total
    peak,  # [groups, R], and so the rest
    total,
    winner,
    raw_peak,
    raw_winner,
    R,
    K,
    group,  # clusters in each group
    factor,  # of scores in exponents of 2
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    CLUSTERS: tl.constexpr,
    STEP: tl.constexpr,  # columns of which scores are summed at a time
    BALANCED: tl.constexpr,
    BOUNDED: tl.constexpr,
    REPLACED: tl.constexpr,
    WINNERS: tl.constexpr,
    VALUES: tl.constexpr,  # 0 none, 1 the centroids, 2 others
):
    """Attention with one head, whose keys all rows share: a program has a tile of rows and a group of clusters."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = r < R
    if STEP == WIDTH:
        x = _vectors(rows, r, R, 0, D, WIDTH)
    of_cluster, of_score = 0, 0.0
    if REPLACED:
        of_cluster = tl.load(cluster + r, mask=present, other=-1)[:, None]
        of_score = tl.load(score + r, mask=present, other=0.0)[:, None]
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    best = tl.zeros([ROWS], tl.int32)
    raw_highest = tl.full([ROWS], float("-inf"), tl.float32)
    raw_best = tl.zeros([ROWS], tl.int32)
    if VALUES:
        sum_of_values = tl.zeros([ROWS, WIDTH], tl.float32)
    first = tl.program_id(1) * group
    for start in range(first, tl.minimum(first + group, K), CLUSTERS):
        k = start + tl.arange(0, CLUSTERS)
        valid = k < K
        if STEP == WIDTH:
            c = _vectors(centroids, k, K, 0, D, WIDTH)
            scores = tl.dot(x, tl.trans(c), input_precision=PRECISION)
        else:
            scores = _similarities(rows, r, R, centroids, k, K, D, WIDTH, STEP)
        if WINNERS:
            top, column = tl.max(tl.where(valid[None, :], scores, float("-inf")), 1, return_indices=True)
            raw_best = tl.where(top > raw_highest, start + column, raw_best)
            raw_highest = tl.maximum(raw_highest, top)
        if BALANCED:
            of_scale = tl.load(scale + k, mask=valid, other=0.0)[None, :]
            of_offset = tl.load(offset + k, mask=valid, other=0.0)[None, :]
            scores = _balance(
                scores, k[None, :], of_scale, of_offset, of_cluster, of_score, low, high, BOUNDED, REPLACED
            )
        scores = tl.where(valid[None, :], scores, float("-inf"))
        if WINNERS:
            top, column = tl.max(scores, 1, return_indices=True)
            best = tl.where(top > highest, start + column, best)
        else:
            top = tl.max(scores, 1)
        top = tl.maximum(highest, top)
        decay = tl.exp2((highest - top) * factor)  # 0 in the first tile
        scores = tl.exp2((scores - top[:, None]) * factor)
        sums = sums * decay + tl.sum(scores, 1)
        if VALUES:
            if VALUES == 2:
                v = _vectors(values, k, K, 0, D, WIDTH)
            elif STEP == WIDTH:
                v = c
            else:
                v = _vectors(centroids, k, K, 0, D, WIDTH)
            sum_of_values = sum_of_values * decay[:, None]
            sum_of_values = tl.dot(scores.to(v.dtype), v, sum_of_values, input_precision=PRECISION)
        highest = top
    line = tl.program_id(1) * R + r
    tl.store(peak + line, highest, mask=present)
    tl.store(total + line, sums, mask=present)
    if WINNERS:
        tl.store(winner + line, best, mask=present)
        tl.store(raw_peak + line, raw_highest, mask=present)
        tl.store(raw_winner + line, raw_best, mask=present)
    if VALUES:
        column = tl.arange(0, WIDTH)
        inside = present[:, None] & (column[None, :] < D)
        tl.store(mean + line[:, None] * D + column[None, :], sum_of_values, mask=inside)


@triton.jit
def centroid_gradient_kernel(
    out,  # [K, D]
    centroids,  # the student's: [K, D]
    rows,  # [R, D]
    peak,  # [R]
    weight,  # [R]
    R,
    factor,
    t_centroids,  # the teacher's, likewise
    t_rows,
    t_peak,
    t_weight,
    t_vectors,  # [t_R, D]: unlike the student's, they are not its rows
    t_R,
    t_factor,
    scale,
    offset,
    cluster,
    score,
    low,
    high,
    K,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    CLUSTERS: tl.constexpr,
    STEP: tl.constexpr,  # columns of which scores are summed at a time
    BOUNDED: tl.constexpr,
    REPLACED: tl.constexpr,
):
    """The transposed product, of student and teacher: a program has a tile of clusters and walks over all rows."""
    k = tl.program_id(0) * CLUSTERS + tl.arange(0, CLUSTERS)
    valid = k < K
    sums = tl.zeros([CLUSTERS, WIDTH], tl.float32)
    if STEP == WIDTH:
        c = _vectors(centroids, k, K, 0, D, WIDTH)
    for start in range(0, R, ROWS):
        r = start + tl.arange(0, ROWS)
        x = _vectors(rows, r, R, 0, D, WIDTH)
        if STEP == WIDTH:
            scores = tl.dot(c, tl.trans(x), input_precision=PRECISION)
        else:
            scores = _similarities(centroids, k, K, rows, r, R, D, WIDTH, STEP)
        # Beyond R, p is exp(0 - infinity).
        p = tl.exp2((scores - tl.load(peak + r, mask=r < R, other=float("inf"))[None, :]) * factor)
        p = p * tl.load(weight + r, mask=r < R, other=0.0)[None, :]
        sums = tl.dot(p.to(x.dtype), x, sums, input_precision=PRECISION)
    if STEP == WIDTH:
        c = _vectors(t_centroids, k, K, 0, D, WIDTH)
    of_scale = tl.load(scale + k, mask=valid, other=0.0)[:, None]
    of_offset = tl.load(offset + k, mask=valid, other=0.0)[:, None]
    for start in range(0, t_R, ROWS):
        of_cluster, of_score = 0, 0.0
        r = start + tl.arange(0, ROWS)
        if STEP == WIDTH:
            scores = tl.dot(c, tl.trans(_vectors(t_rows, r, t_R, 0, D, WIDTH)), input_precision=PRECISION)
        else:
            scores = _similarities(t_centroids, k, K, t_rows, r, t_R, D, WIDTH, STEP)
        if REPLACED:
            of_cluster = tl.load(cluster + r, mask=r < t_R, other=-1)[None, :]
            of_score = tl.load(score + r, mask=r < t_R, other=0.0)[None, :]
        scores = _balance(scores, k[:, None], of_scale, of_offset, of_cluster, of_score, low, high, BOUNDED, REPLACED)
        p = tl.exp2((scores - tl.load(t_peak + r, mask=r < t_R, other=float("inf"))[None, :]) * t_factor)
        p = p * tl.load(t_weight + r, mask=r < t_R, other=0.0)[None, :]
        y = _vectors(t_vectors, r, t_R, 0, D, WIDTH)
        sums = tl.dot(p.to(y.dtype), y, sums, input_precision=PRECISION)
    column = tl.arange(0, WIDTH)
    inside = valid[:, None] & (column[None, :] < D)
    tl.store(out + k[:, None] * D + column[None, :], sums, mask=inside)


@triton.jit
def merge(
    group_mean,  # what `average_kernel` returned, [groups, R, ...]
    group_peak,
    group_total,
    group_winner,
    group_raw_peak,
    group_raw_winner,
    mean,  # [R, D], and so the rest
    peak,
    total,
    winner,
    raw_winner,
    groups,
    R,
    factor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    WINNERS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Merge the groups' averages. A later group takes over only by a higher score, so the first of equals wins."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = r < R
    column = tl.arange(0, WIDTH)
    inside = present[:, None] & (column[None, :] < D)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    best = tl.zeros([ROWS], tl.int64)
    raw_highest = tl.full([ROWS], float("-inf"), tl.float32)
    raw_best = tl.zeros([ROWS], tl.int64)
    sum_of_values = tl.zeros([ROWS, WIDTH], tl.float32)
    for group in range(groups):
        line = group * R + r
        top = tl.load(group_peak + line, mask=present, other=0.0)
        if WINNERS:
            best = tl.where(top > highest, tl.load(group_winner + line, mask=present, other=0).to(tl.int64), best)
            raw_top = tl.load(group_raw_peak + line, mask=present, other=0.0)
            raw_column = tl.load(group_raw_winner + line, mask=present, other=0).to(tl.int64)
            raw_best = tl.where(raw_top > raw_highest, raw_column, raw_best)
            raw_highest = tl.maximum(raw_highest, raw_top)
        both = tl.maximum(highest, top)
        decay, share = tl.exp2((highest - both) * factor), tl.exp2((top - both) * factor)
        sums = sums * decay + tl.load(group_total + line, mask=present, other=1.0) * share
        if VALUES:
            more = tl.load(group_mean + line[:, None] * D + column[None, :], mask=inside, other=0.0)
            sum_of_values = sum_of_values * decay[:, None] + more * share[:, None]
        highest = both
    tl.store(peak + r, highest, mask=present)
    tl.store(total + r, sums, mask=present)
    if WINNERS:
        tl.store(winner + r, best, mask=present)
        tl.store(raw_winner + r, raw_best, mask=present)
    if VALUES:
        tl.store(mean + r[:, None] * D + column[None, :], sum_of_values / sums[:, None], mask=inside)
