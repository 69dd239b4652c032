"""`excb-eval watch` beside a run: any protocol, on every checkpoint, in a process of its own that ends with the run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch.distributed as dist

from excb.console import Reporter
from excb.distributed.launch import process_environment
from excb.errors import UserError
from excb.files import json_text
from excb.files.foreign import read_bytes, read_text
from excb.files.run_files import WATCH_BEST, WATCH_FOLDER
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

    Raises:
        UserError: it could not measure: no such protocol or images.
    """

    def __init__(self, folder: Path, data: str, protocol: str, device: str, reporter: Reporter) -> None:
        self._folder, self._reporter, self._warned = folder, reporter, False
        # A rank needs a store to meet others, even where there are none.
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        alone = process_environment("127.0.0.1", self._store.port, 1, 1)
        self._environment = {**alone, "RANK": "0", "LOCAL_RANK": "0"}
        self._command = [
            *(sys.executable, "-m", "excb", "eval", "watch", os.fspath(folder), *_images(data)),
            *("--protocol", protocol, "--every", EVERY, "--device", device),
        ]
        self._check()
        with (folder / LOG).open("wb") as log:
            # Ctrl-C in a terminal is for the run, which then ends this process itself.
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def _check(self) -> None:
        """Ask what it would measure: a mistake shows before the run begins."""
        answer = subprocess.run(
            [*self._command, "--dry-run"],
            env=self._environment,
            capture_output=True,
            text=True,
            errors="replace",
            start_new_session=True,
            check=False,
        )
        if answer.returncode:
            raise UserError(f"monitor.protocol: {_last_line(answer.stderr)}")

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
