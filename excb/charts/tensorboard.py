"""TensorBoard's event files, written at once: no thread that fails silently or lags behind."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar


class TensorBoardWriter:
    """One event file of a run. Each start of the run writes its own.

    Args:
        folder: where the event files are.
        purge_step: the first step that this start writes. TensorBoard hides what earlier files hold from it on.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names. The step comes first, because clocks can be set back.
        name = f"events.out.tfevents.{purge_step:012d}.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._stream = (folder / name).open("xb")
        self._records = RecordWriter(self._stream)
        self._write(file_version="brain.Event:2")
        self._write(session_log=SessionLog(status=SessionLog.START), step=purge_step)

    def add_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write values of one step. Raises OSError if the disk is full."""
        for name, value in values.items():
            self._write(summary=scalar(name, value), step=step)

    def _write(self, **contents: Any) -> None:
        self._records.write(Event(wall_time=time.time(), **contents).SerializeToString())
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # a failed write has already been reported
            self._stream.close()
