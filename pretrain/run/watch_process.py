"""`excb-eval watch` beside a run: any protocol, on every checkpoint, in a process of its own that ends with the run."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.distributed.launch import open_store, process_environment
from excb.errors import UserError
from excb.files import json_text
from excb.files.foreign import read_bytes, read_text
from excb.files.run_files import RECIPE, WATCH_BEST, WATCH_FOLDER
from excb.remote.byte_ranges import is_remote

LOG = "watch.log"  # in the run folder: what the process says
EVERY = "10s"  # between two looks
GRACE = 30.0  # seconds that the process may take to end when the run is stopped


class WatchProcess:
    """`excb-eval watch RUN` as a child of the process that trains; on rank 0 only.

    The core's formats are all that both share: the process reads the run's folder like any other. It is a launcher's
    rank to `excb.distributed`, so that it ends when this process is killed.

    Args:
        folder: the run folder.
        data: labelled images, `monitor.data`.
        protocol: what `--protocol` takes, `monitor.protocol`.
        device: where it measures, as `--device` takes it.
        reporter: for notes and warnings.
    """

    def __init__(self, folder: Path, data: str, protocol: str, device: str, reporter: Reporter) -> None:
        self._folder, self._reporter, self._warned = folder, reporter, False
        self._store, environment = _one_rank()
        with (folder / LOG).open("wb") as log:
            # Ctrl-C in a terminal is for the run, which then ends this process itself.
            self._process = subprocess.Popen(
                _command(folder, data, protocol, device),
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether it has not ended yet. One that failed is reported once; the run continues."""
        code = self._process.poll()
        if code and not self._warned:
            self._warned = True
            message = _last_line(read_text(self._folder / LOG, errors="replace"))
            self._reporter.warn(f"excb-eval watch has ended: {message} (all it said is in {self._folder / LOG})")
        return code is None

    def sum_up(self) -> None:
        """Say which checkpoint was the best, if any was measured."""
        folder = self._folder / WATCH_FOLDER
        try:
            best = json_text.parse(read_bytes(folder / WATCH_BEST))
            summary = f"{best['figure']} {best['value']:.1f} at epoch {best['epoch']:g}"
        except (OSError, LookupError, TypeError, ValueError):
            return
        self._reporter.note(f"excb-eval watch: {summary} is the best; all figures are in {folder}")

    def close(self) -> None:
        """End it. What is measured stays; started again, it continues."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def check_protocol(folder: Path, data: str, protocol: str, device: str) -> None:
    """Ask `excb-eval watch` what it would measure, before the run begins; arguments as of `WatchProcess`.

    Raises:
        UserError: it could not measure: no such protocol or images.
    """
    with tempfile.TemporaryDirectory() as place:
        run = folder
        if not (folder / RECIPE).is_file() and not run_checkpoint.in_run(folder):
            run = Path(place)  # stands for the folder of a new run, which is yet to be made
            (run / RECIPE).write_text("{}", encoding="utf-8")
        store, environment = _one_rank()
        answer = subprocess.run(
            [*_command(run, data, protocol, device), "--out", os.fspath(folder / WATCH_FOLDER), "--dry-run"],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            start_new_session=True,
            check=False,
        )
        del store
    if answer.returncode:
        raise UserError(f"monitor.protocol: {_last_line(answer.stderr)}")


def _one_rank() -> tuple[Any, dict[str, str]]:
    """The environment of a process that is its only rank, and the store that it needs as long as it runs."""
    store = open_store("127.0.0.1", 0, advice="start again")
    return store, {**process_environment("127.0.0.1", store.port, 1, 1), "RANK": "0", "LOCAL_RANK": "0"}


def _command(run: Path, data: str, protocol: str, device: str) -> list[str]:
    return [
        *(sys.executable, "-m", "excb", "eval", "watch", os.fspath(run), *_images(data)),
        *("--protocol", protocol, "--every", EVERY, "--device", device),
    ]


def _images(data: str) -> list[str]:
    """The same images as those of `monitor.data`: `val` before `test`, so that `test` stays unseen."""
    folder = Path(data)
    if not is_remote(data) and (folder / "train").is_dir() and (folder / "val").is_dir():
        return ["--train", os.fspath(folder / "train"), "--test", os.fspath(folder / "val")]
    return ["--data", data]


def _last_line(text: str) -> str:
    """The last line of what a program said, without its name."""
    line = next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
    return line.strip().removeprefix("excb-eval: error: ")
