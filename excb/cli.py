"""What the three command lines share: one-line errors, and threads that wait without burning a core."""

import argparse
import os
from pathlib import Path
from typing import NoReturn

from excb.errors import UserError

# Must be set before torch loads. OpenMP's threads spin while they wait; where image-reading workers or other programs
# want the cores, a training step on two cores then takes six times as long (measured, see benchmarks/README.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class Parser(argparse.ArgumentParser):
    """argparse whose errors are `UserError`s: one line that ends in where to find help."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing the whole usage."""
        raise UserError(f"{message} (see `{self.prog} --help`)")


def local_path(text: str) -> Path:
    """A file or folder that is written: an argument's type for argparse.

    Raises:
        UserError: it is a URL, or empty: that would be the current folder.
    """
    if not text:
        raise UserError("the place to write to is empty: name it (is a shell variable unset?)")
    if "://" in text:
        raise UserError(
            f"cannot write to {text}: name a place on this machine, or below a folder where the bucket is mounted, and "
            "copy it from there"
        )
    return Path(text)
