"""Every backend against the plain one, which holds every matrix of rows x clusters: value, every gradient, memory."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from excb.errors import UserError
from excb.objective import chunked, streamed
from excb.objective.loss import assign, cross_entropy, resolve_backend
from tests.excb.objective.batches import (
    CLUSTERS,
    EXTRAS,
    OFFICIAL,
    TAU_S,
    TAU_T,
    apart,
    assert_equal,
    assigned,
    batch_of,
    outcome,
    reference,
)
from tests.interpreted import needs_triton

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that divide nothing, so that few rows and clusters make many."""
    monkeypatch.setattr(chunked, "_ROWS", 5)
    monkeypatch.setattr(chunked, "_CLUSTERS", 29)


# ---------------------------------------------------------------------------------------------------------------------
# Value and every gradient
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extras", EXTRAS, ids=str)
@pytest.mark.parametrize("clusters", CLUSTERS)
@pytest.mark.usefixtures("small_tiles")
def test_float64_equals_the_plain_backend(clusters: int, extras: dict[str, Any]) -> None:
    assert_equal(batch_of(clusters, extras=extras), 1e-12)


@pytest.mark.parametrize("extras", [{}, OFFICIAL], ids=str)
@pytest.mark.parametrize("sizes", ["mixed", "one", "equal"])
@pytest.mark.parametrize("clusters", CLUSTERS)
def test_float32_equals_the_plain_backend(clusters: int, sizes: Any, extras: dict[str, Any]) -> None:
    batch = batch_of(clusters, images=5, sizes=sizes, spread=3.0, extras=extras)
    assert_equal(batch.to(torch.float32, torch.float32), 1e-6)


@pytest.mark.parametrize("clusters", [2, 37, 129])
def test_float32_where_teacher_and_student_agree_is_exact_to_the_terms_that_cancel(clusters: int) -> None:
    batch = batch_of(clusters, images=5, sizes="equal", spread=0.1).to(torch.float32, torch.float32)
    actual, expected = outcome(batch, 2), reference(batch, 2)
    for name, weights in (("h", batch.weights_h), ("g", batch.weights_g), ("centroids", batch.weights_h[:, :2])):
        terms = weights.sum(0).norm() * 5**-0.5 / TAU_S  # each of p_s's and p_t's part
        assert (actual.gradients[name] - expected.gradients[name]).norm() <= 1e-6 * terms
        assert expected.gradients[name].norm() < 0.3 * terms
    assert (actual.loss - expected.loss).abs() <= 1e-6 / TAU_S


@pytest.mark.parametrize("extras", [{}, OFFICIAL], ids=str)
def test_float32_equals_the_plain_backend_at_full_width(extras: dict[str, Any]) -> None:
    batch = batch_of(2600, views=(2, 6), images=8, width=256, extras=extras)
    assert_equal(batch.to(torch.float32, torch.float32), 1e-6)


@pytest.mark.parametrize("clusters", CLUSTERS)
def test_bfloat16_is_as_exact_as_its_inputs(clusters: int) -> None:
    batch = batch_of(clusters, extras=OFFICIAL).to(torch.bfloat16, torch.float32)
    assert_equal(batch, 1e-6, rounded=2**-8)


@pytest.mark.parametrize("views", [(2, 6), (2, 0), (1, 2), (1, 0), (3, 1)])
@pytest.mark.parametrize("reduction", ["halves", "sum", "pairs", "pseudocode"])
@pytest.mark.usefixtures("small_tiles")
def test_every_reduction_and_number_of_views(reduction: str, views: tuple[int, int]) -> None:
    variants: list[dict[str, Any]] = [{}, {"predictor": False}, {"projector_on_local": False}]
    for options in variants:
        batch = batch_of(37, views=views, reduction=reduction, **options)
        for moving in {views[0], sum(views)}:  # the stop-gradient on local views, and its ablation
            assert_equal(batch, 1e-12, moving=moving)


@pytest.mark.parametrize("images", [1, 2, 11])
@pytest.mark.usefixtures("small_tiles")
def test_any_number_of_rows(images: int) -> None:
    assert_equal(batch_of(64, views=(1, 1), images=images), 1e-12, moving=1)


def test_gradients_are_those_of_finite_differences() -> None:
    batch = batch_of(9, images=2, width=4, extras={"winner_gain": 1.01})
    h, centroids = batch.h.clone().requires_grad_(), batch.centroids.clone().requires_grad_()

    def loss(h: Tensor, centroids: Tensor) -> Tensor:
        # Targets are averages of the centroids, so they follow them.
        assignment = assign(
            batch.queries, batch.teacher, batch.scale, batch.offset, centroids, temperature=TAU_T, **batch.extras
        )
        return cross_entropy(h, centroids, assignment, batch.weights_h, temperature=TAU_S)

    assert torch.autograd.gradcheck(loss, (h, centroids))


