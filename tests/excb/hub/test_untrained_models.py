"""Untrained networks by name: two spellings, fixed weights, timm's own preprocessing."""

import pytest
import torch

import excb
from excb.errors import UserError
from excb.hub import loading
from excb.hub.resolve import resolve
from excb.references import untrained

RESNET = "untrained:timm:resnet10t"


@pytest.mark.parametrize(
    ("name", "meant"),
    [(RESNET, RESNET), ("timm:resnet10t?pretrained=false", RESNET), ("timm:resnet10t?pretrained=False", RESNET)],
)
def test_both_spellings_are_one_name(name: str, meant: str) -> None:
    assert resolve(name).name == meant


def test_weights_are_random_and_always_the_same() -> None:
    first, again = excb.load(RESNET), excb.load("timm:resnet10t?pretrained=false")
    assert first.entry.network == "untrained"
    assert first.entry.source == RESNET
    torch.manual_seed(5)
    built = first.entry.architecture.build()
    for (name, tensor), other in zip(
        first.network.state_dict().items(), again.network.state_dict().values(), strict=True
    ):
        assert torch.equal(tensor, other), name
    assert not torch.equal(next(first.network.parameters()), next(built.parameters()))
    assert (first.transform.crop, first.transform.interpolation) == (176, "bicubic")  # timm's of this network


def test_networks_of_our_own_have_the_usual_preprocessing() -> None:
    assert excb.load("untrained:conv4").transform.crop == 224


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: excb.load("untrained:resnet19"), "no backbone is called 'resnet19'; did you mean"),
        (lambda: excb.load(RESNET, network="student"), "has no student"),
        (lambda: loading.obtain(RESNET), "is made, not fetched"),
    ],
)
def test_mistakes_are_told(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(UserError, match=message):
        call()


def test_the_name_is_that_of_the_reference() -> None:
    assert untrained.NETWORK == "untrained"
