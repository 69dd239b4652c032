"""Untrained networks: random weights, with the BatchNorm statistics of images."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from excb.images.image_set import Images
from excb.images.subset import Subset
from excb.networks.architecture import Architecture
from excb.networks.backbone import evaluating, has_batchnorm
from excb.networks.features import Inputs
from excb.networks.preprocessing import Preprocessing

NETWORK = "untrained"  # what `Entry.network` and results call such a network
CALIBRATION_BATCH = 128
CALIBRATION_IMAGES = 10_000  # at most, for the statistics of BatchNorm


def build_untrained(architecture: Architecture, seed: int = 0) -> nn.Module:
    """A network with random weights that depend on the seed only, in eval mode; torch's own generator stays as it is.

    Raises:
        UserError: there is no such network.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architecture.build().eval()


def evenly_spread(images: Images, most: int = CALIBRATION_IMAGES) -> Images:
    """At most so many images, evenly spread over a set, so that all of its classes and folders take part."""
    return Subset(images, np.arange(0, len(images), -(-len(images) // most)))


@torch.no_grad()
def estimate_batchnorm(network: nn.Module, images: Images, preprocessing: Preprocessing) -> None:
    """Estimate the BatchNorm statistics of an untrained network, which would score too low without them."""
    if not has_batchnorm(network):
        return
    device, generator = next(network.parameters()).device, torch.Generator().manual_seed(0)
    inputs = Inputs(images, preprocessing)
    with evaluating(network):  # only BatchNorm trains: dropout would change what it sees
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = None  # a cumulative average over one epoch
                module.reset_running_stats()
                module.train()
        batches = DataLoader(inputs, batch_size=CALIBRATION_BATCH, shuffle=True, generator=generator, collate_fn=list)
        for batch in batches:
            if readable := [item for _, item in batch if isinstance(item, Tensor)]:
                network(torch.stack(readable).to(device))
    network.eval()
