"""Tests of low-rank updates: they start at zero, learn alone, and fold into an ordinary network."""

import builtins
from typing import Any

import pytest
import torch

from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.lora import add_lora, folded, has_lora

VIT = Architecture("vit_tiny", {"depth": 2, "embed_dim": 12, "num_heads": 2, "patch_size": 8, "img_size": 32})


def test_updates_start_at_zero_and_learn_alone() -> None:
    pytest.importorskip("peft")
    network, images = VIT.build().eval(), torch.rand(2, 3, 32, 32)
    before, expected = {n: v.clone() for n, v in network.state_dict().items()}, network(images)
    add_lora(network, 3, seed=1)
    assert torch.equal(network(images), expected)
    learned = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    layers = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert learned == {
        f"blocks.{block}.{layer}.lora_{half}.default.weight" for block in (0, 1) for layer in layers for half in "AB"
    }
    plain = folded(network.state_dict())
    assert list(plain) == list(before)
    assert all(torch.equal(plain[name], value) for name, value in before.items())


def test_a_folded_network_gives_the_same_features() -> None:
    pytest.importorskip("peft")
    network, images = VIT.build().eval(), torch.rand(2, 3, 32, 32)
    add_lora(network, 3, seed=1)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    ordinary = VIT.build().eval()
    ordinary.load_state_dict(folded(network.state_dict()))
    torch.testing.assert_close(ordinary(images), network(images), rtol=1e-4, atol=1e-5)
    state = network.state_dict()
    by_hand = state["blocks.0.attn.qkv.base_layer.weight"] + (
        state["blocks.0.attn.qkv.lora_B.default.weight"] @ state["blocks.0.attn.qkv.lora_A.default.weight"]
    )
    assert torch.equal(ordinary.state_dict()["blocks.0.attn.qkv.weight"], by_hand)


def test_the_seed_decides_and_torchs_generator_stays() -> None:
    pytest.importorskip("peft")
    states = []
    for seed in (1, 1, 2):
        network, before = VIT.build(), torch.get_rng_state()
        add_lora(network, 3, seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        states.append(network.state_dict()["blocks.0.mlp.fc1.lora_A.default.weight"])
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_other_tensors_are_returned_as_they_are() -> None:
    state = VIT.build().state_dict()
    assert not has_lora(state)
    assert all(value is state[name] for name, value in folded(state).items())


def test_a_network_that_is_no_vit_is_refused() -> None:
    pytest.importorskip("peft")
    with pytest.raises(UserError, match=r"this Conv4 has none of their layers: set adapt\.lora_rank=0"):
        add_lora(Architecture("conv4").build(), 3, seed=1)


def test_missing_peft_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "peft":
            raise ImportError(name)
        return usual(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="needs peft: run `pip install 'excb") as caught:
        add_lora(VIT.build(), 3, seed=1)
    assert "\n" not in str(caught.value)
