"""Tests of writing to a hub: one commit, tags that never change what they mean, and one line for each refusal."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from excb.errors import UserError
from excb.zoo.publish import check_access
from tests.hub_client import client, publish, refused
from tests.hub_server import Hub


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with Hub(tmp_path_factory.mktemp("hub")) as started:
        yield started


@pytest.fixture(scope="module")
def process(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    with client(hub, tmp_path_factory.mktemp("client"), xet=False) as started:
        yield started


@pytest.fixture
def repo(request: pytest.FixtureRequest) -> str:
    return f"tester/{request.node.name.removeprefix('test_').replace('_', '-')[:60]}"


def make(folder: Path, **files: bytes) -> Path:
    """A folder with weights, config.json and what else is named; "__" stands for a folder's slash."""
    contents = {"model_safetensors": b"weights", "config_json": b"{}"} | files
    for name, content in contents.items():
        stem, _, kind = name.replace("__", "/").rpartition("_")
        file = folder / f"{stem}.{kind}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


def publish_with(environment: dict[str, str], *arguments: Any) -> str:
    with mock.patch.dict("os.environ", environment):
        return publish(*arguments)


def files_of(hub: Hub, repo: str, revision: str = "main") -> dict[str, int]:
    """Files that were pushed and their sizes."""
    stored = hub.repositories[repo]
    files = stored.commits[stored.resolve(revision)]
    return {path: file.size for path, file in files.items() if path != ".gitattributes"}


# ---------------------------------------------------------------------------------------------------------------------
# Commits and tags
# ---------------------------------------------------------------------------------------------------------------------


def test_folder_is_one_tagged_commit(hub: Hub, process: ProcessPoolExecutor, repo: str, tmp_path: Path) -> None:
    folder = make(tmp_path, README_md=b"# mine", results__knn_json=b"{ }")
    commit = process.submit(publish, folder, repo, tag="v1").result()
    stored = hub.repositories[repo]
    assert stored.tags == {"v1": commit}
    assert stored.refs == {"main": commit}
    assert len(stored.commits) == 2  # the first one is the hub's own
    assert files_of(hub, repo) == {"model.safetensors": 7, "config.json": 2, "README.md": 6, "results/knn.json": 3}
    weights = stored.commits[commit]["model.safetensors"]
    assert weights.large
    assert weights.oid == hashlib.sha256(b"weights").hexdigest()
    assert not stored.private


def test_next_revision_removes_what_it_lacks_and_nothing_of_others(
    hub: Hub, process: ProcessPoolExecutor, repo: str, tmp_path: Path
) -> None:
    first = make(tmp_path / "a", results__old_json=b"{}", excb_head_safetensors=b"heads", README_md=b"#")
    process.submit(publish, first, repo).result()
    stored = hub.repositories[repo]
    stored.commit(
        stored.commits[stored.refs["main"]] | {"figure.png": stored.commits[stored.refs["main"]]["README.md"]}
    )
    process.submit(publish, make(tmp_path / "b", results__new_json=b"{}"), repo, tag="v2").result()
    assert set(files_of(hub, repo, "v2")) == {"model.safetensors", "config.json", "results/new.json", "figure.png"}
    assert "results/old.json" in files_of(hub, repo, "v1")


def test_publishing_the_same_again_changes_nothing(
    hub: Hub, process: ProcessPoolExecutor, repo: str, tmp_path: Path
) -> None:
    folder = make(tmp_path, README_md=b"#")
    commit = process.submit(publish, folder, repo).result()
    first = len(hub.requests)
    assert process.submit(publish, folder, repo).result() == commit
    assert not any("/commit/" in line or "/tag/" in line for line in hub.requests[first:])
    assert process.submit(publish, folder, repo, tag="same").result() == commit  # another name of that revision
    assert hub.repositories[repo].tags == {"v1": commit, "same": commit}


@pytest.mark.parametrize("change", [{"model_safetensors": b"other"}, {"config_json": b"{ }"}, {"README_md": b"#"}])
def test_tag_with_other_content_stays(
    hub: Hub, process: ProcessPoolExecutor, repo: str, tmp_path: Path, change: dict[str, bytes]
) -> None:
    repo = f"tester/taken-{next(iter(change)).replace('_', '-')}"
    commit = process.submit(publish, make(tmp_path / "a"), repo).result()
    line = refused(process, publish, make(tmp_path / "b", **change), repo)
    assert line == f"{repo} has a tag v1 with other files: choose another --tag"
    assert hub.repositories[repo].tags == {"v1": commit}
    assert len(hub.repositories[repo].commits) == 2


