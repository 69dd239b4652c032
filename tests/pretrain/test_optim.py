"""Tests of groups, optimizers and schedules: against closed forms, DINO's loops and torch.optim itself."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from excb.errors import UserError
from excb.method import Network
from excb.pretrain.optim import (
    Schedules,
    build_optimizer,
    clip_each,
    conditional_step,
    cosine,
    gradient_norms,
    restore_optimizer,
    set_schedules,
)
from excb.pretrain.recipe import OptimSettings, Recipe
from excb.pretrain.recipes import RECIPES
from excb.settings import MethodSettings

examples = settings(max_examples=60, deadline=None, database=None)
STEPS = 5  # in an epoch


def schedules(recipe: Recipe | None = None, steps: int = STEPS, **optim: Any) -> Schedules:
    recipe = (recipe or RECIPES["rn50_100ep"]()).change(optim=optim)
    return Schedules(recipe.optim, recipe.method, steps)


def half_cosine(start: float, end: float, done: float) -> float:
    """The share 1 - sin^2 of the way is left: the same curve as a half cosine, written another way."""
    left = 1 - math.sin(math.pi / 2 * done) ** 2
    return end + left * (start - end)


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-15)


# ---------------------------------------------------------------------------------------------------------------------
# Schedules
# ---------------------------------------------------------------------------------------------------------------------


def test_cosine_from_start_to_end() -> None:
    assert cosine(3.0, 1.0, 0.0) == 3.0
    assert cosine(3.0, 1.0, 0.5) == close(2.0)
    assert cosine(3.0, 1.0, 1.0) == close(1.0)
    assert cosine(3.0, 1.0, 1 / 3) == close(2.5)  # cos 60 degrees is a half
    assert cosine(3.0, 1.0, 1.7) == cosine(3.0, 1.0, 1.0)


def test_learning_rate_of_the_papers_resnet() -> None:
    """0.15 x 1,024 / 256 = 0.6, linearly reached in 10 of 100 epochs, then a cosine to 0."""
    rate = schedules().learning_rate
    assert schedules().steps == 500
    assert rate(0) == close(0.6 / 50)
    assert rate(24) == close(0.3)
    assert rate(49) == close(0.6)  # last step of the warm-up
    assert rate(50) == close(0.6)  # first step of the cosine
    assert rate(275) == close(0.3)  # half-way between
    assert rate(499) == close(half_cosine(0.6, 0.0, 449 / 450))
    assert [rate(step) for step in range(50)] == [close(0.6 * (step + 1) / 50) for step in range(50)]
    assert [rate(step) for step in range(50, 500)] == [
        close(half_cosine(0.6, 0, (s - 50) / 450)) for s in range(50, 500)
    ]


def test_learning_rate_of_dinos_vit_ends_at_a_millionth() -> None:
    rate = schedules(RECIPES["vits16_300ep"](), steps=1000).learning_rate
    assert rate(9_999) == close(0.002)
    assert rate(155_000) == close((0.002 + 1e-6) / 2)
    assert 1e-6 < rate(299_999) < 1.001e-6


def test_learning_rate_of_the_authors_code_ends_at_a_ten_thousandth_of_its_peak() -> None:
    rate = schedules(RECIPES["rn50_100ep_official"](), steps=1000).learning_rate
    assert rate(10_000) == close(0.6)
    assert 0.6e-4 < rate(99_999) < 0.601e-4


def test_learning_rate_follows_the_batch() -> None:
    assert schedules(batch=256).learning_rate(50) == close(0.15)
    assert schedules(batch=512).learning_rate(50) == close(0.30)


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    rate = schedules(warmup_epochs=0.0).learning_rate
    assert rate(0) == close(0.6)
    assert rate(250) == close(0.3)


def test_warm_up_longer_than_the_run_ends_at_the_peak_with_the_run() -> None:
    short = schedules(epochs=2, warmup_epochs=10.0)
    assert [short.learning_rate(step) for step in range(10)] == [close(0.06 * (step + 1)) for step in range(10)]


def test_run_of_one_epoch_and_one_step() -> None:
    one = schedules(epochs=1, warmup_epochs=0.0, steps=1)
    assert one.steps == 1
    assert one.learning_rate(0) == close(0.6)
    assert (one.weight_decay(0), one.centroid_decay(0), one.teacher_momentum(0)) == (1e-4, close(1e-3), 0.996)


def test_run_of_one_epoch_warms_up_and_comes_down() -> None:
    one = schedules(epochs=1, warmup_epochs=0.4)
    rates = [one.learning_rate(step) for step in range(5)]
    assert rates == [
        close(0.3),
        close(0.6),
        close(0.6),
        close(half_cosine(0.6, 0, 1 / 3)),
        close(half_cosine(0.6, 0, 2 / 3)),
    ]


@examples
@given(
    epochs=st.integers(1, 12), steps=st.integers(1, 9), warmup=st.floats(0, 20), floor=st.floats(0, 1, exclude_max=True)
)
def test_learning_rate_rises_once_to_the_peak_and_never_above_it(
    epochs: int, steps: int, warmup: float, floor: float
) -> None:
    made = schedules(epochs=epochs, warmup_epochs=warmup, lr_floor=floor, steps=steps)
    rates = [made.learning_rate(step) for step in range(made.steps)]
    assert all(0 < rate <= 0.6 * (1 + 1e-12) for rate in rates)
    top = rates.index(max(rates))
    assert max(rates) == close(0.6)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_schedules_begin_anew_at_restarts() -> None:
    plan = schedules(RECIPES["vits16_300ep"](), epochs=30, restarts=(12, 20), warmup_epochs=4)
    for first, last in ((0, 12), (12, 20), (20, 30)):
        alone = schedules(RECIPES["vits16_300ep"](), epochs=last - first, warmup_epochs=4)
        for step in range((last - first) * STEPS):
            here = first * STEPS + step
            for value in ("learning_rate", "weight_decay", "centroid_decay", "teacher_momentum"):
                assert getattr(plan, value)(here) == close(getattr(alone, value)(step)), (value, here)
    assert plan.steps == 30 * STEPS
    assert plan.centroids_frozen(0)
    assert not plan.centroids_frozen(12 * STEPS)  # frozen at the start of a run, not of each cycle
    assert plan.learning_rate(30 * STEPS) == close(plan.optim.base_lr * plan.optim.batch / 256 * plan.optim.lr_floor)


@pytest.mark.parametrize("restarts", [(0,), (30,), (5, 5), (9, 4), (40,), (-1,)])
def test_restarts_lie_within_the_run(restarts: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"optim\.restarts are epochs between 0 and"):
        schedules(epochs=30, restarts=restarts)


def test_weight_decay_of_resnet_is_fixed_and_of_the_vit_rises_on_a_cosine() -> None:
    assert {schedules().weight_decay(step) for step in range(500)} == {1e-4}
    vit = schedules(RECIPES["vits16_300ep"]())
    for step in (0, 1, 333, 750, 1499):
        assert vit.weight_decay(step) == close(half_cosine(0.04, 0.4, step / 1500))
    assert vit.weight_decay(750) == close(0.22)
    assert 0.3999 < vit.weight_decay(1499) < 0.4


def test_centroid_decay_falls_from_one_thousandth_to_one_ten_thousandth() -> None:
    decay = schedules(steps=1000).centroid_decay
    assert decay(0) == close(1e-3)
    assert decay(50_000) == close(5.5e-4)
    assert decay(99_999) == pytest.approx(1e-4, rel=1e-6)
    for step in (7, 12_345, 77_777):
        assert decay(step) == close(half_cosine(1e-3, 1e-4, step / 100_000))


def test_centroid_decay_of_vits() -> None:
    """As the others' in the paper's family; in the authors' code ten times to once the others'."""
    paper, code = schedules(RECIPES["vits16_100ep"]()), schedules(RECIPES["vits16_100ep_official"]())
    for step in (0, 100, 250, 499):
        assert paper.centroid_decay(step) == close(half_cosine(0.04, 0.4, step / 500))
        factor = half_cosine(10, 1, step / 500)
        assert code.centroid_decay(step) == close(factor * half_cosine(0.04, 0.4, step / 500))


@pytest.mark.parametrize("steps", [8, 1000])
def test_a_share_of_the_run_is_averaged_whatever_its_length(steps: int) -> None:
    """The weights of an average over a share a of the run so far: of the steps of its last a, 1 - (1 - a)^(1 / a)."""
    share = 0.125
    momentum = replace(schedules(steps=steps), average=share).teacher_momentum
    assert momentum(0) == 0  # the first step's network is the average
    weights = list[float]()
    for step in range(steps):
        weights = [weight * momentum(step) for weight in weights] + [1 - momentum(step)]
    assert sum(weights) == pytest.approx(1)
    if steps == 1000:
        last = sum(weights[-round(share * steps) :])
        assert last == pytest.approx(1 - (1 - share) ** (1 / share), rel=0.01)


def test_teacher_momentum_rises_from_0_996_to_1() -> None:
    momentum = schedules(steps=1000).teacher_momentum
    assert momentum(0) == close(0.996)
    assert momentum(50_000) == close(0.998)
    assert momentum(25_000) == close(1 - 0.004 * (1 + math.sqrt(0.5)) / 2)
    assert 1 - 1e-11 < momentum(99_999) < 1


def test_centroids_are_frozen_for_whole_epochs_at_the_start() -> None:
    vit = schedules(RECIPES["vits16_100ep"]())
    assert [vit.centroids_frozen(step) for step in range(8)] == [True] * 5 + [False] * 3
    assert not any(schedules().centroids_frozen(step) for step in range(8))
    assert sum(schedules(frozen_centroid_epochs=3).centroids_frozen(step) for step in range(500)) == 15


# ---------------------------------------------------------------------------------------------------------------------
# Groups and optimizers
# ---------------------------------------------------------------------------------------------------------------------


class Body(nn.Module):
    """A backbone with every kind of parameter: 4-D and 3-D weights, a bias, BatchNorm, LayerNorm, a scalar."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.convolution = nn.Conv2d(3, 6, 2)
        self.batchnorm = nn.BatchNorm2d(6)
        self.layernorm = nn.LayerNorm(6)


