"""A loss or a backend is its own file and one line of a table."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from excb.errors import UserError
from excb.method import ExCB, pair_weights
from excb.objective import chunked, plain
from excb.objective.loss import resolve_backend
from excb.objective.table import BACKENDS, LOSSES, Backend, Loss
from excb.pretrain.overrides import apply, find_recipe
from excb.settings import MethodSettings
from tests.excb.objective.batches import batch_of, outcome

pytestmark = pytest.mark.usefixtures("one_thread")


def squared_distance(
    queries: Tensor, centroids: Tensor, assignment: plain.FullAssignment, pair_weights: Tensor, *, temperature: float
) -> Tensor:
    """A toy loss: the squared distance of p_t and p_s."""
    p_s = torch.softmax(queries @ centroids.T / temperature, -1)
    p_t = assignment.probabilities.unflatten(0, (len(pair_weights), -1))
    return (pair_weights.to(p_s) * (p_t[:, None] - p_s[None]).square().sum(-1).mean(-1)).sum()


class Rows(nn.Module):
    """A backbone whose features are its input's channels."""

    num_features = 4

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) @ torch.linspace(-1, 1, 12, dtype=images.dtype).view(3, 4)


def test_a_new_loss_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "squared_distance", Loss(__name__))
    torch.manual_seed(0)
    settings = MethodSettings(clusters=5, width=4, hidden=6, head="gelu", loss="squared_distance")
    model = ExCB(Rows(), Rows(), settings).double()
    views = torch.randn(2, 3, 3, 2, 2, dtype=torch.float64)
    step = model(views, step_key=0)

    outputs = [network.projector(network.backbone(views.flatten(0, 1))) for network in (model.teacher, model.student)]
    assert model.student.predictor is not None
    outputs.append(model.student.predictor(outputs[1]))
    teacher, student, predicted = (nn.functional.normalize(rows, dim=1) for rows in outputs)
    p_t = torch.softmax(teacher @ model.teacher.centroids().T / 0.04, 1).view(2, 3, 5)  # equal sizes: B is the identity
    expected = torch.zeros((), dtype=torch.float64)
    for rows, weights in zip((student, predicted), pair_weights(2, 0), strict=True):
        p_s = torch.softmax(rows @ model.student.centroids().T / 0.1, 1).view(2, 3, 5)
        for g in range(2):
            for v in range(2):
                expected = expected + weights[g, v] * ((p_t[g] - p_s[v]) ** 2).sum(1).mean()
    torch.testing.assert_close(step.loss, expected)
    step.loss.backward()
    assert model.student.centroids.weight.grad is not None
    recipe = apply(find_recipe("quickstart"), ["method.loss=squared_distance"])
    with pytest.raises(UserError, match=r"method\.loss must be one of cross_entropy, squared_distance, not 'mse'"):
        apply(recipe, ["method.loss=mse"])


def test_a_new_backend_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def average(*arguments: object, **named: object) -> object:
        calls.append("average")
        return chunked.average(*arguments, **named)  # type: ignore[arg-type]

    module = SimpleNamespace(
        average=average,
        centroid_gradient=chunked.centroid_gradient,
        obstacle=lambda rows: "" if rows.dtype == torch.float64 else "takes float64 rows only",
    )
    monkeypatch.setitem(sys.modules, "a_new_backend", module)
    monkeypatch.setitem(BACKENDS, "new", Backend("a_new_backend", precisions=("fp64",)))
    batch = batch_of(9)
    assert torch.equal(outcome(batch, 2, "new").loss, outcome(batch, 2, "chunked").loss)
    assert calls
    with pytest.raises(UserError, match="the loss backend new takes float64 rows only"):
        resolve_backend("new", batch.h.float())
    recipe = apply(find_recipe("quickstart"), ["efficiency.objective=new", "efficiency.precision=fp64"])
    assert recipe.efficiency.objective == "new"
    assert apply(recipe, ["efficiency.precision=auto"]).efficiency.objective == "new"  # until it is known
    with pytest.raises(UserError, match=r"efficiency\.objective=new needs efficiency\.precision=fp64"):
        apply(recipe, ["efficiency.precision=fp32"])


def test_a_removed_backend_is_named() -> None:
    recipe = find_recipe("quickstart")
    with pytest.raises(UserError, match=r"objective=flex was removed: set efficiency\.objective=auto"):
        recipe.change(efficiency={"objective": "flex"})
