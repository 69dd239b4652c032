"""Low-rank adaptation (LoRA; Hu et al., 2022) of a ViT: linear layers learn W + B A, where W stays as it is.

`peft` makes the layers. The scale of B A is 1, so that `folded` needs nothing but the tensors.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from excb.errors import UserError
from excb.exact import exact_products

# Of timm's ViTs: the linear layers of attention and of the multi-layer perceptron in every block.
TARGETS = r"blocks\.\d+\.(attn\.(qkv|proj)|mlp\.(fc1|fc2))"
_WEIGHT, _DOWN, _UP = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def add_lora(network: nn.Module, rank: int, *, seed: int) -> None:
    """Give a ViT's linear layers low-rank updates, which start at zero, and freeze all else of it.

    Args:
        network: is changed: tensors of these layers get other names, which `folded` undoes.
        rank: of the updates.
        seed: of their random halves A.

    Raises:
        UserError: peft is not installed, or the network is not a ViT of timm.
    """
    try:
        import peft
    except ImportError:
        raise UserError(
            "adapt.lora_rank needs peft: run `pip install 'excb[lora]'`, or set adapt.lora_rank=0"
        ) from None
    config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=TARGETS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            peft.inject_adapter_in_model(config, network)
        except ValueError:  # none of its layers has such a name
            raise UserError(
                f"adapt.lora_rank is for ViTs of timm, and this {type(network).__name__} has none of their layers: "
                "set adapt.lora_rank=0"
            ) from None


def has_lora(names: Mapping[str, object]) -> bool:
    """Whether tensors of these names are those of a network with low-rank updates."""
    return any(name.endswith(_DOWN) for name in names)


def folded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the same network without low-rank updates: its weights hold them, W + B A, under their own names.

    Other tensors are returned as they are.

    Raises:
        KeyError: half of an update, or the weight it belongs to, is missing.
    """
    if not has_lora(tensors):
        return dict(tensors)
    plain: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name.endswith((_DOWN, _UP)):
            continue
        layer, adapted, kind = name.rpartition(_WEIGHT)
        update = None
        if adapted and kind == "weight":
            up, down = tensors[layer + _UP], tensors[layer + _DOWN]
            with exact_products(up.device):  # weights, which are kept: not in TF32, as during a step
                update = up @ down
        plain[f"{layer}.{kind}" if adapted else name] = value if update is None else value + update
    return plain
