"""Shared by the three command lines: a record per command, one-line errors, OpenMP's threads, freed memory."""

import argparse
import ctypes
import difflib
import gc
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from excb.deferred_compiler import defer_compiler
from excb.errors import UserError
from excb.version import __version__

# Must be set before torch loads. OpenMP's threads spin while they wait; where image-reading workers or other programs
# want the cores, a training step on two cores then takes six times as long (measured, see benchmarks/README.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
defer_compiler()  # before torchvision loads

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


def collect_seldom() -> None:
    """Let Python look for unreachable objects once in 20,000 new ones. For programs of their own.

    It looks once in 700 otherwise, through all of torch's, while torch is imported and a set's files are listed.
    """
    gc.set_threshold(20_000, 20, 20)


MOST_SHOWN = 12  # options on the first screen of a command's help
FIRST = ("--data", "--labels", "--out")  # that stand there before a command's own
LATER = (  # that stand there after a command's own
    *("--untrained", "--pixels", "--histogram", "--patches", "--against", "--network", "--data-root", "--rename"),
    *("--dry-run", "--quiet"),
)
SELDOM = ("machine", "preprocessing", "processes")  # groups of options that stand there last


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are `UserError`s: one message that ends in where to find help.

    The help of a command has at most `MOST_SHOWN` options, in the order of what a person needs; `--help-all` has all.
    """

    helps = True  # whether a bare command that needs more prints its help
    examples: tuple[str, ...] = ()  # whose options its help explains

    def format_help(self) -> str:
        """The first screen."""
        shown = self._first_screen()
        return self.help_of(shown, hidden=len(self.listed()) - len(shown))

    def help_of(self, shown: Sequence[argparse.Action], *, hidden: int = 0) -> str:
        """The help with some options, in their groups; `hidden` is how many it leaves out."""
        formatter = self._get_formatter()
        helps = [action for action in self._actions if isinstance(action, argparse._HelpAction | _HelpAll)]
        kept = [action for action in self._actions if action in shown or action in helps]
        formatter.add_usage(self.usage, kept, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments([action for action in group._group_actions if action in kept])
            formatter.end_section()
        if hidden:
            noun = "option" if hidden == 1 else "options"
            formatter.add_text(f"{hidden} more {noun}: {self.prog} --help-all")
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def format_full_help(self) -> str:
        """All options."""
        return self.help_of(self.listed())

    def listed(self) -> list[argparse.Action]:
        """All arguments but those that print help."""
        return [action for action in self._actions if not isinstance(action, argparse._HelpAction | _HelpAll)]

    def _first_screen(self) -> list[argparse.Action]:
        """The arguments that a person needs first; all of a program, whose help lists its commands."""
        listed = self.listed()
        if any(isinstance(action, argparse._SubParsersAction) for action in listed):
            return listed
        seldom = [action for group in self._action_groups if group.title in SELDOM for action in group._group_actions]
        shown = {word for example in self.examples for word in shlex.split(example)}

        def rank(action: argparse.Action) -> int:
            if action.required or not action.option_strings:
                return 0
            name = action.option_strings[-1]
            return 1 if name in FIRST or name in shown else 4 if action in seldom else 3 if name in LATER else 2

        return sorted(listed, key=rank)[:MOST_SHOWN]

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


class _HelpAll(argparse.Action):
    """Prints all options, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_rest: Any, **_more: Any) -> None:
        assert isinstance(parser, Parser)
        parser._print_message(parser.format_full_help(), sys.stdout)
        parser.exit()


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
        own.add_argument(
            "--help-all", action=_HelpAll, nargs=0, dest=argparse.SUPPRESS, help="show all options and exit"
        )
        own.examples = command.examples
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
    return "\n".join(
        [*parts, "COMMAND --help shows a command's options and examples, and --help-all all of its options."]
    )


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
