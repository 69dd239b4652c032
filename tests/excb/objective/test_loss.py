"""The objective against its plain form, which holds every matrix of rows x clusters: value, every gradient, memory."""

import dataclasses
import importlib
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from excb.errors import UserError
from excb.method import balancing, pair_weights
from excb.objective import chunked
from excb.objective.loss import Assignment, Average, Form, Scores, Spread, assign, match, operations

pytestmark = pytest.mark.usefixtures("one_thread")

TAU_T, TAU_S = 0.04, 0.1
OFFICIAL: dict[str, Any] = {"winner_gain": 1.01, "clamp": True}
EXTRAS: list[dict[str, Any]] = [{}, OFFICIAL, {"winner_gain": 0.6}, {"winner_gain": 1.5}, {"clamp": True}]
CLUSTERS = [1, 2, 37, 129, 1031]
needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that divide nothing, so that few rows and clusters make many."""
    monkeypatch.setattr(chunked, "_ROWS", 5)
    monkeypatch.setattr(chunked, "_CLUSTERS", 29)


@dataclass(frozen=True)
class Batch:
    """All that the objective is computed from."""

    h: Tensor  # [V, B, D] unit rows of the projector
    g: Tensor  # [V, B, D] of the predictor
    centroids: Tensor  # [K, D] of the student
    queries: Tensor  # [G * B, D] of the teacher
    teacher: Tensor  # [K, D] centroids of the teacher
    scale: Tensor
    offset: Tensor
    weights_h: Tensor  # [G, V]
    weights_g: Tensor
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to(self, vectors: torch.dtype, numbers: torch.dtype, device: str = "cpu") -> "Batch":
        """The batch with its vectors and its other numbers in these types."""
        kinds = dict.fromkeys(("h", "g", "centroids", "queries", "teacher"), vectors)
        moved: dict[str, Any] = {
            name: value.to(device, kinds.get(name, numbers))
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return dataclasses.replace(self, **moved)


def sizes_of(clusters: int, kind: Literal["mixed", "one", "equal"]) -> Tensor:
    """Relative sizes: of all magnitudes, with empty and huge clusters; one cluster that has all; equal ones."""
    sizes = torch.ones(clusters)
    if kind == "mixed":
        sizes = 2.0 ** -torch.randint(0, 30, (clusters,)).double()
        sizes[1::5] = 0
        sizes[clusters // 2] = 4 * sizes.sum() + 1
    if kind == "one":
        sizes = torch.zeros(clusters)
        sizes[clusters // 2] = 1
    return (sizes / sizes.sum()).double()


def batch_of(
    clusters: int,
    *,
    views: tuple[int, int] = (2, 3),
    images: int = 3,
    width: int = 16,
    sizes: Literal["mixed", "one", "equal"] = "mixed",
    spread: float = 1.0,
    empty_weight: float = 0.001,
    extras: dict[str, Any] | None = None,
    **weighting: Any,
) -> Batch:
    """A batch in float64. The smaller `spread`, the nearer rows are to centroids, and the surer the networks."""
    torch.manual_seed(clusters + 7 * images)
    total = sum(views)

    def near(rows: Tensor) -> Tensor:
        return F.normalize(rows + spread * F.normalize(torch.randn_like(rows), dim=-1), dim=-1)

    centroids = F.normalize(torch.randn(clusters, width, dtype=torch.float64), dim=1)
    seeds = centroids[torch.randint(clusters, (images,))]
    h = near(seeds.expand(total, images, width))
    empty_weights = empty_weight * torch.rand(clusters, dtype=torch.float64)
    scale, offset = balancing(sizes_of(clusters, sizes), empty_weight=empty_weights)
    queries = near(seeds.expand(views[0], images, width)).flatten(0, 1)
    weights = pair_weights(*views, **weighting)
    return Batch(h, near(h), centroids, queries, near(centroids), scale, offset, *weights, extras or {})


@dataclass(frozen=True)
class Outcome:
    """What is compared."""

    loss: Tensor
    gradients: dict[str, Tensor]
    targets: Tensor
    winners: Tensor
    raw_winners: Tensor
    confidence: Tensor


def plain(batch: Batch, moving: int) -> Outcome:
    """The equations in float64, pair by pair, with every matrix of rows x clusters."""
    b = batch.to(torch.float64, torch.float64)
    h, g, centroids = (t.detach().clone().requires_grad_() for t in (b.h, b.g, b.centroids))
    (G, V), images = b.weights_h.shape, b.h.shape[1]
    z = b.queries @ b.teacher.T
    balanced = b.scale * z + b.offset
    best = balanced.argmax(1)
    balanced[range(len(best)), best] *= b.extras.get("winner_gain", 1.0)
    if b.extras.get("clamp"):
        balanced = balanced.clamp(-1, 1)
    p = torch.softmax(balanced / TAU_T, dim=1)
    p_t = p.unflatten(0, (G, images))
    loss = torch.zeros((), dtype=torch.float64)
    for t in range(G):
        for v in range(V):
            c = centroids if v < moving else centroids.detach()
            for weights, rows, matched in ((b.weights_h, h, c), (b.weights_g, g, centroids.detach())):
                cross_entropy = -(p_t[t] * torch.log_softmax(rows[v] @ matched.T / TAU_S, dim=1)).sum(1)
                loss = loss + weights[t, v] * cross_entropy.mean()
    gradients = torch.autograd.grad(loss, (h, g, centroids), allow_unused=True, materialize_grads=True)
    return Outcome(
        loss.detach(),
        dict(zip(("h", "g", "centroids"), gradients, strict=True)),
        p @ b.centroids,
        p.argmax(1),
        z.argmax(1),
        p.max(1).values,
    )


def tiled(batch: Batch, moving: int, form: Form = "auto") -> Outcome:
    """The objective as `excb.method` composes it."""
    h, g, centroids = (t.detach().clone().requires_grad_() for t in (batch.h, batch.g, batch.centroids))
    tensors = (batch.queries, batch.teacher, batch.scale, batch.offset)
    assignment = assign(*tensors, centroids, temperature=TAU_T, **batch.extras, form=form)

    def matched(rows: Tensor, c: Tensor, weights: Tensor) -> Tensor:
        return match(rows, c, assignment, weights, temperature=TAU_S, form=form)

    loss = matched(h[:moving], centroids, batch.weights_h[:, :moving])
    loss = loss + matched(h[moving:], centroids.detach(), batch.weights_h[:, moving:])
    loss = loss + matched(g, centroids.detach(), batch.weights_g)
    gradients = torch.autograd.grad(loss, (h, g, centroids), allow_unused=True, materialize_grads=True)
    assert not assignment.targets.requires_grad
    return Outcome(
        loss.detach(),
        dict(zip(("h", "g", "centroids"), gradients, strict=True)),
        assignment.targets,
        assignment.winners,
        assignment.raw_winners,
        assignment.confidence,
    )


def apart(actual: Tensor, expected: Tensor) -> float:
    """The length of the difference, relative to the tensor's; of one that should be zero, as it is."""
    length = expected.double().norm().item()
    difference = (actual.double().cpu() - expected).norm().item()
    return difference / length if length > 1e-15 else difference


