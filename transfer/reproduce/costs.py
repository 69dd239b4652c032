"""The cost of a protocol before it runs: images through the network, FLOPs, and bytes to fetch."""

from excb.console import duration, plural
from excb.hub.catalogue import Checkpoint
from excb.hub.resolve import local_folder
from excb.networks.architecture import Architecture

from .. import protocols
from ..published.claim import Claim

RATE = 20e12  # FLOP/s assumed for an estimate of hours: what one recent GPU sustains in float32


def network_cost(architecture: Architecture, side: int) -> tuple[int, int]:
    """FLOPs of one forward pass of an image of `side` x `side` pixels, and parameters; nothing is computed."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from excb.networks.backbone import shapes_only

    # Without gradients to follow: the counter would look for them in parameters that modules pass to each other.
    with shapes_only():
        network = architecture.build().eval().requires_grad_(False)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, 3, side, side))
    return counter.get_total_flops(), sum(parameter.numel() for parameter in network.parameters())


def describe_cost(claim: Claim, row: Checkpoint) -> list[str]:
    """One line each for the download, the images and the work of checking a claim on a row of the catalogue."""
    flops, parameters = network_cost(row.architecture, row.preprocessing.crop)
    data, protocol = claim.data, claim.protocol
    from excb.checkpoint.exported import WEIGHTS

    if (folder := local_folder(row)) is not None:
        lines = [f"download: nothing, {folder / WEIGHTS} has {(folder / WEIGHTS).stat().st_size / 2**20:,.1f} MiB"]
    else:
        size = f"{4 * parameters / 2**20:,.0f} MiB or more (the file's size is not published)"
        lines = [f"download: {size} from {row.locations[0]}; licence: {row.licence or 'none stated'}"]
    numbers = [
        plural(number, *nouns)
        for number, nouns in (
            (data.train, ("train image",)),
            (data.test, ("test image",)),
            (data.classes, ("class", "classes")),
        )
        if number is not None
    ]
    lines.append(f"images: {data.title}, {', '.join(numbers)}")
    measuring = protocols.of_command(protocol.command)
    passes = None if measuring is None else measuring.cost(protocol.options, data)
    if passes is None:
        return lines
    if isinstance(passes, str):
        return [*lines, f"work: {passes}"]
    total = passes * flops
    return [
        *lines,
        f"work: as {passes:,.0f} forward passes of {flops / 1e9:.2f} GFLOP, "
        f"{total / 1e12:,.1f} TFLOP: about {duration(total / RATE)} at {RATE / 1e12:.0f} TFLOP/s",
    ]
