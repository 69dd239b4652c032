"""What a protocol will take before it runs: images through the network, FLOPs, and bytes to fetch."""

from typing import Any

from excb.checkpoint.exported import WEIGHTS
from excb.console import duration
from excb.hub.catalogue import Checkpoint
from excb.hub.resolve import local_folder
from excb.networks.architecture import Architecture

from .claim import Claim, Data

RATE = 20e12  # FLOP/s assumed for an estimate of hours: what one recent GPU sustains in float32
TRAINING = 3  # forward and backward passes cost about three forward passes
DETECTION_ITERATIONS = {"1x": 90_000, "2x": 180_000}
DETECTION_BATCH = 16


def passes(command: str, options: dict[str, Any], data: Data) -> float | None:
    """Forward passes of one image each that a command needs, a training pass counted as three; None is not known."""
    if data.train is None or data.test is None:
        return None
    if command == "semisup":
        return float(TRAINING * options["epochs"] * data.train * options["percent"] / 100 + data.test)
    if command == "linear":
        from ..linear.recipes import PROTOCOLS

        protocol = PROTOCOLS[options["protocol"]]
        if protocol.augmented:
            return float(options.get("epochs", protocol.epochs) * data.train + data.test)
    return float(data.train + data.test)


def network_cost(architecture: Architecture, side: int) -> tuple[int, int]:
    """FLOPs of one forward pass of an image of `side` x `side` pixels, and parameters; nothing is computed."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        network = architecture.build().eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(torch.zeros(1, 3, side, side))
    return counter.get_total_flops(), sum(parameter.numel() for parameter in network.parameters())


def describe(claim: Claim, row: Checkpoint) -> list[str]:
    """One line each for the download, the images and the work of checking a claim on a row of the catalogue."""
    flops, parameters = network_cost(row.architecture, row.preprocessing.crop)
    data, protocol = claim.data, claim.protocol
    if (folder := local_folder(row)) is not None:
        lines = [f"download: nothing, {folder / WEIGHTS} has {(folder / WEIGHTS).stat().st_size / 2**20:,.1f} MiB"]
    else:
        size = f"{4 * parameters / 2**20:,.0f} MiB or more (the file's size is not published)"
        lines = [f"download: {size} from {row.locations[0]}; licence: {row.licence or 'none stated'}"]
    numbers = [
        f"{number:,} {what}"
        for number, what in ((data.train, "train images"), (data.test, "test images"), (data.classes, "classes"))
        if number is not None
    ]
    lines.append(f"images: {data.title}, {', '.join(numbers)}")
    if protocol.command == "detection":
        seen = DETECTION_ITERATIONS[protocol.options["schedule"]] * DETECTION_BATCH
        return [*lines, f"work: {seen:,} training images of up to 1,333 pixels, then {data.test or 0:,} to detect in"]
    images = passes(protocol.command, protocol.options, data)
    if images is None:
        return lines
    total = images * flops
    return [
        *lines,
        f"work: as {images:,.0f} forward passes of {flops / 1e9:.2f} GFLOP, "
        f"{total / 1e12:,.1f} TFLOP: about {duration(total / RATE)} at {RATE / 1e12:.0f} TFLOP/s",
    ]