def test_gradients_scale_with_the_loss_and_come_again() -> None:
    batch = batch_of(37)
    centroids = batch.centroids.clone().requires_grad_()
    loss = cross_entropy(batch.h, centroids, assigned(batch), batch.weights_h, temperature=TAU_S)
    once = torch.autograd.grad(loss, centroids, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(-3 * loss, centroids)[0], -3 * once)


# ---------------------------------------------------------------------------------------------------------------------
# Winners
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_tiles")
def test_the_first_of_equals_wins_within_a_tile_and_across_tiles() -> None:
    batch = batch_of(200, spread=0.1)
    twice = {
        name: getattr(batch, name).repeat(2, *[1] * (getattr(batch, name).dim() - 1))
        for name in ("centroids", "teacher", "scale", "offset")
    }
    doubled, single = assigned(dataclasses.replace(batch, **twice)), assigned(batch)
    assert torch.equal(doubled.winners, single.winners)
    assert torch.equal(doubled.raw_winners, single.raw_winners)
    # All clusters are empty but one, and exactly equal after B.
    empty = batch_of(200, sizes="one", empty_weight=0.0)
    assert set(assigned(empty).winners.tolist()) == {0}
    assert len(set(assigned(empty).raw_winners.tolist())) > 1


@pytest.mark.parametrize("order", [1, -1])
def test_a_gain_may_change_the_winner(order: int) -> None:
    # Where even the best similarity is negative, a gain above 1 lowers it: -0.5 -> -0.75 against -0.6.
    centroids = torch.eye(2, dtype=torch.float64)
    centroids = centroids if order == 1 else centroids.flip(0)
    query = torch.tensor([[-0.5, -0.6]], dtype=torch.float64)
    one, zero = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    assignment = assign(query, centroids, one, zero, centroids, temperature=0.04, winner_gain=1.5)
    assert assignment.raw_winners.tolist() == [0 if order == 1 else 1]
    assert assignment.winners.tolist() == [1 if order == 1 else 0]
    p = torch.softmax(torch.tensor([-0.75, -0.6], dtype=torch.float64) / 0.04, 0)
    assert isinstance(assignment, streamed.StreamedAssignment)
    torch.testing.assert_close(assignment.targets[0], p[:, None].mul(torch.eye(2, dtype=torch.float64)).sum(0))


def test_balanced_scores_that_crowd_below_one_keep_their_digits() -> None:
    # Where s K = 2^-20, balanced similarities differ in their eighth digit, and float32 has seven.
    batch = batch_of(500, images=16, sizes="equal")
    batch = dataclasses.replace(batch, scale=batch.scale * 2**-20, offset=1 - batch.scale * 2**-20)
    assignment = assigned(batch.to(torch.float32, torch.float32))
    assert torch.equal(assignment.winners, reference(batch, 2).winners)
    rounded = (batch.queries.float() @ batch.teacher.float().T) * batch.scale.float() + batch.offset.float()
    assert not torch.equal(rounded.argmax(1), assignment.winners)  # so this test can fail


# ---------------------------------------------------------------------------------------------------------------------
# What it must not do
# ---------------------------------------------------------------------------------------------------------------------


