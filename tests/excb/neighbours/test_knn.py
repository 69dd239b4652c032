"""The k-NN vote, against a plain loop and scikit-learn."""

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from excb.errors import UserError
from excb.neighbours import knn
from excb.neighbours.knn import Vote, top_accuracies, vote, vote_on_labels
from excb.neighbours.nearest import Neighbours, nearest
from tests.excb.neighbours.features import LargestTensor, random_features

pytestmark = pytest.mark.usefixtures("one_thread")


def test_no_array_grows_with_queries_times_classes() -> None:
    indices = torch.arange(10).repeat(500, 1)
    neighbours = Neighbours(indices, 1 - indices.double() / 10)
    with mock.patch.multiple(knn, _SCORES=1000), LargestTensor() as largest:
        votes = vote(neighbours, torch.arange(10), ks=[5, 10], temperatures=[0.07], classes=100)
    assert votes[10, 0.07].top5.tolist() == [[0, 1, 2, 3, 4]] * 500
    assert largest.elements == votes[10, 0.07].top5.numel()  # Q x classes is 20 times that


def loop_vote(
    similarities: Tensor, labels: list[list[int]], k: int, temperature: float, classes: int
) -> list[list[int]]:
    """The classes of every query by (-score, class), scores added up one by one; those without a vote are -1."""
    ranking = []
    for line, voted in zip(similarities.tolist(), labels, strict=True):
        scores: dict[int, float] = {}
        for similarity, label in list(zip(line, voted, strict=True))[:k]:
            scores[label] = scores.get(label, 0.0) + math.exp(similarity / temperature)
        ranking.append(sorted(scores, key=lambda c: (-scores[c], c)) + [-1] * (classes - len(scores)))
    return ranking


@settings(max_examples=25, deadline=None, database=None)
@given(
    lines=st.lists(
        st.lists(st.sampled_from([-0.25, 0.0, 0.5, 0.875, 1.0]), min_size=6, max_size=6), min_size=1, max_size=9
    ),
    labels=st.lists(st.integers(0, 6), min_size=20, max_size=20),
    classes=st.integers(7, 9),
    ks=st.lists(st.integers(1, 6), min_size=1),
    data=st.data(),
)
def test_vote_against_a_loop(
    lines: list[list[float]], labels: list[int], classes: int, ks: list[int], data: st.DataObject
) -> None:
    similarities = torch.tensor(lines, dtype=torch.float64).sort(dim=1, descending=True).values
    indices = torch.tensor([data.draw(st.permutations(range(20)))[:6] for _ in lines])
    with mock.patch.multiple(knn, _SCORES=20):
        neighbours = Neighbours(indices, similarities)
        votes = vote(neighbours, torch.tensor(labels), ks=ks, temperatures=[0.07], classes=classes)
    assert list(votes) == [(k, 0.07) for k in sorted(set(ks))]
    voted = [[labels[i] for i in line] for line in indices.tolist()]
    for (k, _), result in votes.items():
        expected = loop_vote(similarities, voted, k, 0.07, classes)
        assert result.top5.tolist() == [ranking[:5] for ranking in expected]
        assert result.top1.tolist() == [ranking[0] for ranking in expected]


def test_vote_on_labels_against_a_loop() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(-1, 2, (20, 5))
    labels[:, 4] = -1  # nobody has a vote on it
    similarities = torch.from_numpy(np.sort(random.random((7, 6)))[:, ::-1].copy())
    indices = torch.from_numpy(np.stack([random.permutation(20)[:6] for _ in range(7)]))
    with mock.patch.multiple(knn, _LABELS=40):
        found = vote_on_labels(Neighbours(indices, similarities), torch.from_numpy(labels), k=4, temperature=0.1)
    for query, label in np.ndindex(7, 5):
        voters = [(math.exp(similarities[query, n] / 0.1), labels[indices[query, n], label]) for n in range(4)]
        every = sum(weight for weight, vote in voters if vote >= 0)
        right = sum(weight for weight, vote in voters if vote == 1)
        assert float(found[query, label]) == pytest.approx(right / every if every else 0, abs=1e-12)


def neighbours_of_one(*similarities: float) -> Neighbours:
    return Neighbours(torch.arange(len(similarities))[None], torch.tensor([similarities], dtype=torch.float64))


@pytest.mark.parametrize(
    ("similarities", "labels", "top1", "tied"),
    [
        ((0.5, 0.5), [2, 1], 1, True),
        ((0.5, 0.5 - 1e-9), [2, 1], 2, True),
        ((0.5, 0.5 - 1e-6), [2, 1], 2, False),
        ((0.5, 0.5, 0.1), [2, 1, 2], 2, False),
        ((0.5, 0.4), [2, 2], 2, False),
        ((-0.5, -0.9), [0, 1], 0, False),
        ((0.5,) * 10 + (0.5 - 3e-8,) * 10, [1] * 10 + [0] * 10, 1, True),  # scores 10 and 10 - 4.3e-6
    ],
)
def test_ties_of_votes(similarities: tuple[float, ...], labels: list[int], top1: int, tied: bool) -> None:
    k = len(labels)
    result = vote(neighbours_of_one(*similarities), torch.tensor(labels), ks=[k], temperatures=[0.07], classes=3)[
        k, 0.07
    ]
    assert (result.top1.tolist(), result.tied.tolist()) == ([top1], [tied])
    assert result.top5.shape == (1, 3)


