"""Fetching a checkpoint's file from any address: verified, kept, and usable again without a network."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from excb.console import Reporter
from excb.errors import UserError
from excb.remote.download import by_hand, direct, download
from excb.remote.hashes import WRONG, hashes_of, parse, verify
from excb.remote.hf_repository import endpoint, fetch_repo, offline
from excb.remote.home import DOWNLOADS, VARIABLE, home

__all__ = ["direct", "endpoint", "fetch_repo", "fetch_url", "offline"]  # everything about fetching from one module


def fetch_url(url: str, *, digest: str | None, reporter: Reporter, name: str) -> Path:
    """The file at an address: downloaded at the first call, verified at every one.

    Where no hash is published, that of the first download is recorded, and counts from then on. Several processes may
    ask for one file at once: one of them downloads it.

    Args:
        url: https address, or share link of Google Drive or Dropbox; http only of this machine's own servers.
        digest: published, "sha256:HEX" or "md5:HEX"; fewer digits than a whole hash has are its beginning.
        reporter: shows progress, waiting, and a hash that is recorded.
        name: of the checkpoint, for messages.

    Raises:
        UserError: the file cannot be fetched or written, or its hash is wrong; it is then kept aside.
    """
    published = None if digest is None else parse(digest)
    algorithms = {"sha256", published.algorithm if published else "sha256"}
    folder, key = home() / DOWNLOADS, hashlib.sha256(url.encode(errors="surrogatepass")).hexdigest()[:16]

    def verified(file: Path, hashes: dict[str, str], aside: Path) -> None:
        verify(file, hashes, published, source=url, aside=aside, reporter=reporter, name=name)

    file = _finished(folder, key)
    if file is None:
        if offline():
            raise UserError(f"{name}: {url} is not here yet and HF_HUB_OFFLINE is set: unset it, or {by_hand(name)}")
        with _alone(folder / f"{key}.lock", reporter, name):
            file = _finished(folder, key)  # another process may have brought it meanwhile
            if file is None:
                part = folder / f"{key}.part"
                said, hashes = download(url, part, algorithms=algorithms, reporter=reporter, name=name)
                file = folder / f"{key}-{said}"
                part.with_suffix(".json").unlink()  # nothing to resume
                verified(part, hashes, aside=file.with_name(file.name + WRONG))
                part.replace(file)  # `download` has flushed it: resumable parts are no work of `files.atomic`
                return file
    verified(file, hashes_of(file, algorithms), aside=file.with_name(file.name + WRONG))
    return file


def _finished(folder: Path, key: str) -> Path | None:
    """What an earlier download ended with: a file has this name only once it is whole and verified."""
    return next((file for file in sorted(folder.glob(f"{key}-*")) if file.suffix != WRONG), None)


@contextmanager
def _alone(lock: Path, reporter: Reporter, name: str) -> Iterator[None]:
    """Hold a lock, which goes with its process however that ends."""
    from filelock import FileLock, Timeout

    held = FileLock(lock)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            held.acquire(timeout=0)
        except Timeout:
            reporter.note(f"{name}: another process is fetching it, waiting for that")
            held.acquire()
    except OSError as error:
        raise UserError(f"cannot write {lock} ({error}): name a folder elsewhere in {VARIABLE}") from None
    try:
        yield
    finally:
        held.release()
