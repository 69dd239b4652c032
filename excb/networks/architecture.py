"""Architectures by name, as data: torchvision's, timm's and our own networks. Only building one imports torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from excb.errors import UserError, first_line, nearest_name

if TYPE_CHECKING:
    from torch import nn

# With the options they take.
OWN = {"conv4": ("widths", "stem", "in_chans"), "capi": ("width", "depth", "heads", "patch", "registers")}
TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
# ResNets that torchvision has not: with the stem for small images of CIFAR, and with more channels (SwAV's, VICReg's).
SMALL_STEM = tuple(f"{name}_cifar" for name in TORCHVISION)
WIDER = ("resnet50w2", "resnet50w4", "resnet50w5")
# Short names for the networks of the field. `vit_small` is DINO's ViT-S/16: six heads, qkv bias, LayerNorm eps 1e-6.
TIMM_NAMES = {
    "vit_tiny": "vit_tiny_patch16_224",
    "vit_small": "vit_small_patch16_224",
    "vit_base": "vit_base_patch16_224",
}

# An option of our own, beside those of timm's builders: how a ViT's position embeddings are interpolated for images of
# another size: "antialiased" as in timm (also where the option is missing, as in older files), or "dino".
POSITIONS = "position_interpolation"

# timm's option for the channels of the images, which our ResNets and conv4 take too; three where it is missing.
CHANNELS, RGB = "in_chans", 3

_TORCHVISION_PREFIX, _TRANSFORMERS_PREFIX = "torchvision:", "transformers:"
_RETURN_MORE = ("googlenet", "inception_v3")  # than features while they train

# Arguments of timm's and torchvision's builders that a file may not set: they name other weights, or change the output.
FORBIDDEN = {
    *("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict", "pretrained_filter_fn"),
    *("checkpoint_path", "cache_dir", "features_only", "scriptable", "exportable", "no_jit", "weights"),
}

WIDEST = 1 << 20  # features; real networks have some thousands
MOST_CHANNELS = 4096  # of an image; hyperspectral cameras have some hundreds
MOST_TENSORS = 5_000  # of a network; the largest real ones have 1,400


def known_options(name: str) -> tuple[str, ...]:
    """Options of a ResNet or a network of ours, by its name; none for others, whose builders check theirs."""
    if name in SMALL_STEM:
        from excb.networks.resnets import STEM  # here, because it imports torch

        return (*sorted(STEM), "zero_init_residual", CHANNELS)
    return OWN.get(name, ("zero_init_residual", CHANNELS) if name in (*TORCHVISION, *WIDER) else ())


class EndlessError(UserError):
    """Options that would make a network of endless size."""


@dataclass(frozen=True)
class Architecture:
    """A backbone's architecture: all that is needed to build it, except weights.

    Args:
        name: one of torchvision's ResNets ("resnet50"), one with the stem of CIFAR ("resnet18_cifar") or with more
            channels ("resnet50w2"), a short name ("vit_small"), "timm:NAME", "torchvision:NAME" of any image
            classifier, "transformers:TYPE" of an image encoder, our "conv4", or "capi", CAPI's ViT-L/14.
        options: keyword arguments for timm's `create_model` or torchvision's `get_model`; fields of transformers'
            config; of ResNets only
            `zero_init_residual`, `in_chans`, and those of `excb.networks.resnets.small_stem`; of conv4 `widths`, `stem`
            and `in_chans`; of capi its sizes. For timm's ViTs also `POSITIONS`.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def timm_name(self) -> str | None:
        """The architecture's name in timm, or None for torchvision's."""
        return self.name.removeprefix("timm:") if self.name.startswith("timm:") else TIMM_NAMES.get(self.name)

    @property
    def channels(self) -> int:
        """C, of its images."""
        return int(self.options.get(CHANNELS, RGB))

    def of_channels(self, channels: int) -> "Architecture":
        """The same architecture for images of so many channels.

        Raises:
            UserError: it takes RGB images only.
        """
        kept = {name: value for name, value in self.options.items() if name != CHANNELS}
        if channels == RGB:
            return replace(self, options=kept)
        if self.name == "capi" or self.name.startswith((_TORCHVISION_PREFIX, _TRANSFORMERS_PREFIX)):
            raise UserError(
                f"backbone {self.name} takes images of {RGB} channels, not {channels}: choose conv4, a ResNet, a ViT "
                "or timm:NAME"
            )
        return replace(self, options=kept | {CHANNELS: channels})

    @property
    def positions(self) -> str:
        """How position embeddings are interpolated, see `POSITIONS`."""
        return str(self.options.get(POSITIONS, "antialiased"))

    @property
    def foreign_options(self) -> dict[str, Any]:
        """The options that timm's and torchvision's builders know: all but `POSITIONS`."""
        return {name: value for name, value in self.options.items() if name != POSITIONS}

    def build(self, *, drop_path: float = 0.0) -> "nn.Module":
        """Build the network without its classifier, with new random weights from torch's generator.

        Args:
            drop_path: stochastic depth, largest rate (timm's networks only).

        Returns:
            A module [B, C, H, W] -> [B, `feature_width`]. In torchvision's ResNets the last BatchNorm of every block
            starts at zero.

        Raises:
            UserError: unknown name, or options that the network does not take.
        """
        if forbidden := sorted(FORBIDDEN & self.options.keys()):
            raise UserError(f"backbone {self.name} is built without the option {', '.join(forbidden)}: leave it out")
        channels = self.options.get(CHANNELS, RGB)
        if type(channels) is not int or not 1 <= channels <= MOST_CHANNELS:
            raise UserError(f"the option {CHANNELS} is a number from 1 to {MOST_CHANNELS:,}, not {channels!r}")
        if self.positions not in ("antialiased", "dino"):
            raise UserError(f"the option {POSITIONS} is antialiased or dino, not {self.positions!r}")
        network = self._built(drop_path)
        if channels != RGB:
            network.image_channels = channels  # type: ignore[assignment]
        return network

    def _built(self, drop_path: float) -> "nn.Module":
        from excb.networks.drop_path import seed_drop_path  # here, because it imports torch

        if takes := known_options(self.name):
            if drop_path or not self.options.keys() <= set(takes):
                wrong = ", ".join([*sorted(self.options.keys() - set(takes)), *(["drop_path"] if drop_path else [])])
                other = f"; use timm:{self.name} for others" if self.name in TORCHVISION else ""
                raise UserError(f"backbone {self.name} does not take {wrong}: it takes {', '.join(takes)}{other}")
            return self._build_own() if self.name in OWN else self._build_resnet()
        with _bounded():
            if self.name.startswith(_TORCHVISION_PREFIX):
                return self._build_torchvision(drop_path)
            if self.name.startswith(_TRANSFORMERS_PREFIX):
                return self._build_transformers(drop_path)
            wanted = drop_path > 0 or "drop_path_rate" in self.options
            network = seed_drop_path(self._build_timm(drop_path), wanted=wanted)
        if self.positions == "dino":
            from excb.networks.positions import as_dino

            return as_dino(network)
        return network

    def _build_own(self) -> "nn.Module":
        from excb.networks.capi import Capi
        from excb.networks.conv4 import Conv4

        return Conv4(**self.options) if self.name == "conv4" else Capi(**self.options)

    def _build_resnet(self) -> "nn.Module":
        from torch import nn

        from excb.networks.resnets import resnet

        network: Any = resnet(self.name, self.options)
        network.num_features = network.fc.in_features
        network.fc = nn.Identity()
        return cast("nn.Module", network)

    def _build_torchvision(self, drop_path: float) -> "nn.Module":
        from torchvision import models

        from excb.networks.backbone import REFUSALS

        name = self.name.removeprefix(_TORCHVISION_PREFIX)
        names = [
            _TORCHVISION_PREFIX + other for other in models.list_models(module=models) if other not in _RETURN_MORE
        ]
        if self.name not in names:
            raise UserError(f"no backbone is called '{self.name}'{nearest_name(self.name, names)}")
        if drop_path:
            raise UserError(f"backbone {self.name} takes no drop path: use timm's network")
        try:
            network = models.get_model(name, weights=None, **self.options)
        except REFUSALS as error:
            raise UserError(f"torchvision's {name} does not take these options: {first_line(error)}") from None
        return _without_classifier(network, name)

    def _build_transformers(self, drop_path: float) -> "nn.Module":
        from excb.networks.from_transformers.encoders import build_encoder

        if drop_path or CHANNELS in self.options:
            raise UserError(f"backbone {self.name} takes neither drop path nor {CHANNELS}: use timm's network")
        return build_encoder(self.name.removeprefix(_TRANSFORMERS_PREFIX), self.options)

    def _build_timm(self, drop_path: float) -> "nn.Module":
        import timm
        import torchvision

        from excb.networks.backbone import REFUSALS, feature_width

        name = self.timm_name
        if name is None or not timm.is_model(name):
            names = [
                *OWN,
                *(*TORCHVISION, *SMALL_STEM, *WIDER),
                *TIMM_NAMES,
                *(f"timm:{other}" for other in timm.list_models()),
                *(_TORCHVISION_PREFIX + other for other in torchvision.models.list_models(module=torchvision.models)),
            ]
            raise UserError(f"no backbone is called '{self.name}'{nearest_name(self.name, names)}")
        options: dict[str, Any] = ({"drop_path_rate": drop_path} if drop_path else {}) | self.foreign_options
        reason = ""
        # Views of two resolutions need position embeddings that follow the image; convolutional networks have none.
        for resolution in ({"dynamic_img_size": True}, dict[str, Any]()):
            try:
                network = timm.create_model(name, num_classes=0, **resolution, **options)
                width = feature_width(network)  # may be invalid, because some networks just store an option
            except REFUSALS as error:
                reason = first_line(error)
                continue
            if 0 < width <= WIDEST:
                return network
            reason = f"a width of {width}"
        raise UserError(f"timm's {name} does not take these options: {reason}")


