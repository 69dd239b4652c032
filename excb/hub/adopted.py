"""A network of the user's own as a `Backbone`: evaluated as it is, with the transform that it brings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from excb.errors import UserError, first_line, in_short, require
from excb.hub.backbone import Backbone, Entry
from excb.images.picture import Picture, as_channels
from excb.networks.architecture import Architecture
from excb.networks.backbone import REFUSALS, evaluating
from excb.networks.preprocessing import Preprocessing

PROBE = 320, 288  # width and height in pixels of the image that a transform is tried on
GIVEN = "given"  # the `network` of an entry that no checkpoint stands behind


@dataclass(frozen=True, kw_only=True)
class OwnTransform(Preprocessing):
    """A transform of the user's own, called as it is.

    Of the fields of `Preprocessing`, `resize` and `crop` are both the side of what it returns, and `mean` and `std` are
    those of its normalisation, where it says them.
    """

    function: Callable[[Image.Image], Tensor]
    normalisation_known: bool = False  # else `mean` and `std` are ImageNet's, and must not be relied on

    def __call__(self, image: Picture) -> Tensor:
        """Turn an image into the network's input [3, H, W]. Raises UserError where the transform gives none."""
        made = self.function(as_channels(image, self.pixels))  # type: ignore[arg-type]  # three channels: an image
        if not isinstance(made, Tensor) or made.ndim != 3 or made.shape[0] != 3 or not made.is_floating_point():
            got = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
            raise UserError(f"the network's transform must give a float tensor [3, H, W] of an image, and gave {got}")
        return made

    def to_dict(self) -> dict[str, Any]:
        """All facts about it, for JSON."""
        return {"transform": " ".join(repr(self.function).split()), "crop": self.crop}


class Adopted(Backbone):
    """A network that `excb.load` did not build, in the form in which all else takes a backbone."""

    def __init__(self, network: nn.Module, transform: Preprocessing, width: int) -> None:
        nn.Module.__init__(self)
        kind = type(network).__name__
        self.network, self.transform = network, transform
        self.entry = Entry(f"{kind} in memory", Architecture(f"module:{kind}"), network=GIVEN)
        self.features, self.heads = "pool", None
        self.width, self.strides = width, ()
        self.__dict__["reader"] = network


def adopt(model: object) -> Backbone:
    """A backbone as it is, or a network with a transform as one; nothing is copied or changed.

    Args:
        model: what `excb.load` returned, or an `nn.Module` that maps [B, 3, H, W] to [B, D] and has the attribute
            `transform`, a function of a PIL image that gives its input [3, H, W].

    Raises:
        UserError: it has no transform, or does not give one vector for an image.
    """
    if isinstance(model, Backbone):
        require(
            model.features in ("pool", "last4"),
            f"this backbone returns a {model.features}, and one vector an image is needed: load it without features=",
        )
        return model
    if not isinstance(model, nn.Module):
        raise UserError(f"a network is a name, a path, a Backbone or an nn.Module, not {in_short(model)}")
    transform = getattr(model, "transform", None)
    if not callable(transform):
        raise UserError(
            f"this {type(model).__name__} has no transform: set model.transform = f, where f turns a PIL image into "
            "the network's input [3, H, W], such as weights.transforms() of torchvision"
        )
    prepared = transform if isinstance(transform, Preprocessing) else _seen(transform)
    return Adopted(model, prepared, _width(model, prepared))


def _seen(function: Callable[[Any], Any]) -> OwnTransform:
    """A transform with what can be seen of it: its size, and the normalisation that torchvision's own say they do."""
    width, height = PROBE
    side = int(OwnTransform(function=function)(Image.new("RGB", (width, height))).shape[-1])
    for part in (function, *getattr(function, "transforms", ())):
        mean, std = getattr(part, "mean", None), getattr(part, "std", None)
        if mean is not None and std is not None and len(mean) == len(std) == 3:
            means, stds = tuple(map(float, mean)), tuple(map(float, std))
            return OwnTransform(side, side, means, stds, function=function, normalisation_known=True)
    return OwnTransform(side, side, function=function)


def _width(network: nn.Module, transform: Preprocessing) -> int:
    """D of a network that maps [B, 3, H, W] to [B, D]."""
    kind, one = type(network).__name__, next(network.parameters(), torch.empty(0))
    width, height = PROBE
    probe = np.zeros((height, width, transform.channels), np.uint8)
    image = transform(probe)[None].to(one.device, one.dtype)
    try:
        with evaluating(network), torch.no_grad():
            rows = network(image)
    except REFUSALS as error:
        reason = f"{list(image.shape)} ({first_line(error)})"
        raise UserError(f"this {kind} does not take what its transform gives, {reason}") from None
    if not isinstance(rows, Tensor) or rows.ndim != 2 or rows.shape[0] != 1:
        got = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise UserError(f"a vector [1, D] is needed for an image, and this {kind} gave {got}: pool its output")
    return int(rows.shape[1])
