"""Counts without computing, against published sizes, counts by hand, and what processes really exchange."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torchvision
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from excb.distributed import batchnorm, collectives
from excb.objective import contrast, regression
from excb.pretrain.initialise import build_model
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan.flops import Counts, Flops, communication, count
from excb.pretrain.recipe import Recipe
from tests.pretrain.small_runs import OVERRIDES

TWO_LARGE = ("views.local_views=0", "views.global_scale=0.14,1", "method.hidden=4", "method.width=2")
WEIGHTS = torchvision.models.ResNet18_Weights, torchvision.models.ResNet50_Weights


def small(*values: str) -> Recipe:
    return apply(find_recipe("quickstart"), [*OVERRIDES, *values])


def forward_of_one_view(recipe: Recipe) -> float:
    return count(recipe).flops.teacher / recipe.views.global_views


def test_resnet18_has_its_published_size_and_its_backward_pass_costs_twice_the_forward_one() -> None:
    counts = count(apply(find_recipe("rn50_100ep"), ["model.backbone=resnet18", *TWO_LARGE]))
    meta: dict[str, Any] = WEIGHTS[0].IMAGENET1K_V1.meta
    classifier = 512 * 1000 + 1000
    assert counts.parameters["teacher"]["backbone"] == meta["num_params"] - classifier
    projector = 2 * (512 * 4 + 4 * 4 + 4 * 2)
    assert counts.flops.teacher / 2 == pytest.approx(2e9 * meta["_ops"] - 2 * 512 * 1000 + projector, rel=2e-3)
    predictor = 2 * (2 * 4 + 4 * 2)
    no_gradient_of_images = 2 * 112 * 112 * 64 * 3 * 7 * 7
    of_a_view = counts.flops.teacher // 2
    assert counts.flops.student == 2 * (3 * (of_a_view + predictor) - no_gradient_of_images)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "gmacs", "millions"), [("rn50_100ep", 4.089, 23.508), ("vits16_100ep", 4.6, 21.666)]
)
def test_the_papers_backbones_have_their_published_sizes(recipe: str, gmacs: float, millions: float) -> None:
    counts = count(apply(find_recipe(recipe), TWO_LARGE))
    assert counts.flops.teacher / 2 == pytest.approx(2e9 * gmacs, rel=0.01)
    assert counts.parameters["student"]["backbone"] == pytest.approx(millions * 1e6, rel=1e-4)


def test_parameters_are_those_of_the_network_that_trains() -> None:
    recipe = small()
    model, counted = build_model(recipe), count(recipe).parameters
    for name, network in (("student", model.student), ("teacher", model.teacher)):
        assert sum(counted[name].values()) == sum(parameter.numel() for parameter in network.parameters())
        assert counted[name]["centroids"] == network.centroids.weight.numel()
    assert counted["teacher"]["predictor"] == 0


def test_recomputing_blocks_or_another_precision_counts_the_same() -> None:
    plain = count(small())
    assert count(small("efficiency.checkpointing=true", "efficiency.precision=bf16")) == plain
    assert count(small("efficiency.precision=fp64")).flops == plain.flops


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("method.projector_on_local=false",),
        ("method.predictor=false",),
        ("method.centroid_gradient_from_local=true",),
        ("views.local_views=0",),
    ],
)
def test_products_of_the_loss_head_are_those_of_the_equations(values: tuple[str, ...]) -> None:
    recipe = small(*values)
    views, method = recipe.views, recipe.method
    K, D, G, V = method.clusters, method.width, views.global_views, views.global_views + views.local_views
    centroids = torch.randn(K, D, requires_grad=True)

    def half(rows: int, moving: int) -> Tensor:
        """Similarities of one image's rows, of which the first ones move the centroids."""
        x = torch.randn(rows, D, requires_grad=True)
        fixed = (x[moving:] @ centroids.detach().T).sum()
        return (x[:moving] @ centroids.T).sum() + fixed if moving else fixed

    with FlopCounterMode(display=False) as counter:
        torch.randn(G, D) @ torch.randn(D, K)
        loss = half(V if method.projector_on_local else G, V if method.centroid_gradient_from_local else G)
        if method.predictor:
            loss = loss + half(V, 0)
        loss.backward()
    assert count(recipe).flops.loss_head == counter.get_total_flops()


