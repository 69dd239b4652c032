"""Metrics, n-shot episodes and standings against loops and figures worked by hand."""

import numpy as np
import pytest
import torch
from scipy import stats

from excb.inference.jackknife import group_pairs, left_out
from excb.seeding import Purpose, generator
from excb.transfer.every.comparison import side_by_side
from excb.transfer.sets.episodes import episode_interval, episodes
from excb.transfer.sets.gathering import tables_as_csv
from excb.transfer.sets.metrics import MAP, MAP11, MEAN_PER_CLASS, TOP1, Metric
from excb.transfer.sets.standings import MEAN, HeadFigures, SetAnswers, head_table
from excb.transfer.standings.forms import Sheet, sheet_as_markdown
from tests.transfer.evaluated_checkpoints import FIGURE, evaluated

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
    tied = np.array([0, 1, 2, 2, 1, 0])  # of three classes, one is not in test
    assert TOP1.majority(tied, TARGETS) == pytest.approx((100 * 4 / 6 + 100 * 2 / 6 + 0) / 3)
    assert MEAN_PER_CLASS.majority(tied, TARGETS) == pytest.approx((50 + 50 + 0) / 3)
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
    assert episode_interval(np.array([50.0])) is None
    # t of 3 degrees of freedom at 97.5 % is 3.1824; the deviation of these is 2.5820, over 2 the standard error 1.2910.
    assert episode_interval(np.array([47.0, 49.0, 51.0, 53.0])) == pytest.approx((50 - 4.1085, 50 + 4.1085), abs=1e-3)


def answers(name: str, right: float, *, metric: Metric = TOP1, images: int = 400) -> SetAnswers:
    """As many hits as a share of the images, at places that the name chooses."""
    random = np.random.default_rng(list(name.encode()))
    return SetAnswers(metric, random.permutation(images) < round(right * images), np.arange(images) % 4)


def figures(name: str, shares: dict[str, float], *, reference: bool = False) -> HeadFigures:
    made = {key: answers(name + key, share) for key, share in shares.items()}
    percent = {key: 100 * share for key, share in shares.items()}
    intervals = {key: (value - 1, value + 1) for key, value in percent.items()}
    return HeadFigures(name, reference, percent, intervals, {} if reference else made)


def test_ranks_of_equals_are_shared() -> None:
    three = [figures("a", {"x": 0.8, "y": 0.5}), figures("b", {"x": 0.8, "y": 0.6}), figures("c", {"x": 0.1, "y": 0.7})]
    found = head_table("knn", "k-NN", three, ["x", "y"])
    assert found.ranks == {"a": (1.5 + 3) / 2, "b": (1.5 + 2) / 2, "c": (3 + 1) / 2}


def test_means_are_over_sets_that_every_checkpoint_has() -> None:
    made = head_table(
        "knn",
        "k-NN",
        [
            figures("a", {"x": 0.8, "y": 0.5, "z": 0.01}),
            figures("b", {"x": 0.6, "y": 0.6}),
            figures("pixels", {"x": 0.2}, reference=True),
        ],
        ["x", "y", "z", "w"],
    )
    assert (made.sets, list(made.common)) == (["x", "y", "z"], ["x", "y"])
    first, second, pixels = made.table.rows
    assert (first.cells[MEAN].value, second.cells[MEAN].value, MEAN in pixels.cells) == (65.0, 60.0, False)
    assert made.ranks == {"a": 1.5, "b": 1.5}
    assert pixels.cells["x"].tier is None
    assert [row.cells["x"].tier for row in (first, second)] == [1, 2]
    lines = tables_as_csv([made]).splitlines()
    assert "a,measured,knn,mean,65.0" in "\n".join(lines)
    assert len(lines) == 1 + 4 + 3 + 1
    sheet = Sheet("1 set", "", [made.table], "", [("Skipped", [("w", "no folder w", None)])])
    text = sheet_as_markdown(sheet)
    assert "80.00 (79.0 to 81.0)" in text
    assert "no folder w" in text


def test_pairs_are_corrected_over_all_sets_and_the_mean() -> None:
    """Two differ at 5 % on one set alone, and no longer among eight sets and their mean."""
    shares = dict.fromkeys("stuvwxyz", 0.5)
    alone = head_table("knn", "", [figures("a", {"s": 0.5}), figures("b", {"s": 0.585})], ["s"])
    assert [row.cells["s"].tier for row in alone.table.rows] == [2, 1]
    among = head_table("knn", "", [figures("a", shares), figures("b", shares | {"s": 0.585})], list(shares))
    assert len(among.table.p_values) == 9
    assert [row.cells["s"].tier for row in among.table.rows] == [1, 1]


def test_a_figure_that_is_no_mean_over_images_is_tested_by_the_jackknife() -> None:
    first, second = (answers(name, share, metric=MEAN_PER_CLASS) for name, share in (("a", 0.5), ("b", 0.56)))
    stays = np.concatenate(list(left_out(len(first.targets)))) == 1

    def lead(kept: np.ndarray) -> float:
        """The difference of the means of four classes' accuracies."""
        one, other = (
            np.mean([each.answers[kept & (each.targets == label)].mean() for label in range(4)])
            for each in (first, second)
        )
        return float(one - other)

    groups, pairs = len(stays), group_pairs(len(first.targets))
    leads = np.array([lead(kept) for kept in stays])
    twice = [
        groups * lead(stays[0] | True) - (groups - 1) * (leads[i] + leads[j]) + (groups - 2) * lead(stays[i] & stays[j])
        for i, j in pairs
    ]
    error = np.sqrt((groups - 1) / groups * np.square(leads - leads.mean()).sum() - np.var(twice) / 4)
    one, other = (each.metric.percent(each.answers, each.targets) for each in (first, second))
    assert first.p_value(second) == pytest.approx(2 * stats.t.sf(abs(one - other) / 100 / error, groups - 1))


def test_the_same_predictions_have_the_same_tiers_in_all_and_in_sets() -> None:
    random = np.random.default_rng(3)
    images, accuracies = 1000, {"a": 0.80, "b": 0.775, "c": 0.77, "d": 0.765, "e": 0.76}
    hardness = random.uniform(size=images)
    hits = {}
    for name, accuracy in accuracies.items():
        easy, hard = (0.7 * hardness + 0.3 * random.uniform(size=images) for _ in range(2))
        hits[name] = easy < np.quantile(hard, accuracy)
    in_sets = head_table(
        "knn",
        "k-NN",
        [
            HeadFigures(name, False, {"s": 100 * each.mean()}, {}, {"s": SetAnswers(TOP1, each, np.zeros(images, int))})
            for name, each in hits.items()
        ],
        ["s"],
    )
    in_all = side_by_side([evaluated(name, torch.from_numpy(each)) for name, each in hits.items()])
    tiers = [[row.cells[key].tier for row in table.rows if not row.reference]
             for table, key in ((in_sets.table, "s"), (in_all.table, FIGURE))]  # fmt: skip
    assert tiers[0] == tiers[1] == [1, 1, 1, 1, 2]
