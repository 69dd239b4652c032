"""Tests of how programs end: a user's mistake in one line and exit code 2, an interrupt, a closed pipe quietly."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from excb.errors import UserError, nearest_name, nearest_path, one_line, printable, run_program
from tests.clone import ROOT

# Writes more than a pipe holds, or less than Python's buffer: the latter reaches the pipe only when the program ends.
WRITER = """
import sys
from excb.errors import run_program
def main():
    print("x" * int(sys.argv[1]))
    return 0
sys.exit(run_program("program", main))
"""


def test_a_missing_path_gets_the_nearest_name_beside_it(tmp_path: Path) -> None:
    (tmp_path / "runs" / "photos").mkdir(parents=True)
    (tmp_path / "runs" / ".photo").mkdir()
    meant = f"; did you mean '{tmp_path / 'runs' / 'photos'}'?"
    assert nearest_path(tmp_path / "runs" / "photo") == meant
    assert nearest_path(tmp_path / "runs" / "photoss" / "checkpoints" / "last.pt") == meant
    assert nearest_path(tmp_path / "run" / "photos") == f"; did you mean '{tmp_path / 'runs'}'?"
    assert nearest_path(tmp_path / "runs" / "groceries") == ""
    assert nearest_path("") == ""
    assert nearest_path("a" * 5000) == ""
    (tmp_path / "runs" / "photos.txt").touch()
    assert nearest_path(tmp_path / "runs" / "photos.txt") == ""  # a file that was taken for a folder


def test_exit_code_of_main_is_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program("program", lambda: 0) == 0
    assert run_program("program", lambda: 143) == 143
    assert capsys.readouterr() == ("", "")


def test_users_mistake_is_one_line_on_stderr_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise UserError("no folder x: name one")

    assert run_program("program", main) == 2
    assert capsys.readouterr() == ("", "program: error: no folder x: name one\n")


def test_message_of_several_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of files may hold line breaks, and so may the words of the libraries we quote."""

    def main() -> int:
        raise UserError("no folder a\nb: name one\r\n")

    assert run_program("program", main) == 2
    assert capsys.readouterr() == ("", "program: error: no folder a b: name one\n")


def test_interrupt_is_exit_code_130(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise KeyboardInterrupt

    assert run_program("program", main) == 130
    assert capsys.readouterr() == ("", "\nprogram: interrupted\n")


def test_what_is_no_users_mistake_is_not_hidden() -> None:
    def main() -> int:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        run_program("program", main)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/a\nb"), "/a b: Permission denied: allow reading and"),
        (OSError(errno.EROFS, "Read-only file system", b"/a"), "/a: Read-only file system: name a writable place"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device: free some space"),
        (OSError(errno.EMFILE, "Too many open files", "/a"), "/a: Too many open files: raise the limit of open files"),
    ],
)
def test_what_the_file_system_refuses_is_the_users_to_fix(
    capsys: pytest.CaptureFixture[str], error: OSError, line: str
) -> None:
    def main() -> int:
        raise error

    assert run_program("program", main) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"program: error: {line}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/a"),
        PermissionError(errno.EPERM, "Operation not permitted"),  # such as a signal's: no file's
        OSError("without a number"),
    ],
)
def test_what_may_be_a_mistake_of_the_program_is_not_hidden(error: OSError) -> None:
    def main() -> int:
        raise error

    with pytest.raises(type(error)) as caught:
        run_program("program", main)
    assert caught.value is error


def test_a_program_may_be_started_without_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run_program("program", lambda: 0) == 0


@pytest.mark.parametrize("size", [10, 1_000_000], ids=["at exit", "at once"])
@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stdout and stderr"])
def test_closed_pipe_ends_a_program_quietly(size: int, both: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # the reader is gone, as after `| head`
    try:
        # A new interpreter, without torch: how it ends is tested.
        result = subprocess.run(
            [sys.executable, "-c", WRITER, str(size)],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            stdout=writing,
            stderr=writing if both else subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert result.returncode == 0
    assert not result.stderr


def test_nearest_name() -> None:
    assert nearest_name("epoch", ["batch", "epochs", "clip"]) == "; did you mean 'epochs'?"
    assert nearest_name("zzzz", ["batch", "epochs"]) == ""
    assert nearest_name("x", []) == ""
    assert nearest_name("resnet5", (name for name in ("resnet18", "resnet50"))) == "; did you mean 'resnet50'?"


def test_names_that_command_a_terminal_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise UserError("no file \x1b]0;owned\x07\x9b2J\u202egpj.caf\udce9.jpg \U000e0001")

    assert run_program("program", main) == 2
    shown = r"no file \u001b]0;owned\u0007\u009b2J\u202egpj.caf\udce9.jpg \udb40\udc01"
    assert capsys.readouterr() == ("", f"program: error: {shown}\n")


@pytest.mark.parametrize("text", ["Käse 照片\u3000\xa0.jpg", "می\u200cخواهم", "👩\u200d🔬", "two\nlines\tof"])
def test_words_of_every_script_stay_as_they_are(text: str) -> None:
    assert printable(text) == text


def test_an_escaped_text_of_json_is_equal_json() -> None:
    values = {"name\x7f\u202e": "\x9b", "\U000e0001": ["\udce9"]}
    text = json.dumps(values, ensure_ascii=False)
    assert printable(text) != text
    assert json.loads(printable(text)) == values


def test_a_message_without_end_is_cut_in_its_middle(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise UserError(f"no folder {'x' * 1_000_000}: name one")

    assert run_program("program", main) == 2
    line = capsys.readouterr().err
    assert len(line) < 2100
    assert line.startswith("program: error: no folder x")
    assert line.endswith("x: name one\n")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\n  b\tc"), "a b c"),
        (KeyError(), "KeyError"),
        (OSError("x" * 301), "x" * 300 + "..."),
    ],
)
def test_a_librarys_error_becomes_one_line(error: Exception, line: str) -> None:
    assert one_line(error) == line
