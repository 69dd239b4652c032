"""Small networks of transformers with random weights, one of every family that we take, as its own code saves them."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

_VIT: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 2}
_WIDE = _VIT | {"intermediate_size": 48}
_STAGES: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 2, 1, 1]}
_PATCH = {"image_size": 64, "patch_size": 16}
_DINO = _VIT | {"image_size": 56, "patch_size": 14}

# Of every type: the model's class, the options of its config, and the image processor that files of it name.
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "clip_vision_model": ("CLIPVisionModel", _WIDE | _PATCH, "CLIPImageProcessor"),
    "convnext": ("ConvNextModel", _STAGES, "ConvNextImageProcessor"),
    "convnextv2": ("ConvNextV2Model", _STAGES, "ConvNextImageProcessor"),
    "dinov2": ("Dinov2Model", _DINO, "BitImageProcessor"),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", _DINO | {"num_register_tokens": 3}, "BitImageProcessor"),
    "dinov3_convnext": ("DINOv3ConvNextModel", _STAGES, "DINOv3ViTImageProcessor"),
    "dinov3_vit": ("DINOv3ViTModel", _WIDE | _PATCH | {"num_register_tokens": 4}, "DINOv3ViTImageProcessor"),
    "resnet": ("ResNetModel", _STAGES | {"embedding_size": 8, "layer_type": "basic"}, "ConvNextImageProcessor"),
    "siglip_vision_model": ("SiglipVisionModel", _WIDE | _PATCH, "SiglipImageProcessor"),
    "vit": ("ViTModel", _WIDE | _PATCH, "ViTImageProcessor"),
}


def model(kind: str, **options: Any) -> Any:
    """The model with random weights of a fixed seed, none of them at the values that layers begin with."""
    name, stated, _ = MODELS[kind]
    made: Any = getattr(transformers, name)
    torch.manual_seed(1)
    network = made(made.config_class(**stated | options)).eval()
    return scattered(network)


def scattered(network: nn.Module) -> Any:
    """The network with all parameters moved at random, and BatchNorm statistics too."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for name, buffer in network.named_buffers():
            if name.endswith("running_var"):
                buffer.mul_(0.5 + torch.rand_like(buffer))
    return network


def save(folder: Path, kind: str, network: Any = None, **values: Any) -> Any:
    """A folder as transformers writes it, with the family's image processor; the network in it."""
    saved = model(kind) if network is None else network
    saved.save_pretrained(folder)
    processor(kind, **values).save_pretrained(folder)
    return saved


def processor(kind: str, **values: Any) -> Any:
    """The image processor of a family in its PIL form, where it has one."""
    name = MODELS[kind][2]
    made: Any = getattr(transformers, name if name.startswith("DINOv3") else f"{name}Pil")
    return made(**values)
