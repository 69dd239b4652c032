"""Tests of the exact k-NN search and vote, against oracles in exact fractions, plain loops and scikit-learn."""

import importlib.util
import math
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from excb.errors import UserError
from excb.neighbours import knn
from excb.neighbours import search as neighbours

pytestmark = pytest.mark.usefixtures("one_thread")

Backend = Literal["faiss", "torch"]
Rows = Sequence[Sequence[int]]

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="FAISS is not installed")
both_backends = pytest.mark.parametrize("backend", [pytest.param("faiss", marks=needs_faiss), "torch"])
# The sizes a user gets, which leave a small bank to the search in float64, and tiny ones that reach every other branch.
TINY: dict[str, Any] = {"_BLOCK": 3, "_SLACK": 1, "_SPREAD": 0, "_BUDGET": 12, "_CACHED": 8}
tilings = pytest.mark.parametrize(
    "tiling",
    [
        {},
        TINY,
        {**TINY, "_SLACK": 0, "_SAMPLE": 3, "CANDIDATES": 40, "_CACHED": 1},
        {**TINY, "_WORTH": 0, "bfloat16_pays": lambda *_: True},
    ],
    ids=["default", "tiny", "minute", "bfloat16"],
)
few_examples = settings(max_examples=25, deadline=None, database=None)

# Entries of -1, 0 and 1, times a positive factor: so many rows are equal, parallel or equally far from a query that
# most rankings hold ties; and with four columns no tie is lost by rounding a row to unit length.
DIRECTIONS = st.lists(st.sampled_from([-1, 0, 1]), min_size=4, max_size=4)
TIED_ROWS = st.lists(
    st.builds(lambda row, factor: [factor * value for value in row], DIRECTIONS, st.sampled_from([1, 2, 3, 7, 10])),
    min_size=2,
    max_size=14,
)


def patched(tiling: dict[str, Any]) -> Any:
    return mock.patch.multiple(neighbours, **tiling) if tiling else nullcontext()


def fraction_ranking(bank: Rows, query: Sequence[int], own: int = -1) -> list[int]:
    """All rows but `own` by exact cosine, then index. Squared with its sign, it is rational up to the query's norm."""

    def signed_square(row: Sequence[int]) -> Fraction:
        dot = sum(a * b for a, b in zip(row, query, strict=True))
        return Fraction(dot * abs(dot), max(1, sum(a * a for a in row)))

    return sorted((i for i in range(len(bank)) if i != own), key=lambda i: (-signed_square(bank[i]), i))