@contextmanager
def _bounded() -> Iterator[None]:
    """Stop building a network that would take hours, such as one with a depth of millions in a file's options."""
    from torch.nn.modules.module import register_module_parameter_registration_hook

    number = 0

    def count(*_: object) -> None:
        nonlocal number
        number += 1
        if number > MOST_TENSORS:
            raise EndlessError(
                f"these options make a network of more than {MOST_TENSORS:,} tensors: choose smaller ones"
            )

    counter = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        counter.remove()


def _without_classifier(network: Any, name: str) -> "nn.Module":
    """Remove the classifier of one of torchvision's networks, from its first Linear or Dropout on."""
    from torch import nn

    for attribute in ("fc", "classifier", "head", "heads"):
        layer = getattr(network, attribute, None)
        layers = list(layer) if isinstance(layer, nn.Sequential) else [layer]
        ends = [index for index, one in enumerate(layers) if isinstance(one, nn.Linear | nn.Dropout)]
        linear = next((one for one in layers if isinstance(one, nn.Linear)), None)
        if linear is not None:
            setattr(network, attribute, nn.Sequential(*layers[: ends[0]]) if ends[0] else nn.Identity())
            network.num_features = linear.in_features
            return cast("nn.Module", network)
    raise UserError(f"torchvision's {name} has no linear classifier that could be cut off: use another network")
