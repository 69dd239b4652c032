"""Passes of frozen networks in half precision, taken only where the features stay within a stated bound."""

from typing import Literal, get_args

import torch
from torch import nn
from torch.nn import functional

from excb.errors import require
from excb.images.image_set import Images
from excb.networks.features import Inputs, extract
from excb.networks.frozen.precision import HalfPrecision
from excb.networks.preprocessing import Preprocessing
from excb.references.untrained import evenly_spread

Precision = Literal["fp32", "bf16"]  # fp32 is the precision that the weights have
BOUND = 1e-3  # on 1 - cosine between an image's features in half and in full precision
PROBED = 64  # images at most that are compared, evenly spread over the set


def in_precision(network: nn.Module, precision: Precision) -> nn.Module:
    """The network itself for fp32, else one that passes images through it under autocast and returns float32."""
    return network if precision == "fp32" else HalfPrecision(network)


def check_precision(
    network: nn.Module,
    precision: Precision,
    images: Images,
    preprocessing: Preprocessing,
    *,
    batch: int = PROBED,
    advice: str = "use fp32",
) -> None:
    """Compare features in this precision with those in full precision, on a few images of the set.

    Args:
        network: [B, 3, H, W] -> [B, D] float32, on its device.
        precision: wanted.
        images: of which `PROBED` are read; unreadable ones are left to the extraction.
        preprocessing: of every image.
        batch: images at once; inputs of different sizes pass one at a time.
        advice: how the user takes full precision instead, as the end of a sentence.

    Raises:
        UserError: there is no such precision; the weights are not float32; or 1 - cosine exceeds `BOUND`, or is not a
            number, for one of the images.
    """
    require(precision in get_args(Precision), f"precision is {' or '.join(get_args(Precision))}, not '{precision}'")
    if precision == "fp32":
        return
    parameter = next(network.parameters(), torch.empty(0))
    require(parameter.dtype == torch.float32, f"bf16 is for float32 weights, not {parameter.dtype}: {advice}")
    inputs = Inputs(evenly_spread(images, PROBED), preprocessing)
    rows, halved = (
        extract(in_precision(network, each), inputs, device=parameter.device, batch=batch).rows.double()
        for each in ("fp32", precision)
    )
    error = 1 - functional.cosine_similarity(rows, halved)
    worst = float(error.max()) if len(error) else 0.0
    require(
        worst <= BOUND,  # false for NaN
        f"{precision} changes the features of this network by 1 - cosine = {worst:.1e} here, more than {BOUND:.0e}: "
        f"{advice}",
    )
