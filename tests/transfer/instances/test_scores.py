"""Tests of scores: rankings worked by hand, and every definition once more as a loop."""

from fractions import Fraction

import numpy as np
import pytest

from excb.transfer.instances.scores import Candidates, precision_at, trapezoid_precision, without_junk


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([1], 1.0),
        ([2], (0 + 1 / 2) / 2),
        ([1, 2, 3], 1.0),
        # ROxford's rule: before the image at rank 3 one of two is right, at it two of three.
        ([1, 3], (1 + (1 / 2 + 2 / 3) / 2) / 2),
        ([4, 5], ((0 / 3 + 1 / 4) / 2 + (1 / 4 + 2 / 5) / 2) / 2),
    ],
)
def test_average_precision_by_hand(ranks: list[int], expected: float) -> None:
    assert trapezoid_precision(np.array(ranks)) == pytest.approx(expected)


def test_junk_is_taken_out_of_the_ranking() -> None:
    """Ranking: junk, right, wrong, junk, right, junk. Without junk the right ones are first and third."""
    assert without_junk(np.array([5, 2]), np.array([6, 1, 4])).tolist() == [1, 3]
    assert without_junk(np.array([2]), np.zeros(0, np.int64)).tolist() == [2]
    assert without_junk(np.zeros(0, np.int64), np.array([1])).tolist() == []


@pytest.mark.parametrize(
    ("ranks", "k", "expected"),
    [([1], 1, 1.0), ([2, 7], 1, 0.0), ([2, 7], 5, 1 / 5), ([2, 7], 10, 2 / 7), ([1, 3], 10, 2 / 3), ([1], 10, 1.0)],
)
def test_precision_at_k_by_hand(ranks: list[int], k: int, expected: float) -> None:
    """At k = 10 the last relevant image is seventh, third or first, where ROxford's evaluation stops."""
    assert precision_at(np.array(ranks), k) == pytest.approx(expected)


def curve_by_loop(order: list[str]) -> float:
    """Area under precision over recall, one image at a time; each is "right", "junk" or "wrong"."""
    total = sum(each == "right" for each in order)
    area, seen, right, before = Fraction(0), 0, 0, Fraction(1)
    for each in order:
        if each == "junk":
            continue
        seen += 1
        right += each == "right"
        precision = Fraction(right, seen)
        if each == "right":
            area += (before + precision) / 2 / total
        before = precision
    return float(area)


def test_average_precision_is_the_area_of_the_loop() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        order = random.choice(["right", "junk", "wrong"], size=30).tolist()
        right, junk = (np.flatnonzero(np.array(order) == each) + 1 for each in ("right", "junk"))
        if len(right):
            assert trapezoid_precision(without_junk(right, junk)) == pytest.approx(curve_by_loop(order))


def candidates(rows: list[list[tuple[float, bool]]], positives: list[int]) -> Candidates:
    similarities = np.array([[each[0] for each in row] for row in rows])
    right = np.array([[each[1] for each in row] for row in rows])
    return Candidates(np.zeros(right.shape, np.int64), similarities, right, np.array(positives))


def test_micro_average_precision_by_hand() -> None:
    """One ranking of both queries: 0.9 right, 0.8 wrong, 0.7 right, 0.1 wrong; a third pair was not found."""
    found = candidates([[(0.9, True), (0.1, False)], [(0.8, False), (0.7, True)]], [1, 2])
    assert found.micro_average_precision() == pytest.approx((1 / 1 + 2 / 3 + 0) / 3)
    assert found.recall_at_precision() == pytest.approx(1 / 3)


def test_equal_similarities_are_of_no_use() -> None:
    """A constant similarity ranks wrong pairs first: the only right one comes last."""
    found = candidates([[(0.5, True), (0.5, False)], [(0.5, False), (0.5, False)]], [1, 0])
    assert found.micro_average_precision() == pytest.approx(1 / 4)
    assert found.recall_at_precision() == 0


def micro_by_loop(found: Candidates) -> tuple[float, float]:
    """muAP as a sum over thresholds of precision times what recall grows by, and the recall of precision 0.9."""
    pairs = sorted(
        (-similarity, right)
        for row, own in zip(found.similarities.tolist(), found.right.tolist(), strict=True)
        for similarity, right in zip(row, own, strict=True)
    )
    total, right, area, best = int(found.positives.sum()), 0, 0.0, 0.0
    for seen, (_, good) in enumerate(pairs, 1):
        recall = right / total
        right += good
        area += (right / total - recall) * right / seen
        if right >= 0.9 * seen:
            best = max(best, right / total)
    return area, best


def test_micro_figures_are_those_of_the_loop_and_lie_in_their_intervals() -> None:
    random = np.random.default_rng(1)
    for shift in (0.1, 0.5):
        right = random.random((40, 5)) < 0.3
        similarities = np.round(random.random((40, 5)) + shift * right, 2)  # with ties
        positives = right.sum(1) + (random.random(40) < 0.2)
        found = Candidates(np.zeros_like(right, np.int64), similarities, right, positives)
        area, recall = micro_by_loop(found)
        assert found.micro_average_precision() == pytest.approx(area)
        assert found.recall_at_precision() == pytest.approx(recall)
        ends = found.spread().interval()
        assert ends is not None
        assert 0 <= ends[0] <= 100 * area <= ends[1] <= 100
        assert found.spread() == found.spread()
