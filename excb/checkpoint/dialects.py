"""Names that other code gives the tensors of one and the same network, turned into torchvision's and timm's."""

import re
from math import isqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from excb.networks.architecture import POSITIONS, Architecture
from excb.networks.preprocessing import Preprocessing

Tensors = dict[str, Tensor]

# timm's names of Meta's networks, by width and number of blocks. Their own code fixes heads and pooling.
_DINOV2 = {(384, 12): "small", (768, 12): "base", (1024, 24): "large", (1536, 40): "giant"}
_DINOV3 = {(384, 12): "small", (768, 12): "base", (1024, 24): "large", (1280, 32): "huge_plus", (4096, 40): "7b"}
_DINOV3_HEADS = {4096: 32, 1280: 20}  # others have 64 channels a head
_DINOV2_SIDE, _DINOV2_PATCH = 518, 14  # pixels
_META = Preprocessing(interpolation="bicubic")  # 256 and 224, of DINOv2, DINOv3 and Franca, whatever their positions

_CAPI_NAMES = {
    "residual1.norm.": "norm1.",
    "residual2.norm.": "norm2.",
    "residual1.fn.": "attn.",
    "residual2.fn.": "mlp.",
    "q_proj.": "q.",
    "k_proj.": "k.",
    "v_proj.": "v.",
}
_CAPI_PARTS = re.compile("|".join(map(re.escape, _CAPI_NAMES)))
_CAPI_LARGE = {"width": 1024, "depth": 24, "heads": 16, "patch": 14, "registers": 16}
_DINOV2_NAMES = {"mlp.w12.": "mlp.fc1.", "mlp.w3.": "mlp.fc2."}
_DINOV3_NAMES = {
    "ls1.gamma": "gamma_1",
    "ls2.gamma": "gamma_2",
    "mlp.w1.": "mlp.fc1_g.",
    "mlp.w2.": "mlp.fc1_x.",
    "mlp.w3.": "mlp.fc2.",
}


class Read(NamedTuple):
    """A network's tensors under usual names."""

    tensors: Tensors
    architecture: Architecture | None = None  # where the names tell all of it, also what shapes do not show
    preprocessing: Preprocessing | None = None  # that the only authors who write these names evaluate with


def usual_names(tensors: Tensors) -> Read:
    """Tensors of one network by torchvision's and timm's names, whichever of these ways they were named in.

    - numbers, as `nn.Sequential(*resnet.children())` gives a ResNet's parts, in the style of lightly's examples;
    - `shortcut` for `downsample`, as in CIFAR code after kuangliu/pytorch-cifar;
    - blocks in chunks, and Meta's own CAPI, DINOv2 and DINOv3; Franca has DINOv2's names.

    Names that are none of these stay. So does everything where a value contradicts what the names say.
    """
    if "encoder.blocks.0.residual1.fn.q_proj.weight" in tensors:
        return _capi(tensors)
    tensors = _numbered(tensors)
    tensors = {re.sub(r"^(layer\d\.\d+\.)shortcut\.", r"\1downsample.", name): v for name, v in tensors.items()}
    # Chunks repeat the block's own number: blocks.CHUNK.BLOCK. The layers within a block are numbered from 0 in each.
    blocks = {re.sub(r"^blocks\.\d+\.(\d+\.)", r"blocks.\1", name): value for name, value in tensors.items()}
    tensors = blocks if len(blocks) == len(tensors) else tensors
    patches = tensors.get("patch_embed.proj.weight")
    if patches is None or patches.ndim != 4 or "blocks.0.ls1.gamma" not in tensors:
        return Read(tensors)
    depth = 1 + max(int(name.split(".")[1]) for name in tensors if re.match(r"blocks\.\d+\.", name))
    if "storage_tokens" in tensors and "rope_embed.periods" in tensors:
        return _dinov3(tensors, len(patches), depth)
    if "mask_token" in tensors and patches.shape[-1] == _DINOV2_PATCH:
        return _dinov2(tensors, len(patches), depth)
    return Read(tensors)


def _numbered(tensors: Tensors) -> Tensors:
    """A ResNet's parts by name, where they have numbers: convolution 0, BatchNorm 1, then stages in a row."""
    stages = sorted({int(match[1]) for name in tensors if (match := re.match(r"(\d+)\.\d+\.conv1\.weight$", name))})
    if len(stages) != 4 or stages != list(range(stages[0], stages[0] + 4)) or "0.weight" not in tensors:
        return tensors
    parts = {"0": "conv1", "1": "bn1"} | {str(number): f"layer{stage + 1}" for stage, number in enumerate(stages)}
    split = ((name.partition("."), value) for name, value in tensors.items())
    return {f"{parts.get(number, number)}.{rest}": value for (number, _, rest), value in split}


def _renamed(tensors: Tensors, names: dict[str, str]) -> Tensors:
    pattern = re.compile("|".join(map(re.escape, names)))
    return {pattern.sub(lambda match: names[match[0]], name): value for name, value in tensors.items()}


