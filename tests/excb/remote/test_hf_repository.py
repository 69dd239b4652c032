"""Tests of fetching repositories: what the hub's client raises becomes one line; copies serve with no network."""

import errno
import hashlib
import importlib
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from huggingface_hub import errors
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]
from safetensors.torch import save_file
from torch import nn

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.remote.hf_repository import FILES, endpoint, fetch_repo, kept_copy, offline
from excb.remote.home import recorded

# The client's own HTTP library, httpx or httpx2: which one depends on its version.
HTTP = importlib.import_module(type(huggingface_hub.get_session()).__module__.partition(".")[0])

SHA = "5" * 40
WEIGHTS = b"weights" * 100
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
SOURCE = f"hf-hub:user/net@{SHA}/model.safetensors"
CONTENTS = {"config.json": b"{}", "model.safetensors": WEIGHTS, "README.md": b"card"}


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the machine, an empty cache and zoo, and no way to a real hub."""
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "EXCB_ENDPOINT", "HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))


def listing(sha256: str | None = SHA256, names: dict[str, bytes] | None = None) -> ModelInfo:
    siblings: list[dict[str, Any]] = []
    for name, content in (CONTENTS if names is None else names).items():
        siblings.append({"rfilename": name, "size": len(content)})
        if name == "model.safetensors" and sha256 is not None:
            siblings[-1]["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 134}
    return ModelInfo(id="user/net", sha=SHA, siblings=siblings)  # type: ignore[no-untyped-call]


class Client:
    """Stands in the place of the client's two functions: what they raise or return, and what they were asked."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.listing: ModelInfo | Exception = listing()
        self.trouble: Exception | None = None
        self.contents = dict(CONTENTS)
        self.asked: list[dict[str, Any]] = []

    @property
    def folder(self) -> Path:
        return self.cache / "models--user--net" / "snapshots" / SHA

    def keep(self) -> None:
        """Put the files where the client has them: links to their contents."""
        blobs = self.folder.parents[1] / "blobs"
        for folder in (blobs, self.folder):
            folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents.items():
            (blobs / name).write_bytes(content)
            (self.folder / name).unlink(missing_ok=True)
            (self.folder / name).symlink_to(f"../../blobs/{name}")

    def model_info(self, _repo: str, **options: Any) -> ModelInfo:
        self.asked.append(options)
        if isinstance(self.listing, Exception):
            raise self.listing
        return self.listing

    def snapshot_download(self, _repo: str, *, local_files_only: bool = False, **options: Any) -> str:
        self.asked.append(options)
        if local_files_only:
            if not self.folder.exists():
                raise errors.LocalEntryNotFoundError("Cannot find an appropriate cached snapshot folder")
        elif self.trouble is not None:
            raise self.trouble
        else:
            self.keep()
        return str(self.folder)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    stand_in = Client(tmp_path / "hf" / "hub")
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda _api, *args, **opts: stand_in.model_info(*args, **opts)
    )
    monkeypatch.setattr(huggingface_hub, "snapshot_download", stand_in.snapshot_download)
    return stand_in


def answer(kind: Callable[..., Exception], status: int) -> Exception:
    request = HTTP.Request("GET", "https://huggingface.co/api/models/user/net")
    return kind(f"{status} Client Error\n\nfor url", response=HTTP.Response(status, request=request))


def fetch(revision: str | None = "v1") -> Path:
    return fetch_repo("user/net", revision, reporter=Reporter())


def line(revision: str | None = "v1") -> str:
    """The one line of a fetch that must fail."""
    with pytest.raises(UserError) as caught:
        fetch(revision)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# What is asked
# ---------------------------------------------------------------------------------------------------------------------


