"""Options of `excb-eval watch`."""

import argparse
import re
from dataclasses import dataclass

from excb.option_parser import require_use
from excb.options import REQUIRED, option

from ..options import LabelledImageOptions, MachineOptions, NetworkOption, SizeOptions
from ..protocols import PROTOCOLS

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """A time such as 30s, 10m or 1.5h: an argument's type for argparse.

    Raises:
        argparse.ArgumentTypeError: it is none, or is zero.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text, re.ASCII)
    if match is None or not (value := float(match[1]) * _UNITS[match[2]]):
        raise argparse.ArgumentTypeError(f"takes a time such as 30s, 10m or 2h, not {text!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class WatchOptions(MachineOptions, SizeOptions, LabelledImageOptions, NetworkOption):
    """A run, and the protocol that evaluates its checkpoints."""

    run: str = option(REQUIRED, "run folder, or its URL such as s3://bucket/run", metavar="RUN", positional=True)
    protocol: str = option(
        next(iter(PROTOCOLS)),
        f"{next(iter(PROTOCOLS))} (default) or another protocol on labelled images; with options of its own in quotes, "
        "as in the examples",
        metavar="WORDS",
    )
    every: float = option(
        600.0,
        "time between checks for new checkpoints, in s, m or h (default: 10m)",
        metavar="TIME",
        words={"type": seconds},
    )
    once: bool = option(False, "measure the existing checkpoints, and exit")

    def check(self) -> None:
        """Raise UserError where an option has no use beside another."""
        require_use(self, "every", used=not self.once, why="is the time between two looks, and --once looks once")
