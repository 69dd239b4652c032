"""A run at a URL: it works in a local folder, and a thread uploads what has changed after every checkpoint."""

import hashlib
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from excb.checkpoint import run_checkpoint
from excb.cli import local_path
from excb.errors import UserError
from excb.files import json_text
from excb.files.atomic import nearest_existing, write_text
from excb.files.foreign import read_bytes
from excb.files.run_files import OWNER
from excb.remote import byte_ranges
from excb.remote.home import cache_root
from excb.remote.object_store import ObjectStore, StoreError

MARK = ".kept-at"
FOLDERS = ("", "tensorboard", "diverged", "profile")  # uploaded besides checkpoints
FETCHED = ("", "tensorboard")  # those of them that a resumed run needs


class RunLocation(NamedTuple):
    """Where a run is."""

    folder: Path  # on this machine
    url: str | None = None  # where it is kept, if elsewhere

    def __str__(self) -> str:
        return self.url or os.fspath(self.folder)


def run_place(text: str) -> RunLocation:
    """A folder of this machine or a URL: an argument's type for argparse.

    Raises:
        UserError: it is empty.
    """
    if not byte_ranges.is_remote(text):
        return RunLocation(local_path(text))
    url = text.rstrip("/")
    name = f"{url.rpartition('/')[2]}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    return RunLocation(cache_root() / "runs" / name, url)