def test_repository_is_fetched_and_its_weights_verified(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCB_ENDPOINT", "https://mirror.example/")
    folder = fetch()
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert recorded(SOURCE) == SHA256
    info, snapshot = client.asked
    assert info["revision"] == snapshot["revision"] == "v1"
    assert snapshot["endpoint"] == "https://mirror.example"
    assert snapshot["cache_dir"] == client.cache
    assert snapshot["allow_patterns"] == FILES


def test_terms_are_told_before_a_download_and_not_again(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):
        fetch_repo("user/net", None, reporter=Reporter(), terms="read these first")
        told.append("read these first" in capsys.readouterr().err)
    assert told == [True, False]


def test_files_that_are_asked_for(tmp_path: Path) -> None:
    wanted = ["config.json", "model.safetensors", "excb_head.safetensors", "selftest.safetensors", "results/knn.json"]
    others = [
        "pytorch_model.bin",
        "results/knn.npz",
        "model.safetensors.index.json",
        "onnx/config.json",
        ".gitattributes",
    ]
    chosen = list(filter_repo_objects([*wanted, *others], allow_patterns=FILES))
    assert chosen == wanted


@pytest.mark.parametrize(
    "repo",
    [
        "net",
        "",
        "a/b/c",
        "../net",
        "user/..",
        "user/a..b",
        "/user/net",
        "user/net/",
        "https://x/y",
        "u ser/net",
        "user/net\n",
        "-a/b",
        "user/a--b",
    ],
)
def test_names_that_are_no_repository_are_refused(repo: str, client: Client) -> None:
    with pytest.raises(UserError, match=r"write hf-hub:user/name"):
        fetch_repo(repo, None, reporter=Reporter())
    assert client.asked == []


@pytest.mark.parametrize("revision", ["../../../etc", "a/../../b", "a b", "/main", "-x", "a\n"])
def test_hostile_revisions_are_refused(revision: str, client: Client) -> None:
    assert "names no repository" in line(revision)
    assert client.asked == []


@pytest.mark.parametrize("revision", [None, "main", "v1.0", SHA, "refs/pr/1"])
def test_plain_revisions_are_taken(revision: str | None, client: Client) -> None:
    assert fetch(revision) == client.folder


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"HF_ENDPOINT": "https://a.example"}, "https://a.example"),
        ({"HF_ENDPOINT": "https://a.example", "EXCB_ENDPOINT": "http://127.0.0.1:80/"}, "http://127.0.0.1:80"),
        ({"HF_ENDPOINT": "https://a.example/hub", "EXCB_ENDPOINT": ""}, "https://a.example/hub"),
    ],
)
def test_endpoint_is_what_the_environment_says(
    variables: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert endpoint() == expected


@pytest.mark.parametrize("address", ["a.example", "ftp://a.example", "https://", "https://a b"])
def test_endpoint_that_is_no_address_is_refused(address: str, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCB_ENDPOINT", address)
    assert line() == f"EXCB_ENDPOINT is '{address}': write an address such as https://huggingface.co"


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("true", True), ("ON", True), ("0", False), ("", False)])
def test_offline_is_what_the_environment_says(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert offline() is expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HF_HOME": "/hf"}, "/hf/hub"),
        ({"HF_HOME": "/hf", "HF_HUB_CACHE": "/cache"}, "/cache"),
        ({"HF_HOME": "", "XDG_CACHE_HOME": "/xdg"}, "/xdg/huggingface/hub"),
        ({"HF_HOME": "", "XDG_CACHE_HOME": "", "HOME": "/users/me"}, "/users/me/.cache/huggingface/hub"),
    ],
)
def test_cache_is_the_clients(
    variables: dict[str, str], expected: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (variables | {"HF_HUB_OFFLINE": "1"}).items():
        monkeypatch.setenv(name, value)
    line()
    assert client.asked[-1]["cache_dir"] == Path(expected)


# ---------------------------------------------------------------------------------------------------------------------
# What goes wrong
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        (
            errors.RepositoryNotFoundError,
            404,
            "hf-hub:user/net@v1 does not exist at https://huggingface.co or is private",
        ),
        (errors.HfHubHTTPError, 401, "does not exist at https://huggingface.co or is private"),
        (errors.GatedRepoError, 403, "is gated: ask for access at https://huggingface.co/user/net"),
        (errors.RevisionNotFoundError, 404, "hf-hub:user/net@v1 does not exist: https://huggingface.co/user/net shows"),
        (errors.DisabledRepoError, 403, "answers 403"),
        (errors.HfHubHTTPError, 500, "answers 500: try again later"),
    ],
)
def test_refusal_of_the_hub_is_one_line(kind: Callable[..., Exception], status: int, said: str, client: Client) -> None:
    client.listing = answer(kind, status)
    assert said in line()
    assert not client.folder.exists()


