"""What the three command lines share: a record per command, one-line errors, passive OpenMP threads."""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from excb.errors import UserError
from excb.version import __version__

# Must be set before torch loads. OpenMP's threads spin while they wait; where image-reading workers or other programs
# want the cores, a training step on two cores then takes six times as long (measured, see benchmarks/README.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are `UserError`s: one message that ends in where to find help."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing the usage."""
        raise UserError(f"{message} (see `{self.prog} --help`)")


@dataclass(frozen=True)
class Command:
    """One command of a program, such as `excb-eval knn`. Its module does not import torch, to keep `--help` fast."""

    name: str  # on the command line
    help: str  # what it does, one line without a full stop
    add_options: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int]  # takes the parsed options, and returns the exit code
    description: str = ""  # for its own `--help`, printed as it is; made of `help` by default


def command_parser(program: str, description: str, commands: Sequence[Command]) -> Parser:
    """A parser with a sub-parser per command. Parsed options hold the `Command` as `command`."""
    parser = Parser(prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"excb {__version__}")
    added = parser.add_subparsers(dest="name_of_command", metavar="COMMAND", required=True)
    for command in commands:
        text = command.help.replace("%", "%%")  # argparse formats help, but not descriptions
        own = added.add_parser(
            command.name,
            help=text,
            description=command.description or f"{command.help[0].upper()}{command.help[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_options(own)
        own.set_defaults(command=command)
    return parser


def local_path(text: str) -> Path:
    """A file or folder to write, as an argument type for argparse.

    Raises:
        UserError: it is a URL, or empty, which would mean the current folder.
    """
    if not text:
        raise UserError("the place to write to is empty: name it (is a shell variable unset?)")
    if "://" in text:
        raise UserError(
            f"cannot write to {text}: name a place on this machine, or below a folder where the bucket is mounted, and "
            "copy it from there"
        )
    return Path(text)
