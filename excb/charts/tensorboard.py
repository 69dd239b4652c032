"""TensorBoard's event files, written at once: no thread that fails unheard or lags behind."""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar


class Board:
    """One event file of a run; each start of the run writes another one.

    Args:
        folder: of the event files.
        step: the step the run goes on from; TensorBoard drops what earlier files tell beyond it.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names: steps first, since clocks are set back.
        name = f"events.out.tfevents.{step:012d}.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._stream = (folder / name).open("xb")
        self._records = RecordWriter(self._stream)
        self._write(file_version="brain.Event:2")
        self._write(session_log=SessionLog(status=SessionLog.START), step=step + 1)

    def add(self, figures: dict[str, float], step: int) -> None:
        """Write figures of one step.

        Raises:
            OSError: the disk is full.
        """
        for name, value in figures.items():
            self._write(summary=scalar(name, value), step=step)

    def _write(self, **contents: Any) -> None:
        self._records.write(Event(wall_time=time.time(), **contents).SerializeToString())
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # what could not be written has been told
            self._stream.close()
