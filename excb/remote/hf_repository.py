"""Repositories of the Hugging Face Hub, fetched through its client, with one clear message for every failure."""

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.console import Progressor, Reporter
from excb.errors import NO_ROOM, UserError, one_line, require
from excb.remote.download import MB, TIMEOUT, check_room
from excb.remote.hashes import WRONG, Published, hashes_of, verify_hash
from excb.remote.home import expanded

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import ModelInfo

HUB = "https://huggingface.co"
WEIGHTS = "model.safetensors"
REQUIRED = ("config.json", WEIGHTS)
PROCESSOR = "preprocessor_config.json"  # of transformers
FILES = [*REQUIRED, PROCESSOR, "excb_head.safetensors", "selftest.safetensors", "README.md", "results/*.json"]
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


def offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def endpoint() -> str | None:
    """The hub, if not huggingface.co: EXCB_ENDPOINT, else HF_ENDPOINT. Raises UserError if that is not an address."""
    for variable in ("EXCB_ENDPOINT", "HF_ENDPOINT"):
        if address := os.environ.get(variable):
            if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", address):
                raise UserError(f"{variable} is '{address}': write an address such as {HUB}")
            return address.rstrip("/")
    return None


def fetch_repo(repo: str, revision: str | None, *, reporter: Reporter, terms: str = "") -> Path:
    """A folder with a repository's config.json, model.safetensors and its other files that we know.

    It is in the cache of huggingface_hub's client, and also serves if the hub cannot be reached.

    Args:
        repo: "user/name".
        revision: branch, tag or commit; the main branch if None.
        reporter: shows progress, and warns if the hub cannot be reached.
        terms: what a download agrees to, shown before it starts.

    Raises:
        UserError: no such repository, revision or file, no right to read it, neither network nor a cached copy, no
            room, or weights with another hash than the hub's.
    """
    where = f"hf-hub:{repo}@{revision}" if revision else f"hf-hub:{repo}"
    revision = revision or "main"
    if not _is_repository(repo) or not _REVISION.fullmatch(revision) or ".." in where:
        raise UserError(f"{where!r} names no repository: write hf-hub:user/name or hf-hub:user/name@revision")
    with _quiet_client():
        listing, failure = _listing(repo, revision, where)
        if listing is None:
            folder = _cached(repo, revision, failure or f"{where} is not here yet and HF_HUB_OFFLINE is set: unset it")
            if failure:
                reporter.warn(f"{failure}: using the copy in {folder}")
        else:
            folder = _snapshot(repo, revision, where, listing, reporter, terms=terms)
    for name in REQUIRED:
        require((folder / name).is_file(), f"{where}: {name} is missing in {folder}: fetch it again, with a network")
    _verify_weights(folder, f"hf-hub:{repo}@{folder.name}/{WEIGHTS}", listing, where, reporter)
    return folder


def kept_copy(repo: str, reporter: Reporter) -> Path | None:
    """The cached weights of a repository if the client's hub cannot be reached, or None if the client can fetch them.

    The hub is asked once. The client itself would retry for most of a minute before it takes a copy.

    Args:
        repo: "user/name", at the hub that HF_ENDPOINT names or else huggingface.co.
        reporter: says that a copy is used.

    Raises:
        UserError: the hub cannot be reached, and there is no copy.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    if offline():
        return None
    try:
        HfApi().model_info(repo, timeout=TIMEOUT)
    except HfHubHTTPError:  # an answer
        return None
    except _client_errors() as error:
        failure = _no_connection(error, f"hf-hub:{repo}", os.environ.get("HF_ENDPOINT") or HUB)
    else:
        return None
    copy, old = (try_to_load_from_cache(repo, name, _cache()) for name in (WEIGHTS, "pytorch_model.bin"))
    if isinstance(copy, str):
        reporter.warn(f"{failure}: using the copy at {copy}")
        return Path(copy)
    require(isinstance(old, str), failure)
    return None


def _is_repository(repo: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError:
        return False
    return "/" in repo and repo.isprintable()  # older clients accept a line break at the end


def _listing(repo: str, revision: str, where: str) -> tuple["ModelInfo | None", str | None]:
    """The hub's list of a repository's files, or None and why there is none."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionNotFoundError

    if offline():
        return None, None
    try:
        info = HfApi(endpoint=endpoint()).model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT)
    except RevisionNotFoundError as error:
        raise UserError(_reason(error, repo, where)) from None
    except _client_errors() as error:
        return None, _reason(error, repo, where)
    names = [entry.rfilename for entry in info.siblings or []]
    for name in REQUIRED:
        require(name in names, f"{where} has no {name}: it is not a checkpoint that can be loaded")
    return info, None


