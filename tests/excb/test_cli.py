"""What the command lines share: commands by name, options that name files, threads that sleep while they wait."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from excb.cli import Command, Parser, command_parser, local_path
from excb.errors import UserError


def add_count(parser: Parser) -> None:
    parser.add_argument("--count", type=int, default=0)


def count(args: argparse.Namespace) -> int:
    return int(args.count)


COUNT = Command("count", "counts to 100 % of what is asked", add_count, count)


def test_a_parsed_command_line_holds_its_command() -> None:
    args = command_parser("program", "Counts.", [COUNT]).parse_args(["count", "--count", "3"])
    assert args.command is COUNT
    assert args.command.run(args) == 3


@pytest.mark.parametrize("words", [["cuont"], ["count", "--count", "three"], []])
def test_a_wrong_command_line_is_one_message(words: list[str]) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\(see `program[ a-z]* --help`\)$"):
        command_parser("program", "Counts.", [COUNT]).parse_args(words)


def test_help_lists_commands_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_parser("program", "Counts.", [COUNT]).parse_args(["--help"])
    assert "counts to 100 % of what is asked" in capsys.readouterr().out


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
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, text=True, env=environment
        )
        assert done.stdout.strip() == expected
