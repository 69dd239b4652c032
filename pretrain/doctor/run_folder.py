"""The run folder: can it be written, locked and renamed in, is its clock ours, is there room; and where it is kept."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from excb.checkpoint.run_checkpoint import in_run
from excb.errors import UserError
from excb.files.atomic import existing
from excb.remote.object_store import Store, StoreError

from .finding import Finding, plural, size

CLOCK = 5.0  # seconds that a file server's clock may be off
AMPLE = 2  # times the room that checkpoints need, below which it is worth a word


def check_folder(run: Path, refuse: Callable[[], None] = lambda: None) -> list[Finding]:
    """Whether a run can write here; nothing is left behind, and the folder itself is not made.

    Args:
        run: the run folder, there or not.
        refuse: raises UserError where the run would not take this folder, though it can be written.
    """
    home = existing(run)
    if home.is_file():
        return [Finding("run folder", "error", f"{home} is a file", "choose another --out")]
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=home) as trial:
            behind, taken = _exercise(Path(trial)), _taken(run, refuse)
    except OSError as error:
        return [
            Finding("run folder", "error", f"cannot write in {home}: {error.strerror or error}", "choose another --out")
        ]
    return [taken, _clock(behind)]


def _exercise(folder: Path) -> float:
    """Do what a run does there: write, flush, lock, rename; the seconds that the disk's clock is behind ours."""
    file = folder / "written"
    with file.open("wb") as stream:
        stream.write(b"excb")
        stream.flush()
        os.fsync(stream.fileno())
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    now = time.time()
    file.replace(folder / "renamed")
    return now - (folder / "renamed").stat().st_mtime


def _taken(run: Path, refuse: Callable[[], None]) -> Finding:
    """Whether another process trains there, another run lies there, or a run is to be gone on with."""
    lock = run / ".lock"
    with contextlib.suppress(FileNotFoundError), lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return Finding(
                "run folder", "error", f"another process is training in {run}", "wait for it, or choose another --out"
            )
    try:
        refuse()
    except UserError as error:
        found, _, fix = str(error).rpartition(": ")
        return Finding("run folder", "error", found, fix)
    if (run / "recipe.json").is_file():
        return Finding("run folder", "ok", f"{run} holds a run, which the same command goes on with")
    return Finding("run folder", "ok", f"{run} can be written")


def check_store(url: str) -> Finding:
    """Whether a run can be kept at a URL: a file is written there, read and removed."""
    name, content = f"doctor-{uuid.uuid4().hex}", b"excb"
    start = time.monotonic()
    try:
        store = Store(url)
        store.write(content, name)
        back = store.read(name)
        store.remove(name)
    except (StoreError, UserError) as error:
        return Finding("object store", "error", str(error), "check the name, and your access to it")
    if back != content:
        return Finding("object store", "error", f"{url} gives back other bytes than were written", "use another store")
    return Finding(
        "object store", "ok", f"{url} can be written, read and removed from, in {time.monotonic() - start:.1f} s"
    )


def _clock(behind: float) -> Finding:
    if abs(behind) > CLOCK:
        return Finding(
            "clock",
            "warning",
            f"the run folder's disk is {abs(behind):.0f} s {'behind' if behind > 0 else 'ahead of'} this machine",
            "set both clocks by NTP: times in logs and results would disagree",
        )
    return Finding("clock", "ok", "the run folder's disk and this machine agree")


def check_space(run: Path, checkpoint: int, keep: int) -> Finding:
    """Whether the disk holds a run's checkpoints.

    Args:
        run: the run folder, there or not.
        checkpoint: bytes of one.
        keep: newest ones kept; besides them there are the best one, and the one being written.
    """
    here = existing(run)
    there = sum(file.stat().st_size for file in in_run(run))
    need, free = max(0, (keep + 2) * checkpoint - there), shutil.disk_usage(here).free
    found = f"{size(free)} free; {plural(keep + 2, 'checkpoint')} of {size(checkpoint)} at most need {size(need)} more"
    if os.statvfs(here).f_files and os.statvfs(here).f_favail < 1000:
        return Finding("disk", "error", f"the disk of {here} has no room for more files (inodes)", "remove small files")
    if free < need:
        return Finding("disk", "error", found, f"free {size(need - free)}, lower run.keep, or choose another --out")
    if free < AMPLE * need:
        return Finding(
            "disk", "warning", found, "that is close, and quotas are not seen here: lower run.keep, or make room"
        )
    return Finding("disk", "ok", found)
