"""Class tokens, maps and pyramids of transformers' networks, against what transformers itself returns for them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from excb.errors import UserError
from excb.networks.architecture import Architecture
from excb.networks.blocks import Blocks
from excb.networks.from_transformers import families
from excb.networks.from_transformers.encoders import encoder
from excb.networks.outputs import output
from tests.excb.networks.from_transformers.small_models import MODELS, model

VITS = [kind for kind, family in families.FAMILIES.items() if family.norm]
STAGES = [kind for kind in families.FAMILIES if kind not in VITS]
LARGER = 112  # pixels, of no network's own size, and a multiple of 14 and of 16


def both(kind: str) -> tuple[Any, Any]:
    theirs = model(kind)
    if kind == "vit":
        theirs.pooler = None  # BERT's, which `build_encoder` leaves out
    return theirs, encoder(theirs, families.FAMILIES[kind]).eval()


def images(side: int = LARGER) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))


def patches_of(theirs: Any, kind: str, side: int) -> Tensor:
    """Normed patch tokens after the last block, cut by hand: [B, D, side / patch, side / patch]."""
    more = {"interpolate_pos_encoding": True} if families.FAMILIES[kind].fixed else {}
    with torch.no_grad():
        tokens = theirs(images(side), **more).last_hidden_state
        if kind == "clip_vision_model":  # which norms its class token alone
            tokens = theirs.post_layernorm(tokens)
    cells = side // theirs.config.patch_size
    return tokens[:, -cells * cells :].transpose(1, 2).reshape(2, -1, cells, cells)


def test_every_family_is_tested() -> None:
    assert MODELS.keys() == families.FAMILIES.keys()
    assert {families.FAMILIES[kind].model for kind in MODELS} == {name for name, _, _ in MODELS.values()}


@pytest.mark.parametrize("kind", VITS)
def test_maps_of_vits_are_patch_tokens(kind: str) -> None:
    theirs, ours = both(kind)
    reader = output(ours, "map")
    with torch.no_grad():
        torch.testing.assert_close(reader(images()), patches_of(theirs, kind, LARGER), rtol=1e-5, atol=1e-5)
        pyramid = output(ours, "pyramid")(images())
    assert reader.strides == (theirs.config.patch_size,)
    assert [each.shape[-1] for each in pyramid] == [28, 14, 7, 4]


@pytest.mark.parametrize("kind", VITS)
def test_class_tokens_of_the_last_blocks(kind: str) -> None:
    _, ours = both(kind)
    if not families.FAMILIES[kind].class_token:
        with pytest.raises(UserError, match="has none"):
            output(ours, "last4")
        return
    with torch.no_grad():
        last = output(ours, "last4")(images())
        assert torch.allclose(last[:, -32:], ours(images()), atol=1e-6)
    assert last.shape == (2, 4 * 32)


@pytest.mark.parametrize("kind", STAGES)
def test_maps_of_stages(kind: str) -> None:
    theirs, ours = both(kind)
    with torch.no_grad():
        pyramid = output(ours, "pyramid")(images(96))
        own = theirs(images(96), output_hidden_states=True)
    assert [tuple(each.shape[1:]) for each in pyramid] == [(8, 24, 24), (16, 12, 12), (24, 6, 6), (32, 3, 3)]
    for ours_each, theirs_each in zip(pyramid, own.hidden_states[-4:], strict=True):
        assert torch.equal(ours_each, theirs_each)
    last = own.last_hidden_state
    if last.ndim == 4:  # DINOv3's has tokens
        assert torch.equal(pyramid[-1], last)


@pytest.mark.parametrize("kind", MODELS)
def test_every_block_in_one_pass(kind: str) -> None:
    _, ours = both(kind)
    blocks = Blocks(ours)
    side = 56 if kind.startswith("dinov2") else 64
    with torch.no_grad():
        outputs, own = blocks(images(side))
        assert torch.allclose(own, ours(images(side)))
        assert torch.equal(outputs[-1].map, output(ours, "map")(images(side)))
    assert len(outputs) == len(blocks) == (5 if kind in VITS else 4)


@pytest.mark.parametrize("kind", MODELS)
def test_an_architecture_is_built_by_name(kind: str) -> None:
    theirs, ours = both(kind)
    options = families.stated_options(kind, theirs.config.to_dict())
    built = Architecture(f"transformers:{kind}", options).build()
    shapes = {name: value.shape for name, value in built.state_dict().items()}
    assert shapes == {name: value.shape for name, value in ours.state_dict().items()}


def test_what_no_network_takes_is_refused() -> None:
    with pytest.raises(UserError, match=r"type 'dinov4' cannot be loaded.*dinov2"):
        Architecture("transformers:dinov4").build()
    with pytest.raises(UserError, match="has no option attn_implementation"):
        Architecture("transformers:vit", {"attn_implementation": "eager"}).build()
    with pytest.raises(UserError, match="neither drop path"):
        Architecture("transformers:vit").build(drop_path=0.1)
    with pytest.raises(UserError, match="not square ones"):
        Architecture("transformers:vit", MODELS["vit"][1] | {"patch_size": [8, 16]}).build()
