"""Types that loss backends exchange: scores, their softmax averages, terms of the centroids' gradient, assignments.

Letters: V views, G of them global, B images, R rows, K clusters, D width.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """Scores of R rows for K centroids: similarities x . c_k, which may be balanced, as what they are computed from."""

    rows: Tensor  # [R, D]
    centroids: Tensor  # [K, D], of the rows' type
    temperature: float  # p = softmax(scores / temperature)
    balance: tuple[Tensor, Tensor] | None = None  # scale [K] and offset [K]: similarity * scale + offset
    bounds: tuple[float, float] | None = None  # scores are clamped to these
    replaced: tuple[Tensor, Tensor] | None = None  # clusters [R], scores [R]: one score of each row is replaced


@dataclass(frozen=True)
class Average:
    """Softmax averages of R rows, where p_k = exp((score_k - peak) / temperature) / total."""

    mean: Tensor  # [R, D] sum_k p_k v_k
    peak: Tensor  # [R] max_k score_k
    total: Tensor  # [R] sum_k exp((score_k - peak) / temperature)
    winners: Tensor  # [R] argmax_k score_k, the first of equals; only if asked for
    raw_winners: Tensor  # [R] argmax_k x . c_k, likewise


@dataclass(frozen=True)
class CentroidGradient:
    """One term of the centroids' gradient: sum_r exp((score_rk - peak_r) / temperature) w_r y_r for every k."""

    scores: Scores
    peak: Tensor  # [R]
    weights: Tensor  # [R] w
    vectors: Tensor  # [R, D] y


class Operations(Protocol):
    """The functions that a streamed backend's module provides."""

    def average(self, scores: Scores, values: Tensor | None, *, winners: bool) -> Average:
        """Average `values` [K, D] by p. Without values there is no mean."""

    def centroid_gradient(self, student: CentroidGradient, teacher: CentroidGradient) -> Tensor:
        """Sum both terms, [K, D] in the scores' precision.

        The student's vectors are its rows, and its scores are plain similarities. The teacher's scores are balanced.
        """


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The teacher's assignment of R rows to clusters. Nothing in it has a gradient."""

    winners: Tensor  # [R] argmax_k of p_t
    raw_winners: Tensor  # [R] argmax_k of z_t, before B
    confidence: Tensor  # [R] max_k of p_t
