"""What figures are compared with: an untrained network, raw pixels, a colour histogram."""

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

from excb.images.image_set import Images
from excb.networks.features import Features, Inputs, extract
from excb.networks.preprocessing import Preprocessing

UNTRAINED = "untrained"
PIXELS = Preprocessing(32, 32)  # raw pixels are compared at 32 x 32
BINS = 4  # of the colour histogram, per channel
CALIBRATION_BATCH = 128


def colour_histogram(image: Image.Image) -> Tensor:
    """Square roots of the counts of BINS^3 colours, compared by cosine: a baseline that sees nothing but colour."""
    pixels = torch.from_numpy(np.array(image)).long().flatten(0, 1) * BINS // 256
    return torch.bincount(pixels @ torch.tensor([BINS * BINS, BINS, 1]), minlength=BINS**3).float().sqrt()


def pixels(image: Image.Image) -> Tensor:
    """The image at 32 x 32, normalised, as one row [3072]."""
    return PIXELS(image).flatten()


# Features that no network makes: title, and image -> row.
WITHOUT_NETWORK: dict[str, tuple[str, Callable[[Image.Image], Tensor]]] = {
    "pixels": ("raw pixels", pixels),
    "colour_histogram": ("colour histogram", colour_histogram),
}


# All references, by the name that reports and studies have.
REFERENCES = {UNTRAINED: "untrained network"} | {name: title for name, (title, _) in WITHOUT_NETWORK.items()}


def features_without_network(name: str, images: Images, *, workers: int = 0) -> Features:
    """The features of `WITHOUT_NETWORK` of that name, for every readable image."""
    return extract(nn.Identity(), Inputs(images, WITHOUT_NETWORK[name][1]), batch=256, workers=workers)


@torch.no_grad()
def estimate_batchnorm(network: nn.Module, images: Images, preprocessing: Preprocessing) -> None:
    """Estimate the BatchNorm statistics of an untrained network, which would score too low without them."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # a cumulative average over one epoch
            module.reset_running_stats()
    network.train()
    device, generator = next(network.parameters()).device, torch.Generator().manual_seed(0)
    inputs = Inputs(images, preprocessing)
    for batch in DataLoader(inputs, batch_size=CALIBRATION_BATCH, shuffle=True, generator=generator, collate_fn=list):
        readable = torch.stack([item for _, item in batch if isinstance(item, Tensor)])
        network(readable.to(device))
    network.eval()