def cosines(bank: np.ndarray[Any, Any], queries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[Q, N] cosines, pair by pair, every sum correctly rounded."""
    norm = [[math.sqrt(math.fsum(row * row)) or 1.0 for row in rows] for rows in (queries, bank)]
    return np.array(
        [[math.fsum(q * b) / norm[0][i] / norm[1][j] for j, b in enumerate(bank)] for i, q in enumerate(queries)]
    )


def random_features(rows: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def rows_with_cosines(cosine: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """A bank in float64 whose rows have the given cosines to the one query, in random directions otherwise."""
    others = torch.nn.functional.normalize(random_features(len(cosine), width - 1).double())
    bank = torch.cat([cosine[:, None], (1 - cosine[:, None] ** 2).sqrt() * others], 1)
    basis, _ = torch.linalg.qr(random_features(width, width, seed=1).double())
    return bank @ basis, basis[:1]


def assert_same(one: knn.Neighbours, other: knn.Neighbours) -> None:
    assert torch.equal(one.indices, other.indices)
    assert torch.equal(one.similarities, other.similarities)


@tilings
@both_backends
@few_examples
@given(bank=TIED_ROWS, queries=TIED_ROWS, data=st.data())
def test_ties_rank_by_index(bank: Rows, queries: Rows, data: st.DataObject, backend: Backend, tiling: Any) -> None:
    k = data.draw(st.integers(1, len(bank)))
    with patched(tiling):
        found = knn.nearest(torch.tensor(bank), torch.tensor(queries), k, backend=backend)
    assert found.indices.tolist() == [fraction_ranking(bank, query)[:k] for query in queries]


@tilings
@both_backends
@few_examples
@given(bank=TIED_ROWS, data=st.data())
def test_exclude_self_leaves_out_the_index_only(bank: Rows, data: st.DataObject, backend: Backend, tiling: Any) -> None:
    k = data.draw(st.integers(1, len(bank) - 1))
    features = torch.tensor(bank, dtype=torch.float32)
    with patched(tiling):
        found = knn.nearest(features, features, k, backend=backend, exclude_self=True)
    assert found.indices.tolist() == [fraction_ranking(bank, row, own=i)[:k] for i, row in enumerate(bank)]


@tilings
@both_backends
@few_examples
@given(
    rows=st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=2, max_size=20),
    data=st.data(),
)
def test_any_features_against_plain_cosines(
    rows: list[list[float]], data: st.DataObject, backend: Backend, tiling: Any
) -> None:
    k = data.draw(st.integers(1, len(rows)))
    features = np.array(rows, dtype=np.float32)
    oracle = cosines(features.astype(np.float64), features.astype(np.float64))
    with patched(tiling):
        found = knn.nearest(torch.from_numpy(features), torch.from_numpy(features), k, backend=backend)
    assert all(len(set(line)) == k for line in found.indices.tolist())
    np.testing.assert_allclose(
        found.similarities, np.take_along_axis(oracle, found.indices.numpy(), 1), rtol=0, atol=1e-11
    )
    np.testing.assert_allclose(found.similarities, -np.sort(-oracle)[:, :k], rtol=0, atol=1e-11)


@both_backends
@pytest.mark.parametrize("k", [1, 20, 200])
def test_agrees_with_scikit_learn(backend: Backend, k: int) -> None:
    bank, queries = random_features(900, 48), random_features(70, 48, seed=1)
    found = knn.nearest(bank, queries, k, backend=backend)
    brute = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(bank.double().numpy())
    distances, indices = brute.kneighbors(queries.double().numpy())
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_allclose(found.similarities, 1 - distances, rtol=0, atol=1e-11)
    assert found.indices.dtype == torch.int64
    assert found.similarities.dtype == torch.float64


@needs_faiss
@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_backends_and_tilings_give_the_same_bits(dtype: torch.dtype, exclude_self: bool) -> None:
    features = random_features(400, 33).to(dtype)
    features[100:140] = features[7]
    one = knn.nearest(features, features, 9, backend="torch", exclude_self=exclude_self)
    assert_same(one, knn.nearest(features, features, 9, backend="faiss", exclude_self=exclude_self))
    with mock.patch.multiple(neighbours, _SLACK=3, _BUDGET=20000, _CACHED=10000):
        for backend in ("torch", "faiss"):
            assert_same(one, knn.nearest(features, features, 9, backend=backend, exclude_self=exclude_self))


@both_backends
def test_threads_do_not_change_a_bit(backend: Backend) -> None:
    bank, queries = random_features(1000, 96), random_features(60, 96, seed=1)
    bank[200:300] = bank[3]
    one = knn.nearest(bank, queries, 10, backend=backend)
    torch.set_num_threads(2)
    try:
        assert_same(one, knn.nearest(bank, queries, 10, backend=backend))
    finally:
        torch.set_num_threads(1)


@both_backends
@pytest.mark.parametrize("cosine", [0.0, 0.5, 0.999])
def test_differences_below_float32_are_ranked(backend: Backend, cosine: float) -> None:
    order = torch.randperm(600, generator=torch.Generator().manual_seed(2))
    bank, query = rows_with_cosines(cosine - 1e-9 * order.double(), width=24)
    in_float32 = (bank.float() @ query[0].float()).argsort(descending=True)
    assert not torch.equal(in_float32[:50], order.argsort()[:50])
    found = knn.nearest(bank, query, 50, backend=backend)
    assert found.indices[0].tolist() == order.argsort()[:50].tolist()
    # The same rows with a clear winner, so that candidates and the float64 search must agree about the rest.
    found = knn.nearest(torch.cat([query, bank]), query, 50, backend=backend)
    assert found.indices[0].tolist() == [0, *(order.argsort()[:49] + 1).tolist()]


@both_backends
def test_separated_rows_need_no_second_search(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    full_searches: list[int] = []
    search_all = neighbours.Search._search_all

    def counted(self: Any, queries: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        full_searches.append(len(queries))
        return search_all(self, queries, own)

    monkeypatch.setattr(neighbours.Search, "_search_all", counted)
    bank = random_features(3000, 64)
    knn.nearest(bank, random_features(50, 64, seed=1), 20, backend=backend)
    assert full_searches == []
    queries = random_features(50, 64, seed=1)
    queries[11] = bank[5]
    bank[1000:1100] = bank[5]  # more equal rows than candidates: this query, and only this one, is searched again
    knn.nearest(bank, queries, 20, backend=backend)
    assert full_searches == [1]


@both_backends
def test_a_bank_of_one_row_repeated(backend: Backend) -> None:
    bank = (8 * random_features(1, 40)).round() * torch.arange(1, 501)[:, None]
    found = knn.nearest(bank, random_features(3, 40, seed=1), 7, backend=backend)
    assert found.indices.tolist() == [list(range(7))] * 3
    assert (found.similarities == found.similarities[:, :1]).all()
    alone = knn.nearest(bank, bank, 7, backend=backend, exclude_self=True)
    assert alone.indices[:3].tolist() == [[1, 2, 3, 4, 5, 6, 7], [0, 2, 3, 4, 5, 6, 7], [0, 1, 3, 4, 5, 6, 7]]
    assert alone.indices[499].tolist() == list(range(7))


@both_backends
def test_k_may_be_the_whole_bank(backend: Backend) -> None:
    features = random_features(300, 12)
    found = knn.nearest(features, features, 300, backend=backend)
    assert (found.indices.sort(dim=1).values == torch.arange(300)).all()
    assert (found.indices[:, 0] == torch.arange(300)).all()
    rest = knn.nearest(features, features, 299, backend=backend, exclude_self=True)
    assert torch.equal(rest.indices, found.indices[:, 1:])


@both_backends
def test_zero_rows_have_similarity_zero(backend: Backend) -> None:
    bank = torch.tensor([[0.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    found = knn.nearest(bank, torch.tensor([[1.0, 0.0], [0.0, 0.0]]), 4, backend=backend)
    assert found.indices.tolist() == [[3, 0, 2, 1], [0, 1, 2, 3]]
    np.testing.assert_allclose(
        found.similarities, np.array([[math.sqrt(0.5), 0, 0, -1], [0, 0, 0, 0]]), rtol=0, atol=1e-11
    )


@both_backends
@pytest.mark.parametrize("scale", [2.0**-1000, 2.0**-520, 2.0**520, 2.0**1000])
def test_no_magnitude_overflows(backend: Backend, scale: float) -> None:
    bank, queries = random_features(300, 8).double(), random_features(5, 8, seed=1).double()
    assert_same(
        knn.nearest(bank * scale, queries / scale, 6, backend=backend), knn.nearest(bank, queries, 6, backend=backend)
    )


@both_backends
def test_inputs_stay_as_they_are(backend: Backend) -> None:
    bank = random_features(200, 8).double().requires_grad_()
    before = bank.detach().clone()
    found = knn.nearest(bank, bank, 3, backend=backend)
    assert torch.equal(bank.detach(), before)
    assert not found.similarities.requires_grad
    assert_same(found, knn.nearest(bank.T.contiguous().T, bank, 3, backend=backend, device="cpu"))


@pytest.mark.parametrize("width", [1, 7, 384, 4096])
def test_float32_error_bounds_the_worst_order_of_summing(width: int) -> None:
    rng = np.random.default_rng(0)
    bound = neighbours._float32_error(width)
    assert bound < 1.1 * (width + 4) * 2**-24
    for positive in (False, True):
        left, right = rng.normal(size=(2, 30, width))
        left, right = (np.abs(left), np.abs(left)) if positive else (left, right)
        left, right = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (left, right))
        one_by_one = np.cumsum(left.astype(np.float32) * right.astype(np.float32), axis=1, dtype=np.float32)[:, -1]
        exact = [math.fsum(line) for line in left * right]
        assert np.abs(one_by_one.astype(np.float64) - exact).max() <= bound


def float32_settings() -> list[str]:
    return [torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision]  # type: ignore[attr-defined]


@pytest.fixture
def low_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def test_low_precision_is_switched_off_and_on_again(low_precision: None) -> None:
    bank, queries = random_features(2000, 128), random_features(200, 128, seed=1)
    settings_before = float32_settings()
    seen: list[list[str]] = []
    with torch.autocast("cpu", dtype=torch.bfloat16), mock.patch.object(neighbours, "_SLACK", 2):
        found = knn.nearest(bank, queries, 5, backend="torch", progress=lambda _: seen.append(float32_settings()))
        assert (queries @ queries.T).dtype == torch.bfloat16
    assert seen == [["ieee", "ieee"]]
    assert float32_settings() == settings_before != seen[0]
    unit_bank, unit_queries = (torch.nn.functional.normalize(rows.double()) for rows in (bank, queries))
    assert torch.equal(found.indices, (unit_queries @ unit_bank.T).topk(5).indices)


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return result


@both_backends
@pytest.mark.parametrize("repeated", [False, True])
def test_no_array_grows_with_queries_times_bank(backend: Backend, repeated: bool) -> None:
    bank, queries = random_features(400, 4), random_features(300, 4, seed=1)
    if repeated:
        bank[:] = bank[0]
    with (
        mock.patch.multiple(neighbours, _BLOCK=32, _BUDGET=1024, _CACHED=1024, _SAMPLE=64, CANDIDATES=1024),
        LargestTensor() as largest,
    ):
        knn.nearest(bank, queries, 2, backend=backend)
    assert bank.numel() <= largest.elements <= 2048  # Q x N is 58 times that


def test_no_array_grows_with_queries_times_classes() -> None:
    indices = torch.arange(10).repeat(500, 1)
    neighbours = knn.Neighbours(indices, 1 - indices.double() / 10)
    with mock.patch.multiple(knn, _SCORES=1000), LargestTensor() as largest:
        votes = knn.vote(neighbours, torch.arange(10), ks=[5, 10], temperature=0.07, classes=100)
    assert votes[10].top5.tolist() == [[0, 1, 2, 3, 4]] * 500
    assert largest.elements == votes[10].top5.numel()  # Q x classes is 20 times that


def test_progress_counts_finished_queries() -> None:
    seen: list[int] = []
    with mock.patch.multiple(neighbours, CANDIDATES=1000):
        knn.nearest(random_features(30, 4), random_features(25, 4), 2, backend="torch", progress=seen.append)
    assert (len(seen), sum(seen)) == (1, 25)
    with mock.patch.multiple(neighbours, CANDIDATES=300):
        knn.nearest(random_features(30, 4), random_features(25, 4), 2, backend="torch", progress=seen.append)
    assert (len(seen) > 2, sum(seen)) == (True, 50)


@pytest.mark.gpu
def test_cuda_gives_the_bits_of_the_cpu() -> None:
    features = random_features(3000, 200)
    features[100:200] = features[7]
    cpu = knn.nearest(features, features, 20, backend="torch", exclude_self=True)
    assert_same(cpu, knn.nearest(features, features, 20, backend="torch", exclude_self=True, device="cuda"))
    on_device = features.cuda()
    assert_same(cpu, knn.nearest(on_device, on_device, 20, backend="torch", exclude_self=True))


def loop_vote(
    similarities: Tensor, labels: list[list[int]], k: int, temperature: float, classes: int
) -> list[list[int]]:
    """The classes of every query by (-score, class), scores added up one by one."""
    ranking = []
    for line, voted in zip(similarities.tolist(), labels, strict=True):
        scores = [0.0] * classes
        for similarity, label in list(zip(line, voted, strict=True))[:k]:
            scores[label] += math.exp(similarity / temperature)
        ranking.append(sorted(range(classes), key=lambda c: (-scores[c], c)))
    return ranking


@few_examples
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
        votes = knn.vote(
            knn.Neighbours(indices, similarities), torch.tensor(labels), ks=ks, temperature=0.07, classes=classes
        )
    assert list(votes) == sorted(set(ks))
    voted = [[labels[i] for i in line] for line in indices.tolist()]
    for k, vote in votes.items():
        expected = loop_vote(similarities, voted, k, 0.07, classes)
        assert vote.top5.tolist() == [ranking[:5] for ranking in expected]
        assert vote.top1.tolist() == [ranking[0] for ranking in expected]


def neighbours_of_one(*similarities: float) -> knn.Neighbours:
    return knn.Neighbours(torch.arange(len(similarities))[None], torch.tensor([similarities], dtype=torch.float64))


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
    vote = knn.vote(neighbours_of_one(*similarities), torch.tensor(labels), ks=[k], temperature=0.07, classes=3)[k]
    assert (vote.top1.tolist(), vote.tied.tolist()) == ([top1], [tied])
    assert vote.top5.shape == (1, 3)


def test_one_class_is_never_tied() -> None:
    vote = knn.vote(neighbours_of_one(1.0, 1.0), torch.tensor([0, 0]), ks=[2], temperature=0.07, classes=1)[2]
    assert (vote.top1.tolist(), vote.top5.tolist(), vote.tied.tolist()) == ([0], [[0]], [False])


def test_low_temperatures_do_not_overflow() -> None:
    vote = knn.vote(neighbours_of_one(1.0, 0.999, 0.9), torch.tensor([2, 1, 1]), ks=[3], temperature=1e-4, classes=3)[3]
    assert vote.top5.tolist() == [[2, 1, 0]]


def test_digits_as_scikit_learn_classifies_them() -> None:
    features, labels = load_digits(return_X_y=True)
    bank, queries = torch.from_numpy(features[:1200]), torch.from_numpy(features[1200:])
    votes = knn.vote(
        knn.nearest(bank, queries, 50), torch.from_numpy(labels[:1200]), ks=[10, 50], temperature=0.07, classes=10
    )
    for k, vote in votes.items():
        classifier = KNeighborsClassifier(
            k, metric="cosine", algorithm="brute", weights=lambda distances: np.exp((1 - distances) / 0.07)
        ).fit(features[:1200], labels[:1200])
        np.testing.assert_array_equal(vote.top1, classifier.predict(features[1200:]))
        top1, top5 = knn.accuracy(vote, torch.from_numpy(labels[1200:]))
        assert top1 == pytest.approx(100 * classifier.score(features[1200:], labels[1200:]))
        assert 90 < top1 < top5 <= 100


def test_accuracy_counts_in_percent() -> None:
    top5 = torch.tensor([[3, 1, 0, 2, 4], [0, 1, 2, 3, 4], [5, 4, 3, 2, 1], [1, 0, 2, 3, 4]])
    vote = knn.Vote(top5[:, 0], top5, torch.zeros(4, dtype=torch.bool))
    assert knn.accuracy(vote, torch.tensor([3, 4, 0, 1])) == (50.0, 75.0)
    with pytest.raises(UserError, match="one per query"):
        knn.accuracy(vote, torch.tensor([3, 4, 0]))


@pytest.mark.parametrize(
    ("bank", "queries", "k", "exclude_self", "message"),
    [
        (torch.ones(4, 3), torch.ones(2, 3), 5, False, "k is 5: choose 1 to 4"),
        (torch.ones(4, 3), torch.ones(4, 3), 4, True, "k is 4: choose 1 to 3"),
        (torch.ones(4, 3), torch.ones(2, 3), 0, False, "k is 0"),
        (torch.ones(4, 3), torch.ones(3, 3), 2, True, "pass the bank as the queries"),
        (torch.ones(4, 3), torch.ones(2, 5), 2, False, "do not fit"),
        (torch.ones(4), torch.ones(2, 4), 2, False, "do not fit"),
        (torch.ones(4, 3), torch.ones(0, 3), 2, False, "at least one row"),
        (torch.ones(4, 0), torch.ones(4, 0), 2, False, "do not fit"),
        (torch.tensor([[1.0], [math.nan]]), torch.ones(2, 1), 1, False, "a bank feature is NaN or infinite"),
        (torch.ones(2, 1), torch.tensor([[1.0], [-math.inf]]), 1, False, "a query feature is NaN or infinite"),
    ],
)
def test_mistakes_in_a_search(bank: Tensor, queries: Tensor, k: int, exclude_self: bool, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        knn.nearest(bank, queries, k, backend="torch", exclude_self=exclude_self)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ks": [3]}, "every k must lie in 1 to 2"),
        ({"ks": [0, 1]}, "every k must lie in 1 to 2"),
        ({"ks": []}, "every k must lie in 1 to 2"),
        ({"temperature": 0.0}, "choose a number above 0"),
        ({"temperature": math.nan}, "choose a number above 0"),
        ({"labels": torch.tensor([0])}, "one label per row"),
        ({"labels": torch.tensor([0, 3])}, "outside 0 to 2"),
        ({"labels": torch.tensor([-1, 1])}, "outside 0 to 2"),
    ],
)
def test_mistakes_in_a_vote(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"labels": torch.tensor([0, 1]), "ks": [2], "temperature": 0.07, "classes": 3} | changes
    with pytest.raises(UserError, match=message) as error:
        knn.vote(neighbours_of_one(0.9, 0.8), **arguments)
    assert "\n" not in str(error.value)


def test_backend_without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(knn, "bfloat16_pays", lambda _device, _width: False)
    assert knn.available_backend("auto") == "torch"
    assert knn.available_backend("torch") == "torch"
    with pytest.raises(UserError, match=r"pip install faiss-cpu.*pip install 'excb\[faiss-cpu\]'"):
        knn.available_backend("faiss")
    assert knn.nearest(torch.eye(3), torch.eye(3), 1).indices.tolist() == [[0], [1], [2]]


@needs_faiss
@pytest.mark.parametrize(
    ("quick", "device", "gpus", "chosen"),
    [
        (False, "cpu", 0, "faiss"),
        (True, "cpu", 0, "torch"),
        (False, "cuda", 0, "torch"),  # FAISS of the CPU beside a GPU
        (False, "cuda", 1, "faiss"),
    ],
)
def test_backend_with_faiss(quick: bool, device: str, gpus: int, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "bfloat16_pays", lambda _device, _width: quick)
    monkeypatch.setattr(knn, "faiss_gpus", lambda: gpus)
    assert knn.available_backend("auto", device) == chosen
    assert knn.available_backend("faiss", device) == "faiss"
    assert knn.available_backend("torch", device) == "torch"


def test_unknown_backend() -> None:
    with pytest.raises(UserError, match="choose auto, faiss or torch"):
        knn.available_backend("scann")  # type: ignore[arg-type]


@pytest.mark.parametrize("message", ["builtin type SwigPyPacked has no __module__ attribute", "anything else"])
def test_only_the_warning_of_swig_is_silenced(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faiss.py").write_text(f"import warnings\nwarnings.warn({message!r}, DeprecationWarning)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "faiss", None)  # so that the module imported below is forgotten afterwards
    monkeypatch.delitem(sys.modules, "faiss")
    if message.startswith("builtin"):
        assert knn.available_backend("faiss") == "faiss"
    else:
        with pytest.raises(DeprecationWarning, match=message):
            knn.available_backend("faiss")


class SomeRows:
    """Features that can only be read in spans, and that know the longest one."""

    def __init__(self, features: Tensor) -> None:
        self._features, self.width, self.longest = features, features.shape[1], 0

    def __len__(self) -> int:
        return len(self._features)

    def rows(self, start: int, stop: int) -> Tensor:
        assert 0 <= start < stop <= len(self)
        self.longest = max(self.longest, stop - start)
        return self._features[start:stop]


@both_backends
def test_rows_may_be_streamed(backend: Backend) -> None:
    features = random_features(700, 16)
    source = SomeRows(features)
    with mock.patch.multiple(neighbours, _BUDGET=2000, _CACHED=1000, _SAMPLE=300):
        found = knn.nearest(source, features[:40], 9, backend=backend)
        alone = knn.nearest(source, source, 9, backend=backend, exclude_self=True)
    assert source.longest <= 1000
    assert_same(found, knn.nearest(features, features[:40], 9, backend=backend))
    assert_same(alone, knn.nearest(features, features, 9, backend=backend, exclude_self=True))


def test_a_mapped_file_is_a_bank(tmp_path: Path) -> None:
    features = random_features(600, 16)
    np.save(tmp_path / "bank.npy", features.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "bank.npy", mmap_mode="c"))
    assert_same(knn.nearest(mapped, features, 5), knn.nearest(features, features, 5))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_every_precision_proposes_what_is_nearest(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    bank, queries = random_features(6000, 32), random_features(90, 32, seed=1)
    queries[7], bank[500:900] = bank[3], bank[3]  # too many equals for the table
    ways: list[int] = []
    propose = neighbours.Search._propose_with_torch

    def counted(self: Any, kind: torch.dtype, spread: int, queries: Tensor) -> Any:
        ways.append(len(queries))
        return propose(self, kind, spread, queries)

    monkeypatch.setattr(neighbours.Search, "_propose_with_torch", counted)
    monkeypatch.setattr(neighbours, "_WORTH", 0)
    monkeypatch.setattr(neighbours, "bfloat16_pays", lambda *_: kind == torch.bfloat16)
    found = knn.nearest(bank, queries, 10, backend="torch")
    assert ways[0] == 90
    assert all(1 <= count < 10 for count in ways[1:])
    assert len(ways) == 1 + (kind == torch.bfloat16)
    unit_bank, unit_queries = (torch.nn.functional.normalize(rows.double()) for rows in (bank, queries))
    exact = (unit_queries @ unit_bank.T).mul(2**30).round().sort(dim=1, descending=True, stable=True)
    assert torch.equal(found.indices, exact.indices[:, :10])


@pytest.mark.parametrize("width", [1, 5, 384, 2048])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_lower_precision_loses_no_more_than_is_said(width: int, kind: torch.dtype) -> None:
    rows = neighbours.UnitRows(random_features(300, width).double() * 1e100, "row", torch.device("cpu"))
    exact, single = rows[slice(0, 300)], rows.approximate(slice(0, 300))
    low, lost = neighbours._lowered(single, kind)
    assert (torch.linalg.vector_norm(low.double() - exact, dim=1) <= lost).all()
    assert lost.max() < (1e-6 if kind == torch.float32 else 2**-8)
    values = (low @ low.T).double()
    error = lost[:, None] + lost + neighbours._float32_error(width)
    error += 0.51 * torch.finfo(kind).eps * values.abs() * (kind == torch.bfloat16)
    assert ((values - exact @ exact.T).abs() <= error).all()


@pytest.mark.parametrize("width", [3, 384, 4096])
def test_quick_similarities_round_as_exact_ones(width: int) -> None:
    bank, queries = random_features(400, width), random_features(30, width, seed=1)
    found = knn.nearest(bank, queries, 60, backend="torch")
    unit = [neighbours.UnitRows(rows, "row", torch.device("cpu"))[slice(0, len(rows))] for rows in (queries, bank)]
    exact = neighbours.rounded_dots(*map(neighbours.split, unit))
    assert torch.equal(found.similarities, exact.gather(1, found.indices))
    assert torch.equal(found.similarities, exact.sort(dim=1, descending=True).values[:, :60])
    assert torch.equal(found.similarities, found.similarities.mul(2**36).round().div(2**36))


def test_plan_adds_up() -> None:
    one = knn.plan(1_000_000, 384, 4000, 200)
    assert one.bank >= 1_000_000 * 384 * 4
    assert one.answer == 4000 * 200 * 16
    assert one.total == one.bank + one.queries + one.tiles + one.answer < 3e9
    assert "bank 1,000,000 x 384 1.55 GB" in one.text
    assert "\n" not in one.text
    shared, streamed = (
        knn.plan(1_000_000, 384, 4000, 200, processes=4),
        knn.plan(1_000_000, 384, 4000, 200, streamed=True),
    )
    assert shared.bank == one.bank // 4
    assert "in each of 4 processes" in shared.text
    assert streamed.bank == 16_000_000
    assert "read in tiles" in streamed.text


def test_several_temperatures_vote_in_one_pass() -> None:
    features, labels = random_features(300, 8), torch.arange(300) % 7
    found = knn.nearest(features, features, 20, exclude_self=True)
    votes = knn.vote(found, labels, ks=[20, 5], temperatures=[0.07, 1.0], classes=7)
    assert list(votes) == [(5, 0.07), (5, 1.0), (20, 0.07), (20, 1.0)]
    for (k, temperature), several in votes.items():
        one = knn.vote(found, labels, ks=[k], temperature=temperature, classes=7)[k]
        assert torch.equal(one.top5, several.top5)
        assert torch.equal(one.tied, several.tied)
    with pytest.raises(UserError, match="choose one or several"):
        knn.vote(found, labels, ks=[5], temperatures=[], classes=7)


def searches(backends: Sequence[Backend]) -> list[knn.Neighbours]:
    """Searches that share their bank, among equal rows and in banks that some process has little of or nothing."""
    features = random_features(611, 24)
    features[100:160] = features[5]
    found = [
        knn.nearest(bank, queries, k, backend=backend, exclude_self=len(bank) == len(queries), share=True)
        for backend in backends
        for bank, queries, k in (
            (features, features[:50], 13),
            (SomeRows(features), features, 20),
            (features[:5], features[:9], 5),
            (features[:5], features[:5], 4),
            (features[:2], features[:7], 1),
        )
    ]
    with pytest.raises(UserError, match="a bank feature is NaN"):
        knn.nearest(torch.tensor([[1.0], [2.0], [math.nan]]), torch.ones(2, 1), 1, share=True)
    return found


def search_together(folder: Path, backends: Sequence[Backend], processes: int, rank: int) -> None:
    """One process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=processes)
    torch.save([(found.indices, found.similarities) for found in searches(backends)], folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_that_share_the_bank_find_what_one_does(processes: int, tmp_path: Path) -> None:
    backends: list[Backend] = ["torch", "faiss"] if importlib.util.find_spec("faiss") else ["torch"]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["excb.neighbours.knn", "sklearn.neighbors", "hypothesis"]
    )  # imports take longer than the work
    running = [
        context.Process(target=search_together, args=(tmp_path, backends, processes, rank)) for rank in range(processes)
    ]
    for process in running:
        process.start()
    expected = searches(backends)
    for process in running:
        process.join(120)
    assert [process.exitcode for process in running] == [0] * processes
    for rank in range(processes):
        for one, parts in zip(expected, torch.load(tmp_path / f"{rank}.pt"), strict=True):
            assert_same(one, knn.Neighbours(*parts))
