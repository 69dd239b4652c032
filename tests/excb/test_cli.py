"""Shared by the command lines: commands by name, options that name files, threads that sleep while they wait."""

import argparse
import importlib
import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

from excb.__main__ import main as everything
from excb.cli import MOST_SHOWN, Command, Parser, command_parser, complete, local_path
from excb.errors import UserError
from tests.clone import ROOT


def add_count(parser: Parser) -> None:
    parser.add_argument("--count", type=int, default=0)


def count(args: argparse.Namespace) -> int:
    return int(args.count)


COUNT = Command("count", "counts to 100 % of what is asked", add_count, count)


def test_a_parsed_command_line_holds_its_command() -> None:
    args = command_parser("program", "Counts.", [COUNT]).parse_args(["count", "--count", "3"])
    assert args.command is COUNT
    assert args.command.run(args) == 3


@pytest.mark.parametrize("words", [["cuont"], ["count", "--count", "three"]])
def test_a_wrong_command_line_is_one_message(words: list[str]) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\(see `program[ a-z]* --help`\)$"):
        command_parser("program", "Counts.", [COUNT]).parse_args(words)


def test_help_lists_commands_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_parser("program", "Counts.", [COUNT]).parse_args(["--help"])
    assert "counts to 100 % of what is asked" in capsys.readouterr().out


PROGRAMS = {
    "excb-pretrain": "excb.pretrain.__main__",
    "excb-eval": "excb.transfer.cli",
    "excb-zoo": "excb.zoo.__main__",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_groups_the_commands_and_gives_two_examples_of_each(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(PROGRAMS[name])
    parse = getattr(module, "parse_command_line", lambda words: module.program().parse_args(words))
    for each in module.COMMANDS:
        command = module.command_named(each) if isinstance(each, str) else each
        assert command.group, command.name
        assert len(command.examples) >= 2, command.name
        for example in command.examples:
            assert parse(shlex.split(example)).command.name == command.name
        with pytest.raises(SystemExit):
            parse([command.name, "--help"])
        shown = capsys.readouterr().out
        assert all(f"  {name} {example}\n" in shown for example in command.examples)


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_is_one_screen_and_help_all_has_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(PROGRAMS[name])
    (commands,) = [each for each in module.program()._actions if isinstance(each, argparse._SubParsersAction)]
    kinds = argparse._SubParsersAction
    leaves = [each for each in commands.choices.values() if not any(isinstance(a, kinds) for a in each.listed())]
    for parser in leaves:  # others list kinds of their own
        names = [(action.option_strings or [action.metavar or action.dest])[-1] for action in parser.listed()]
        brief, full = (shown_options(text) & set(names) for text in (parser.format_help(), parser.format_full_help()))
        assert len(brief) == min(MOST_SHOWN, len(names))
        assert brief >= {
            action.option_strings[-1] for action in parser.listed() if action.required and action.option_strings
        }
        assert full == set(names)
        used = {word for example in parser.examples for word in shlex.split(example) if word.startswith("--")}
        assert used <= brief, parser.prog
        said = f"{len(names) - len(brief)} more option"
        assert (said in parser.format_help()) == (len(names) > len(brief))
    with pytest.raises(SystemExit) as stop:
        leaves[0].parse_args(["--help-all"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == leaves[0].format_full_help()


def shown_options(text: str) -> set[str]:
    """The options and arguments that a help has lines for."""
    found = (re.match(r"  (?:-\w(?: \S+)?, )?([^\s,]+)", line) for line in text.splitlines())
    return {each[1] for each in found if each is not None}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bare_command_prints_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(PROGRAMS[name]).main([])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {name} [-h]")


def test_a_bare_command_that_needs_more_prints_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in (("excb-eval", "knn"), ("excb-zoo", "show")):
        with pytest.raises(SystemExit):
            importlib.import_module(PROGRAMS[name]).main([command])
        assert f"usage: {name} {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["count", "--cuont", "3"], r"unrecognized arguments: --cuont 3; did you mean '--count'\? \(see `program count"),
     (["count", "--xyz"], r"unrecognized arguments: --xyz \(see `program count --help`\)")],
)  # fmt: skip
def test_an_unknown_option_gets_the_nearest(words: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        command_parser("program", "Counts.", [COUNT]).parse_args(words)


def test_one_name_for_the_three_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert everything([]) == 0
    assert "python -m excb eval" in capsys.readouterr().out
    assert everything(["zoo", "list", "--json"]) == 0
    assert "conv4_photos" in capsys.readouterr().out
    assert everything(["evla"]) == 2
    assert "no program is called 'evla'; did you mean 'eval'?" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["excb", "excb.pretrain", "excb.transfer", "excb.zoo"])
def test_modules_run_by_name(module: str) -> None:
    # A new interpreter: how it begins is tested.
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, check=False, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "excb" in done.stdout


def test_the_shell_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Parser] = []
    monkeypatch.setitem(sys.modules, "argcomplete", types.SimpleNamespace(autocomplete=asked.append))
    parser = command_parser("program", "Counts.", [COUNT])
    complete(parser)
    assert asked == []
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    complete(parser)
    assert asked == [parser]


def test_files_are_written_on_this_machine() -> None:
    assert local_path("a/b.json") == Path("a/b.json")
    with pytest.raises(UserError, match="empty"):
        local_path("")
    with pytest.raises(UserError, match="cannot write to s3://bucket/b"):
        local_path("s3://bucket/b")


def test_command_lines_let_waiting_threads_sleep() -> None:
    program = "import os, excb.pretrain.__main__; print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for chosen, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        if chosen:
            environment["OMP_WAIT_POLICY"] = chosen
        # A new interpreter: what an import sets is tested.
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, text=True, env=environment
        )
        assert done.stdout.strip() == expected


FREEING = """
import ctypes, resource, sys
from excb.cli import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def fill():
    blocks = [c.malloc(2**26) for _ in range(2)]
    for block in blocks:
        ctypes.memset(block, 1, 2**26)
    for block in blocks:
        c.free(block)
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="another C library than glibc")
def test_a_block_that_was_freed_is_used_again() -> None:
    faults = {}
    for word in ("keep", "give"):
        # A new interpreter: what an import sets is tested.
        answer = subprocess.run([sys.executable, "-c", FREEING, word], capture_output=True, text=True, check=True)
        faults[word] = int(answer.stdout)
    assert faults["give"] > 1_000  # else this shows nothing
    assert faults["keep"] < faults["give"] / 20
