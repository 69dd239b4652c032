"""The method against a loop-written oracle and closed forms: value, gradients, state, statistics, initialisation."""

import functools
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from excb import seeding
from excb.balancing.interface import Balancer, TeacherBatch
from excb.balancing.table import BALANCERS, BalancerEntry
from excb.errors import UserError
from excb.method import (
    EMPTY,
    EMPTY_WEIGHT,
    CentroidLayer,
    Clustered,
    ExCB,
    Step,
    balancing,
    batch_sizes,
    pair_weights,
    spherical_kmeans,
    unit,
)
from excb.networks.drop_path import SampleDropPath
from excb.objective.contrast import nt_xent
from excb.settings import OFFICIAL, MethodSettings
from tests import oracle

assert_close = functools.partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)

# All that the appendix's pseudo-code does where it differs from the text.
PSEUDOCODE: dict[str, Any] = {
    "sizes_counted": "raw",
    "sizes_updated": "before_balancing",
    "balancing": "pseudocode",
    "empty_clusters": "exact",
    "loss_reduction": "pseudocode",
    "head_batches": "per_resolution",
}

drawn = hypothesis.settings(deadline=None, database=None, derandomize=True, max_examples=40)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(scope="module", autouse=True)
def float64_on_one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are tiny: on a busy machine more threads take ten times as long
    with default_dtype(torch.float64):
        yield
    torch.set_num_threads(threads)


class Stub(nn.Module):
    """[B, 3, H, W] -> [B, 6]: 2 x 2 average pooling, a linear layer and a residual branch."""

    num_features = 6

    def __init__(self, *, batchnorm: bool = False, drop_path: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 6)
        self.norm = nn.BatchNorm1d(6) if batchnorm else nn.Identity()
        self.branch = nn.Linear(6, 6)
        self.drop_path = SampleDropPath(drop_path, 3)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.norm(self.linear(F.adaptive_avg_pool2d(images, 2).flatten(1)))
        return rows + self.drop_path(self.branch(rows.tanh()))


def build(
    *, batchnorm: bool = False, drop_path: float = 0.0, spread: float = 0.5, backend: str = "auto", **options: Any
) -> ExCB:
    """A tiny ExCB whose teacher differs from its student; all weights are normal with standard deviation `spread`."""
    torch.manual_seed(1)
    options = {"clusters": 7, "width": 4, "hidden": 5} | options
    networks = Stub(batchnorm=batchnorm, drop_path=drop_path), Stub(batchnorm=batchnorm)
    model = ExCB(*networks, MethodSettings(**options), backend=backend)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=spread)
    return model


def images(globals_: int, locals_: int, batch: int, *, seed: int = 2) -> tuple[Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    global_views = torch.randn(globals_, batch, 3, 4, 4, generator=generator)
    return global_views, torch.randn(locals_, batch, 3, 2, 2, generator=generator) if locals_ else None


def mixed_sizes(clusters: int) -> Tensor:
    """Two empty clusters, a huge one, one of exactly 1/K, one below the threshold of emptiness; the others fall off."""
    fixed = [0.0, 0.45, 1 / clusters, 0.0, EMPTY / clusters / 2]
    others = [2.0**-k for k in range(clusters - len(fixed))]
    return torch.tensor(fixed + [share / sum(others) * (1 - sum(fixed)) for share in others])


def noise(step_key: int, clusters: int) -> list[float]:
    """Weights of empty clusters, 0 to 0.001, each the first 53 bits of its folded name."""
    names = [seeding.fold(seeding.Purpose.EMPTY_CLUSTER, step_key, k) for k in range(clusters)]
    return [0.001 * (name >> 11) / 2**53 for name in names]


def assert_equal_to_oracle(
    model: ExCB, *, views: tuple[int, int], batch: int = 3, steps: int = 1, rate: float = 0.05
) -> None:
    """Train the model and its oracle for some steps of plain SGD and compare all that can be seen of both."""
    settings = model.settings
    expected = oracle.Oracle(model)
    for step in range(steps):
        global_views, local_views = images(*views, batch, seed=step)
        step_key, momentum = 40 + step, 0.9 - 0.1 * step
        weights = noise(step_key, settings.clusters)
        weights = weights if settings.empty_clusters == "noise" else [0.0] * settings.clusters
        theirs = expected.forward(global_views, local_views, weights)
        ours = model(global_views, local_views, step_key=step_key)

        assert_close(ours.loss, theirs.loss)
        assert_close(clusters_of(ours).confidence, torch.tensor(theirs.confidence))
        assert clusters_of(ours).agreement.item() == pytest.approx(theirs.agreement, rel=1e-6)
        assert clusters_of(ours).winners.tolist() == theirs.winners
        if settings.sizes_updated == "after_loss":
            assert clusters_of(ours).counted.tolist() == (
                theirs.winners if settings.sizes_counted == "balanced" else theirs.raw_winners
            )

        descend(model.student, ours.loss, rate)
        descend(expected.student, theirs.loss, rate)
        assert_close(gradients(model.student), gradients(expected.student))
        model.update(ours.clusters, momentum)
        expected.update(momentum)

        assert_close(model.sizes, torch.tensor(expected.sizes))
        for network, other_network in ((model.student, expected.student), (model.teacher, expected.teacher)):
            assert_close(network.state_dict(), other_network.state_dict())


def gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def gradients(network: nn.Module) -> dict[str, Tensor]:
    return {name: gradient(parameter) for name, parameter in network.named_parameters()}


def descend(network: nn.Module, loss: Tensor, rate: float) -> None:
    network.zero_grad()
    if loss.requires_grad:
        loss.backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.sub_(rate * gradient(parameter))


# ---------------------------------------------------------------------------------------------------------------------
# The whole step against the oracle
# ---------------------------------------------------------------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {},
    {"head": "batchnorm"},
    {"head": "batchnorm", "head_batches": "per_resolution", "predictor_input_norm": True},
    {"predictor": False},
    {"predictor": False, "loss_reduction": "sum"},
    {"predictor": False, "loss_reduction": "pairs"},
    {"predictor": False, "projector_on_local": False, "centroid_gradient_from_local": True},
    {"sizes_counted": "raw"},
    {"sizes_updated": "before_balancing"},
    {"sizes_updated": "before_balancing", "sizes_counted": "raw"},
    {"balancing": "squared"},
    {"balancing": "squared", "empty_clusters": "exact"},
    {"balancing": "none"},
    {"balancing": "centering"},
    {"balancing": "sinkhorn"},
    {"balancing": "sinkhorn", "teacher_temperature": 0.2, "sinkhorn_iterations": 1, "sizes_counted": "raw"},
    {"balancing": "mira"},
    {"balancing": "mira", "teacher_temperature": 0.225, "mira_beta": 0.75, "mira_iterations": 5},
    {"balancing": "mira", "sizes_updated": "before_balancing"},
    {"balancing": "pseudocode"},
    {"empty_clusters": "exact"},
    {"winner_gain": 1.01},
    {"clamp": True, "winner_gain": 1.3},
    {"projector_on_local": False},
    {"centroid_gradient_from_local": True},
    {"loss_reduction": "sum"},
    {"loss_reduction": "pairs"},
    {"loss_reduction": "pseudocode"},
    {"teacher_temperature": 0.1, "student_temperature": 0.07, "sizes_momentum": 0.5},
    {"teacher_centroids": "unit"},
    {"projector_layers": 0, "predictor_layers": 0},
    {"projector_output_norm": True},
    {"contrast": 2.0},
    {"contrast": 0.5, "contrast_temperature": 0.1, "projector_output_norm": True, "predictor": False},
    {"regression": 1.5},
    {"regression": 0.5, "contrast": 1.0, "teacher_statistics": "averaged"},
]
VIEWS = [(2, 2), (2, 0), (1, 2), (1, 1), (1, 0), (3, 1)]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()))
def test_every_option_equals_the_oracle(options: dict[str, Any]) -> None:
    model = build(**options)
    model.sizes.copy_(mixed_sizes(7))
    assert_equal_to_oracle(model, views=(2, 2))