# Sorted by hand. DINO (utils.get_params_groups): no decay on biases and on what has one dimension.
WEIGHTS = {
    "backbone.token",
    "backbone.convolution.weight",
    "projector.0.weight",
    "projector.3.weight",
    "projector.6.weight",
    "predictor.0.weight",
    "predictor.3.weight",
}
NO_DECAY = {
    "backbone.scale",
    "backbone.convolution.bias",
    "backbone.batchnorm.weight",
    "backbone.batchnorm.bias",
    "backbone.layernorm.weight",
    "backbone.layernorm.bias",
    "projector.0.bias",
    "projector.1.weight",
    "projector.1.bias",
    "projector.3.bias",
    "projector.4.weight",
    "projector.4.bias",
    "projector.6.bias",
    "predictor.0.bias",
    "predictor.1.weight",
    "predictor.1.bias",
    "predictor.3.bias",
}
CENTROIDS = {"centroids.weight"}


def student() -> Network:
    torch.manual_seed(0)
    return Network(Body(), MethodSettings(clusters=5, width=4, hidden=7), predictor=True)


def set_gradients(module: nn.Module, step: int) -> None:
    random = torch.Generator().manual_seed(step)
    for parameter in module.parameters():
        gradient = torch.randn(parameter.shape, generator=random)
        parameter.grad = torch.empty_like(parameter).copy_(gradient)