def test_products_of_the_contrastive_term_are_those_of_its_formula() -> None:
    recipe = small("method.contrast=1", "optim.batch=5")
    rows = torch.randn(4, 5, recipe.method.width, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        contrast.nt_xent(rows, 2, temperature=0.2).backward()
    without = count(small("optim.batch=5")).flops.loss_head
    assert count(recipe).flops.loss_head - without == counter.get_total_flops() / 5


def test_products_of_byols_loss_are_those_of_its_formula() -> None:
    recipe = small("method.regression=1", "optim.batch=5")
    predictions = torch.randn(4, 5, recipe.method.width, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        regression.byol(predictions, torch.randn(2, 5, recipe.method.width)).backward()
    without = count(small("optim.batch=5")).flops.loss_head
    assert count(recipe).flops.loss_head - without == counter.get_total_flops() / 5


@pytest.mark.parametrize(
    "values",
    [
        (),
        ("method.head_batches=per_resolution", "views.local_views=0"),
        ("method.balancing=centering",),
        ("method.balancing=sinkhorn",),
        ("method.balancing=mira", "method.mira_iterations=4"),
        ("method.contrast=1",),
        ("method.regression=1", "method.clustering=false"),
        (
            "method.contrast=1",
            "method.clustering=false",
            "method.predictor=false",
            "method.teacher_statistics=averaged",
        ),
    ],
)
def test_two_processes_send_what_is_counted(monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...]) -> None:
    """A second process with the same numbers is made up; all that it would receive is measured."""
    recipe = small(*values, "method.sizes_counted=balanced", "optim.batch=6")
    counts = count(recipe)  # by one process, as `plan` does
    sent: list[int] = []
    gathered: list[int] = []
    norms: list[int] = []

    def all_reduce(tensor: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
        sent.append(tensor.nbytes)
        if operation == dist.ReduceOp.SUM:
            tensor.mul_(2)

    def all_gather(both: Tensor, tensor: Tensor) -> None:
        gathered.extend((tensor.nbytes, 2 * tensor.nbytes))  # the rows now, the sum of all rows' gradients afterwards
        both.copy_(torch.cat([tensor, tensor]))

    def gather_statistics(rows: Tensor) -> Tensor:
        norms.append(rows.nbytes)
        return torch.cat([rows, rows])

    def sum_gradients(sums: Tensor) -> Tensor:
        norms.append(sums.nbytes)
        return 2 * sums

    for module in (collectives, batchnorm):
        monkeypatch.setattr(module, "world_size", lambda: 2)
    for module in (collectives, contrast):
        monkeypatch.setattr(module, "rank", lambda: 0)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(collectives, "_all_gather", all_gather)
    monkeypatch.setattr(batchnorm, "gather_rows", gather_statistics)
    monkeypatch.setattr(batchnorm, "sum_over_ranks", sum_gradients)
    model = build_model(recipe).train()
    batchnorm.synchronise_batchnorm(model)
    views, images = recipe.views, 3
    large = torch.randn(views.global_views, images, 3, views.global_size, views.global_size)
    local = torch.randn(views.local_views, images, 3, views.local_size, views.local_size) if views.local_views else None
    output = model(large, local, step_key=1)
    output.loss.backward()
    for size in gathered[1::2]:
        sent.remove(size)
    exchanged, exchanges = sum(sent), len(sent)
    model.update(output.clusters, 0.9)
    counted = communication(recipe, counts, 2)
    by_batch = recipe.method.balancing in {"sinkhorn", "mira"}  # these balance in the forward pass
    sums = {"sinkhorn": 2 * 3, "mira": 2 * 5}.get(recipe.method.balancing, 0)
    balancing = counted.balancing if by_batch else 0
    assert (counted.batchnorm, counted.exchanges) == (sum(norms), len(norms))
    assert (balancing, sums) == (exchanged, exchanges)  # of two processes, each sends once what is summed
    assert counted.sizes + counted.balancing - balancing == sum(sent) - exchanged
    gradients = sum(p.grad.nbytes for p in model.student.parameters() if p.grad is not None)
    assert counted.gradients == gradients
    assert counted.contrast == sum(gathered)
    assert counted.total == gradients + sum(norms) + sum(sent) + sum(gathered)


def test_batchnorms_gather_statistics_once_and_sum_their_gradients_once() -> None:
    recipe = small("method.clusters=12", "efficiency.accumulate=2")
    counts = Counts({"student": {"backbone": 100}}, Flops(1, 1, 1), ((3, True), (5, False)), 100)
    sent = communication(recipe, counts, 4)
    ring = 2 * 3 / 4
    assert sent.gradients == 4 * 100 * ring
    assert sent.batchnorm == 2 * (4 * 3 * (2 * 3 + 1 + 2 * 5 + 1) + 4 * 2 * 3 * ring)
    assert sent.sizes == 4 * 12 * ring
    assert sent.exchanges == 2 * 3
    alone = communication(recipe, counts, 1)
    assert (alone.total, alone.exchanges) == (0, 0)
