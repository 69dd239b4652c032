"""The exact search by every backend, tiling and precision, against exact fractions, NumPy and scikit-learn."""

import importlib.util
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from excb.errors import UserError
from excb.neighbours import backends, search
from excb.neighbours import tiling as sizes
from excb.neighbours.nearest import Index, Neighbours, nearest
from excb.neighbours.precision import lowered
from excb.neighbours.proposals import propose_with_torch
from excb.neighbours.unit_rows import UnitRows
from tests.excb.neighbours.features import (
    Backend,
    LargestTensor,
    assert_same,
    both_backends,
    needs_faiss,
    random_features,
)
from tests.forked import server

pytestmark = pytest.mark.usefixtures("one_thread")

Rows = Sequence[Sequence[int]]


# The sizes a user gets, which leave a small bank to the search in float64, and tiny ones that reach every other branch.
TINY: dict[str, Any] = {"BLOCK": 3, "SLACK": 1, "SPREAD": 0, "BUDGET": 12, "CACHED": 8, "FEW": 0}


tilings = pytest.mark.parametrize(
    "tiling",
    [
        {},
        TINY,
        {**TINY, "SLACK": 0, "SAMPLE": 3, "CANDIDATES": 40, "CACHED": 1},
        {**TINY, "WORTH": 0},
        {**TINY, "FEW": 99},
    ],
    ids=["default", "tiny", "minute", "bfloat16", "few"],
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


@contextmanager
def patched(tiling: dict[str, Any]) -> Iterator[None]:
    """Other sizes while the block runs. Where any search is worth it, bfloat16 is tried as well."""
    quick = mock.patch.object(backends, "bfloat16_pays", return_value=True) if "WORTH" in tiling else nullcontext()
    with mock.patch.multiple(sizes, **tiling) if tiling else nullcontext(), quick:
        yield


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


def rows_with_cosines(cosine: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """A bank in float64 whose rows have the given cosines to the one query, in random directions otherwise."""
    others = torch.nn.functional.normalize(random_features(len(cosine), width - 1).double())
    bank = torch.cat([cosine[:, None], (1 - cosine[:, None] ** 2).sqrt() * others], 1)
    basis, _ = torch.linalg.qr(random_features(width, width, seed=1).double())
    return bank @ basis, basis[:1]


@tilings
@both_backends
@few_examples
@given(bank=TIED_ROWS, queries=TIED_ROWS, data=st.data())
def test_ties_rank_by_index(bank: Rows, queries: Rows, data: st.DataObject, backend: Backend, tiling: Any) -> None:
    k = data.draw(st.integers(1, len(bank)))
    with patched(tiling):
        found = nearest(torch.tensor(bank), torch.tensor(queries), k, backend=backend)
    assert found.indices.tolist() == [fraction_ranking(bank, query)[:k] for query in queries]


@tilings
@both_backends
@few_examples
@given(bank=TIED_ROWS, data=st.data())
def test_exclude_self_leaves_out_the_index_only(bank: Rows, data: st.DataObject, backend: Backend, tiling: Any) -> None:
    k = data.draw(st.integers(1, len(bank) - 1))
    features = torch.tensor(bank, dtype=torch.float32)
    with patched(tiling):
        found = nearest(features, features, k, backend=backend, exclude_self=True)
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
        found = nearest(torch.from_numpy(features), torch.from_numpy(features), k, backend=backend)
    assert all(len(set(line)) == k for line in found.indices.tolist())
    np.testing.assert_allclose(
        found.similarities, np.take_along_axis(oracle, found.indices.numpy(), 1), rtol=0, atol=1e-11
    )
    np.testing.assert_allclose(found.similarities, -np.sort(-oracle)[:, :k], rtol=0, atol=1e-11)


@both_backends
@pytest.mark.parametrize("k", [1, 20, 200])
def test_agrees_with_scikit_learn(backend: Backend, k: int) -> None:
    bank, queries = random_features(900, 48), random_features(70, 48, seed=1)
    found = nearest(bank, queries, k, backend=backend)
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
    one = nearest(features, features, 9, backend="torch", exclude_self=exclude_self)
    assert_same(one, nearest(features, features, 9, backend="faiss", exclude_self=exclude_self))
    with mock.patch.multiple(sizes, SLACK=3, BUDGET=20000, CACHED=10000):
        for backend in ("torch", "faiss"):
            assert_same(one, nearest(features, features, 9, backend=backend, exclude_self=exclude_self))


@both_backends
def test_threads_do_not_change_a_bit(backend: Backend) -> None:
    bank, queries = random_features(1000, 96), random_features(60, 96, seed=1)
    bank[200:300] = bank[3]
    one = nearest(bank, queries, 10, backend=backend)
    torch.set_num_threads(2)
    try:
        assert_same(one, nearest(bank, queries, 10, backend=backend))
    finally:
        torch.set_num_threads(1)


@both_backends
@pytest.mark.parametrize("cosine", [0.0, 0.5, 0.999])
def test_differences_below_float32_are_ranked(backend: Backend, cosine: float) -> None:
    order = torch.randperm(600, generator=torch.Generator().manual_seed(2))
    bank, query = rows_with_cosines(cosine - 1e-9 * order.double(), width=24)
    in_float32 = (bank.float() @ query[0].float()).argsort(descending=True)
    assert not torch.equal(in_float32[:50], order.argsort()[:50])
    found = nearest(bank, query, 50, backend=backend)
    assert found.indices[0].tolist() == order.argsort()[:50].tolist()
    # The same rows with a clear winner, so that candidates and the float64 search must agree about the rest.
    found = nearest(torch.cat([query, bank]), query, 50, backend=backend)
    assert found.indices[0].tolist() == [0, *(order.argsort()[:49] + 1).tolist()]


def test_floors_far_too_low_are_made_up_for_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, queries = random_features(3000, 64), random_features(50, 64, seed=1)
    found = nearest(bank, queries, 20, backend="torch")
    monkeypatch.setattr(sizes, "sample_size", lambda *_: (500, 500))  # every row passes, which no table holds
    monkeypatch.setattr(sizes, "table_width", lambda *_: 100)
    monkeypatch.setattr(search.Search, "_search_all", lambda *_: pytest.fail("all rows were compared in float64"))
    assert_same(nearest(bank, queries, 20, backend="torch"), found)


@both_backends
def test_separated_rows_need_no_second_search(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    full_searches: list[int] = []
    search_all = search.Search._search_all

    def counted(self: Any, queries: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        full_searches.append(len(queries))
        return search_all(self, queries, own)

    monkeypatch.setattr(search.Search, "_search_all", counted)
    bank = random_features(3000, 64)
    nearest(bank, random_features(50, 64, seed=1), 20, backend=backend)
    assert full_searches == []
    queries = random_features(50, 64, seed=1)
    queries *= -(queries @ bank[5]).sign()[:, None]  # far from row 5
    queries[11] = bank[5]
    bank[1000:1400] = bank[5]  # more equal rows than candidates: this query, and only this one, is searched again
    nearest(bank, queries, 20, backend=backend)
    assert full_searches == [1]


@both_backends
def test_a_bank_of_one_row_repeated(backend: Backend) -> None:
    bank = (8 * random_features(1, 40)).round() * torch.arange(1, 501)[:, None]
    found = nearest(bank, random_features(3, 40, seed=1), 7, backend=backend)
    assert found.indices.tolist() == [list(range(7))] * 3
    assert (found.similarities == found.similarities[:, :1]).all()
    alone = nearest(bank, bank, 7, backend=backend, exclude_self=True)
    assert alone.indices[:3].tolist() == [[1, 2, 3, 4, 5, 6, 7], [0, 2, 3, 4, 5, 6, 7], [0, 1, 3, 4, 5, 6, 7]]
    assert alone.indices[499].tolist() == list(range(7))


@both_backends
def test_k_may_be_the_whole_bank(backend: Backend) -> None:
    features = random_features(300, 12)
    found = nearest(features, features, 300, backend=backend)
    assert (found.indices.sort(dim=1).values == torch.arange(300)).all()
    assert (found.indices[:, 0] == torch.arange(300)).all()
    rest = nearest(features, features, 299, backend=backend, exclude_self=True)
    assert torch.equal(rest.indices, found.indices[:, 1:])


@both_backends
def test_zero_rows_have_similarity_zero(backend: Backend) -> None:
    bank = torch.tensor([[0.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    found = nearest(bank, torch.tensor([[1.0, 0.0], [0.0, 0.0]]), 4, backend=backend)
    assert found.indices.tolist() == [[3, 0, 2, 1], [0, 1, 2, 3]]
    np.testing.assert_allclose(
        found.similarities, np.array([[math.sqrt(0.5), 0, 0, -1], [0, 0, 0, 0]]), rtol=0, atol=1e-11
    )


@both_backends
@pytest.mark.parametrize("scale", [2.0**-1000, 2.0**-520, 2.0**520, 2.0**1000])
def test_no_magnitude_overflows(backend: Backend, scale: float) -> None:
    bank, queries = random_features(300, 8).double(), random_features(5, 8, seed=1).double()
    assert_same(nearest(bank * scale, queries / scale, 6, backend=backend), nearest(bank, queries, 6, backend=backend))


@both_backends
def test_inputs_stay_as_they_are(backend: Backend) -> None:
    bank = random_features(200, 8).double().requires_grad_()
    before = bank.detach().clone()
    found = nearest(bank, bank, 3, backend=backend)
    assert torch.equal(bank.detach(), before)
    assert not found.similarities.requires_grad
    assert_same(found, nearest(bank.T.contiguous().T, bank, 3, backend=backend, device="cpu"))


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
    with torch.autocast("cpu", dtype=torch.bfloat16), mock.patch.object(sizes, "SLACK", 2):
        found = nearest(bank, queries, 5, backend="torch", progress=lambda _: seen.append(float32_settings()))
        assert (queries @ queries.T).dtype == torch.bfloat16
    assert seen == [["ieee", "ieee"]]
    assert float32_settings() == settings_before != seen[0]
    unit_bank, unit_queries = (torch.nn.functional.normalize(rows.double()) for rows in (bank, queries))
    assert torch.equal(found.indices, (unit_queries @ unit_bank.T).topk(5).indices)


@both_backends
@pytest.mark.parametrize("repeated", [False, True])
def test_no_array_grows_with_queries_times_bank(backend: Backend, repeated: bool) -> None:
    bank, queries = random_features(400, 4), random_features(300, 4, seed=1)
    if repeated:
        bank[:] = bank[0]
    with (
        mock.patch.multiple(sizes, BLOCK=32, BUDGET=1024, CACHED=1024, SAMPLE=64, CANDIDATES=1024),
        LargestTensor() as largest,
    ):
        nearest(bank, queries, 2, backend=backend)
    assert bank.numel() <= largest.elements <= 2048  # Q x N is 58 times that


def test_progress_counts_finished_queries() -> None:
    seen: list[int] = []
    with mock.patch.multiple(sizes, CANDIDATES=1000):
        nearest(random_features(30, 4), random_features(25, 4), 2, backend="torch", progress=seen.append)
    assert (len(seen), sum(seen)) == (1, 25)
    with mock.patch.multiple(sizes, CANDIDATES=300):
        nearest(random_features(30, 4), random_features(25, 4), 2, backend="torch", progress=seen.append)
    assert (len(seen) > 2, sum(seen)) == (True, 50)


@pytest.mark.gpu
def test_cuda_gives_the_bits_of_the_cpu() -> None:
    features = random_features(3000, 200)
    features[100:200] = features[7]
    cpu = nearest(features, features, 20, backend="torch", exclude_self=True)
    assert_same(cpu, nearest(features, features, 20, backend="torch", exclude_self=True, device="cuda"))
    on_device = features.cuda()
    assert_same(cpu, nearest(on_device, on_device, 20, backend="torch", exclude_self=True))


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
        nearest(bank, queries, k, backend="torch", exclude_self=exclude_self)
    assert "\n" not in str(error.value)


class SomeRows:
    """Features that can only be read in spans, and that know the longest one."""

    def __init__(self, features: Tensor) -> None:
        self._features, self.width, self.longest, self.read = features, features.shape[1], 0, 0

    def __len__(self) -> int:
        return len(self._features)

    def rows(self, start: int, stop: int) -> Tensor:
        assert 0 <= start < stop <= len(self)
        self.longest, self.read = max(self.longest, stop - start), self.read + stop - start
        return self._features[start:stop]


@pytest.mark.parametrize("queries", [1, 16, 40])
@pytest.mark.parametrize("spread", [0.0, 30.0])
def test_an_index_finds_what_one_search_finds(queries: int, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    bank, asked = random_features(6000, 32), random_features(queries, 32, seed=1)
    bank *= torch.exp2(spread * (torch.rand(len(bank), 1, generator=torch.Generator().manual_seed(2)) - 0.5))
    bank[100:300], bank[700], bank[900] = bank[3], 0.0, 2 * bank[5]
    asked[0] = bank[3]  # more equals than candidates
    index, source = Index(bank), SomeRows(bank)
    found = index.nearest(asked, 9)
    assert_same(Index(source).nearest(asked, 9), found)
    monkeypatch.setattr(sizes, "FEW", 0)
    for backend in ("torch", "faiss") if importlib.util.find_spec("faiss") else ("torch",):
        assert_same(nearest(bank, asked, 9, backend=backend), found)
    assert found.indices[0].tolist() == [3, *range(100, 108)]


def test_an_index_reads_the_bank_once_and_then_only_products(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SomeRows(random_features(6000, 32))
    index = Index(source)
    source.read = 0
    index.nearest(random_features(1, 32, seed=1), 9)
    assert source.read <= 6000 + 9 + sizes.SLACK


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**70])
def test_rows_beyond_float32s_products_are_normalised_first(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    bank, asked = random_features(6000, 32), random_features(2, 32, seed=1)
    found = nearest(bank, asked, 9)
    monkeypatch.setattr(search, "propose_from_all", None)  # must not be called
    assert_same(Index(bank * scale).nearest(asked, 9), found)


def test_mistakes_with_an_index() -> None:
    index = Index(random_features(30, 8))
    assert len(index) == 30
    with pytest.raises(UserError, match=r"bank \[30, 8\] and queries \[2, 7\] do not fit"):
        index.nearest(torch.zeros(2, 7), 3)
    with pytest.raises(UserError, match="k is 31: choose 1 to 30"):
        index.nearest(torch.zeros(2, 8), 31)
    with pytest.raises(UserError, match="a bank feature is NaN or infinite"):
        Index(torch.full((3, 2), math.nan))


@both_backends
def test_rows_may_be_streamed(backend: Backend) -> None:
    features = random_features(700, 16)
    source = SomeRows(features)
    with mock.patch.multiple(sizes, BUDGET=2000, CACHED=1000, SAMPLE=300):
        found = nearest(source, features[:40], 9, backend=backend)
        alone = nearest(source, source, 9, backend=backend, exclude_self=True)
    assert source.longest <= 1000
    assert_same(found, nearest(features, features[:40], 9, backend=backend))
    assert_same(alone, nearest(features, features, 9, backend=backend, exclude_self=True))


def test_a_mapped_file_is_a_bank(tmp_path: Path) -> None:
    features = random_features(600, 16)
    np.save(tmp_path / "bank.npy", features.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "bank.npy", mmap_mode="c"))
    assert_same(nearest(mapped, features, 5), nearest(features, features, 5))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_every_precision_proposes_what_is_nearest(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    bank, queries = random_features(6000, 32), random_features(90, 32, seed=1)
    queries[7], bank[500:900] = bank[3], bank[3]  # too many equals for the table
    ways: list[int] = []
    propose = propose_with_torch

    def counted(bank: UnitRows, wanted: int, queries: Tensor, **options: Any) -> Any:
        ways.append(len(queries))
        return propose(bank, wanted, queries, **options)

    monkeypatch.setattr(search, "propose_with_torch", counted)
    monkeypatch.setattr(sizes, "WORTH", 0)
    monkeypatch.setattr(backends, "bfloat16_pays", lambda *_: kind == torch.bfloat16)
    found = nearest(bank, queries, 10, backend="torch")
    assert ways[0] == 90
    assert all(1 <= count < 10 for count in ways[1:])
    assert len(ways) == 1 + (kind == torch.bfloat16)
    unit_bank, unit_queries = (torch.nn.functional.normalize(rows.double()) for rows in (bank, queries))
    exact = (unit_queries @ unit_bank.T).mul(2**30).round().sort(dim=1, descending=True, stable=True)
    assert torch.equal(found.indices, exact.indices[:, :10])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_values_are_similarities_less_a_number_of_the_query(kind: torch.dtype) -> None:
    """Rows that all point the same way are proposed by what tells them apart, with less error."""
    generator = torch.Generator().manual_seed(0)
    bank, queries = (4 + torch.randn(count, 48, generator=generator) for count in (3000, 7))
    unit_bank, unit_queries = (torch.nn.functional.normalize(each.double()) for each in (bank, queries))
    cpu = torch.device("cpu")
    proposal = propose_with_torch(UnitRows(bank, "bank", cpu), 5, unit_queries, kind=kind, spread=8)
    here = proposal.rows >= 0
    similarities = (unit_queries @ unit_bank.T).gather(1, proposal.rows.clamp(min=0))
    lower = (similarities - proposal.values.double())[here]
    allowed = proposal.error[:, None] + proposal.rounding * proposal.values.double().abs()
    for query in range(len(queries)):
        own = here.nonzero()[:, 0] == query
        assert own.sum() >= 5
        assert lower[own].max() - lower[own].min() <= 2 * allowed[query][here[query]].max()
    if kind == torch.bfloat16:
        _, lost = lowered(unit_bank.float(), kind)
        assert proposal.error.max() < 0.7 * lost.max()  # the error of the bank's rows alone, were nothing centred


def searches(backends: Sequence[Backend]) -> list[Neighbours]:
    """Searches that share their bank, among equal rows and in banks that some process has little of or nothing."""
    features = random_features(611, 24)
    features[100:160] = features[5]
    found = [
        nearest(bank, queries, k, backend=backend, exclude_self=len(bank) == len(queries), share=True)
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
        nearest(torch.tensor([[1.0], [2.0], [math.nan]]), torch.ones(2, 1), 1, share=True)
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
    running = [
        server().Process(target=search_together, args=(tmp_path, backends, processes, rank))
        for rank in range(processes)
    ]
    for process in running:
        process.start()
    expected = searches(backends)
    for process in running:
        process.join(120)
    assert [process.exitcode for process in running] == [0] * processes
    for rank in range(processes):
        for one, parts in zip(expected, torch.load(tmp_path / f"{rank}.pt"), strict=True):
            assert_same(one, Neighbours(*parts))


@pytest.mark.parametrize("width", [3, 64])
def test_products_by_tiles_are_those_of_each_query(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    bank, queries = torch.randn(50, width, generator=random), torch.randn(40, width, generator=random).double()
    searched = search.Search(UnitRows(bank, "bank", torch.device("cpu")), 5, "torch", exclude_self=False)
    candidates = torch.stack([torch.randperm(50, generator=random)[:20].sort().values for _ in queries])
    candidates[::3, 7:] = -1  # fewer
    monkeypatch.setattr(sizes, "BUDGET", 7 * width)  # tiles of seven rows, the last one shorter
    found = searched._quick(queries, candidates)
    units = torch.nn.functional.normalize(bank.double())
    expected = (queries @ units.T).gather(1, candidates.clamp(min=0)).masked_fill(candidates < 0, -torch.inf)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