def groups_by_name(module: nn.Module, optimizer: Optimizer) -> dict[str, set[str]]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return {group["name"]: {names[id(p)] for p in group["params"]} for group in optimizer.param_groups}


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_groups(kind: Any) -> None:
    module = student()
    optimizer = build_optimizer(module, OptimSettings(optimizer=kind))
    expected = {"weights": WEIGHTS, "no_decay": NO_DECAY, "centroids": CENTROIDS}
    assert groups_by_name(module, optimizer) == expected
    grouped = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(map(id, module.parameters()))  # every one, and none twice


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_steps_are_those_of_torchs_optimizer_with_hand_made_groups(kind: str, fused: bool) -> None:
    name = "vits16_100ep_official" if kind == "adamw" else "rn50_100ep"
    made = schedules(RECIPES[name](), batch=256)
    ours, theirs = student(), student()
    parameters = dict(theirs.named_parameters())
    optimizer = build_optimizer(ours, made.optim, fused=fused)
    reference: Optimizer
    groups = [{"params": [parameters[name] for name in names]} for names in (WEIGHTS, NO_DECAY, CENTROIDS)]
    reference = AdamW(groups, betas=(0.9, 0.999)) if kind == "adamw" else SGD(groups, lr=1.0, momentum=0.9)
    for step in (0, 1, 120, 499):
        set_schedules(optimizer, made, step)
        for group, decay in zip(
            reference.param_groups, (made.weight_decay(step), 0.0, made.centroid_decay(step)), strict=True
        ):
            group["lr"], group["weight_decay"] = made.learning_rate(step), decay
        set_gradients(ours, step)
        set_gradients(theirs, step)
        optimizer.step()
        reference.step()
    rounding = 1e-6 if fused else 0.0
    for field, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, parameters[field], rtol=rounding, atol=rounding, msg=field)


