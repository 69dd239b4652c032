"""Memory known before a step, against what steps on real tensors save, hold and allocate."""

import bisect
import gc
import itertools
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from excb.networks.activation_checkpointing import recompute_blocks
from excb.pretrain.initialise import build_model
from excb.pretrain.optim import build_optimizer
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan.fakes import FEW
from excb.pretrain.plan.memory import HEAD_MATRICES, plain_loss_head, step_memory
from excb.pretrain.plan.speed import build_trainer, random_batch
from excb.pretrain.plan.trace import Alive
from excb.pretrain.recipe import Recipe
from tests.pretrain.small_runs import OVERRIDES

RESNET = ("model.backbone=resnet18", "model.options={}")
VIT = (
    "model.backbone=timm:vit_tiny_patch16_224",
    'model.options={"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 32}',
    "model.drop_path=0.3",
    "optim.optimizer=adamw",
)
IMAGES = 4


def small(*values: str) -> Recipe:
    return apply(find_recipe("quickstart"), [*OVERRIDES, f"method.clusters={FEW}", *values])


def real_loss(recipe: Recipe) -> tuple[Tensor, nn.Module, list[Tensor]]:
    """The loss of random views and what was there before."""
    model, views = build_model(recipe).train(), recipe.views
    if recipe.efficiency.checkpointing:
        recompute_blocks(model.student.backbone)
    large = torch.randn(views.global_views, IMAGES, 3, views.global_size, views.global_size)
    local = torch.randn(views.local_views, IMAGES, 3, views.local_size, views.local_size)
    half = {"bf16": torch.bfloat16}.get(recipe.efficiency.precision)
    with torch.autocast("cpu", half, enabled=half is not None):
        loss = model(large, local, step_key=1, sample_keys=torch.arange(IMAGES)).loss
    return loss, model, [large, local]


@pytest.mark.parametrize("network", [RESNET, VIT], ids=["resnet", "vit"])
@pytest.mark.parametrize("values", [(), ("efficiency.precision=bf16",), ("efficiency.checkpointing=true",)])
def test_activations_are_what_a_real_pass_saves(network: tuple[str, ...], values: tuple[str, ...]) -> None:
    recipe = small(*network, *values)
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _, model, views = real_loss(recipe)
    there = [*model.parameters(), *model.buffers(), *views]
    for tensor in there:
        saved.pop(tensor.untyped_storage().data_ptr(), None)
    total = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert step_memory(recipe, IMAGES).activations == pytest.approx(total, rel=0.01)


def highest_between_operations(profiler: profile) -> int:
    """The most bytes at the end of any operation: what oneDNN needs within one depends on the processor."""
    events = cast(Any, profiler.profiler).kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = list(itertools.accumulate((change for _, change in changes), initial=0))
    ends = (event.end_ns() for event in events if event.name().startswith("aten::"))
    return max(held[bisect.bisect_right(changes, end, key=lambda change: change[0])] for end in ends)


@pytest.mark.parametrize("values", [(), ("efficiency.checkpointing=true",)])
def test_a_pass_allocates_what_is_counted(values: tuple[str, ...]) -> None:
    recipe = small(*RESNET, *values)
    real_loss(recipe)[0].backward()  # whatever torch sets up once
    gc.collect()  # what other tests left must not be freed meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        loss, model, views = real_loss(recipe)
        loss.backward()
    highest = highest_between_operations(profiler)
    counted = step_memory(recipe, IMAGES)
    kept = counted.weights + counted.teacher + counted.buffers // 2 + counted.views
    assert counted.activations + counted.passing + kept == pytest.approx(highest, rel=0.01)
    del model, views  # alive until here


@pytest.mark.parametrize("network", [RESNET, VIT], ids=["sgd", "adamw"])
def test_what_stays_is_what_a_trainer_holds(network: tuple[str, ...]) -> None:
    recipe = small(*network, "method.clusters=24")
    trainer, counted = build_trainer(recipe, torch.device("cpu")), step_memory(recipe, IMAGES)
    trainer.step(random_batch(recipe, IMAGES), 0)
    student, teacher = trainer.model.student, trainer.model.teacher
    assert counted.weights == sum(parameter.nbytes for parameter in student.parameters())
    assert counted.gradients == counted.weights
    assert counted.teacher == sum(parameter.nbytes for parameter in teacher.parameters())
    states = [value for state in trainer.optimizer.state.values() for value in state.values() if value.ndim]
    one_dimensional = sum(value.nbytes for value in states)
    assert counted.optimizer == one_dimensional
    assert counted.buffers == 2 * sum(buffer.nbytes for buffer in trainer.model.buffers())
    views = recipe.views
    pixels = views.global_views * views.global_size**2 + views.local_views * views.local_size**2
    assert counted.views == IMAGES * 3 * 4 * pixels
    without = recipe.change(optim={"optimizer": "sgd", "momentum": 0.0})
    assert step_memory(without, IMAGES).optimizer == 0
    assert not build_optimizer(student, without.optim).state


