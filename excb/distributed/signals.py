"""SIGTERM and Ctrl-C: the first lets the step finish and the run save, the second exits at once."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from excb.distributed.collectives import gather_numbers

LOST = 75  # exit code of a process that lost its launcher or another process, so that it is not taken for the cause
POLL = 1.0  # seconds between checks of the launcher
ONE_REQUEST = 1.0  # seconds in which repeated signals count once: job systems signal a launcher and its processes
LAUNCHER = "EXCB_LAUNCHER"  # environment variable: process id of the launcher that started this process


class StopRequest:
    """A context manager that records signals to stop, and exits at the second one if `at_once`.

    Attributes:
        received: the first signal of this process or, once `agreed` has been called, of another one; or None.
        count: number of this process's own signals.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, *, at_once: bool = True) -> None:
        self.count, self._at_once, self._first = 0, at_once, 0.0
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}
        self._launcher = int(os.environ[LAUNCHER]) if LAUNCHER in os.environ else None

    def __enter__(self) -> "StopRequest":
        for number in self.SIGNALS:
            self._before[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _record(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.count and now - self._first < ONE_REQUEST:
            return
        self.count += 1
        if self.count > 1 and self._at_once:
            os._exit(self.exit_code)  # second request: no clean-up that could hang
        self._first = now
        self.received = self.received or signal.Signals(number)

    def agreed(self) -> bool:
        """Whether any process of the run was asked to stop. All ranks call this after every step.

        A process whose launcher has died stops as well, since nothing would stop it later.
        """
        if self._launcher is not None and os.getppid() != self._launcher:
            self.received = self.received or signal.SIGTERM
        number = int(gather_numbers([self.received or 0]).max())
        # A signal that arrives during the collective counts at the next step, when all ranks learn of it.
        if number:
            self.received = signal.Signals(number)
        return number > 0

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as in shells: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.received or signal.SIGINT)


@contextmanager
def ending_with_launcher() -> Iterator[None]:
    """Exit if the launcher dies while the block runs, instead of waiting for processes that will never come."""
    done = threading.Event()
    launcher = int(os.environ[LAUNCHER]) if LAUNCHER in os.environ else None

    def watch() -> None:
        while not done.wait(POLL):
            if os.getppid() != launcher:
                os._exit(LOST)

    if launcher is not None:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()