TROUBLES = [
    (HTTP.ConnectError("[Errno -2] Name or service not known"), "no connection to https://huggingface.co"),
    (HTTP.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"), "CERTIFICATE_VERIFY_FAILED"),
    (HTTP.ReadTimeout(""), "ReadTimeout"),
    (errors.OfflineModeIsEnabled("offline mode is enabled"), "offline mode is enabled"),
]


@pytest.mark.parametrize(("trouble", "said"), TROUBLES)
def test_hub_out_of_reach_is_one_line(trouble: Exception, said: str, client: Client) -> None:
    client.listing = trouble
    text = line()
    assert said in text
    assert "check the network and run again" in text


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        *TROUBLES,
        (
            HTTP.RemoteProtocolError("peer closed connection without sending complete message body"),
            "broken one (peer closed",
        ),
        (HTTP.ReadError("connection reset"), "connection reset"),
        (answer(errors.RemoteEntryNotFoundError, 404), "lacks a file that it lists"),
        (answer(errors.HfHubHTTPError, 503), "answers 503"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full at"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot write"),
        (OSError("Consistency check failed: file should be of size 10\nbut has size 5"), "of size 10 but has size 5"),
        (RuntimeError("Xet: error decoding response body"), "error decoding response body"),
        (ValueError("Invalid filename"), "Invalid filename"),
    ],
)
def test_trouble_on_the_way_is_one_line(trouble: Exception, said: str, client: Client) -> None:
    client.trouble = trouble
    assert said in line()


def test_reason_is_what_the_client_met_before_it_looked_for_a_copy(client: Client) -> None:
    client.trouble = errors.LocalEntryNotFoundError("An error happened while trying to locate the file")
    client.trouble.__cause__ = answer(errors.HfHubHTTPError, 504)
    assert "answers 504" in line()


def test_too_small_a_disk_is_found_before_anything_is_downloaded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    needed = sum(map(len, CONTENTS.values()))
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: usage._replace(free=needed - 1))
    assert f"the disk is full at {client.cache}" in line()
    assert len(client.asked) == 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: usage._replace(free=needed))
    fetch()
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: usage._replace(free=0))
    fetch()  # what is there needs no room


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_repository_without_a_needed_file_is_refused(name: str, client: Client) -> None:
    client.listing = listing(names={key: value for key, value in CONTENTS.items() if key != name})
    assert f"hf-hub:user/net@v1 has no {name}" in line()
    assert len(client.asked) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Copies
# ---------------------------------------------------------------------------------------------------------------------