def test_parts_add_up_and_double_precision_doubles() -> None:
    single, double = (step_memory(small(f"efficiency.precision={p}"), IMAGES) for p in ("fp32", "fp64"))
    assert single.total == sum(vars(single).values())
    assert double.weights == 2 * single.weights
    assert double.activations == pytest.approx(
        2 * single.activations, rel=0.05
    )  # max-pooling's indices are int64 in both


def highest_of_a_pass(recipe: Recipe) -> int:
    """The most bytes alive in a real pass, forward and backward, beside the networks and gradients of weights."""
    model, views = build_model(recipe).train(), recipe.views
    for parameter in model.student.parameters():
        parameter.grad = torch.zeros_like(parameter)
    large = torch.randn(views.global_views, 2, 3, views.global_size, views.global_size)
    local = torch.randn(views.local_views, 2, 3, views.local_size, views.local_size)
    gradients = [parameter.grad for parameter in model.student.parameters()]
    known = [*model.parameters(), *model.buffers(), *gradients, large, local]
    with Alive(tensor.untyped_storage() for tensor in known if tensor is not None) as alive:
        model(large, local, step_key=1).loss.backward()
    return alive.highest


def test_the_streaming_loss_head_holds_as_many_matrices_as_counted() -> None:
    K, D = 16_384, 64
    many, few = (highest_of_a_pass(small(f"method.clusters={clusters}", f"method.width={D}")) for clusters in (K, FEW))
    counted = 4 * HEAD_MATRICES * K * D
    assert 0.8 * (many - few) < counted < 1.2 * (many - few)


def test_the_plain_loss_head_holds_at_least_what_is_said() -> None:
    recipe = small("method.clusters=4096")
    views, K = recipe.views, 4096
    G, V = views.global_views, views.global_views + views.local_views
    h, g = (torch.randn(V * IMAGES, 8, requires_grad=True) for _ in range(2))
    centroids = torch.randn(K, 8)
    with Alive([h.untyped_storage(), g.untyped_storage(), centroids.untyped_storage()]) as alive:
        p = torch.softmax(torch.randn(G * IMAGES, 8) @ centroids.T, 1).chunk(G)
        losses = [
            -(target * log).sum()
            for rows in (h, g)
            for log in torch.log_softmax(rows @ centroids.T, 1).chunk(V)
            for target in p
        ]
        torch.stack(losses).sum().backward()
    said = plain_loss_head(recipe, IMAGES)
    assert said == 4 * (G + 3 * V) * IMAGES * K
    assert said <= alive.highest


@pytest.mark.parametrize("values", [(), ("method.predictor=false",)])
def test_the_plain_backend_holds_at_most_what_is_counted(values: tuple[str, ...]) -> None:
    plain, *few = (
        small(f"method.clusters={clusters}", "method.width=2", "efficiency.objective=plain", *values)
        for clusters in (65_536, FEW)
    )
    held = highest_of_a_pass(plain) - highest_of_a_pass(few[0])
    counted = [step_memory(recipe, 2).loss_head for recipe in (plain, plain.change(efficiency={"objective": "auto"}))]
    assert counted[1] < plain_loss_head(plain, 2) < held < counted[0]


def test_alive_counts_storages_once_from_making_to_end() -> None:
    there = torch.zeros(100)
    with Alive([there.untyped_storage()]) as alive:
        there.add_(1)
        a = torch.zeros(1000)
        view = a[10:]
        assert alive.now.at(1) == 4000
        b = a + 1
        assert (alive.now.at(1), alive.highest) == (8000, 8000)
        del a
        assert alive.now.at(1) == 8000  # the view holds it
        del view, b
        assert (alive.now.at(1), alive.highest) == (0, 8000)
        torch.zeros(1500)
        assert (alive.now.at(1), alive.highest) == (0, 8000)