def test_one_sgd_step_written_out() -> None:
    """w - lr (g + decay w): the first step of SGD with momentum, group by group."""
    module, made = student(), schedules()
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    optimizer = build_optimizer(module, made.optim)
    set_schedules(optimizer, made, 0)
    set_gradients(module, 3)
    gradients = {name: value.grad for name, value in module.named_parameters()}
    optimizer.step()
    for name, parameter in module.named_parameters():
        gradient = gradients[name]
        assert gradient is not None
        decay = 1e-4 if name in WEIGHTS else 1e-3 if name in CENTROIDS else 0.0
        expected = before[name] - 0.012 * (gradient + decay * before[name])
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_centroids_without_a_gradient_stay_bit_for_bit(kind: str) -> None:
    """A step leaves frozen centroids as they are: neither decay nor momentum moves them."""
    module, made = student(), schedules(optimizer=kind)
    optimizer = build_optimizer(module, made.optim)
    before = copy.deepcopy(dict(module.named_parameters()))
    for step in range(3):
        set_schedules(optimizer, made, step)
        set_gradients(module, step)
        module.centroids.weight.grad = None
        optimizer.step()
    moved = {name for name, value in module.named_parameters() if not torch.equal(value, before[name])}
    assert moved == WEIGHTS | NO_DECAY


def trained(kind: Any, steps: range, *, fused: bool, device: str = "cpu", channels_last: bool = False) -> Any:
    """A student after some steps, and its optimizer."""
    module, made = student().to(device), schedules(optimizer=kind)
    if channels_last:
        module.to(memory_format=torch.channels_last)
    optimizer = build_optimizer(module, made.optim, fused=fused)
    take_steps(module, optimizer, steps)
    return module, optimizer


