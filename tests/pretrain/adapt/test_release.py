"""Tests of freezing and releasing layers, of the three ways with BatchNorm statistics, and of the anchor's gradient."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from excb.pretrain.adapt.anchor import Anchor
from excb.pretrain.initialise import build_model
from excb.pretrain.optim import Schedules
from excb.pretrain.plan.speed import random_batch
from excb.pretrain.recipe import AdaptSettings, OptimSettings, Recipe
from excb.pretrain.step import Trainer, trainer_for
from excb.settings import MethodSettings
from tests.pretrain.adapt.adapted_runs import CONV, VIT, small_recipe

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")
CPU = torch.device("cpu")
LAYERS = 4  # of conv4


def trainer(recipe: Recipe, *, steps_per_epoch: int = 3) -> Trainer:
    model = build_model(recipe)
    for module in model.modules():
        if isinstance(module, _BatchNorm):  # statistics that no new network has
            module.running_mean.add_(0.01)  # type: ignore[union-attr]
    return trainer_for(model, recipe, CPU, steps_per_epoch=steps_per_epoch)


def train(made: Trainer, steps: range) -> Iterator[int]:
    for step in steps:
        made.step(random_batch(made.recipe, 8), step)
        made.synchronize()
        yield step


def state(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def changed(before: dict[str, Tensor], module: torch.nn.Module) -> set[str]:
    return {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}


# ---------------------------------------------------------------------------------------------------------------------
# Schedules
# ---------------------------------------------------------------------------------------------------------------------


def schedules(**adapt: Any) -> Schedules:
    optim = OptimSettings(epochs=10, batch=256, base_lr=1.0, warmup_epochs=1.0)
    return Schedules(optim, MethodSettings(), 10, AdaptSettings(**adapt), layers=5)


def test_layers_are_released_from_the_last_to_the_first_at_equal_intervals() -> None:
    made = schedules(warmup_epochs=2.0, release_epochs=4.0)
    assert [made.released_at(depth) for depth in range(5)] == [60, 50, 40, 30, 20]
    assert [made.first_released(step) for step in (0, 19, 20, 29, 30, 59, 60, 99)] == [5, 5, 4, 4, 3, 1, 0, 0]
    at_once = schedules(warmup_epochs=2.0)
    assert {at_once.released_at(depth) for depth in range(5)} == {20}


def test_a_layers_rate_decays_with_its_depth_and_rises_from_its_release() -> None:
    made = schedules(warmup_epochs=2.0, release_epochs=4.0, layer_decay=0.5)
    assert made.layer_factor(4, 19) == 0
    assert made.layer_factor(4, 20) == pytest.approx(1 / 10)  # the first of ten steps of warm-up
    assert made.layer_factor(4, 24) == pytest.approx(5 / 10)
    assert [made.layer_factor(4, step) for step in (29, 30, 99)] == [1, 1, 1]
    assert made.layer_factor(0, 69) == pytest.approx(0.5**4)
    assert made.layer_factor(2, 44) == pytest.approx(0.5**2 * 5 / 10)
    frozen_never = schedules(layer_decay=0.5)  # the recipe's own warm-up is theirs
    assert [frozen_never.layer_factor(depth, 0) for depth in range(5)] == [0.5**4, 0.5**3, 0.5**2, 0.5, 1]


def test_the_anchor_follows_a_cosine_and_waits_for_the_first_release() -> None:
    made = schedules(warmup_epochs=2.0, anchor=3.0, anchor_end=1.0)
    assert {made.anchor(step) for step in range(20)} == {0}
    for step in (20, 50, 99):
        assert made.anchor(step) == pytest.approx(1 + 2 * (1 + math.cos(math.pi * step / 100)) / 2)


def test_groups_have_the_rate_of_their_layer() -> None:
    recipe = small_recipe(CONV, "adapt.layer_decay=0.5")
    made = trainer(recipe)
    for step in train(made, range(8)):
        rate = made.schedules.learning_rate(step)
        rates = {id(one): group["lr"] for group in made.optimizer.param_groups for one in group["params"]}
        for name, parameter in made.model.student.named_parameters():
            factor = 1.0
            if name.startswith("backbone.blocks."):
                factor = made.schedules.layer_factor(int(name.split(".")[2]), step)
            assert rates[id(parameter)] == pytest.approx(rate * factor), (step, name)
        assert len(rates) == len(list(made.model.student.parameters()))


# ---------------------------------------------------------------------------------------------------------------------
# Freezing
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_what_is_frozen_stays_bit_for_bit_and_what_is_released_moves(optimizer: str) -> None:
    made = trainer(small_recipe(CONV, f"optim.optimizer={optimizer}", "adapt.frozen_statistics=false"))
    student, teacher = made.model.student.backbone, made.model.teacher.backbone
    starts, heads = (state(student), state(teacher)), state(made.model.student.projector)
    for step in train(made, range(10)):
        first = made.schedules.first_released(step)
        for before, network in zip(starts, (student, teacher), strict=True):
            layers = {int(name.split(".")[1]) for name in changed(before, network)}
            assert layers == set(range(first, LAYERS)), step
        assert changed(heads, made.model.student.projector)
    assert made.schedules.first_released(9) == 0


def test_frozen_layers_have_no_gradient() -> None:
    made = trainer(small_recipe(CONV))
    for step in train(made, range(10)):
        first = made.schedules.first_released(step)
        for name, parameter in made.model.student.backbone.named_parameters():
            assert (parameter.grad is not None) == (int(name.split(".")[1]) >= first), (step, name)


@pytest.mark.parametrize("way", ["frozen", "averaged", "adapted"])
def test_statistics(way: str) -> None:
    values = {
        "frozen": ("adapt.frozen_statistics=true",),
        "averaged": ("adapt.frozen_statistics=false", "method.teacher_statistics=averaged"),
        "adapted": ("adapt.frozen_statistics=false", "method.teacher_statistics=own"),
    }
    made = trainer(small_recipe(CONV, "adapt.warmup_epochs=0", "adapt.release_epochs=0", *values[way]))
    networks = {"student": made.model.student.backbone, "teacher": made.model.teacher.backbone}
    starts = {name: state(network) for name, network in networks.items()}
    for _ in train(made, range(1)):
        pass
    moved = {
        name: {tensor for tensor in changed(starts[name], network) if "running" in tensor}
        for name, network in networks.items()
    }
    if way == "frozen":
        assert moved == {"student": set(), "teacher": set()}
        assert not any(m.training for n in networks.values() for m in n.modules() if isinstance(m, _BatchNorm))
        return
    assert len(moved["student"]) == len(moved["teacher"]) == 2 * LAYERS
    name = "blocks.0.1.running_mean"
    start, (student, teacher) = starts["student"][name], (network.state_dict()[name] for network in networks.values())
    if way == "averaged":
        share = 1 - made.schedules.teacher_momentum(0)
        torch.testing.assert_close(teacher, start + share * (student - start))
    else:  # its own global views: a tenth of the way to their means
        assert (teacher - start).abs().max() > 0.01


def test_a_released_layer_of_a_vit_learns() -> None:
    made = trainer(small_recipe(VIT))
    before = state(made.model.student.backbone)
    for step in train(made, range(5)):
        moved = changed(before, made.model.student.backbone)
        assert bool(moved) == (step >= 3)
    assert all(name.startswith(("blocks.1.", "norm.")) for name in moved)


# ---------------------------------------------------------------------------------------------------------------------
# The anchor
# ---------------------------------------------------------------------------------------------------------------------


def test_the_anchors_gradient_is_that_of_one_minus_cosine() -> None:
    recipe = small_recipe(CONV)
    network = build_model(recipe).teacher.backbone.double()
    anchor, views = Anchor(network), torch.rand(2, 3, 3, 32, 32, dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    features = torch.randn(9, 16, dtype=torch.float64, generator=random, requires_grad=True)  # a third, local view
    distance = anchor.distance(features, views)
    distance.backward()
    with torch.no_grad():
        starts = network.eval()(views.flatten(0, 1))
    expected, gradient = 0.0, torch.zeros(9, 16, dtype=torch.float64)
    for row in range(6):
        f, s = features[row].detach(), starts[row]
        cosine = (f @ s) / (f.norm() * s.norm())
        expected += float(1 - cosine) / 6
        gradient[row] = -(s / (f.norm() * s.norm()) - cosine * f / f.norm() ** 2) / 6
    assert float(distance.detach()) == pytest.approx(expected, rel=1e-12)
    assert features.grad is not None
    torch.testing.assert_close(features.grad, gradient, rtol=1e-9, atol=1e-12)


def test_a_steps_gradient_is_that_of_the_loss_and_the_weighted_anchor() -> None:
    """The gradient is linear in the weight: what weight 2 adds is twice what weight 1 adds."""
    gradients = []
    for weight in (0, 1, 2):
        values = (
            f"adapt.anchor={weight}",
            f"adapt.anchor_end={weight}",
            "adapt.warmup_epochs=0",
            "adapt.release_epochs=0",
        )
        made = trainer(small_recipe(CONV, "efficiency.precision=fp64", "optim.clip=none", *values))
        stem = made.model.student.backbone.get_parameter("blocks.0.0.weight")
        with torch.no_grad():  # away from the start, where the anchor's gradient is none
            stem.mul_(1.5)
        for _ in train(made, range(1)):
            pass
        gradient = stem.grad
        assert gradient is not None
        gradients.append(gradient.clone())
    once, twice = gradients[1] - gradients[0], gradients[2] - gradients[0]
    assert once.abs().max() > 1e-6
    torch.testing.assert_close(twice, 2 * once, rtol=1e-6, atol=1e-12)


def test_the_anchor_is_a_copy_that_nothing_moves() -> None:
    made = trainer(
        small_recipe(CONV, "adapt.warmup_epochs=0", "adapt.release_epochs=0", "adapt.frozen_statistics=false")
    )
    assert made.anchor is not None
    before = state(made.anchor)
    for _ in train(made, range(3)):
        pass
    assert not changed(before, made.anchor)
    assert not made.anchor.backbone.training
    assert before.keys() == made.state()["anchor"].keys()


# ---------------------------------------------------------------------------------------------------------------------
# LoRA
# ---------------------------------------------------------------------------------------------------------------------


def test_with_lora_the_teacher_is_an_ordinary_network_that_averages_the_whole() -> None:
    pytest.importorskip("peft")
    from excb.networks.lora import folded

    made = trainer(small_recipe(VIT, "adapt.lora_rank=2", "adapt.warmup_epochs=0", "adapt.release_epochs=0"))
    student, teacher = made.model.student.backbone, made.model.teacher.backbone
    frozen = {name: value for name, value in state(student).items() if "lora" not in name}
    for step in train(made, range(2)):
        before = state(teacher)
        made.step(random_batch(made.recipe, 8), step)
        momentum, whole = made.schedules.teacher_momentum(step), folded(student.state_dict())
        for name, value in teacher.state_dict().items():
            torch.testing.assert_close(value, before[name] + (1 - momentum) * (whole[name] - before[name]))
    assert all(torch.equal(student.state_dict()[name], value) for name, value in frozen.items())
    assert any("lora_B" in name and bool(value.any()) for name, value in student.state_dict().items())
    learned = {id(one) for group in made.optimizer.param_groups for one in group["params"]}
    for name, parameter in student.named_parameters():
        assert (id(parameter) in learned) == ("lora" in name), name
