"""SIGTERM and Ctrl-C: the first lets the step finish and the run save, the second exits at once."""

import os
import signal
import time
from types import FrameType

from excb.distributed import launcher
from excb.distributed.collectives import gather_numbers

ONE_REQUEST = 1.0  # seconds in which repeated signals count once: job systems signal a launcher and its processes


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

    def __enter__(self) -> "StopRequest":
        for number in self.SIGNALS:
            self._before[number] = signal.signal(number, self._record)
        launcher.saves.set()
        return self

    def __exit__(self, *_: object) -> None:
        launcher.saves.clear()
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
        if launcher.gone.is_set():
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