def take_steps(module: nn.Module, optimizer: Optimizer, steps: range) -> None:
    made = schedules()
    for step in steps:
        set_schedules(optimizer, made, step)
        set_gradients(module, step)
        optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_step_that_is_left_out_leaves_no_trace(kind: str, fused: bool) -> None:
    plain, reference = trained(kind, range(0), fused=fused)
    module, optimizer = trained(kind, range(0), fused=fused)
    taken = [False, True, False, True, True]
    for step in (step for step, taken_ in enumerate(taken) if taken_):
        take_steps(plain, reference, range(step, step + 1))
    for step, this in enumerate(taken):
        set_schedules(optimizer, schedules(), step)
        set_gradients(module, step)
        if not this:
            module.centroids.weight.grad[0] = math.nan
        conditional_step(optimizer, torch.tensor(this))
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_restoring_keeps_how_updates_run_and_where_numbers_lie(kind: str) -> None:
    """As from a checkpoint of before the field was there, with another memory layout."""
    source, before = trained(kind, range(3), fused=True)
    state = copy.deepcopy(before.state_dict())
    for group in state["param_groups"]:
        group["fused"], group["foreach"] = False, None
    target, after = trained(kind, range(0), fused=True, channels_last=True)
    target.load_state_dict(source.state_dict())
    restore_optimizer(after, state)
    assert all((group["fused"], group["foreach"]) == (True, False) for group in after.param_groups)
    for parameter, values in after.state.items():
        assert {value.stride() for value in values.values() if value.ndim} <= {parameter.stride()}
    take_steps(source, before, range(3, 5))
    take_steps(target, after, range(3, 5))
    wanted = dict(source.named_parameters())
    for name, value in target.named_parameters():
        assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("saved_fused", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_one_kernel_resumes_from_the_others_state(kind: str, saved_fused: bool, device: str) -> None:
    first, before = trained(kind, range(3), fused=saved_fused, device=device)
    second, after = trained(kind, range(0), fused=not saved_fused, device=device, channels_last=True)
    second.load_state_dict(first.state_dict())
    restore_optimizer(after, copy.deepcopy(before.state_dict()))
    assert [group["fused"] for group in after.param_groups] == [not saved_fused] * 3
    take_steps(first, before, range(3, 6))
    take_steps(second, after, range(3, 6))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Clipping
# ---------------------------------------------------------------------------------------------------------------------


def clipped_by_dino(gradient: Tensor, largest: float) -> Tensor:
    """facebookresearch/dino, utils.clip_gradients, for one parameter."""
    norm = math.sqrt(sum(value * value for value in gradient.flatten().tolist()))
    coefficient = largest / (norm + 1e-6)
    return gradient * coefficient if coefficient < 1 else gradient


@pytest.mark.parametrize("largest", [0.01, 1.0, 3.0, 1e6])
def test_clipping_is_dinos_rule_for_each_parameter_on_its_own(largest: float) -> None:
    module = student()
    set_gradients(module, 5)
    before = {name: value.grad.clone() for name, value in module.named_parameters() if value.grad is not None}
    clip_each(module, gradient_norms(module), largest)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, clipped_by_dino(before[name], largest), rtol=1e-5, atol=0)
    assert any(value.norm() > 3 for value in before.values())  # so that 3.0 clips some
    assert any(value.norm() < 3 for value in before.values())  # and leaves some


def test_clipping_of_minute_gradients_has_dinos_small_constant() -> None:
    module = student()
    gradient = torch.full_like(module.centroids.weight, 1e-6)
    module.centroids.weight.grad = gradient.clone()
    clip_each(module, gradient_norms(module), 1e-6)
    torch.testing.assert_close(module.centroids.weight.grad, clipped_by_dino(gradient, 1e-6), rtol=1e-5, atol=0)


def test_clipping_leaves_small_gradients_bit_for_bit_and_passes_over_missing_ones() -> None:
    module = student()
    set_gradients(module, 6)
    module.centroids.weight.grad = None
    module.backbone.token.grad = None
    before = {name: value.grad.clone() for name, value in module.named_parameters() if value.grad is not None}
    clip_each(module, gradient_norms(module), 1e6)
    assert module.centroids.weight.grad is None
    assert module.backbone.token.grad is None
    for name, value in module.named_parameters():
        if name in before:
            assert value.grad is not None
            assert torch.equal(value.grad, before[name])
