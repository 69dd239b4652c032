"""Metrics, n-shot episodes and standings against loops and figures worked by hand."""

import numpy as np
import pytest
import torch

from excb.seeding import Purpose, generator
from excb.transfer.sets.episodes import episodes, interval
from excb.transfer.sets.metrics import MAP, MAP11, MEAN_PER_CLASS, TOP1
from excb.transfer.sets.standings import Standing, mean_ranks, table, tiers
from excb.transfer.sets.tables import to_csv, to_markdown

TARGETS = np.array([0, 0, 0, 0, 1, 1])
HITS = np.array([True, True, True, False, False, True])


def test_mean_per_class_gives_every_class_the_same_weight() -> None:
    assert TOP1.percent(HITS, TARGETS) == pytest.approx(100 * 4 / 6)
    assert MEAN_PER_CLASS.percent(HITS, TARGETS) == pytest.approx(100 * (3 / 4 + 1 / 2) / 2)


def test_a_class_without_an_image_in_a_resample_does_not_count() -> None:
    weights = np.array([[1, 1, 0, 2, 0, 0], [1, 1, 1, 1, 0, 2]])
    found = MEAN_PER_CLASS.of(HITS, TARGETS, weights)
    assert found == pytest.approx([2 / 4, (3 / 4 + 2 / 2) / 2])


def test_guesses_without_a_look_at_an_image() -> None:
    train = np.array([1, 1, 0])
    assert TOP1.majority(train, TARGETS) == pytest.approx(100 * 2 / 6)
    assert MEAN_PER_CLASS.majority(train, TARGETS) == pytest.approx(50)
    targets = np.array([[1, 0], [0, 0], [1, 1], [1, 0]])
    assert MAP.majority(targets, targets) == pytest.approx(100 * (3 / 4 + 1 / 4) / 2)


def test_map_of_two_classes_by_hand() -> None:
    targets = np.array([[1, 0], [0, 1], [1, -1], [0, 1]])
    scores = np.array([[0.9, 0.1], [0.8, 0.9], [0.7, 0.8], [0.1, 0.5]])
    # Class 0: positives at ranks 1 and 3, precisions 1 and 2/3. Class 1, without the ignored image: at ranks 1 and 2.
    assert MAP.percent(scores, targets) == pytest.approx(100 * ((1 + 2 / 3) / 2 + 1) / 2)
    # 11 points: recall up to 0.5 has precision 1 (six points), above it 2/3 (five).
    assert MAP11.percent(scores, targets) == pytest.approx(100 * ((6 * 1 + 5 * 2 / 3) / 11 + 1) / 2)


def test_episodes_are_nearest_means_of_shots() -> None:
    random = np.random.default_rng(0)
    rows, queries = random.normal(size=(23, 5)), random.normal(size=(11, 5))
    labels = np.array([0] * 10 + [1] * 10 + [2] * 3)  # the last class has fewer images than five shots
    answers = random.integers(3, size=11)

    def score(guesses: np.ndarray) -> float:
        return float((guesses == answers).mean())

    found = episodes(torch.from_numpy(rows), labels, torch.from_numpy(queries), shots=(1, 5), count=4, score=score)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for episode in range(4):
        drawn = generator(Purpose.SPLIT, episode, len(labels), 4).random(len(labels))
        for shots in (1, 5):
            means = []
            for label in range(3):
                own = sorted((place for place in range(23) if labels[place] == label), key=lambda place: drawn[place])
                means.append(unit[own[:shots]].mean(0))
            guesses = [int(np.argmax([query @ mean / np.linalg.norm(mean) for mean in means])) for query in queries]
            assert found[shots][episode] == pytest.approx(score(np.array(guesses)))


def test_the_interval_of_episodes_is_students() -> None:
    assert interval(np.array([50.0])) == (50.0, 50.0)
    # t of 3 degrees of freedom at 97.5 % is 3.1824; the deviation of these is 2.5820, over 2 the standard error 1.2910.
    assert interval(np.array([47.0, 49.0, 51.0, 53.0])) == pytest.approx((50 - 4.1085, 50 + 4.1085), abs=1e-3)


def standing(name: str, figures: dict[str, float], *, reference: bool = False) -> Standing:
    """Draws 1 point to either side of each figure, in an order of its own."""
    spread = np.linspace(-1, 1, 101)
    order = np.random.default_rng(len(name)).permutation(101)
    return Standing(
        name,
        reference,
        figures,
        {key: (value - 1, value + 1) for key, value in figures.items()},
        {key: value + spread[order] for key, value in figures.items()},
    )


def test_ranks_of_equals_are_shared() -> None:
    three = [
        standing("a", {"x": 80.0, "y": 50.0}),
        standing("bb", {"x": 80.0, "y": 60.0}),
        standing("ccc", {"x": 10.0, "y": 70.0}),
    ]
    assert mean_ranks(three, ["x", "y"]) == {"a": (1.5 + 3) / 2, "bb": (1.5 + 2) / 2, "ccc": (3 + 1) / 2}


def test_tiers_hold_what_does_not_differ_from_their_best() -> None:
    draws = {"a": np.linspace(70, 72, 101), "b": np.linspace(72, 70, 101) - 0.5, "c": np.linspace(60, 62, 101)}
    assert tiers({"a": 71.0, "b": 70.5, "c": 61.0}, draws) == {"a": 1, "b": 1, "c": 2}
    equal = {"a": np.linspace(70, 72, 101), "b": np.linspace(70, 72, 101) - 0.5}  # always half a point behind
    assert tiers({"a": 71.0, "b": 70.5}, equal) == {"a": 1, "b": 2}


def test_means_are_over_sets_that_every_checkpoint_has() -> None:
    made = table(
        "knn",
        [
            standing("a", {"x": 80.0, "y": 50.0, "z": 1.0}),
            standing("bb", {"x": 60.0, "y": 60.0}),
            standing("pixels", {"x": 20.0}, reference=True),
        ],
        ["x", "y", "z", "w"],
    )
    assert (list(made.sets), list(made.common)) == (["x", "y", "z"], ["x", "y"])
    first, second, pixels = made.rows
    assert first.mean is not None
    assert second.mean is not None
    assert (first.mean.value, second.mean.value, pixels.mean) == (65.0, 60.0, None)
    assert (first.rank, second.rank, pixels.rank) == (1.5, 1.5, None)
    assert pixels.cells["x"].tier is None
    assert [row.cells["x"].tier for row in (first, second)] == [1, 2]
    lines = to_csv([made]).splitlines()
    assert "a,measured,knn,mean,65.0" in "\n".join(lines)
    assert len(lines) == 1 + 4 + 3 + 1
    text = to_markdown([made], {"x": "top-1"}, {"w": "no folder w"})
    assert "80.00 (79.0 to 81.0)" in text
    assert "no folder w" in text
