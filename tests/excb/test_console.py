"""Tests of what people see: plain text in a pipe, progress with ETA, aligned tables, durations."""

import io
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from excb.console import PLAIN_SECONDS, GrowingTable, Reporter, duration

ESCAPE = "\x1b"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the environment variables by which a machine changes all consoles."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands still; calling it lets seconds pass."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def passed(seconds: float) -> None:
        now[0] += seconds

    return passed


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in the place of stdout and stderr (not in a fixture: pytest captures each phase anew)."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


# ---------------------------------------------------------------------------------------------------------------------
# In a pipe
# ---------------------------------------------------------------------------------------------------------------------


def test_notes_go_to_stderr_and_tables_to_stdout_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter()
    reporter.note("a [bold]note[/bold] of 3 things")
    reporter.warn("look here")
    reporter.table("title", ["name", "value"], [["a", "1"]])
    out, err = capsys.readouterr()
    assert err == "a [bold]note[/bold] of 3 things\nwarning: look here\n"
    assert out == "title\nname  value\na         1\n"


def test_long_lines_are_not_wrapped_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter()
    reporter.note("word " * 100)
    reporter.table("t", ["name", "value"], [["row", "cell " * 100]])
    out, err = capsys.readouterr()
    assert err == "word " * 100 + "\n"
    assert out.splitlines()[2] == ("row   " + "cell " * 100).rstrip()


def test_table_is_aligned_first_column_left_others_right(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["k-NN", "57.25", "1"], ["a longer name", "3", "100,000"], ["", "", ""]]
    Reporter().table("Figures", ["protocol", "top-1 %", "n"], rows)
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "Figures"
    assert lines == [
        "protocol       top-1 %        n",
        "k-NN             57.25        1",
        "a longer name        3  100,000",
        "",
    ]


def test_table_without_rows_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().table("Nothing", ["name", "value"], [])
    assert capsys.readouterr().out == "Nothing\nname  value\n"


def test_quiet_says_nothing_but_results(capsys: pytest.CaptureFixture[str], clock: Callable[[float], None]) -> None:
    reporter = Reporter(quiet=True)
    reporter.note("a note")
    reporter.warn("a warning")
    with reporter.progress("work", 10) as bar:
        clock(60)
        bar.advance(5)
    reporter.table("title", ["name"], [["row"]])
    assert capsys.readouterr() == ("title\nname\nrow\n", "")


# ---------------------------------------------------------------------------------------------------------------------
# Progress
# ---------------------------------------------------------------------------------------------------------------------


def test_progress_in_a_pipe_is_a_line_now_and_then_with_eta(
    capsys: pytest.CaptureFixture[str], clock: Callable[[float], None]
) -> None:
    with Reporter().progress("training", 100) as bar:
        for _ in range(20):
            clock(4.0)
            bar.status = "loss 1.5"
            bar.advance()
    out, err = capsys.readouterr()
    # Four seconds a step: a line every third step, and 4 s for each step that is left.
    expected = [f"training: {done}/100  loss 1.5  ETA {duration(4 * (100 - done))}" for done in (3, 6, 9, 12, 15, 18)]
    assert err.splitlines() == expected
    assert expected[0].endswith("ETA 6 min 28 s")
    assert out == ""
    assert ESCAPE not in err


def test_lines_are_no_closer_than_ten_seconds(
    capsys: pytest.CaptureFixture[str], clock: Callable[[float], None]
) -> None:
    with Reporter().progress("work", 1000) as bar:
        clock(PLAIN_SECONDS - 0.01)
        bar.advance()
        assert capsys.readouterr().err == ""
        clock(0.02)
        bar.advance()
        assert capsys.readouterr().err.startswith("work: 2/1000  ETA ")
        bar.advance()
        assert capsys.readouterr().err == ""


def test_eta_of_a_resumed_job_counts_only_what_was_done_since(
    capsys: pytest.CaptureFixture[str], clock: Callable[[float], None]
) -> None:
    with Reporter().progress("training", 1000, done=900) as bar:
        clock(20.0)
        bar.advance(10)
    assert capsys.readouterr().err == "training: 910/1000  ETA 3 min 0 s\n"  # 90 steps of 2 s


def test_finished_job_has_no_time_left(capsys: pytest.CaptureFixture[str], clock: Callable[[float], None]) -> None:
    with Reporter().progress("work", 2) as bar:
        clock(30.0)
        bar.advance(2)
    assert capsys.readouterr().err == "work: 2/2  ETA 0 s\n"


