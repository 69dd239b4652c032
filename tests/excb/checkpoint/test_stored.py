"""Tests of strict loading: every tensor is matched, or the module stays as it was."""

import copy

import pytest
import torch
from torch import nn

from excb.checkpoint import stored
from excb.errors import UserError


@pytest.mark.parametrize("kind", ["missing", "unexpected", "misshapen"])
def test_refused_tensors_leave_the_module_as_it_was(kind: str) -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    before = copy.deepcopy(module.state_dict())
    tensors = {name: value + 1 for name, value in before.items()}
    if kind == "missing":
        del tensors["1.running_var"]
    elif kind == "unexpected":
        tensors["2.weight"] = torch.ones(1)
    else:
        tensors["1.bias"] = torch.ones(3, 1)
    with pytest.raises(UserError, match=f"the file does not fit the network, nothing was loaded: 1 {kind}"):
        stored.load_strictly(module, tensors, what="the file")
    after = module.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(("name", "value"), [("1.running_var", -1.0), ("0.weight", torch.nan)])
def test_values_that_no_network_has_leave_the_module_as_it_was(name: str, value: float) -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    before = copy.deepcopy(module.state_dict())
    tensors = {key: tensor.clone() for key, tensor in before.items()}
    tensors[name].view(-1)[0] = value
    with pytest.raises(UserError, match=rf"the file holds .* in 1 tensor \({name}\)"):
        stored.load_strictly(module, tensors, what="the file")
    after = module.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_every_kind_of_misfit_is_told_at_once_and_long_lists_are_cut() -> None:
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    tensors = {f"x{number}": torch.ones(1) for number in range(5)} | {"0.weight": torch.ones(3, 2)}
    with pytest.raises(UserError) as caught:
        stored.load_strictly(module, tensors, what="it")
    assert str(caught.value) == (
        "it does not fit the network, nothing was loaded: 7 missing (0.bias, 1.weight, 1.bias, ...); "
        "5 unexpected (x0, x1, x2, ...); 1 misshapen (0.weight (3, 2) for (2, 2))"
    )
