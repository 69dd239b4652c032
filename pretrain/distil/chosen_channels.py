"""Teachers of RGB images on images of other channels, of which they see three."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from excb.console import plural
from excb.errors import require
from excb.hub.adopted import Adopted, OwnTransform
from excb.hub.backbone import Backbone
from excb.images.pixels import Pixels

UNSEEN = 0.5  # mean and deviation of the channels that a teacher does not see


class ChosenChannels(nn.Module):
    """A network that sees some channels of its inputs: [B, C, H, W] -> [B, D].

    Args:
        teacher: of images of as many channels as are chosen.
        chosen: which it sees, in its order, from 0.
        channels: C.
    """

    chosen: Tensor

    def __init__(self, teacher: nn.Module, chosen: Sequence[int], channels: int) -> None:
        super().__init__()
        self.teacher, self.image_channels = teacher, channels
        self.register_buffer("chosen", torch.tensor(chosen))  # part of what identifies it

    def forward(self, images: Tensor) -> Tensor:
        """Features of what it sees."""
        features: Tensor = self.teacher(images[:, self.chosen])
        return features


def for_channels(name: str, backbone: Backbone, channels: int, chosen: Sequence[int]) -> Backbone:
    """A teacher for images of so many channels: as it is where it takes them, else one that sees those chosen.

    Raises:
        UserError: none are chosen, or not as many as it takes; or nobody knows how it normalises.
    """
    transform = backbone.transform
    if transform.channels == channels:
        return backbone
    count = transform.channels
    require(
        len(chosen) == count and all(0 <= each < channels for each in chosen) and channels > 1,
        f"the teacher {name} takes {plural(count, 'channel')}, and the images have {channels}: name those that it "
        f"sees as red, green and blue, from 0 to {channels - 1}, such as distil.teacher_channels=2,1,0",
    )
    require(
        not isinstance(transform, OwnTransform),
        f"the teacher {name} has a transform of its own, which takes no images of "
        f"{plural(channels, 'channel')}: load it by name",
    )
    mean, std = [UNSEEN] * channels, [UNSEEN] * channels
    for place, each in enumerate(chosen):
        mean[each], std[each] = transform.mean[place], transform.std[place]
    prepared = replace(transform, mean=tuple(mean), std=tuple(std), pixels=Pixels(channels))
    return Adopted(ChosenChannels(backbone, chosen, channels), prepared, int(backbone.width))