def assert_equal(batch: Batch, tolerance: float, *, moving: int = 2, form: Form = "auto", rounded: float = 0) -> None:
    """Compare with the plain form; `rounded` is the tolerance of gradients that are returned in half precision."""
    actual, expected = tiled(batch, moving, form), plain(batch, moving)
    for name, gradient in expected.gradients.items():
        assert actual.gradients[name].dtype == getattr(batch, name).dtype
        assert apart(actual.gradients[name], gradient) <= max(tolerance, rounded), name
    for name in ("loss", "targets", "confidence"):
        assert apart(getattr(actual, name), getattr(expected, name)) <= tolerance, name
    for name in ("winners", "raw_winners"):
        assert getattr(actual, name).tolist() == getattr(expected, name).tolist(), name


# ---------------------------------------------------------------------------------------------------------------------
# Value and every gradient
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extras", EXTRAS, ids=str)
@pytest.mark.parametrize("clusters", CLUSTERS)
@pytest.mark.usefixtures("small_tiles")
def test_float64_equals_the_plain_form(clusters: int, extras: dict[str, Any]) -> None:
    assert_equal(batch_of(clusters, extras=extras), 1e-12)


@pytest.mark.parametrize("extras", [{}, OFFICIAL], ids=str)
@pytest.mark.parametrize("sizes", ["mixed", "one", "equal"])
@pytest.mark.parametrize("clusters", CLUSTERS)
def test_float32_equals_the_plain_form(clusters: int, sizes: Any, extras: dict[str, Any]) -> None:
    batch = batch_of(clusters, images=5, sizes=sizes, spread=3.0, extras=extras)
    assert_equal(batch.to(torch.float32, torch.float32), 1e-6)