def _capi(tensors: Tensors) -> Read:
    """facebookresearch/capi, of whose predictor pooling takes the first block; the other blocks are of the training."""
    read: Tensors = {}
    for name, value in tensors.items():
        place = re.sub(r"^decoder\.blocks\.0\.", "pool.", name.removeprefix("encoder."))
        if not place.startswith("decoder."):
            read[_CAPI_PARTS.sub(lambda part: _CAPI_NAMES[part[0]], place)] = value
    registers, patches = read.get("registers"), read.get("patch_embed.weight")
    if registers is None or patches is None or registers.ndim != 3 or patches.ndim != 4:
        return Read(tensors)
    depth = 1 + max(int(name.split(".")[1]) for name in read if name.startswith("blocks."))
    frequencies = read.get("blocks.0.attn.rope.freqs")
    if frequencies is None or not frequencies.shape[-1] or len(patches) % frequencies.shape[-1]:
        return Read(tensors)
    sizes = {
        "width": len(patches),
        "depth": depth,
        "heads": len(patches) // frequencies.shape[-1],
        "patch": patches.shape[-1],
        "registers": registers.shape[1],
    }
    return Read(read, Architecture("capi", {} if sizes == _CAPI_LARGE else sizes))


def _dinov2(tensors: Tensors, width: int, depth: int) -> Read:
    """facebookresearch/dinov2, whose networks with registers timm keeps without an embedding of the class token."""
    size, registers = _DINOV2.get((width, depth)), tensors.get("register_tokens")
    embeddings, token = tensors.get("pos_embed"), tensors.get("cls_token")
    if size is None or embeddings is None or embeddings.ndim != 3 or token is None:
        return Read(tensors)
    side = _DINOV2_PATCH * isqrt(max(0, embeddings.shape[1] - 1))
    options: dict[str, Any] = {} if side == _DINOV2_SIDE else {"img_size": side}
    read = _renamed({name: value for name, value in tensors.items() if name != "mask_token"}, _DINOV2_NAMES)
    if registers is None:
        options[POSITIONS] = "dino"
    if registers is None and size != "giant" and "blocks.0.mlp.w12.weight" in tensors:
        # Franca, whose smaller networks have the giant's gated layers: as wide as they are in the file, rounded down.
        ratio = (len(tensors["blocks.0.mlp.w12.weight"]) + 0.5) / width
        options |= {"embed_dim": width, "depth": depth, "num_heads": width // 64, "mlp_ratio": ratio}
        return Read(read, Architecture("timm:vit_giant_patch14_dinov2", options), _META)
    if registers is None:
        return Read(read, Architecture(f"timm:vit_{size}_patch14_dinov2", options), _META)
    if registers.shape[1] != 4 or token.shape != embeddings[:, :1].shape:
        return Read(tensors)
    read["reg_token"] = read.pop("register_tokens")
    read["cls_token"], read["pos_embed"] = token + embeddings[:, :1], embeddings[:, 1:]
    return Read(read, Architecture(f"timm:vit_{size}_patch14_reg4_dinov2", options), _META)


def _dinov3(tensors: Tensors, width: int, depth: int) -> Read:
    """facebookresearch/dinov3. It evaluates the class token, where timm's networks of these names average patches."""
    size, periods = _DINOV3.get((width, depth)), tensors["rope_embed.periods"]
    if size is None or tensors["storage_tokens"].shape[1:2] != (4,):
        return Read(tensors)
    quarter = width // _DINOV3_HEADS.get(width, width // 64) // 4
    usual = 100 ** (torch.arange(quarter) / quarter)  # the only ones that timm's networks have
    if periods.shape != usual.shape or not torch.allclose(periods.float(), usual, rtol=1e-2):  # also of bfloat16
        return Read(tensors)
    biased = "blocks.0.attn.qkv.bias" in tensors
    if size == "small" and "blocks.0.mlp.w1.weight" in tensors:
        size = "small_plus"
    # The norm of local crops and the mask are of the training; the mask of biases says that keys have none.
    others = ("mask_token", "rope_embed.periods", "local_cls_norm.weight", "local_cls_norm.bias")
    read = {
        name: value for name, value in tensors.items() if name not in others and not name.endswith(".qkv.bias_mask")
    }
    for name in [name for name in read if name.endswith(".qkv.bias")]:
        bias, mask = read[name], tensors.get(f"{name}_mask")
        queries, keys, values = (bias if mask is None else bias * mask).chunk(3)
        if keys.any() or not keys.isfinite().all():
            return Read(tensors)
        del read[name]
        stem = name.removesuffix("qkv.bias")
        read |= {f"{stem}q_bias": queries, f"{stem}v_bias": values}
    read["reg_token"] = read.pop("storage_tokens")
    name = f"timm:vit_{size}_patch16_dinov3{'_qkvb' if biased else ''}"
    return Read(_renamed(read, _DINOV3_NAMES), Architecture(name, {"global_pool": "token"}), _META)
