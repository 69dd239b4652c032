"""The run folder: access, locks, clock and free space; and the object store that a run is kept in."""

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
from excb.console import plural
from excb.errors import UserError
from excb.files.atomic import nearest_existing
from excb.files.run_files import RECIPE
from excb.remote.object_store import ObjectStore, StoreError

from ..run.run_folder import LOCK
from .finding import Finding, size

CLOCK = 5.0  # seconds of tolerated clock difference to a file server
AMPLE = 2  # times the space that checkpoints need; less is worth a warning


def check_folder(run: Path, refuse: Callable[[], None] = lambda: None) -> list[Finding]:
    """Check that a run can write here. Nothing is left behind, and the folder itself is not created.

    The folder may not exist yet. `refuse` raises UserError where the run would refuse it, though it can be written.
    """
    home = nearest_existing(run)
    if home.is_file():
        return [Finding("run folder", "error", f"{home} is a file", "choose another --out")]
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=home) as trial:
            behind, state = _exercise(Path(trial)), _state(run, refuse)
    except OSError as error:
        found = f"cannot write in {home}: {error.strerror or error}"
        return [Finding("run folder", "error", found, "choose another --out")]
    return [state, _clock(behind)]


def _exercise(folder: Path) -> float:
    """Write, flush, lock and rename as a run does; return the seconds that the disk's clock is behind ours."""
    file = folder / "written"
    with file.open("wb") as stream:
        stream.write(b"excb")
        stream.flush()
        os.fsync(stream.fileno())
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    now = time.time()
    file.replace(folder / "renamed")
    return now - (folder / "renamed").stat().st_mtime


def _state(run: Path, refuse: Callable[[], None]) -> Finding:
    """Whether the folder is locked by a process, holds another run, or holds a run to resume."""
    lock = run / LOCK
    with contextlib.suppress(FileNotFoundError), lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            found = f"another process is training in {run}"
            return Finding("run folder", "error", found, "wait for it, or choose another --out")
    try:
        refuse()
    except UserError as error:
        problem, _, fix = str(error).rpartition(": ")
        return Finding("run folder", "error", problem, fix)
    if (run / RECIPE).is_file():
        return Finding("run folder", "ok", f"{run} holds a run, which the same command resumes")
    return Finding("run folder", "ok", f"{run} can be written")


def check_store(url: str) -> Finding:
    """Check that a run can be kept at a URL: write, read and remove a file there."""
    name, content = f"doctor-{uuid.uuid4().hex}", b"excb"
    start = time.monotonic()
    try:
        store = ObjectStore(url)
        store.write(content, name)
        back = store.read(name)
        store.remove(name)
    except (StoreError, UserError) as error:
        return Finding("object store", "error", str(error), "check the name, and your access to it")
    if back != content:
        return Finding("object store", "error", f"{url} returned other bytes than were written", "use another store")
    return Finding("object store", "ok", f"write, read and remove at {url} took {time.monotonic() - start:.1f} s")


def _clock(behind: float) -> Finding:
    if abs(behind) > CLOCK:
        return Finding(
            "clock",
            "warning",
            f"the run folder's disk is {abs(behind):.0f} s {'behind' if behind > 0 else 'ahead of'} this machine",
            "set both clocks by NTP, or times in logs and results will disagree",
        )
    return Finding("clock", "ok", "the clocks of the run folder's disk and of this machine agree")


def check_space(run: Path, checkpoint: int, keep: int) -> Finding:
    """Check that the disk has room for checkpoints of `checkpoint` bytes: the newest `keep`, the best and a new one."""
    parent = nearest_existing(run)
    used = sum(file.stat().st_size for file in in_run(run))
    need, free = max(0, (keep + 2) * checkpoint - used), shutil.disk_usage(parent).free
    found = f"{size(free)} free; {plural(keep + 2, 'checkpoint')} of up to {size(checkpoint)} need {size(need)} more"
    if os.statvfs(parent).f_files and os.statvfs(parent).f_favail < 1000:
        return Finding("disk", "error", f"the disk of {parent} has no free inodes", "remove small files")
    if free < need:
        return Finding("disk", "error", found, f"free {size(need - free)}, lower run.keep, or choose another --out")
    if free < AMPLE * need:
        fix = "this is close, and quotas are not visible here: lower run.keep, or free space"
        return Finding("disk", "warning", found, fix)
    return Finding("disk", "ok", found)