@pytest.mark.parametrize("clusters", [2, 37, 129])
def test_float32_where_teacher_and_student_agree_is_exact_to_the_terms_that_cancel(clusters: int) -> None:
    batch = batch_of(clusters, images=5, sizes="equal", spread=0.1).to(torch.float32, torch.float32)
    actual, expected = tiled(batch, 2), plain(batch, 2)
    for name, weights in (("h", batch.weights_h), ("g", batch.weights_g), ("centroids", batch.weights_h[:, :2])):
        terms = weights.sum(0).norm() * 5**-0.5 / TAU_S  # each of p_s's and p_t's part
        assert (actual.gradients[name] - expected.gradients[name]).norm() <= 1e-6 * terms
        assert expected.gradients[name].norm() < 0.3 * terms
    assert (actual.loss - expected.loss).abs() <= 1e-6 / TAU_S


@pytest.mark.parametrize("extras", [{}, OFFICIAL], ids=str)
def test_float32_equals_the_plain_form_at_full_width(extras: dict[str, Any]) -> None:
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
        return match(h, centroids, assignment, batch.weights_h, temperature=TAU_S)

    assert torch.autograd.gradcheck(loss, (h, centroids))


def test_gradients_scale_with_the_loss_and_come_again() -> None:
    batch = batch_of(37)
    centroids = batch.centroids.clone().requires_grad_()
    loss = match(batch.h, centroids, assigned(batch), batch.weights_h, temperature=TAU_S)
    once = torch.autograd.grad(loss, centroids, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(-3 * loss, centroids)[0], -3 * once)


def assigned(batch: Batch) -> Assignment:
    return assign(
        batch.queries,
        batch.teacher,
        batch.scale,
        batch.offset,
        batch.centroids,
        temperature=TAU_T,
        **batch.extras,
    )


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
    found = assign(query, centroids, one, zero, centroids, temperature=0.04, winner_gain=1.5)
    assert found.raw_winners.tolist() == [0 if order == 1 else 1]
    assert found.winners.tolist() == [1 if order == 1 else 0]
    p = torch.softmax(torch.tensor([-0.75, -0.6], dtype=torch.float64) / 0.04, 0)
    torch.testing.assert_close(found.targets[0], p[:, None].mul(torch.eye(2, dtype=torch.float64)).sum(0))


def test_balanced_scores_that_crowd_below_one_keep_their_digits() -> None:
    # Where s K = 2^-20, balanced similarities differ in their eighth digit, and float32 has seven.
    batch = batch_of(500, images=16, sizes="equal")
    batch = dataclasses.replace(batch, scale=batch.scale * 2**-20, offset=1 - batch.scale * 2**-20)
    found = assigned(batch.to(torch.float32, torch.float32))
    assert torch.equal(found.winners, plain(batch, 2).winners)
    rounded = (batch.queries.float() @ batch.teacher.float().T) * batch.scale.float() + batch.offset.float()
    assert not torch.equal(rounded.argmax(1), found.winners)  # so this test can fail


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
        tiled(batch, 2)
    rows = 2 * 8  # the fewest that are scored together
    assert clusters * width <= allocations.most < clusters * rows  # the centroids' gradient is the largest


def test_neither_autocast_nor_fast_matrix_products_round_scores() -> None:
    batch = batch_of(129, width=64).to(torch.float32, torch.float32)
    expected = tiled(batch, 2)
    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    try:
        products.fp32_precision = "bf16"
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual = tiled(batch, 2)
        assert products.fp32_precision == "bf16"
    finally:
        products.fp32_precision = before
    assert torch.equal(actual.loss, expected.loss)
    assert torch.equal(actual.targets, expected.targets)
    assert all(torch.equal(actual.gradients[name], value) for name, value in expected.gradients.items())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["h", "centroids", "queries", "teacher"])
@pytest.mark.usefixtures("small_tiles")
def test_what_is_not_finite_reaches_the_loss(name: str, value: float) -> None:
    batch = batch_of(129)
    getattr(batch, name).view(-1, 16)[-1, 0] = value
    outcome = tiled(batch, 2)
    assert outcome.loss.isnan()
    assert 0 <= int(outcome.winners.min()) <= int(outcome.winners.max()) < 129


def test_no_views_cost_nothing() -> None:
    batch = batch_of(37)
    none, centroids = batch.h[:0].clone().requires_grad_(), batch.centroids.clone().requires_grad_()
    loss = match(none, centroids, assigned(batch), batch.weights_h[:, :0], temperature=TAU_S)
    loss.backward()
    assert loss == 0
    assert none.grad is not None
    assert none.grad.shape == (0, 3, 16)
    assert centroids.grad is not None
    assert not centroids.grad.any()