def test_one_class_is_never_tied() -> None:
    result = vote(neighbours_of_one(1.0, 1.0), torch.tensor([0, 0]), ks=[2], temperatures=[0.07], classes=1)[2, 0.07]
    assert (result.top1.tolist(), result.top5.tolist(), result.tied.tolist()) == ([0], [[0]], [False])


def test_low_temperatures_do_not_overflow() -> None:
    neighbours = neighbours_of_one(1.0, 0.999, 0.9)
    result = vote(neighbours, torch.tensor([2, 1, 1]), ks=[3], temperatures=[1e-4], classes=3)[3, 1e-4]
    assert result.top5.tolist() == [[2, 1, -1]]  # exp(-1000) is 0 in float64, and still a vote


def test_digits_as_scikit_learn_classifies_them() -> None:
    features, labels = load_digits(return_X_y=True)
    bank, queries = torch.from_numpy(features[:1200]), torch.from_numpy(features[1200:])
    neighbours = nearest(bank, queries, 50)
    votes = vote(neighbours, torch.from_numpy(labels[:1200]), ks=[10, 50], temperatures=[0.07], classes=10)
    for (k, _), result in votes.items():
        classifier = KNeighborsClassifier(
            k, metric="cosine", algorithm="brute", weights=lambda distances: np.exp((1 - distances) / 0.07)
        ).fit(features[:1200], labels[:1200])
        np.testing.assert_array_equal(result.top1, classifier.predict(features[1200:]))
        top1, top5 = top_accuracies(result, torch.from_numpy(labels[1200:]))
        assert top1 == pytest.approx(100 * classifier.score(features[1200:], labels[1200:]))
        assert 90 < top1 < top5 <= 100


def dinos_top5(neighbours: Neighbours, labels: Tensor, targets: Tensor, *, k: int, classes: int) -> tuple[float, float]:
    """The least and the most that DINO's code can give: its sort may put classes without a vote in any order."""
    one_hot = torch.nn.functional.one_hot(labels[neighbours.indices[:, :k]], classes)
    scores = (one_hot * (neighbours.similarities[:, :k, None] / 0.07).exp()).sum(1)
    of_target = scores.gather(1, targets[:, None])
    better, voted = (scores > of_target).sum(1), of_target[:, 0] > 0
    sure = voted & (better < min(5, k))
    possible = sure | (~voted & ((scores > 0).sum(1) < min(5, k)))
    return 100 * sure.double().mean().item(), 100 * possible.double().mean().item()


def test_top5_credits_no_class_without_a_vote() -> None:
    features, labels = load_digits(return_X_y=True)
    rows, classes = torch.from_numpy(features), torch.from_numpy(labels)
    found = nearest(rows[:300], rows[300:], 10)
    votes = vote(found, classes[:300], ks=[1, 10], temperatures=[0.07], classes=10)
    for (k, _), result in votes.items():
        least, most = dinos_top5(found, classes[:300], classes[300:], k=k, classes=10)
        assert top_accuracies(result, classes[300:])[1] == pytest.approx(least)
        assert k == 1 or least < most
    top1, top5 = top_accuracies(votes[1, 0.07], classes[300:])
    assert top1 == top5  # one neighbour votes for one class


def test_accuracy_counts_in_percent() -> None:
    top5 = torch.tensor([[3, 1, 0, 2, 4], [0, 1, 2, 3, 4], [5, 4, 3, -1, -1], [1, 0, 2, 3, 4]])
    result = Vote(top5[:, 0], top5, torch.zeros(4, dtype=torch.bool))
    assert top_accuracies(result, torch.tensor([3, 4, 0, 1])) == (50.0, 75.0)
    with pytest.raises(UserError, match="one per query"):
        top_accuracies(result, torch.tensor([3, 4, 0]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ks": [3]}, "every k must lie in 1 to 2"),
        ({"ks": [0, 1]}, "every k must lie in 1 to 2"),
        ({"ks": []}, "every k must lie in 1 to 2"),
        ({"temperatures": [0.07, 0.0]}, "choose a number above 0"),
        ({"temperatures": [math.nan]}, "choose a number above 0"),
        ({"labels": torch.tensor([0])}, "one label per row"),
        ({"labels": torch.tensor([0, 3])}, "outside 0 to 2"),
        ({"labels": torch.tensor([-1, 1])}, "outside 0 to 2"),
    ],
)
def test_mistakes_in_a_vote(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"labels": torch.tensor([0, 1]), "ks": [2], "temperatures": [0.07], "classes": 3}
    with pytest.raises(UserError, match=message) as error:
        vote(neighbours_of_one(0.9, 0.8), **arguments | changes)
    assert "\n" not in str(error.value)


def test_several_temperatures_vote_in_one_pass() -> None:
    features, labels = random_features(300, 8), torch.arange(300) % 7
    found = nearest(features, features, 20, exclude_self=True)
    votes = vote(found, labels, ks=[20, 5], temperatures=[0.07, 1.0], classes=7)
    assert list(votes) == [(5, 0.07), (5, 1.0), (20, 0.07), (20, 1.0)]
    for (k, temperature), several in votes.items():
        one = vote(found, labels, ks=[k], temperatures=[temperature], classes=7)[k, temperature]
        assert torch.equal(one.top5, several.top5)
        assert torch.equal(one.tied, several.tied)
    with pytest.raises(UserError, match="choose one or several"):
        vote(found, labels, ks=[5], temperatures=[], classes=7)