@pytest.mark.parametrize("views", VIEWS)
@pytest.mark.parametrize("family", [{}, OFFICIAL, PSEUDOCODE], ids=["paper", "official", "pseudocode"])
def test_every_family_equals_the_oracle_with_any_number_of_views(
    family: dict[str, Any], views: tuple[int, int]
) -> None:
    model = build(**family, clusters=13, head="batchnorm")
    model.sizes.copy_(mixed_sizes(13))
    assert_equal_to_oracle(model, views=views)


@pytest.mark.parametrize("views", [(2, 2), (1, 0)])
def test_one_image_equals_the_oracle(views: tuple[int, int]) -> None:
    assert_equal_to_oracle(build(head="gelu", clusters=13), views=views, batch=1)


def test_two_and_six_views_equal_the_oracle() -> None:
    assert_equal_to_oracle(build(), views=(2, 6), batch=2)


@pytest.mark.parametrize(
    "family",
    [
        {},
        OFFICIAL,
        PSEUDOCODE,
        {"teacher_centroids": "unit", "centroid_gradient_from_local": True},
        {"balancing": "centering", "center_momentum": 0.6},
        {"balancing": "sinkhorn"},
        {"balancing": "mira"},
    ],
    ids=["paper", "official", "pseudocode", "unit", "centering", "sinkhorn", "mira"],
)
def test_several_steps_equal_the_oracle(family: dict[str, Any]) -> None:
    model = build(**family, batchnorm=True, sizes_momentum=0.8)
    assert isinstance(model.student.projector[1], nn.BatchNorm1d)
    assert_equal_to_oracle(model, views=(2, 1), steps=4)
    assert not torch.equal(model.sizes, torch.full((7,), 1 / 7))


SIMCLR: dict[str, Any] = {
    "clustering": False,
    "contrast": 1.0,
    "predictor": False,
    "teacher_statistics": "averaged",
}


def assert_same_descent(model: ExCB, step: Any, expected: oracle.Oracle, loss: Tensor) -> None:
    """A step without clusters has the oracle's loss, and its gradient moves the student as the oracle's does."""
    assert step.clusters is None
    assert_close(step.loss, loss)
    descend(model.student, step.loss, 0.1)
    descend(expected.student, loss, 0.1)
    assert_close(model.student.state_dict(), expected.student.state_dict())


