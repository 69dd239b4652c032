"""The time that a first signal leaves to the step that runs."""

import os
import signal
import threading

import pytest

from excb.distributed import signals
from excb.distributed.signals import StopRequest


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes with which the process would have ended."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


def timers() -> list[threading.Timer]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_step_that_does_not_end_is_left_after_the_first_signal(
    exits: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signals, "PATIENCE", 0.01)
    with StopRequest():
        os.kill(os.getpid(), signal.SIGTERM)
        for timer in timers():
            timer.join()
    assert exits == [143]
    error = capsys.readouterr().err
    assert error.startswith("stopping: no step has ended for 0 s")
    assert error.endswith("repeat the command to resume from the last checkpoint\n")


def test_a_step_that_ends_is_saved_without_a_limit(exits: list[int]) -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert [timer.interval for timer in timers()] == [signals.PATIENCE]
        assert stop.agreed()
        for timer in timers():
            timer.join(10)
        assert timers() == []
    assert exits == []


@pytest.mark.parametrize("second", ["interrupt", "count"])
def test_a_process_that_must_live_on_has_no_deadline(second: signals.SecondSignal) -> None:
    with StopRequest(second=second):
        os.kill(os.getpid(), signal.SIGTERM)
        assert timers() == []


def test_a_block_that_ends_leaves_no_deadline(exits: list[int]) -> None:
    with StopRequest():
        os.kill(os.getpid(), signal.SIGINT)
    for timer in timers():
        timer.join(10)
    assert exits == []