# ---------------------------------------------------------------------------------------------------------------------
# Forms
# ---------------------------------------------------------------------------------------------------------------------


def test_forms_are_chosen_by_device_and_type() -> None:
    rows = torch.zeros(1, 16)
    assert operations("auto", rows) is operations("chunked", rows) is operations("auto", rows.bfloat16())
    for form in ("triton", "flex"):
        with pytest.raises(UserError, match=rf"form {form} takes bfloat16 rows, not float32 \(.*\): choose chunked"):
            operations(form, rows)
        with pytest.raises(UserError, match="needs a CUDA device"):
            operations(form, rows.bfloat16())
        with pytest.raises(UserError, match="width 256 at most, not 257"):
            operations(form, torch.zeros(1, 257, dtype=torch.bfloat16))
    with pytest.raises(UserError, match="no form 'fast' of the objective: choose auto, chunked, triton, flex"):
        operations("fast", rows)  # type: ignore[arg-type]


def run_apart(function: str, cache: Path, **environment: str) -> None:
    """Call a function of this file in a process of its own."""
    subprocess.run(
        [sys.executable, "-c", f"from tests.excb.objective import test_loss; test_loss.{function}()"],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"TRITON_CACHE_DIR": str(cache)} | environment,
        check=True,
        timeout=600,
    )


@needs_triton
def test_interpreted_kernels_equal_the_chunked_form(tmp_path: Path) -> None:
    run_apart("interpret_kernels", tmp_path, TRITON_INTERPRET="1")


def interpret_kernels() -> None:
    """Compare all kernels with the chunked form in float32."""
    from excb.objective import triton as objective_triton

    torch.manual_seed(0)
    vars(objective_triton)["_tile"] = {torch.device("cpu"): objective_triton.Tile(16, 16, 4, 2)}.get
    for K, D, R, extras in [(37, 16, 5, {}), (70, 24, 18, OFFICIAL), (1, 5, 1, {"winner_gain": 0.6})]:
        batch = batch_of(K, views=(1, 1), images=R, width=D, extras=extras).to(torch.float32, torch.float32)
        student, teacher = student_of(batch), assigned(batch).scores
        assert (teacher.replaced is not None) == ("winner_gain" in extras)
        averages = []
        for scores, values, winners in [
            (student, batch.centroids, False),
            (teacher, batch.centroids, True),
            (dataclasses.replace(teacher, replaced=None), None, True),
        ]:
            actual, expected = (form.average(scores, values, winners=winners) for form in (objective_triton, chunked))
            for field in ("mean", "peak", "total"):
                assert apart(getattr(actual, field), getattr(expected, field).double()) < 2e-6, field
            assert not winners or torch.equal(actual.winners, expected.winners)
            assert not winners or torch.equal(actual.raw_winners, expected.raw_winners)
            averages.append(expected)
        terms = (spread_of(student, averages[0], batch.h[1]), spread_of(teacher, averages[1], batch.g[0]))
        assert apart(objective_triton.spread(*terms), chunked.spread(*terms).double()) < 2e-6
    nothing = objective_triton.average(dataclasses.replace(student, rows=student.rows[:0]), None, winners=False)
    assert nothing.peak.shape == (0,)


def student_of(batch: Batch) -> Scores:
    return Scores(batch.h[1], batch.centroids, TAU_S)


def spread_of(scores: Scores, average: Average, vectors: Tensor) -> Spread:
    return Spread(scores, average.peak, torch.rand(len(vectors)) / average.total, vectors)


@needs_triton
@pytest.mark.slow
def test_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    run_apart("compile_kernels", tmp_path)


def compile_kernels() -> None:
    """Compile every kernel as it is launched, and check that it fits the shared memory of its GPU."""
    from excb.objective import triton as objective_triton
    from excb.objective import triton_kernels

    kernels = {name: getattr(triton_kernels, name) for name in ("average", "merge", "spread")}
    batch = batch_of(300, views=(1, 1), images=32, width=256, extras=OFFICIAL)
    wide = batch.to(torch.float32, torch.float32)
    teacher = assigned(wide).scores
    averages = [chunked.average(s, wide.centroids, winners=False) for s in (student_of(wide), teacher)]
    low = batch.to(torch.bfloat16, torch.float32)
    student, teacher = student_of(low), dataclasses.replace(teacher, rows=low.queries, centroids=low.teacher)
    for capability, room in ((80, 166_912), (89, 101_376), (90, 232_448)):
        for name, kernel in kernels.items():
            setattr(triton_kernels, name, CompiledOnly(kernel, capability, room))
        tile = next(tile for least, tile in objective_triton._TILES.items() if room >= least)
        vars(objective_triton)["_tile"] = {torch.device("cpu"): tile}.get
        objective_triton.average(student, student.centroids, winners=False)
        objective_triton.average(teacher, student.centroids, winners=True)
        objective_triton.average(dataclasses.replace(teacher, bounds=None, replaced=None), None, winners=True)
        objective_triton.spread(spread_of(student, averages[0], low.h[1]), spread_of(teacher, averages[1], low.g[0]))


