"""Properties of a network that no tensor's shape shows, such as a ViT's number of heads. They are never assumed.

It is taken from the layout, if only one code writes that layout; from what the file says of itself; or from the user.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from excb.errors import UserError
from excb.networks.architecture import SMALL_STEM, Architecture
from excb.networks.backbone import shapes_only

# Heads of a ViT by its width, as timm builds it, and what else there is in the field.
USUAL_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16}
_HEADS = {
    192: "num_heads=3 (as DINO, DeiT and timm have it) or num_heads=12 (as solo-learn)",
    384: "num_heads=6 (as DINO, iBOT, TWIST, DeiT and timm have it) or num_heads=12 (as MoCo-v3 and solo-learn)",
    768: "num_heads=12 (as DINO, MAE, MoCo-v3 and timm have it)",
    1024: "num_heads=16 (as MAE, iBOT and timm have it)",
    1280: "num_heads=16 (as MAE and timm have it)",
}
_STEM = (
    "stem_padding=1 (as SimCLR, MoCo, lightly and most code for CIFAR have it) or stem_padding=2 (as solo-learn); and "
    "stem_stride or stem_pool, where the stem has a stride other than 1 or keeps its max-pooling"
)


def settled(
    architecture: Architecture,
    tensors: Mapping[str, Tensor],
    contents: Mapping[Any, Any],
    *,
    heads: Mapping[int, int],
    exact: bool,
    source: str,
) -> Architecture:
    """The architecture with all that shapes do not show.

    Args:
        architecture: recognised by tensors, or as the user named it.
        tensors: of the network, by its own names.
        contents: of the file, which may say how it was trained.
        heads: of ViTs by width, as the file's layout fixes them.
        exact: whether `architecture` is meant with all that it does not mention.
        source: the file, for the message.

    Raises:
        UserError: neither layout nor file nor user says it: tells what to type.
    """
    if architecture.name in SMALL_STEM:
        if exact or "stem_padding" in architecture.options:
            return architecture
        raise _question(source, architecture, "how its stem of 3 x 3 pads the image", _STEM)
    patches = tensors.get("patch_embed.proj.weight")
    if patches is None or not patches.ndim or type(architecture.options.get("num_heads")) is int:
        return architecture
    width = len(patches)
    number = heads.get(width) or (None if exact else _stated_heads(contents, width))
    if number is None and not exact:
        raise _question(source, architecture, "how many attention heads it has", _HEADS.get(width, "num_heads=N"))
    if number in (None, USUAL_HEADS.get(width)):
        return architecture
    return replace(architecture, options={"num_heads": number} | architecture.options)


def _question(source: str, architecture: Architecture, what: str, answers: str) -> UserError:
    return UserError(
        f"{source} holds a {architecture.name} and does not say {what}, which no tensor's shape shows: use excb-zoo "
        f"import with --arch-option {answers}"
    )


def _stated_heads(contents: Mapping[Any, Any], width: int) -> int | None:
    """Heads of the network of timm that a file names as its own, as timm's and DeiT's training scripts write it."""
    arguments = contents.get("args")
    stated = arguments if isinstance(arguments, Mapping) else getattr(arguments, "__dict__", {})
    for facts in (contents, stated):
        for key in ("arch", "model"):
            if isinstance(name := facts.get(key), str) and (number := _heads_of(name, stated, width)):
                return number
    return None


def _heads_of(name: str, stated: Mapping[Any, Any], width: int) -> int | None:
    """Heads of one of timm's ViTs of that width, with the script's own `model_kwargs`; None if there is none."""
    from timm import is_model
    from timm.models import VisionTransformer

    if not is_model(name):
        return None
    options = stated.get("model_kwargs")
    if isinstance(options, Mapping) and type(number := options.get("num_heads")) is int:
        return number
    with shapes_only():
        network: Any = Architecture(f"timm:{name}").build()
    if not isinstance(network, VisionTransformer) or network.embed_dim != width:
        return None
    blocks: Any = network.blocks
    return int(blocks[0].attn.num_heads)