@pytest.mark.parametrize("views", VIEWS)
def test_contrast_alone_is_simclr(views: tuple[int, int]) -> None:
    model = build(**SIMCLR, batchnorm=True)
    global_views, local_views = images(*views, 4)
    expected = oracle.Oracle(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step = model(global_views, local_views, step_key=0)
    h, _ = expected._student_rows(global_views, local_views)
    loss = oracle.nt_xent(h, len(global_views), 0.2)
    assert_same_descent(model, step, expected, loss)
    model.update(step.clusters, 0.9)
    after = model.state_dict()
    assert torch.equal(after["sizes"], before["sizes"])
    for name, value in model.teacher.state_dict().items():
        if value.is_floating_point():
            assert_close(value, 0.9 * before[f"teacher.{name}"] + 0.1 * model.student.state_dict()[name])


BYOL: dict[str, Any] = {"clustering": False, "regression": 1.0}


@pytest.mark.parametrize("views", VIEWS)
def test_regression_alone_is_byol(views: tuple[int, int]) -> None:
    model = build(**BYOL, batchnorm=True)
    global_views, local_views = images(*views, 4)
    expected = oracle.Oracle(model)
    step = model(global_views, local_views, step_key=0)
    _, g = expected._student_rows(global_views, local_views)
    assert g is not None
    rows = oracle.by_view(expected.teacher.projector(expected.teacher.backbone(torch.cat(list(global_views)))), 4)
    loss = oracle.byol(g, [[row.detach() for row in view] for view in rows])
    assert_same_descent(model, step, expected, loss)
    model.update(step.clusters, 0.9)
    assert torch.equal(model.sizes, torch.full_like(model.sizes, 1 / 7))


def test_simclr_with_two_views_is_the_usual_formula() -> None:
    rows = F.normalize(torch.randn(2, 5, 8), dim=-1)
    both = rows.flatten(0, 1)
    logits = (both @ both.T / 0.5).fill_diagonal_(-torch.inf)
    expected = F.cross_entropy(logits, torch.cat([torch.arange(5, 10), torch.arange(5)]))
    assert_close(nt_xent(rows, 2, temperature=0.5), expected)


@pytest.mark.parametrize("globals_", [1, 2, 3])
def test_contrast_in_tiles_is_contrast_at_once(globals_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = F.normalize(torch.randn(4, 7, 2), dim=-1)
    whole, tiled = (rows.clone().requires_grad_() for _ in range(2))
    nt_xent(whole, globals_, temperature=0.2).backward()
    monkeypatch.setattr("excb.objective.contrast.TILE", 4 * globals_ * 7 * 2)
    with Allocations() as allocations:
        nt_xent(tiled, globals_, temperature=0.2).backward()
    assert_close(tiled.grad, whole.grad)
    assert max(allocations.elements.values()) <= 4 * globals_ * 7 * 2


def test_contrast_is_finite_at_tiny_temperatures() -> None:
    rows = F.normalize(torch.randn(2, 3, 4, dtype=torch.float32), dim=-1).requires_grad_()
    loss = nt_xent(rows, 2, temperature=1e-3)  # exp(1000) overflows
    loss.backward()
    assert loss.isfinite()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contrast": -1.0}, "method.contrast must not be negative"),
        ({"regression": -1.0}, "method.regression must not be negative"),
        ({"regression": 1.0, "predictor": False}, "set method.predictor=true"),
        (SIMCLR | {"predictor": True}, "set method.predictor=false"),
        (SIMCLR | {"teacher_statistics": "own"}, "set method.teacher_statistics=averaged"),
        (SIMCLR | {"centroid_init": "kmeans"}, "set method.centroid_init=random"),
    ],
)
def test_contrast_refuses_what_makes_no_loss(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MethodSettings(**options)


def test_averaged_statistics_equal_the_oracle() -> None:
    model = build(batchnorm=True, teacher_statistics="averaged")
    assert_equal_to_oracle(model, views=(2, 1), steps=2)


@drawn
@hypothesis.given(
    options=st.fixed_dictionaries(
        {
            "clusters": st.sampled_from([5, 7, 13]),
            "predictor": st.booleans(),
            "head": st.sampled_from(["batchnorm", "gelu"]),
            "head_batches": st.sampled_from(["all_views", "per_resolution"]),
            "sizes_counted": st.sampled_from(["balanced", "raw"]),
            "sizes_updated": st.sampled_from(["after_loss", "before_balancing"]),
            "balancing": st.sampled_from(["linear", "squared", "none", "pseudocode"]),
            "empty_clusters": st.sampled_from(["noise", "exact"]),
            "projector_on_local": st.booleans(),
            "centroid_gradient_from_local": st.booleans(),
            "loss_reduction": st.sampled_from(["halves", "sum", "pairs", "pseudocode"]),
            "teacher_centroids": st.sampled_from(["rows", "unit"]),
            "projector_output_norm": st.booleans(),
            "contrast": st.sampled_from([0.0, 1.5]),
        }
    ),
    views=st.sampled_from(VIEWS),
    data=st.data(),
)
def test_any_combination_of_options_equals_the_oracle(
    options: dict[str, Any], views: tuple[int, int], data: st.DataObject
) -> None:
    counts = data.draw(st.lists(st.integers(0, 40), min_size=options["clusters"], max_size=options["clusters"]))
    model = build(**options)
    if sum(counts):
        model.sizes.copy_(torch.tensor(counts, dtype=torch.float64) / sum(counts))
    assert_equal_to_oracle(model, views=views, batch=2)


@pytest.mark.parametrize("balancing", ["linear", "centering", "sinkhorn", "mira"])
def test_float32_loss_equals_the_oracle(balancing: str) -> None:
    model = build(clusters=13, balancing=balancing)
    model.sizes.copy_(mixed_sizes(13))
    global_views, local_views = images(2, 2, 3)
    expected = oracle.Oracle(model).forward(global_views, local_views, noise(0, 13))
    assert local_views is not None
    with default_dtype(torch.float32):
        step = model.float()(global_views.float(), local_views.float(), step_key=0)
    assert step.loss.dtype == torch.float32
    assert clusters_of(step).winners.tolist() == expected.winners
    torch.testing.assert_close(step.loss.double(), expected.loss.detach(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("balancing", ["linear", "none", "sinkhorn", "mira"])
def test_only_a_centre_adds_to_a_checkpoint(balancing: str) -> None:
    plain, centred = (set(build(balancing=each).state_dict()) for each in (balancing, "centering"))
    assert centred - plain == {"balancer.center"}
    assert plain < centred


def test_double_precision_does_not_hang_on_torchs_default() -> None:
    model = build()
    global_views, local_views = images(2, 6, 2)
    expected = oracle.Oracle(model).forward(global_views, local_views, noise(0, 7))
    with default_dtype(torch.float32):
        step = model(global_views, local_views, step_key=0)
    assert_close(step.loss, expected.loss)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()))
def test_every_option_equals_the_oracle_with_the_plain_backend(options: dict[str, Any]) -> None:
    model = build(**options, backend="plain")
    model.sizes.copy_(mixed_sizes(7))
    assert_equal_to_oracle(model, views=(2, 2))


class Tanh(Balancer):
    """A toy balancer that is not affine per cluster: p_t = softmax(tanh(3 z) / tau_t)."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self._temperature = temperature

    def probabilities(self, batch: TeacherBatch) -> Tensor:
        return torch.softmax((3 * batch.similarities()).tanh() / self._temperature, 1)


@pytest.mark.parametrize("backend", ["auto", "plain"])
def test_a_balancer_that_is_not_affine_needs_no_other_backward_pass(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setitem(BALANCERS, "tanh", BalancerEntry(__name__, "Tanh", ("teacher_temperature",)))
    model = build(balancing="tanh", backend=backend)
    assert not model.balancer.is_affine
    views = images(2, 2, 3)
    theirs = oracle.Oracle(model)
    ours = model(*views, step_key=0)
    h, g = theirs._student_rows(*views)
    with torch.no_grad():
        rows = oracle.by_view(theirs.teacher.projector(theirs.teacher.backbone(torch.cat(list(views[0])))), 3)
        z = [[oracle.similarities(row, list(theirs.teacher.centroids.weight)) for row in view] for view in rows]
    p_t = [[oracle.softmax(torch.tanh(3 * row), 0.04) for row in view] for view in z]
    loss = oracle.objective(h, g, list(theirs.student.centroids.weight), p_t, model.settings)
    assert_close(ours.loss, loss)
    assert clusters_of(ours).winners.tolist() == [[oracle.argmax(row.tolist()) for row in view] for view in p_t]
    ours.loss.backward()
    loss.backward()
    assert_close(gradients(model.student), gradients(theirs.student))
    before = model.sizes.clone()
    model.update(ours.clusters, 0.9)
    assert not torch.equal(model.sizes, before)


# ---------------------------------------------------------------------------------------------------------------------
# What moves, and what does not
# ---------------------------------------------------------------------------------------------------------------------


def clusters_of(step: Step) -> Clustered:
    assert step.clusters is not None
    return step.clusters


def run(model: ExCB, views: tuple[int, int] = (2, 2), *, batch: int = 3, step_key: int = 0) -> Step:
    step: Step = model(*images(*views, batch), step_key=step_key)
    return step


@pytest.mark.parametrize(
    ("views", "options", "moves"),
    [
        ((2, 0), {}, True),
        ((1, 3), {}, False),  # the projector's pairs are local, and the predictor never moves the centroids
        ((1, 3), {"centroid_gradient_from_local": True}, True),
        ((1, 3), {"centroid_gradient_from_local": True, "projector_on_local": False}, False),
        ((1, 0), {}, False),
    ],
)
def test_centroids_move_only_by_the_projector_on_global_views(
    views: tuple[int, int], options: dict[str, Any], moves: bool
) -> None:
    model = build(**options)
    run(model, views).loss.backward()
    assert bool(gradient(model.student.centroids.weight).any()) == moves
    assert bool(gradients(model.student)["backbone.linear.weight"].any())


def test_teacher_has_no_gradient() -> None:
    model = build(centroid_gradient_from_local=True)
    run(model).loss.backward()
    assert not any(parameter.requires_grad for parameter in model.teacher.parameters())
    assert all(parameter.grad is None for parameter in model.teacher.parameters())
    assert all(parameter.grad is not None for parameter in model.student.parameters())


def test_method_starts_with_a_teacher_equal_to_the_student_and_equal_sizes() -> None:
    model = ExCB(Stub(batchnorm=True), Stub(batchnorm=True), MethodSettings(clusters=7, width=4, hidden=5))
    student = model.student.state_dict()
    teacher = model.teacher.state_dict()
    assert {name for name in student if name not in teacher} == {n for n in student if n.startswith("predictor.")}
    assert len(student) > len(teacher)
    assert all(torch.equal(value, student[name]) for name, value in teacher.items())
    assert model.teacher.predictor is None
    assert torch.equal(model.sizes, torch.full((7,), 1 / 7))


@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_momentum_of_one_keeps_the_teacher_and_of_zero_copies_the_student(momentum: float) -> None:
    model = build()
    before = {name: value.clone() for name, value in model.teacher.named_parameters()}
    student = dict(model.student.named_parameters())
    model.update(run(model).clusters, momentum)
    for name, value in model.teacher.named_parameters():
        if momentum:
            assert torch.equal(value, before[name])
        else:
            torch.testing.assert_close(value, student[name], rtol=1e-6, atol=1e-7)
        assert not torch.equal(before[name], student[name])


def test_a_momentum_that_is_still_computed_is_as_good_as_a_number() -> None:
    known, computed = build(), build()
    clusters = run(known).clusters
    computed.load_state_dict(known.state_dict())
    known.update(clusters, 0.99996)
    computed.update(clusters, torch.tensor(0.99996, dtype=torch.float64))
    assert all(torch.equal(value, known.state_dict()[name]) for name, value in computed.state_dict().items())


def test_evaluation_never_counts() -> None:
    model = build(**PSEUDOCODE).eval()
    before = model.sizes.clone()
    run(model)
    assert torch.equal(model.sizes, before)
    run(model.train())
    assert not torch.equal(model.sizes, before)


def test_statistics_average_over_images_and_ordered_pairs() -> None:
    model = build(clusters=2)
    step = run(model, (3, 0), batch=5)
    winners = clusters_of(step).winners
    pairs = [(winners[i] == winners[j]).double().mean() for i in range(3) for j in range(3) if i != j]
    assert 0 < clusters_of(step).agreement < 1
    assert clusters_of(step).agreement.item() == pytest.approx(torch.stack(pairs).mean().item())
    assert clusters_of(run(model, (1, 2))).agreement == 0
    same = images(1, 0, 4)[0].repeat(2, 1, 1, 1, 1)
    assert clusters_of(model(same, step_key=0)).agreement == 1


def test_batch_sizes_count_shares() -> None:
    winners = torch.tensor([[0, 3, 3], [3, 1, 0]])
    expected = torch.tensor([2 / 6, 1 / 6, 0, 3 / 6, 0])
    assert_close(batch_sizes(winners, 5, torch.float64), expected)


# ---------------------------------------------------------------------------------------------------------------------
# Weights of view pairs
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("views", "options", "of_mean_h", "of_mean_g"),
    [
        ((2, 6), {"reduction": "halves"}, 1 / 2, 1 / 2),
        ((2, 6), {"reduction": "sum"}, 7, 8),
        ((2, 6), {"reduction": "pairs"}, 14 / 30, 16 / 30),
        ((2, 6), {"reduction": "pairs", "projector_on_local": False}, 2 / 18, 16 / 18),
        ((2, 6), {"reduction": "pseudocode"}, 1, 1),  # 14 pairs / 7 / 2, 16 pairs / 8 / 2
        ((2, 6), {"reduction": "halves", "projector_on_local": False}, 1 / 2, 1 / 2),
        ((2, 6), {"reduction": "sum", "projector_on_local": False}, 1, 8),
        ((2, 0), {"reduction": "halves"}, 1 / 2, 1 / 2),
        ((2, 0), {"reduction": "sum"}, 1, 2),
        ((2, 0), {"reduction": "pairs"}, 2 / 6, 4 / 6),
        ((2, 0), {"reduction": "pseudocode"}, 1, 1),
        ((1, 1), {"reduction": "halves"}, 1 / 2, 1 / 2),
        ((1, 0), {"reduction": "halves"}, 0, 1 / 2),
        ((1, 0), {"reduction": "sum"}, 0, 1 / 2),
        ((1, 0), {"reduction": "pairs"}, 0, 1),
        ((1, 0), {"reduction": "pseudocode"}, 0, 1 / 2),
        ((1, 4), {"reduction": "halves", "projector_on_local": False}, 0, 1 / 2),
        ((2, 6), {"reduction": "halves", "predictor": False}, 1, 0),
        ((2, 6), {"reduction": "sum", "predictor": False}, 14, 0),
        ((2, 6), {"reduction": "pairs", "predictor": False}, 1, 0),
        ((2, 6), {"reduction": "pseudocode", "predictor": False}, 2, 0),
        ((1, 0), {"reduction": "halves", "predictor": False}, 0, 0),
    ],
)
def test_pair_weights_sum_to_the_settled_means(
    views: tuple[int, int], options: dict[str, Any], of_mean_h: float, of_mean_g: float
) -> None:
    globals_, locals_ = views
    projector, predictor = pair_weights(globals_, locals_, **options)
    assert projector.shape == predictor.shape == (globals_, globals_ + locals_)
    own = torch.eye(globals_, globals_ + locals_, dtype=torch.bool)
    skipped = own.clone()
    skipped[:, globals_:] = not options.get("projector_on_local", True)
    for weights, used, total in ((projector, ~skipped, of_mean_h), (predictor, torch.ones_like(own), of_mean_g)):
        pairs = int(used.sum())
        expected = used * (total / pairs if pairs else 0.0)
        torch.testing.assert_close(weights.double(), expected.double(), rtol=1e-6, atol=0)


# ---------------------------------------------------------------------------------------------------------------------
# Balancing
# ---------------------------------------------------------------------------------------------------------------------

similarity = st.floats(-1, 1, allow_subnormal=False)


def balanced(z: float, s: float, clusters: int, form: Any = "linear", empty_weight: float = 0.0) -> float:
    """B(z; s) of one cluster, through the affine map of all clusters."""
    sizes = torch.full((clusters,), (1 - s) / (clusters - 1))
    sizes[1] = s
    scale, offset = balancing(sizes, form, empty_weight=empty_weight)
    assert scale.shape == offset.shape == (clusters,)
    return float(scale[1] * z + offset[1])


@hypothesis.given(
    z=similarity,
    relative=st.one_of(st.floats(0, 1), st.floats(0, 3), st.sampled_from([0.0, 1.0, EMPTY / 2, EMPTY, EMPTY * 2])),
    clusters=st.sampled_from([2, 7, 13, 1000]),
    form=st.sampled_from(["linear", "squared", "pseudocode"]),
    empty_weight=st.floats(0, 0.001),
)
@hypothesis.settings(drawn, max_examples=400)
def test_balancing_is_equation_10(z: float, relative: float, clusters: int, form: str, empty_weight: float) -> None:
    s = min(1.0, relative / clusters)
    expected = oracle.balance(z, s, clusters, form, empty_weight)
    assert balanced(z, s, clusters, form, empty_weight) == pytest.approx(expected, rel=1e-10, abs=1e-13)


@drawn
@hypothesis.given(z=similarity, small=st.floats(0, 0.999), large=st.floats(1.001, 100))
def test_balancing_raises_small_clusters_and_lowers_large_ones(z: float, small: float, large: float) -> None:
    clusters = 128
    for form in ("linear", "squared"):
        raised, lowered = (balanced(z, relative / clusters, clusters, form) for relative in (small, large))
        assert -1 - 1e-12 <= lowered <= z + 1e-12
        assert z - 1e-12 <= raised <= 1 + 1e-12
        if abs(z) < 0.999:
            assert lowered < z < raised


@pytest.mark.parametrize("z", [-1.0, -0.6, 0.0, 0.6, 1.0])
def test_balancing_has_the_papers_limits(z: float) -> None:
    for clusters in (7, 13, 64, 65_536):
        for form in ("linear", "squared"):
            assert balanced(z, 1 / clusters, clusters, form) == pytest.approx(z, abs=1e-12)  # the identity at 1/K
        for form in ("linear", "squared", "pseudocode"):
            assert balanced(z, 0, clusters, form) == 1
        # "a minimum value of z^B = -1 for s = 1" (appendix B): Eq. 10 gives (1 + z) / K - 1.
        assert balanced(z, 1, clusters) == pytest.approx((1 + z) / clusters - 1, abs=1e-12)
    assert balanced(z, 1, 65_536) == pytest.approx(-1, abs=1e-4)


@pytest.mark.parametrize("form", ["linear", "squared"])
def test_balancing_falls_with_size_and_rises_with_similarity(form: str) -> None:
    clusters = 16
    sizes = [k / 64 for k in range(65)]
    curve = [balanced(0.3, s, clusters, form) for s in sizes]
    assert all(left > right for left, right in itertools.pairwise(curve))
    for s in sizes[1:]:
        assert balanced(0.4, s, clusters, form) > balanced(0.3, s, clusters, form)


def test_squared_balancing_raises_small_clusters_more() -> None:
    assert balanced(0.2, 0.5 / 16, 16, "linear") == pytest.approx(0.6)  # 1 - 0.8 / 2
    assert balanced(0.2, 0.5 / 16, 16, "squared") == pytest.approx(0.8)  # 1 - 0.8 / 4
    assert balanced(0.2, 4 / 16, 16, "squared") == balanced(0.2, 4 / 16, 16, "linear") == pytest.approx(-0.7)


def test_only_empty_clusters_take_the_given_weight() -> None:
    sizes = torch.tensor([0.0, EMPTY / 4 * 0.99, EMPTY / 4 * 1.01, 1.0])
    weights = torch.tensor([0.25, 0.5, 0.5, 0.5])
    scale, _ = balancing(sizes, empty_weight=weights)
    assert_close(scale, torch.tensor([0.25, 0.5, EMPTY * 1.01, 0.25]))


def test_ties_of_empty_clusters_break_by_the_name_of_the_step() -> None:
    model = build(clusters=13, head="gelu")
    sizes = torch.zeros(13)
    sizes[4] = 1
    model.sizes.copy_(sizes)
    steps = [run(model, batch=8, step_key=name) for name in (3, 3, 4, 5, 6)]
    torch.manual_seed(0)  # no global generator has a say
    assert torch.equal(steps[0].loss, steps[1].loss)
    assert torch.equal(steps[0].loss, run(model, batch=8, step_key=3).loss)
    assert len({step.loss.item() for step in steps}) == 4
    assert len({clusters_of(step).winners[0, 0].item() for step in steps}) > 1

    exact = build(clusters=13, head="gelu", empty_clusters="exact")
    exact.sizes.copy_(sizes)
    assert torch.equal(run(exact, step_key=3).loss, run(exact, step_key=4).loss)
    assert set(clusters_of(run(exact)).winners.flatten().tolist()) == {
        0
    }  # z^B = 1 for every sample: the first of the tied


def test_weights_of_empty_clusters_lie_below_a_thousandth() -> None:
    weights = noise(9, 4096)
    assert EMPTY_WEIGHT == 0.001
    assert 0 <= min(weights) < 1e-5
    assert 0.00099 < max(weights) < 0.001


# ---------------------------------------------------------------------------------------------------------------------
# First centroids
# ---------------------------------------------------------------------------------------------------------------------


def directions(count: int, *, seed: int = 0, width: int = 5) -> Tensor:
    return unit(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)))


def members(samples: Tensor, means: Tensor) -> list[list[int]]:
    """The samples nearest to each mean by cosine."""
    groups: list[list[int]] = [[] for _ in means]
    for index, sample in enumerate(samples):
        groups[oracle.argmax(oracle.similarities(sample, list(means)).tolist())].append(index)
    return groups


@pytest.mark.parametrize("seed", range(3))
def test_kmeans_ends_at_a_fixed_point_of_member_means(seed: int) -> None:
    samples = directions(60, seed=seed)
    means = spherical_kmeans(samples, 5, iterations=50, seed=seed)
    groups = members(samples, means)
    assert min(map(len, groups)) > 0
    for mean, group in zip(means, groups, strict=True):
        assert_close(mean, sum(samples[i] for i in group) / torch.tensor(float(len(group))))
    assert bool((means.norm(dim=1) < 1).all())


def test_kmeans_of_one_iteration_averages_the_samples_nearest_to_distinct_samples() -> None:
    samples = directions(30)
    means = spherical_kmeans(samples, 4, iterations=1, seed=7)
    starts = seeding.generator(seeding.Purpose.KMEANS, 7, 0).choice(30, 4, replace=False)
    groups = members(samples, samples[torch.from_numpy(starts)])
    assert min(map(len, groups)) > 0
    expected = torch.stack([samples[group].mean(0) for group in groups])
    assert_close(means, expected)


def test_kmeans_starts_from_distinct_samples() -> None:
    samples = directions(13)
    for seed in range(3):
        means = spherical_kmeans(samples, 13, iterations=2, seed=seed)
        assert sorted(means.tolist()) == sorted(samples.tolist())


def test_kmeans_repeats_until_no_cluster_is_empty() -> None:
    # Two clusters share a direction in half of the starts, and one of them is then empty.
    samples = torch.eye(3)[[0, 0, 1, 2]]
    for seed in range(8):
        means = spherical_kmeans(samples, 3, iterations=3, seed=seed, attempts=20)
        assert sorted(means.tolist()) == sorted(torch.eye(3).tolist())


@pytest.mark.parametrize("distinct", [1, 3])
def test_kmeans_ends_with_fewer_distinct_samples_than_clusters(distinct: int) -> None:
    samples = directions(distinct).repeat(20, 1)
    means = spherical_kmeans(samples, 7, iterations=10, seed=0)
    assert means.shape == (7, 5)
    # No mean is zero: an empty cluster stands on a sample.
    nearest = (unit(means) @ samples.T).max(1).values
    assert_close(nearest, torch.ones(7))
    assert all(any(torch.allclose(mean, sample) for mean in means) for sample in samples[:distinct])


def test_kmeans_depends_on_its_seed_only() -> None:
    samples = directions(40)
    first = spherical_kmeans(samples, 6, iterations=2, seed=1)
    torch.manual_seed(12)
    assert torch.equal(first, spherical_kmeans(samples, 6, iterations=2, seed=1))
    assert not torch.equal(first, spherical_kmeans(samples, 6, iterations=2, seed=2))


def test_kmeans_with_too_few_samples_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"6 training views for 7 clusters: lower method\.clusters to at most 6"):
        spherical_kmeans(directions(6), 7, iterations=1, seed=0)


def test_teacher_starts_from_unit_centroids_and_student_from_their_means() -> None:
    model = build(kmeans_iterations=4)
    samples = directions(50, width=4)
    model.start_centroids(samples, seed=3)
    means = spherical_kmeans(samples, 7, iterations=4, seed=3)
    assert torch.equal(model.student.centroids.weight, means)
    assert bool((means.norm(dim=1) < 0.99).any())
    expected = torch.stack([mean / mean.square().sum().sqrt() for mean in means])
    assert_close(model.teacher.centroids.weight.detach(), expected)
    assert model.student.centroids.weight.requires_grad
    assert not model.teacher.centroids.weight.requires_grad


def test_projections_are_the_teachers_unit_rows() -> None:
    model = build(head="gelu")
    views = images(1, 0, 5)[0][0]
    rows = model.teacher.projector(model.teacher.backbone(views))
    projected = model.project(views)
    assert_close(projected, rows / rows.square().sum(1, keepdim=True).sqrt())
    assert not projected.requires_grad


def test_random_centroids_start_as_a_linear_layer() -> None:
    torch.manual_seed(0)
    layer = CentroidLayer(2000, 16)
    assert layer.weight.abs().max() <= 1 / 4
    assert layer.weight.abs().max() > 0.249
    assert layer.weight.std().item() == pytest.approx(0.25 / math.sqrt(3), rel=0.02)
    assert_close(layer().norm(dim=1).detach(), torch.ones(2000))


# ---------------------------------------------------------------------------------------------------------------------
# Drop path
# ---------------------------------------------------------------------------------------------------------------------


def dropped(model: ExCB, globals_: int, locals_: int, names: Tensor) -> Tensor:
    """Whether the residual branch was dropped, [V, B]; all views have one resolution."""
    outputs: list[Tensor] = []
    layer = model.student.backbone.get_submodule("drop_path")
    handle = layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    views = torch.ones(globals_ + locals_, len(names), 3, 2, 2)
    model(views[:globals_], views[globals_:] if locals_ else None, step_key=0, sample_keys=names)
    handle.remove()
    return torch.cat(outputs).unflatten(0, (globals_ + locals_, len(names))).eq(0).all(2)


def test_drop_path_depends_on_sample_and_view_only() -> None:
    model = build(drop_path=0.5, head="gelu")
    names = torch.tensor([seeding.fold(0, 0, sample) >> 1 for sample in range(10)])
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    whole = dropped(model, 2, 2, names)
    assert torch.equal(whole, dropped(model, 2, 2, names))
    assert torch.equal(whole[:, order], dropped(model, 2, 2, names[order]))
    assert torch.equal(whole, torch.cat([dropped(model, 2, 2, part) for part in names.split(4)], 1))
    assert torch.equal(whole, dropped(model, 4, 0, names))
    assert torch.equal(whole[:3], dropped(model, 1, 2, names))
    assert not torch.equal(whole, dropped(model, 2, 2, names + 1))
    assert len(whole.unique(dim=0)) == 4  # views differ
    assert len(whole.unique(dim=1).T) > 4  # so do samples
    model.student.eval()
    assert not dropped(model, 2, 2, names).any()


def test_drop_path_keeps_the_mean() -> None:
    layer = SampleDropPath(0.2, 0)
    layer.row_keys = torch.arange(20_000)
    rows = layer(torch.ones(20_000, 2))
    assert set(rows.flatten().tolist()) == {0.0, 1.25}
    assert rows.mean().item() == pytest.approx(1, abs=0.01)


def test_drop_path_without_names_of_samples_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="drop_path_keys"):
        run(build(drop_path=0.5))


# ---------------------------------------------------------------------------------------------------------------------
# Precision and memory
# ---------------------------------------------------------------------------------------------------------------------


def test_similarities_never_pass_through_half_precision() -> None:
    model = build(clusters=64, width=8, head="gelu").float()
    rows: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, inputs, output: rows.__setitem__(name, output)

    for name in ("student.projector", "student.predictor", "teacher.projector"):
        model.get_submodule(name).register_forward_hook(keep(name))
    views = images(2, 0, 4)[0].float()
    with default_dtype(torch.float32), torch.autocast("cpu", dtype=torch.bfloat16):
        step = model(views, step_key=1)
    assert all(output.dtype == torch.bfloat16 for output in rows.values())
    assert step.loss.dtype == clusters_of(step).confidence.dtype == torch.float32

    h, g, t = (oracle.by_view(output.detach().double(), 4) for output in rows.values())
    student, teacher = (list(net.centroids.weight.double()) for net in (model.student, model.teacher))
    assigned = oracle.assign(t, teacher, model.sizes.tolist(), model.settings, noise(1, 64))
    expected = oracle.objective(h, g, student, assigned.p, model.settings)
    assert clusters_of(step).winners.tolist() == assigned.winners
    torch.testing.assert_close(step.loss.double(), expected, rtol=1e-5, atol=0)
    step.loss.backward()
    assert all(value.any() for value in gradients(model.student).values())


def test_winners_under_autocast_are_those_of_float32() -> None:
    centroids, rows = directions(512, width=8).float(), directions(256, seed=1, width=8).float()
    exact = (rows @ centroids.T).argmax(1)
    # Half precision would name other winners, so this test can fail.
    rounded = (rows.bfloat16() @ centroids.bfloat16().T).argmax(1)
    model = build(clusters=512, width=8, balancing="none").float()
    with torch.no_grad():
        model.teacher.centroids.weight.copy_(centroids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for network in (model.student, model.teacher):
            network.backbone = nn.Flatten()
            network.projector = nn.Identity()  # type: ignore[assignment]
        model.student.predictor = nn.Identity()
        step = model(rows[None, :, :, None, None], step_key=0)
    assert torch.equal(clusters_of(step).winners[0], exact)
    assert not torch.equal(rounded, exact)


class Allocations(TorchDispatchMode):
    """Records the elements in storage of every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else [output]:
            if isinstance(tensor, Tensor):
                elements = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.elements[str(func)] = max(elements, self.elements.get(str(func), 0))
        return output


def test_no_tensor_is_larger_than_views_times_images_times_clusters() -> None:
    clusters, batch = 65_536, 8
    with default_dtype(torch.float32):
        model = build(clusters=clusters, width=16)
        global_views, local_views = images(2, 6, batch)
        with Allocations() as allocations:
            step = model(global_views, local_views, step_key=0)
            step.loss.backward()
            model.update(step.clusters, 0.9)
    assert step.loss.isfinite()
    assert model.student.centroids.weight.grad is not None
    assert any("backward" in name for name in allocations.elements)
    assert max(allocations.elements.values()) <= 8 * batch * clusters


# ---------------------------------------------------------------------------------------------------------------------
# Heads
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batchnorm", [True, False])
def test_heads_follow_the_settings_and_the_backbone(batchnorm: bool) -> None:
    model = build(batchnorm=batchnorm, projector_layers=2, predictor_layers=1, predictor_input_norm=True)
    assert model.student.predictor is not None
    hidden = [nn.BatchNorm1d, nn.ReLU] if batchnorm else [nn.GELU]
    projector = [nn.Linear, *hidden, nn.Linear, *hidden, nn.Linear]
    assert [type(m) for m in model.student.projector] == projector
    assert [type(m) for m in model.teacher.projector] == projector
    assert [type(m) for m in model.student.predictor.children()] == [
        nn.BatchNorm1d,
        nn.Linear,
        *hidden,
        nn.Linear,
    ]
    assert model.student.projector[0].in_features == 6
    assert model.student.projector[-1].out_features == 4


def test_network_without_predictor_has_none() -> None:
    model = build(predictor=False)
    assert model.student.predictor is None
    assert dict(model.student.named_parameters()).keys() == dict(model.teacher.named_parameters()).keys()


@pytest.mark.parametrize(("reduction", "total"), [("halves", 1), ("pairs", 1), ("sum", 15), ("pseudocode", 2)])
def test_total_weight_of_the_view_pairs_at_2_and_6_views(reduction: Any, total: float) -> None:
    """docs/method.md says it: with the printed sums, the text's learning rate would be 15 times as high."""
    assert sum(half.sum().item() for half in pair_weights(2, 6, reduction=reduction)) == pytest.approx(total)
