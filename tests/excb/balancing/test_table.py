"""A balancer is its own file and one line of the table: all that knows balancers takes a new one from there."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from excb.balancing.interface import Balancer, TeacherBatch
from excb.balancing.table import BALANCERS, BalancerEntry
from excb.errors import UserError
from excb.method import ExCB, ExplicitBalancing, balancer
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan.flops import communication, count
from excb.pretrain.plan.memory import step_memory
from excb.pretrain.study.studies import _balancers
from excb.settings import MethodSettings
from tests.clone import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")


class Doubling(Balancer):
    """z -> 2 z - shift, with a state of K numbers that nothing changes."""

    passes, exchanges = 2, 3
    seen: Tensor

    def __init__(self, clusters: int, shift: float) -> None:
        super().__init__()
        self.shift = shift
        self.register_buffer("seen", torch.zeros(clusters))

    def affine(self, batch: TeacherBatch) -> tuple[Tensor, Tensor]:
        return torch.full_like(batch.sizes, 2), torch.full_like(batch.sizes, -self.shift)


@pytest.fixture
def doubling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line."""
    line = BalancerEntry(__name__, "Doubling", ("clusters", "center_momentum"), whole_batch=True, title="doubled")
    monkeypatch.setitem(BALANCERS, "doubling", line)


def test_importing_the_settings_needs_no_torch() -> None:
    code = "import sys, excb.settings, excb.objective.table; print('torch' in sys.modules)"
    # A new interpreter: what it imports is tested.
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("name", BALANCERS)
def test_every_line_builds_a_balancer(name: str) -> None:
    settings = MethodSettings(clusters=5, balancing=name)
    assert isinstance(balancer(settings), ExplicitBalancing) == (name in {"linear", "squared", "pseudocode"})
    generator = torch.Generator().manual_seed(0)
    rows = nn.functional.normalize(torch.randn(14, 4, generator=generator), dim=1)
    scale, offset = balancer(settings).affine(TeacherBatch(rows[:9], rows[9:], torch.full((5,), 0.2), 0))
    balanced = scale * (rows[:9] @ rows[9:].T) + offset
    assert not BALANCERS[name].bounded or balanced.abs().max() <= 1 or name == "pseudocode"


@pytest.mark.usefixtures("doubling")
def test_a_new_line_is_an_option_that_is_checked_and_trains() -> None:
    recipe = apply(find_recipe("quickstart"), ["method.balancing=doubling", "method.clusters=6", "method.contrast=0"])
    with pytest.raises(UserError, match=r"method\.balancing must be one of linear, .*, doubling, not 'doublin'"):
        apply(recipe, ["method.balancing=doublin"])
    with pytest.raises(UserError, match=r"method\.balancing=doubling\s+does not keep: set method\.winner_gain=1"):
        apply(recipe, ["method.clamp=true"])
    with pytest.raises(UserError, match=r"doubling balances the whole batch at once: set efficiency\.accumulate=1"):
        apply(recipe, ["efficiency.accumulate=2"])
    built = balancer(recipe.method)
    assert isinstance(built, Doubling)
    assert built.shift == recipe.method.center_momentum
    student, teacher = (nn.Sequential(nn.Flatten(), nn.Linear(3, 8)) for _ in range(2))
    student.num_features = teacher.num_features = 8  # type: ignore[assignment]
    model = ExCB(student, teacher, recipe.method)
    step = model(torch.randn(2, 4, 3, 1, 1), step_key=0)
    step.loss.backward()
    assert step.loss.isfinite()
    assert "balancer.seen" in model.state_dict()


@pytest.mark.usefixtures("doubling")
def test_its_cost_is_planned_as_it_states() -> None:
    base = apply(find_recipe("quickstart"), ["method.clusters=64", "method.width=16"])
    new = base.change(method={"balancing": "doubling"})
    (before, after), K, D, G = (count(base), count(new)), 64, 16, base.views.global_views
    assert after.flops.loss_head - before.flops.loss_head == 2 * 2 * G * K * D  # two passes more
    assert communication(new, after, 2).balancing == 4 * K * 3
    assert communication(base, before, 2).balancing == 0
    assert step_memory(new, 2).buffers - step_memory(base, 2).buffers == 2 * 4 * K


@pytest.mark.usefixtures("doubling")
def test_with_a_title_it_is_a_cell_of_the_study() -> None:
    newest = _balancers()[-1]
    assert (newest.name, newest.factors["balancing"]) == ("doubling", "doubled")
    assert list(newest.overrides) == ["method.balancing=doubling"]
