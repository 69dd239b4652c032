"""The watched figures as TensorBoard reads them: one event file, written anew from the log at every start."""

from pathlib import Path

from excb.charts.tensorboard import TensorBoardWriter
from excb.errors import UserError

from .log import Measurement

FOLDER = "tensorboard"  # of the watch's own: the run's event files have one writer, the run


class Events:
    """The event file of this start, which takes the place of those of earlier ones.

    Args:
        folder: of the watch.

    Raises:
        UserError: it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            before = list(self._folder.glob("events.out.tfevents.*"))
            self._writer = TensorBoardWriter(self._folder, purge_step=0)
            for file in before:
                file.unlink(missing_ok=True)
        except OSError as error:
            raise self._failure(error) from None

    def add(self, one: Measurement) -> None:
        """Write the main figure of a checkpoint and the ends of its interval.

        Raises:
            UserError: the disk is full.
        """
        low, high = one.interval or (None, None)
        values = {one.figure: one.value, f"{one.figure}_low": low, f"{one.figure}_high": high}
        known = {f"watch/{name}": value for name, value in values.items() if value is not None}
        try:
            self._writer.add_scalars(known, one.step)
        except OSError as error:
            raise self._failure(error) from None

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _failure(self, error: OSError) -> UserError:
        return UserError(f"cannot write {self._folder} ({error}): make room, then repeat the command")