class Allocations(TorchDispatchMode):
    """The most elements of a tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else [output]:
            if isinstance(tensor, Tensor):
                self.most = max(self.most, tensor.untyped_storage().nbytes() // tensor.element_size())
        return output


@pytest.mark.parametrize("extras", [{}, OFFICIAL], ids=str)
def test_no_tensor_has_rows_times_clusters_elements(extras: dict[str, Any]) -> None:
    clusters, width = 65_536, 8
    batch = batch_of(clusters, views=(2, 6), images=8, width=width, extras=extras).to(torch.float32, torch.float32)
    with Allocations() as allocations:
        outcome(batch, 2)
    rows = 2 * 8  # the fewest that are scored together
    assert clusters * width <= allocations.most < clusters * rows  # the centroids' gradient is the largest


def test_neither_autocast_nor_fast_matrix_products_round_scores() -> None:
    batch = batch_of(129, width=64).to(torch.float32, torch.float32)
    expected = outcome(batch, 2)
    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    try:
        products.fp32_precision = "bf16"
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual = outcome(batch, 2)
        assert products.fp32_precision == "bf16"
    finally:
        products.fp32_precision = before
    assert torch.equal(actual.loss, expected.loss)
    assert torch.equal(actual.targets, expected.targets)
    assert all(torch.equal(actual.gradients[name], value) for name, value in expected.gradients.items())


@pytest.mark.parametrize("backend", ["chunked", "plain"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["h", "centroids", "queries", "teacher"])
@pytest.mark.usefixtures("small_tiles")
def test_what_is_not_finite_reaches_the_loss(name: str, value: float, backend: str) -> None:
    batch = batch_of(129)
    getattr(batch, name).view(-1, 16)[-1, 0] = value
    result = outcome(batch, 2, backend)
    assert result.loss.isnan()
    assert 0 <= int(result.winners.min()) <= int(result.winners.max()) < 129


def test_no_views_cost_nothing() -> None:
    batch = batch_of(37)
    none, centroids = batch.h[:0].clone().requires_grad_(), batch.centroids.clone().requires_grad_()
    loss = cross_entropy(none, centroids, assigned(batch), batch.weights_h[:, :0], temperature=TAU_S)
    loss.backward()
    assert loss == 0
    assert none.grad is not None
    assert none.grad.shape == (0, 3, 16)
    assert centroids.grad is not None
    assert not centroids.grad.any()


# ---------------------------------------------------------------------------------------------------------------------
# Choice of the backend
# ---------------------------------------------------------------------------------------------------------------------


def test_backends_are_chosen_by_device_and_type() -> None:
    rows = torch.zeros(1, 16)
    assert (
        resolve_backend("auto", rows)
        == resolve_backend("chunked", rows)
        == resolve_backend("auto", rows.bfloat16())
        == "chunked"
    )
    assert resolve_backend("plain", rows) == "plain"
    with pytest.raises(UserError, match="triton takes bfloat16, float16 and float32 rows, not float64: choose auto"):
        resolve_backend("triton", rows.double())
    for taken in (rows, rows.half(), rows.bfloat16()):
        with pytest.raises(UserError, match="needs a CUDA device"):
            resolve_backend("triton", taken)
    with pytest.raises(UserError, match="width 256 at most, not 257"):
        resolve_backend("triton", torch.zeros(1, 257, dtype=torch.bfloat16))
    with pytest.raises(UserError, match="no loss backend 'fast': choose auto, triton, chunked, plain"):
        resolve_backend("fast", rows)


# ---------------------------------------------------------------------------------------------------------------------
# On a GPU
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("extras", [{}, OFFICIAL], ids=str)
@pytest.mark.parametrize("clusters", [*CLUSTERS, 65_536])
def test_chunked_backend_on_a_gpu_equals_the_plain_backend(clusters: int, extras: dict[str, Any]) -> None:
    batch = batch_of(clusters, views=(2, 6), width=256, extras=extras)
    assert_equal(batch.to(torch.float32, torch.float32, "cuda"), 1e-6, backend="chunked")


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("extras", [{}, OFFICIAL], ids=str)
@pytest.mark.parametrize("clusters", [*CLUSTERS, 65_536])
@pytest.mark.parametrize("width", [24, 256])
def test_kernels_on_a_gpu_are_as_exact_as_their_inputs(width: int, clusters: int, extras: dict[str, Any]) -> None:
    batch = batch_of(clusters, views=(2, 6), images=19, width=width, extras=extras)
    batch = batch.to(torch.bfloat16, torch.float32, "cuda")
    actual, expected = outcome(batch, 2, "triton"), reference(batch, 2)
    # Probabilities are rounded to bfloat16 before they average: 2^-9 each.
    assert apart(actual.loss, expected.loss) < 2**-12
    for name, gradient in expected.gradients.items():
        assert apart(actual.gradients[name], gradient) < 2**-7, name
    assert apart(actual.targets, expected.targets) < 2**-8
    assert apart(actual.confidence, expected.confidence) < 1e-4
    assert (actual.winners.cpu() == expected.winners).double().mean() > 0.97
    assert (actual.raw_winners.cpu() == expected.raw_winners).double().mean() > 0.97


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("extras", [{}, OFFICIAL], ids=str)
@pytest.mark.parametrize("clusters", [*CLUSTERS, 65_536])
@pytest.mark.parametrize("width", [24, 256])
def test_kernels_on_a_gpu_are_exact_in_float32(width: int, clusters: int, extras: dict[str, Any]) -> None:
    batch = batch_of(clusters, views=(2, 6), images=19, width=width, extras=extras)
    assert_equal(batch.to(torch.float32, torch.float32, "cuda"), 4e-6, backend="triton")