def test_offline_is_the_copy_or_one_line(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    client.listing = AssertionError("asked the hub")
    assert line() == "hf-hub:user/net@v1 is not here yet and HF_HUB_OFFLINE is set: unset it"
    client.keep()
    assert fetch() == client.folder


def test_copy_that_lacks_the_weights_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    del client.contents["model.safetensors"]
    client.keep()
    assert "model.safetensors is missing in" in line()


@pytest.mark.parametrize("trouble", [HTTP.ConnectError("no route"), answer(errors.RepositoryNotFoundError, 404)])
def test_copy_serves_where_the_hub_cannot_be_reached(
    trouble: Exception, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch()
    client.listing = trouble
    capsys.readouterr()
    assert fetch() == client.folder
    told = capsys.readouterr().err
    assert told.startswith("warning: hf-hub:user/net@v1")
    assert told.endswith(f"using the copy in {client.folder}\n")


def test_copy_is_not_taken_for_a_revision_that_does_not_exist(client: Client) -> None:
    fetch()
    client.listing = answer(errors.RevisionNotFoundError, 404)
    assert "does not exist" in line()


# ---------------------------------------------------------------------------------------------------------------------
# Hashes
# ---------------------------------------------------------------------------------------------------------------------


def test_weights_that_are_not_the_hubs_are_kept_aside_and_fetched_anew(client: Client) -> None:
    client.contents["model.safetensors"] = b"others"
    text = line()
    aside = client.folder.parents[1] / "blobs" / "model.safetensors.wrong"
    for part in (SHA256, hashlib.sha256(b"others").hexdigest(), str(aside)):
        assert part in text
    assert aside.read_bytes() == b"others"
    assert not (client.folder / "model.safetensors").is_symlink()
    client.contents = dict(CONTENTS)
    assert (fetch() / "model.safetensors").read_bytes() == WEIGHTS


def test_copy_is_verified_with_no_network_as_well(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fetch()
    (client.folder / "model.safetensors").resolve().write_bytes(b"damaged")
    assert f"{SHA256} was recorded at its first download" in line()


def test_hash_that_the_hub_does_not_say_is_recorded_and_told(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    client.listing = listing(sha256=None)
    fetch()
    assert f"from now on it must be sha256:{SHA256}" in capsys.readouterr().err
    assert recorded(SOURCE) == SHA256


def test_hash_of_another_commit_does_not_count(client: Client) -> None:
    client.listing = listing(sha256="0" * 64)
    client.listing.sha = "6" * 40  # the branch moved between two requests
    assert fetch() == client.folder


# ---------------------------------------------------------------------------------------------------------------------
# Progress
# ---------------------------------------------------------------------------------------------------------------------


def test_progress_is_ours_and_counts_the_bytes_on_the_disk(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []

    class Told(Reporter):
        @contextmanager
        def progress(self, _title: str, total: int, *, done: int = 0) -> Iterator[Any]:
            steps.extend([total, done])
            yield SimpleNamespace(advance=steps.append)

    monkeypatch.setattr("excb.remote.hf_repository.MB", 100)
    fetch_repo("user/net", None, reporter=Told())
    bars = client.asked[-1]["tqdm_class"]
    total = sum(map(len, CONTENTS.values())) // 100
    assert steps == [total, 0]
    for title in ("Downloading bytes", "Fetching 3 files", "Reconstructing (incomplete total...)"):
        bar = bars(desc=title, total=0, initial=0, unit="B", unit_scale=True)
        for _ in range(7):
            bar.update(100)
        bar.close()
    assert sum(steps[2:]) == total == 7


def test_clients_warnings_are_kept_back_while_it_runs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[int] = []
    ask = client.model_info

    def asked(repo: str, **options: Any) -> ModelInfo:
        levels.append(huggingface_hub.utils.logging.get_verbosity())
        return ask(repo, **options)

    monkeypatch.setattr(client, "model_info", asked)
    before = huggingface_hub.utils.logging.get_verbosity()
    try:
        huggingface_hub.utils.logging.set_verbosity(logging.INFO)
        fetch()
        levels.append(huggingface_hub.utils.logging.get_verbosity())
    finally:
        huggingface_hub.utils.logging.set_verbosity(before)
    assert levels == [logging.ERROR, logging.INFO]


# ---------------------------------------------------------------------------------------------------------------------
# timm's own models
# ---------------------------------------------------------------------------------------------------------------------


def timms_weights(cache: Path) -> nn.Module:
    """A network whose weights lie where the client keeps what timm fetched."""
    torch.manual_seed(0)
    network: nn.Module = timm.create_model("test_resnet")
    folder = cache / "models--timm--test_resnet.r160_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(SHA)
    (folder / "snapshots" / SHA).mkdir(parents=True)
    save_file(network.state_dict(), folder / "snapshots" / SHA / "model.safetensors")
    return network


def test_timms_copy_serves_where_the_hub_cannot_be_reached(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client.listing = HTTP.ConnectError("no route")
    with pytest.raises(UserError) as caught:
        excb.load("timm:test_resnet")
    assert str(caught.value).startswith("hf-hub:timm/test_resnet.r160_in1k: no connection to https://huggingface.co, ")
    assert len(client.asked) == 1  # not the client's own six times
    network = timms_weights(client.cache)
    loaded = excb.load("timm:test_resnet")
    for name, tensor in loaded.network.state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name])
    assert "warning: hf-hub:timm/test_resnet.r160_in1k: no connection" in capsys.readouterr().err
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example")
    with pytest.raises(UserError, match=r"no connection to https://mirror\.example"):
        kept_copy("timm/another", Reporter(quiet=True))


def test_timms_models_are_the_clients_where_the_hub_answers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    timms_weights(client.cache)
    for says in (listing(), answer(errors.RepositoryNotFoundError, 404)):
        client.listing = says
        assert kept_copy("timm/test_resnet.r160_in1k", Reporter(quiet=True)) is None
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    client.listing = AssertionError("asked the hub")
    assert kept_copy("timm/test_resnet.r160_in1k", Reporter(quiet=True)) is None
