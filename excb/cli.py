"""Shared by the three command lines: a record per command, one-line errors, OpenMP's threads, freed memory."""

import argparse
import ctypes
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from excb.errors import UserError
from excb.version import __version__

# Must be set before torch loads. OpenMP's threads spin while they wait; where image-reading workers or other programs
# want the cores, a training step on two cores then takes six times as long (measured, see benchmarks/README.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Let this process reuse what it frees. For programs of their own, not for a library's user.

    glibc gives large freed blocks back to the system. A training step allocates the same ones again at once, and the
    system clears every page of them: up to a fifth of a step on a CPU. Other C libraries are left as they are.
    """
    with suppress(OSError, AttributeError):
        change = ctypes.CDLL(None).mallopt
        change(_MMAP_MAX, 0)
        change(_TRIM_THRESHOLD, -1)


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are `UserError`s: one message that ends in where to find help."""

    helps = True  # whether a bare command that needs more prints its help

    def error(self, message: str) -> NoReturn:
        """Raise UserError instead of printing the usage."""
        raise UserError(f"{message} (see `{self.prog} --help`)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; a bare command that needs more prints its help, and an unknown option is refused with the nearest."""
        words = sys.argv[1:] if args is None else list(args)
        if not words and self.helps and any(action.required and action.nargs != "*" for action in self._actions):
            self.print_help()
            self.exit()
        parsed, rest = super().parse_known_args(words, namespace)
        if unknown := next((word for word in rest if word.startswith("-")), None):
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._nearest(unknown)}")
        return parsed, rest

    def _nearest(self, option: str) -> str:
        # Without their dashes, which would make all of them alike.
        names = [name[2:] for action in self._actions for name in action.option_strings if name.startswith("--")]
        close = difflib.get_close_matches(option.partition("=")[0].lstrip("-"), names, n=1)
        return f"; did you mean '--{close[0]}'?" if close else ""


@dataclass(frozen=True)
class Command:
    """One command of a program, such as `excb-eval knn`. Its module does not import torch, to keep `--help` fast."""

    name: str  # on the command line
    help: str  # what it does, one line without a full stop
    add_options: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int]  # takes the parsed options, and returns the exit code
    description: str = ""  # for its own `--help`, printed as it is; made of `help` by default
    group: str = ""  # under which its program's help lists it
    examples: tuple[str, ...] = ()  # for its own `--help`: what to type after the program's name


def command_parser(program: str, description: str, commands: Sequence[Command]) -> Parser:
    """A parser with a sub-parser per command. Parsed options hold the `Command` as `command`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=program, description=description, epilog=_grouped(commands), formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"excb {__version__}")
    added = parser.add_subparsers(dest="name_of_command", metavar="COMMAND", required=True, help="one of those below")
    for command in commands:
        shown = "\n".join(f"  {program} {words}" for words in command.examples)
        own = added.add_parser(
            command.name,
            description=command.description or f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=f"examples:\n{shown}" if shown else None,
            formatter_class=raw,
        )
        command.add_options(own)
        own.set_defaults(command=command)
    return parser


def _grouped(commands: Sequence[Command]) -> str:
    """The commands as a program's help lists them: by groups, in the order in which these come up; others last."""
    width = max(len(command.name) for command in commands)
    titles = dict.fromkeys(sorted((command.group for command in commands), key=lambda title: title == ""))
    parts = []
    for title in titles:
        lines = [f"    {each.name.ljust(width)}  {each.help}" for each in commands if each.group == title]
        parts += [f"{title or 'more'}:", *lines, ""]
    return "\n".join([*parts, "COMMAND --help shows a command's options and examples."])


def complete(parser: Parser) -> None:
    """Answer the shell that asks how a command line may continue, and end; otherwise do nothing.

    `pip install 'excb[completion]'`, then `eval "$(register-python-argcomplete excb-eval)"` in the shell.
    """
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


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