class Mirror:
    """Keeps the copy at a URL equal to the run folder. Only rank 0 uses it; a thread of its own uploads.

    Metrics are uploaded before the checkpoint of their step, so a remote checkpoint never lacks any. Older checkpoints
    are removed after a newer one was uploaded, and only those that this run has written.

    Args:
        folder: the run folder, locked.
        warn: called when an upload fails; the run continues.

    Raises:
        UserError: there is no such store.
    """

    def __init__(self, url: str, folder: Path, warn: Callable[[str], None]) -> None:
        self.url, self._folder, self._warn = url, folder, warn
        self._store = ObjectStore(url)
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of what was uploaded
        self._token, self._successor = uuid.uuid4().hex, ""
        self._thread = ThreadPoolExecutor(1, "mirror")
        self._latest: Future[str] | None = None
        self._claimed: list[str] = []  # files that `claim` wrote where the URL had none

    def text(self, name: str) -> str | None:
        """The text of a file that every run has, or None if there is no run at the URL.

        Raises:
            UserError: it cannot be read, or a run that was there is gone.
        """
        try:
            text = self._store.read(name)
        except StoreError as error:
            raise UserError(f"{error}: check the name, and your access to it") from None
        if text is None and (self._folder / MARK).is_file():
            raise UserError(
                f"the run at {self.url} is gone, its copy is still in {self._folder}: move that folder away to start "
                "a new run, or choose another --out"
            )
        return None if text is None else text.decode("utf-8", "replace")

    @contextmanager
    def received(self) -> Iterator[Path]:
        """A folder for the block that holds what `receive` would leave in the run folder, which stays as it is."""
        with TemporaryDirectory(prefix=".received-", dir=nearest_existing(self._folder.parent)) as temporary:
            for name in ("", run_checkpoint.FOLDER):
                folder = Path(temporary) / name
                folder.mkdir(exist_ok=True)
                for file in (self._folder / name).glob("*"):
                    if file.is_file():  # downloads replace the links
                        (folder / file.name).symlink_to(file.absolute())
            self.receive(Path(temporary))
            yield Path(temporary)

    def receive(self, folder: Path | None = None) -> None:
        """Download the checkpoints that are missing locally and, if the newest is among them, the other files too.

        Args:
            folder: where to; by default the run folder.

        Raises:
            UserError: something cannot be read.
        """
        here = folder or self._folder
        try:
            stored = self._store.sizes(run_checkpoint.FOLDER)
            remote = {_checkpoint(name): size for name, size in stored.items() if run_checkpoint.is_name(name)}
            newest = max((run_checkpoint.step_of(Path(name)) for name in remote), default=-1)
            local = max(map(run_checkpoint.step_of, run_checkpoint.in_run(here)), default=-1)
            if newest > local:
                names = [f"{part}/{name}".lstrip("/") for part in FETCHED for name in self._store.sizes(part)]
                for name in names:
                    if name != OWNER:
                        self._store.fetch(name, here / name)
            for name, size in remote.items():
                file = here / name
                if not file.is_file() or file.stat().st_size != size:
                    self._store.fetch(name, file)
                self._sent[name] = _stamp(file)
        except StoreError as error:
            raise UserError(f"{error}: check your access to it, then start again") from None

    def claim(self, name: str, *, new: bool) -> None:
        """Write there that this process owns the run from now on, and upload the file that every run has.

        Args:
            name: of the file.
            new: the URL has no such file yet.

        Raises:
            UserError: it cannot be written.
        """
        me = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "since": datetime.now(UTC).isoformat("T", "seconds"),
        }
        try:
            if (owner := self._owner()) and owner["host"] != me["host"]:
                self._warn(
                    f"process {owner['process']} on {owner['host']} has not left {self.url} (since {owner['since']}): "
                    "if it still runs, it stops at its next checkpoint"
                )
            self._claimed = [name, OWNER] if new else [OWNER]
            self._store.write(json.dumps(me | {"token": self._token}).encode(), OWNER)
            for folder in (*FOLDERS, run_checkpoint.FOLDER):
                self._store.sweep(folder)
            self._store.write(read_bytes(self._folder / name), name)
            write_text(f"{self.url}\n", self._folder / MARK)
        except (StoreError, OSError) as error:
            raise UserError(f"{error}: check the name, and your access to it") from None

    def _owner(self) -> dict[str, str] | None:
        text = self._store.read(OWNER)
        try:
            owner = {name: str(value) for name, value in json_text.parse(text or b"null").items()}
        except (ValueError, AttributeError):
            return None
        return owner if owner.keys() >= {"host", "process", "since", "token"} else None

    def changed(self) -> None:
        """Have the thread upload what has changed; requests that wait are merged into one.

        Raises:
            UserError: another process owns the run at the URL now.
        """
        if self._successor:
            raise UserError(f"{self._successor} has taken over the run at {self.url}: this one stops")
        if self._latest is None or self._latest.running() or self._latest.done():
            self._latest = self._thread.submit(self._send)

    def flush(self) -> str:
        """Wait until everything is uploaded; return why something is not, or an empty string."""
        return self._thread.submit(self._send).result()

    def finish(self) -> None:
        """Wait until everything is uploaded, and give up the ownership.

        Raises:
            UserError: something could not be uploaded.
        """
        problem = self.flush()
        if self._successor:
            raise UserError(f"{self._successor} has taken over the run at {self.url}: this one is in {self._folder}")
        if problem:
            raise UserError(
                f"the run is complete in {self._folder}, but not at {self.url} ({problem}): repeat the command on this "
                "machine to upload the rest"
            )
        try:
            self._store.remove(OWNER)
        except StoreError as error:
            self._warn(str(error))

    def abandon(self) -> None:
        """Remove what `claim` has written, as far as that is possible and no other process owns the run."""
        if not self._claimed:
            return
        with suppress(StoreError):
            if (owner := self._owner()) is not None and owner["token"] == self._token:
                for name in self._claimed:
                    self._store.remove(name)

    def close(self) -> None:
        """End the thread after the uploads it was asked for."""
        self._thread.shutdown()

    def _send(self) -> str:
        """Upload what has changed, small files before checkpoints; return why that failed, or an empty string."""
        try:
            owner = self._owner()
            if owner is not None and owner["token"] != self._token:
                self._successor = f"process {owner['process']} on {owner['host']}"
                return self._successor
            # Listed before metrics are read, which are then as new or newer.
            checkpoints = run_checkpoint.in_run(self._folder)
            for file in (file for folder in FOLDERS for file in sorted((self._folder / folder).glob("*"))):
                self._send_file(file)
            for file in checkpoints:
                self._send_file(file)
            for name in list(self._sent):
                if name.startswith(_checkpoint("")) and not (self._folder / name).exists():
                    self._store.remove(name)
                    del self._sent[name]
        except (StoreError, OSError) as error:
            self._warn(f"{error}; the run continues in {self._folder} and tries again at the next checkpoint")
            return str(error)
        return ""

    def _send_file(self, file: Path) -> None:
        """Upload a file unless it is unchanged, hidden, or gone meanwhile."""
        name = file.relative_to(self._folder).as_posix()
        try:
            if file.name.startswith(".") or not file.is_file() or self._sent.get(name) == (stamp := _stamp(file)):
                return
            if file.suffix == ".pt":
                self._store.put(file, name)
            else:
                self._store.write(read_bytes(file), name)  # read at once, because the run keeps appending to it
        except (FileNotFoundError, StoreError):
            if file.exists():
                raise
            return
        self._sent[name] = stamp


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _checkpoint(name: str) -> str:
    return f"{run_checkpoint.FOLDER}/{name}"