# ---------------------------------------------------------------------------------------------------------------------
# On a terminal
# ---------------------------------------------------------------------------------------------------------------------


def test_terminal_gets_a_bar_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    reporter = Reporter()
    with reporter.progress("training", 10) as bar:
        bar.status = "loss 1.5"
        bar.advance(10)
        reporter.warn("look [here]")  # above the bar, not through it
    shown = terminal.getvalue()
    assert "10/10" in shown
    assert "training" in shown
    assert "loss 1.5" in shown
    assert "ETA" in shown
    assert "warning: look [here]" in shown
    assert ESCAPE in shown


def test_bar_inside_a_bar_is_plain_lines(monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]) -> None:
    terminal = on_terminal(monkeypatch)
    reporter = Reporter()
    with reporter.progress("outer", 10) as outer:
        with reporter.progress("inner", 4) as inner:
            clock(11)
            inner.advance()
        outer.advance()
    with reporter.progress("next", 3) as bar:  # the outer bar is gone: there may be one again
        bar.advance(3)
    shown = terminal.getvalue()
    assert "inner: 1/4  ETA 33 s" in shown
    assert "3/3" in shown


def test_quiet_terminal_shows_nothing_but_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    reporter = Reporter(quiet=True)
    reporter.note("a note")
    with reporter.progress("work", 10) as bar:
        bar.advance()
    assert terminal.getvalue() == ""
    reporter.table("title", ["name", "value"], [["row", "57.25"]])
    assert "57.25" in terminal.getvalue()
    assert "title" in terminal.getvalue()


# ---------------------------------------------------------------------------------------------------------------------
# Durations
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (42, "42 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (18_720, "5 h 12 min"),
        (360_000, "100 h 0 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# ---------------------------------------------------------------------------------------------------------------------
# Names that somebody else gave
# ---------------------------------------------------------------------------------------------------------------------

ODD = "[/]\x1b[2Jcaf\udce9"
SHOWN = r"[/]\u001b[2Jcaf\udce9"


def test_odd_names_in_a_pipe(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    reporter = Reporter()
    reporter.note(ODD)
    reporter.table(ODD, ["name", "value"], [[ODD, "1"]])
    reporter.answer(ODD)
    sys.stdout.flush()
    out, err = capfdbinary.readouterr()
    assert err.decode() == f"{SHOWN}\n"
    assert out.decode().count(SHOWN) == 3


def test_odd_names_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = on_terminal(monkeypatch)
    reporter = Reporter()
    reporter.note(ODD)
    reporter.table(ODD, ["name"], [[ODD]])
    with reporter.progress(ODD, 2) as bar:
        bar.advance()
    assert stream.getvalue().count("[/]") >= 4
    assert "\x1b[2Jcaf" not in stream.getvalue()
    assert "\udce9" not in stream.getvalue()


def test_a_notebook_has_one_line_that_changes(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> SimpleNamespace:
        assert raw
        assert display_id
        shown.append(data["text/plain"])
        return SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with Reporter().progress("run", 4) as bar:
        bar.advance()  # at once: too soon to change the line again
        clock(1)
        bar.status = "loss 3"
        bar.advance()
        bar.advance(2)
    with Reporter(quiet=True).progress("silent", 1) as bar:
        bar.advance()
    assert shown == ["run", "run: 2/4  loss 3  ETA 1 s", "run: 4/4  loss 3  ETA 0 s"]
    assert capsys.readouterr() == ("", "")


def test_ipython_on_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=SimpleNamespace))
    with Reporter().progress("run", 1) as bar:  # would import IPython.display
        bar.advance()


def test_rows_that_come_one_by_one_name_their_cells_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Reporter().rows({"step": 4, "value": 6, "": 4})
    rows.add("10", "57.30", "best")
    rows.add("20", "", "\x1b[31m")
    assert capsys.readouterr().out == "step 10  value 57.30  best\nstep 20  \\u001b[31m\n"


def test_rows_that_come_one_by_one_stand_below_one_header_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows = GrowingTable({"step": 4, "value": 6, "": 4}, drawn=True)
    rows.add("10", "57.30", "best")
    rows.add("20", "8.10", "")
    assert capsys.readouterr().out == "step   value\n  10   57.30  best\n  20    8.10\n"