def _cached(repo: str, revision: str, failure: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(repo, revision=revision, cache_dir=_cache(), local_files_only=True, allow_patterns=FILES)
        )
    except LocalEntryNotFoundError:
        raise UserError(failure) from None


def _snapshot(repo: str, revision: str, where: str, listing: "ModelInfo", reporter: Reporter, *, terms: str) -> Path:
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    cache = _cache()
    try:
        sizes = [  # the client refuses names that lead outside its folder
            entry.size or 0
            for entry in listing.siblings or []
            if any(fnmatch(entry.rfilename, pattern) for pattern in FILES)
            and not isinstance(try_to_load_from_cache(repo, entry.rfilename, cache, listing.sha), str)
        ]
        cache.mkdir(parents=True, exist_ok=True)
        check_room(cache, sum(sizes))
        if terms and sizes:
            reporter.note(terms)
        shown = reporter if sum(sizes) >= MB else Reporter(quiet=True)
        with shown.progress(f"{where}, MB", sum(sizes) // MB) as progress:
            folder = snapshot_download(
                repo,
                revision=revision,
                cache_dir=cache,
                endpoint=endpoint(),
                allow_patterns=FILES,
                max_workers=1,
                tqdm_class=_bars(progress),
            )
            return Path(folder)
    except _client_errors() as error:
        raise UserError(_reason(error, repo, where)) from None


def _verify_weights(folder: Path, source: str, listing: "ModelInfo | None", where: str, reporter: Reporter) -> None:
    published = None
    if listing is not None and listing.sha == folder.name:
        hashes = [entry.lfs.sha256 for entry in listing.siblings or [] if entry.rfilename == WEIGHTS and entry.lfs]
        published = Published("sha256", str(hashes[0])) if hashes else None
    file = (link := folder / WEIGHTS).resolve()
    aside = file.with_name(file.name + WRONG)
    try:
        verify_hash(
            file, hashes_of(file, ["sha256"]), published, source=source, aside=aside, reporter=reporter, name=where
        )
    except UserError:
        if not link.exists():
            link.unlink(missing_ok=True)  # it leads to nothing now
        raise


def _cache() -> Path:
    """The client's cache. The client reads the environment once at its import, we at each call."""
    data = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    hub = os.environ.get("HF_HOME") or f"{data}/huggingface"
    return expanded(os.path.expandvars(os.environ.get("HF_HUB_CACHE") or f"{hub}/hub"), "HF_HUB_CACHE")


def _bars(progress: Progressor) -> Any:
    """A class for the client's progress bars that draws nothing, and advances ours as bytes reach the disk."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bars(tqdm):
        def __init__(self, *args: Any, **settings: Any) -> None:
            self._bytes = 0
            self._counts = str(settings.get("desc")).startswith("Reconstruct")  # its others count requests, or files
            super().__init__(*args, **settings | {"disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            before = self._bytes
            self._bytes += int(n or 0)
            progress.advance(self._bytes // MB - before // MB if self._counts else 0)

    return Bars


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Silence the client's warnings: what matters of them is in the error's message."""
    from huggingface_hub.utils import logging as client_logging

    level = client_logging.get_verbosity()
    client_logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Not enough free disk space")  # `check_room` reports it
            yield
    finally:
        client_logging.set_verbosity(level)


def _client_errors() -> tuple[type[Exception], ...]:
    """The client's errors, including those of its HTTP library, of its Xet transfers, and for invalid answers."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # whichever library it is

    return (HTTPError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def _reason(error: BaseException, repo: str, where: str) -> str:
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # without an answer the client had looked for a copy
    if isinstance(error, HfHubHTTPError):
        return f"{where} {_answer(error, repo)}"
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return f"{where}: the disk is full at {_cache()} ({error.strerror}): make room, or name a folder in HF_HOME"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{where}: cannot write {_cache()} ({error}): name a folder elsewhere in HF_HOME"
    return _no_connection(error, where, endpoint() or HUB)


def _no_connection(error: BaseException, where: str, hub: str) -> str:
    return f"{where}: no connection to {hub}, or a broken one ({one_line(error)}): check the network and run again"


def _answer(error: "HfHubHTTPError", repo: str) -> str:
    from huggingface_hub import errors

    hub, status = endpoint() or HUB, error.response.status_code
    if isinstance(error, errors.GatedRepoError):
        return f"is gated: ask for access at {hub}/{repo}, then set HF_TOKEN to your token"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"does not exist: {hub}/{repo} shows the revisions that do"
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        return f"does not exist at {hub} or is private: check the name, or set HF_TOKEN to a token that may read it"
    if isinstance(error, errors.EntryNotFoundError):
        return f"lacks a file that it lists ({error.response.url}): name another revision"
    return f"cannot be fetched: {hub} answers {status}: try again later, or set HF_TOKEN to a token that may read it"
