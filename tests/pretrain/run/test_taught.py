"""A student beside its teachers: what each costs, and which of the two a person is told to use."""

import pytest
import torch
from torch import nn

from excb.pretrain.run.taught import BesideTeacher, NetworkCost, cost_rows, measure_cost

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")

SMALL, LARGE = NetworkCost(700_000, 2.7, 1.0), NetworkCost(2_100_000, 8.1, 4.0)


def beside(student: float, teacher: float, *, cost: NetworkCost = SMALL) -> BesideTeacher:
    return BesideTeacher("teacher", "k-NN top-1", student, teacher, 2.0, cost, LARGE)


@pytest.mark.parametrize("side", [16, 40])
def test_weights_bytes_and_time_are_those_of_the_network(side: int) -> None:
    network = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    cost = measure_cost(network, side, torch.device("cpu"))
    assert cost.parameters == 5 * 3 * 9 + 2 * 5
    assert cost.mebibytes == round(4 * (5 * 3 * 9 + 4 * 5 + 2) / 2**20, 2)  # running statistics, and an int64 counter
    assert cost.milliseconds > 0
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_deeper_network_of_the_same_kind_takes_longer() -> None:
    def deep(layers: int) -> nn.Module:
        return nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(layers)), nn.Flatten())

    short, long = (measure_cost(deep(layers), 64, torch.device("cpu")) for layers in (1, 60))
    assert long.milliseconds > 3 * short.milliseconds


@pytest.mark.parametrize(
    ("student", "teacher", "helps", "words"),
    [
        (
            53.0,
            57.0,
            True,
            "keeps 93 % of the k-NN top-1 of teacher (53.0 of 57.0 %) at 1/4 of its time and 1/3 of its",
        ),
        (53.0, 57.0, True, "Use it where time or size decides; else use teacher, which is 4.0 points ahead."),
        (56.0, 57.0, True, "a difference within chance (2.0): use the student."),
        (60.0, 57.0, True, "a difference within chance (2.0): use the student."),
        (30.0, 57.0, False, "On these images it does not help: use teacher as it is, unless"),
    ],
)
def test_the_sentence_says_which_of_the_two_to_use(student: float, teacher: float, helps: bool, words: str) -> None:
    assert words in beside(student, teacher).sentence(helps=helps)


def test_a_student_that_saves_nothing_is_not_recommended() -> None:
    sentence = beside(56.0, 57.0, cost=NetworkCost(2_000_000, 8.0, 3.9)).sentence(helps=True)
    assert "so it saves nothing: use teacher as it is." in sentence
    larger = beside(56.0, 57.0, cost=NetworkCost(4_200_000, 16.2, 6.0)).sentence(helps=True)
    assert "at 1.5 times its time and 2 times its size" in larger


def test_the_table_divides_the_figure_by_each_price() -> None:
    ((name, *cells),) = cost_rows({"run": SMALL}, {"run": 54.0})
    assert name == "run"
    assert cells == ["54.0", "0.70", "1.00", "2.7", "77.1", "54", "20"]


def test_costs_are_read_back_from_json() -> None:
    values = {"parameters": 700_000, "mebibytes": 2.7, "milliseconds": 1.0}
    assert NetworkCost.from_dict(values) == SMALL
    with pytest.raises(LookupError):
        NetworkCost.from_dict({"parameters": 1})