@dataclass(frozen=True)
class CompiledOnly:
    """A Triton kernel that is compiled for a GPU when it is launched, and not run."""

    kernel: Any
    capability: int
    room: int  # bytes of shared memory

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.compile

    def compile(self, *arguments: Any, **named: Any) -> None:
        triton, compiler, backends = map(
            importlib.import_module, ("triton", "triton.compiler", "triton.backends.compiler")
        )
        names = self.kernel.arg_names
        given = dict(zip(names, arguments, strict=False)) | {n: named.pop(n) for n in names if n in named}
        signature, constants, aligned = {}, {}, {}
        for number, name in enumerate(names):
            value = given[name]
            if isinstance(value, Tensor):
                kind = str(value.dtype).removeprefix("torch.").replace("float", "fp").replace("int", "i")
                signature[name], aligned[(number,)] = f"*{kind.replace('bfp', 'bf')}", [["tt.divisibility", 16]]
            elif (name.isupper() and name not in {"R", "K"}) or value is None:
                signature[name], constants[(number,)] = "constexpr", value
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
        source = compiler.ASTSource(fn=self.kernel, signature=signature, constexprs=constants, attrs=aligned)
        compiled = triton.compile(source, target=backends.GPUTarget("cuda", self.capability, 32), options=named)
        assert compiled.metadata.shared <= self.room


@needs_triton
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # 2026-11-21: compiled on CUDA only
@pytest.mark.parametrize("clusters", [37, 96])
def test_flex_attention_equals_the_chunked_form(clusters: int) -> None:
    from excb.objective import flex

    batch = batch_of(clusters).to(torch.float32, torch.float32)
    scores = Scores(batch.h[0], batch.centroids, TAU_S)
    with torch.no_grad():
        actual = flex.average(scores, batch.centroids, winners=False)
    expected = chunked.average(scores, batch.centroids, winners=False)
    assert apart(actual.mean, expected.mean.double()) < 1e-6
    log_normalisers = [each.peak / TAU_S + each.total.log() for each in (actual, expected)]
    assert apart(log_normalisers[0], log_normalisers[1].double()) < 1e-6


# ---------------------------------------------------------------------------------------------------------------------
# On a GPU
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("extras", [{}, OFFICIAL], ids=str)
@pytest.mark.parametrize("clusters", [*CLUSTERS, 65_536])
def test_chunked_form_on_a_gpu_equals_the_plain_form(clusters: int, extras: dict[str, Any]) -> None:
    batch = batch_of(clusters, views=(2, 6), width=256, extras=extras)
    assert_equal(batch.to(torch.float32, torch.float32, "cuda"), 1e-6, form="chunked")


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("form", ["triton", "flex"])
@pytest.mark.parametrize("extras", [{}, OFFICIAL], ids=str)
@pytest.mark.parametrize("clusters", [*CLUSTERS, 65_536])
@pytest.mark.parametrize("width", [24, 256])
def test_kernels_on_a_gpu_are_as_exact_as_their_inputs(
    width: int, clusters: int, extras: dict[str, Any], form: Form
) -> None:
    batch = batch_of(clusters, views=(2, 6), images=19, width=width, extras=extras)
    batch = batch.to(torch.bfloat16, torch.float32, "cuda")
    actual, expected = tiled(batch, 2, form), plain(batch.to(torch.bfloat16, torch.float32, "cpu"), 2)
    # Probabilities are rounded to bfloat16 before they average: 2^-9 each.
    assert apart(actual.loss, expected.loss) < 2**-12
    for name, gradient in expected.gradients.items():
        assert apart(actual.gradients[name], gradient) < 2**-7, name
    assert apart(actual.targets, expected.targets) < 2**-8
    assert apart(actual.confidence, expected.confidence) < 1e-4
    assert (actual.winners.cpu() == expected.winners).double().mean() > 0.97
    assert (actual.raw_winners.cpu() == expected.raw_winners).double().mean() > 0.97
