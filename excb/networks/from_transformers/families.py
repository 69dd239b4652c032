"""The types of transformers' image encoders that we take, by `model_type` of their config.json, and their configs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from excb.errors import UserError, first_line, nearest_name

if TYPE_CHECKING:
    from types import ModuleType

PREFIX = "transformers:"  # of an architecture's name, before the type


@dataclass(frozen=True)
class EncoderFamily:
    """One type of network."""

    model: str  # transformers' class of the encoder alone
    norm: str = ""  # a ViT's final norm, as an attribute of the model; empty of networks with stages
    class_token: bool = True  # whether a ViT has one
    fixed: bool = False  # whether a ViT takes images of another size only where it is asked to interpolate positions
    arguments: tuple[tuple[str, Any], ...] = ()  # of the class, beside the config


FAMILIES = {
    "clip_vision_model": EncoderFamily("CLIPVisionModel", "post_layernorm", fixed=True),
    "convnext": EncoderFamily("ConvNextModel"),
    "convnextv2": EncoderFamily("ConvNextV2Model"),
    "dinov2": EncoderFamily("Dinov2Model", "layernorm"),
    "dinov2_with_registers": EncoderFamily("Dinov2WithRegistersModel", "layernorm"),
    "dinov3_convnext": EncoderFamily("DINOv3ConvNextModel"),
    "dinov3_vit": EncoderFamily("DINOv3ViTModel", "norm"),
    "resnet": EncoderFamily("ResNetModel"),
    "siglip_vision_model": EncoderFamily("SiglipVisionModel", "post_layernorm", class_token=False, fixed=True),
    # Without BERT's pooler, a layer that no evaluation of features uses and most files have untrained.
    "vit": EncoderFamily("ViTModel", "layernorm", fixed=True, arguments=(("add_pooling_layer", False),)),
}
# Types of images and texts together, and of the encoder of images in them.
OF_IMAGES = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}


def transformers_library() -> "ModuleType":
    """The module `transformers`. Raises UserError if it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(
            f"this network is one of transformers, which cannot be imported ({error}): pip install 'excb[transformers]'"
        ) from None
    return transformers


def refusals() -> tuple[type[Exception], ...]:
    """The errors that transformers raises for values that it does not accept."""
    from huggingface_hub.errors import StrictDataclassError

    return (ArithmeticError, AttributeError, LookupError, RuntimeError, StrictDataclassError, TypeError, ValueError)


def encoder_family(kind: str) -> EncoderFamily:
    """The family of a type. Raises UserError where we take none of that type."""
    if kind not in FAMILIES:
        raise UserError(
            f"networks of transformers' type '{kind}' cannot be loaded{nearest_name(kind, FAMILIES)}: "
            f"{', '.join(FAMILIES)} can"
        )
    return FAMILIES[kind]


def config_of(kind: str, options: Mapping[str, Any]) -> Any:
    """The config of a type, from its own fields alone: neither code nor kernels can be named in them.

    Raises:
        UserError: no such type or field, or a value that is none of the field's.
    """
    transformers = transformers_library()
    made = getattr(transformers, encoder_family(kind).model).config_class
    own = made().to_dict().keys() - transformers.PreTrainedConfig().to_dict().keys()
    if unknown := sorted(options.keys() - own):
        raise UserError(f"transformers' {kind} has no option {', '.join(unknown)}: it has {', '.join(sorted(own))}")
    try:
        return made(**options)
    except refusals() as error:
        raise UserError(f"transformers' {kind} does not take these options: {first_line(error)}") from None


def stated_options(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config.json that make the network; all else, such as names of classes, is left out."""
    transformers = transformers_library()
    known = getattr(transformers, encoder_family(kind).model).config_class().to_dict()
    own = (
        known.keys() - transformers.PreTrainedConfig().to_dict().keys() - {"stage_names", "out_features", "out_indices"}
    )
    return {name: config.get(name, known[name]) for name in sorted(own) if config.get(name, known[name]) is not None}