def test_interrupted_before_the_tag_goes_on(hub: Hub, process: ProcessPoolExecutor, repo: str, tmp_path: Path) -> None:
    commit = process.submit(publish, make(tmp_path), repo).result()
    hub.repositories[repo].tags.clear()
    assert process.submit(publish, tmp_path, repo).result() == commit
    assert hub.repositories[repo].tags == {"v1": commit}


def test_private_means_private(hub: Hub, process: ProcessPoolExecutor, repo: str, tmp_path: Path) -> None:
    process.submit(publish, make(tmp_path), repo, private=True).result()
    assert hub.repositories[repo].private
    hub.repositories[repo].private = False
    line = refused(process, publish, tmp_path, repo, tag="v2", private=True)
    assert "exists and is public" in line
    assert "v2" not in hub.repositories[repo].tags


# ---------------------------------------------------------------------------------------------------------------------
# Refusals
# ---------------------------------------------------------------------------------------------------------------------


def test_somebody_else_at_the_same_time(hub: Hub, process: ProcessPoolExecutor, repo: str, tmp_path: Path) -> None:
    hub.overtaken = True
    try:
        line = refused(process, publish, make(tmp_path), repo)
    finally:
        hub.overtaken = False
    assert "it was changed at the same time" in line
    assert "run again" in line
    assert hub.repositories[repo].tags == {}
    process.submit(publish, tmp_path, repo).result()
    assert set(files_of(hub, repo)) == {"note.txt", "model.safetensors", "config.json"}


def test_no_right_to_write(process: ProcessPoolExecutor, tmp_path: Path) -> None:
    line = refused(process, publish, make(tmp_path), "somebody/else")
    assert "your token has no write access" in line
    assert "namespace 'somebody'" in line


def test_wrong_token(process: ProcessPoolExecutor, repo: str, tmp_path: Path) -> None:
    line = refused(process, publish_with, {"HF_TOKEN": "hf_wrong"}, make(tmp_path), repo)
    assert "does not accept your token" in line
    assert "HF_TOKEN" in line
    assert "hf_wrong" not in line


def test_card_that_the_hub_refuses(hub: Hub, process: ProcessPoolExecutor, repo: str, tmp_path: Path) -> None:
    line = refused(process, publish, make(tmp_path, README_md=b"---\n: [\n---\n"), repo)
    assert line.startswith(f"{repo}: Invalid metadata in README.md")
    assert hub.repositories[repo].tags == {}


def test_no_connection(process: ProcessPoolExecutor, repo: str, tmp_path: Path) -> None:
    line = refused(process, publish_with, {"EXCB_ENDPOINT": "http://127.0.0.1:9"}, make(tmp_path), repo)
    assert "the connection to http://127.0.0.1:9 failed" in line


# ---------------------------------------------------------------------------------------------------------------------
# Before any work
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_any")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")


@pytest.mark.parametrize(
    "repo", ["name", "a/b/c", "user/", "/name", "user/na me", "user/..", "../name", "user/a--b", ""]
)
def test_names_that_are_none(ready: None, repo: str) -> None:
    with pytest.raises(UserError, match="is not the name of a repository"):
        check_access(repo, None)


@pytest.mark.parametrize("tag", ["", "a b", "a/b", "..", "v1.", "-v1"])
def test_tags_that_are_none(ready: None, tag: str) -> None:
    with pytest.raises(UserError, match="is not the name of a revision"):
        check_access("user/name", tag)


def test_name_that_the_zoo_needs(ready: None) -> None:
    with pytest.raises(UserError, match="the zoo keeps something else"):
        check_access("user/downloads", None)


def test_good_names_pass(ready: None) -> None:
    check_access("user/name_1.0-b", "v0.1.0-step7")
    check_access("user-2/name", None)


def test_no_token(ready: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(UserError, match=r"needs a token: run `hf auth login`, or set HF_TOKEN"):
        check_access("user/name", None)


def test_offline(ready: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        check_access("user/name", None)
