"""SIGTERM and Ctrl-C: the first lets the step finish and the run save, the second exits, or interrupts, at once.

A step that does not finish within `PATIENCE` is not waited for: the process exits, and its last checkpoint counts.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Literal

from excb.distributed import launcher
from excb.distributed.collectives import gather_numbers

SecondSignal = Literal["exit", "interrupt", "count"]
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of what was asked to stop, and saved
PATIENCE = 180.0  # seconds from the first signal to the end of a step
ONE_REQUEST = 1.0  # seconds in which repeated signals count once: job systems signal a launcher and its processes


class StopRequest:
    """A context manager that records signals to stop.

    Signals reach the main thread only: in another one nothing is recorded, and the program's handlers stay.

    Args:
        second: what a second signal does: "exit" ends the process at once, "interrupt" raises KeyboardInterrupt, as in
            a notebook, whose process must live on, and "count" only counts it.

    Attributes:
        received: the first signal of this process or, once `agreed` has been called, of another one; or None.
        count: number of this process's own signals.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, *, second: SecondSignal = "exit") -> None:
        self.count, self._second, self._first = 0, second, 0.0
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}
        self._deadline: threading.Timer | None = None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._before[number] = signal.signal(number, self._record)
        launcher.saves.set()
        return self

    def __exit__(self, *_: object) -> None:
        launcher.saves.clear()
        self._keep_deadline()
        for number, handler in self._before.items():
            # None is a handler that C code had set, which Python cannot set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]

    def _record(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.count and now - self._first < ONE_REQUEST:
            return
        self.count += 1
        if self.count > 1 and self._second == "exit":
            os._exit(self.exit_code)  # no clean-up that could hang
        if self.count > 1 and self._second == "interrupt":
            raise KeyboardInterrupt
        self._first = now
        self.received = self.received or signal.Signals(number)
        if self._second == "exit":
            self._deadline = threading.Timer(PATIENCE, self._expire)
            self._deadline.daemon = True
            self._deadline.start()

    def _expire(self) -> None:
        sys.stderr.write(
            f"stopping: no step has ended for {PATIENCE:.0f} s, as where a disk, a reader of images or another process "
            "does not answer; repeat the command to resume from the last checkpoint\n"
        )
        os._exit(self.exit_code)

    def _keep_deadline(self) -> None:
        """The program has noticed the signal in time: nothing limits how long it saves."""
        if self._deadline is not None:
            self._deadline.cancel()

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
            self._keep_deadline()
        return number > 0

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as in shells: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.received or signal.SIGINT)
