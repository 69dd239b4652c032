"""SIGTERM and Ctrl-C: the first lets the step finish and the run save, the second leaves at once."""

import os
import signal
from types import FrameType


class StopRequest:
    """Notices signals that ask the process to stop, while it is used as a context manager.

    Attributes:
        received: the first such signal, or None.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        for number in self.SIGNALS:
            self._before[number] = signal.signal(number, self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _notice(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(self.exit_code)  # asked twice: no clean-up that could hang
        self.received = signal.Signals(number)

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells count: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.received or signal.SIGINT)
