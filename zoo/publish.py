"""Writing to the Hugging Face Hub through its client: a folder in one tagged commit, one message per failure."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from excb.checkpoint.exported import EVAL_RESULTS
from excb.errors import UserError, one_line
from excb.files.foreign import read_bytes
from excb.remote.hashes import hashes_of
from excb.remote.hf_repository import FILES, HUB, endpoint, offline
from excb.remote.home import folder_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

_OURS = (*FILES, f"{EVAL_RESULTS}/*.yaml")  # what an export of ours has in a repository
_NAME = re.compile(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*")  # valid for git, the hub and our catalogue


def check_access(repo: str, tag: str | None) -> None:
    """Refuse what cannot be published, before any work.

    Raises:
        UserError: an invalid name of the repository or of the tag, no token, or HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import get_token

    owner, _, name = repo.partition("/")
    if not (_NAME.fullmatch(owner) and _NAME.fullmatch(name)) or len(repo) > 96:
        raise UserError(
            f"'{repo}' is not the name of a repository: write user/name, with letters, digits, '.', '_' and '-'"
        )
    folder_of(name)  # its name on this machine
    if tag is not None and not _NAME.fullmatch(tag):
        raise UserError(f"'{tag}' is not the name of a revision: use letters, digits, '.', '_' and '-'")
    if offline():
        raise UserError("publishing needs the network: unset HF_HUB_OFFLINE")
    if not get_token():
        raise UserError("publishing needs a token: run `hf auth login`, or set HF_TOKEN to a token with write access")


def publish(folder: Path, repo: str, *, tag: str, private: bool, message: str) -> str:
    """Upload a folder's files in one commit, which also removes files of an earlier export, and tag it.

    Args:
        folder: with the files to upload, and nothing else.
        repo: "user/name"; created if it does not exist.
        tag: name of the revision. A tag with the same files is left unchanged.
        private: for a repository that is created.
        message: of the commit.

    Returns:
        The commit.

    Raises:
        UserError: the tag exists with other files, the repository is public but should be private, no write access,
            a concurrent write, or no connection.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    with _user_errors(repo):
        api = HfApi(endpoint=endpoint())
        api.create_repo(repo, private=private, exist_ok=True)
        refs = api.list_repo_refs(repo)
        tagged = next((ref.target_commit for ref in refs.tags if ref.name == tag), None)
        if tagged is not None:
            if _content(api, repo, tagged) != {path: _git_or_sha256(file) for path, file in files.items()}:
                raise UserError(f"{repo} has a tag {tag} with other files: choose another --tag")
            return tagged
        info = api.model_info(repo)
        if private and not info.private:
            raise UserError(f"{repo} exists and is public: name another one, or leave --private out")
        head = info.sha
        there = [path for path in api.list_repo_files(repo, revision=head) if any(fnmatch(path, own) for own in _OURS)]
        done = api.create_commit(
            repo,
            [
                *(CommitOperationAdd(path, str(file)) for path, file in files.items()),
                *(CommitOperationDelete(path) for path in there if path not in files),
            ],
            commit_message=message,
            parent_commit=head,
        )
        api.create_tag(repo, tag=tag, revision=done.oid)
    return str(done.oid)


def _content(api: "HfApi", repo: str, revision: str) -> dict[str, str]:
    """Hashes of our files in a repository, as `_git_or_sha256` returns them."""
    from huggingface_hub.hf_api import RepoFile

    return {
        entry.path: f"sha256:{entry.lfs.sha256}" if entry.lfs else f"git:{entry.blob_id}"
        for entry in api.list_repo_tree(repo, revision=revision, recursive=True)
        if isinstance(entry, RepoFile) and any(fnmatch(entry.path, own) for own in _OURS)
    }


def _git_or_sha256(file: Path) -> str:
    """Git's hash of a small file, sha256 of tensors: how the hub identifies a file."""
    if file.suffix == ".safetensors":
        return f"sha256:{hashes_of(file, ['sha256'])['sha256']}"
    content = read_bytes(file)
    blob = b"blob %d\0%s" % (len(content), content)
    return f"git:{hashlib.sha1(blob, usedforsecurity=False).hexdigest()}"


@contextmanager
def _user_errors(repo: str) -> Iterator[None]:
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]  # whichever library it is

    try:
        yield
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        cause: BaseException = error
        while isinstance(cause, RuntimeError) and cause.__cause__ is not None:
            cause = cause.__cause__  # "Error while uploading FILE", raised from the reason
        if isinstance(cause, HfHubHTTPError):
            raise UserError(f"{repo}: {_answer(cause)}") from None
        if isinstance(cause, ValueError):  # the client's own checks
            raise UserError(f"{repo}: {one_line(cause)}") from None
        where = endpoint() or HUB
        raise UserError(f"{repo}: the connection to {where} failed ({one_line(cause)}): run again") from None


def _answer(error: "HfHubHTTPError") -> str:
    status, text = error.response.status_code, " ".join((error.server_message or "").split())
    hub, because = endpoint() or HUB, f" ({text})" if text else ""
    if status == 401:
        return (
            f"{hub} does not accept your token{because}: run `hf auth login`, or set HF_TOKEN to one with write access"
        )
    if status == 403:
        return f"your token has no write access{because}: publish under your own name, or set HF_TOKEN to another"
    if status in (409, 412):
        return f"it was changed at the same time{because}: run again"
    return f"{hub} returned {status}{because}"
