"""Tests of fetching a file: kept and verified, offline, wrong hashes, and two processes at once."""

import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from excb.console import Reporter
from excb.errors import UserError
from excb.remote import download
from excb.remote.fetch import fetch_url
from excb.remote.home import recorded
from tests.clone import ROOT
from tests.file_server import FileServer, Served

CONTENT = bytes(range(256)) * 40
SHA256, MD5 = hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest()
FILE = "/files/net.pth"

FETCH = """
import sys
from excb.console import Reporter
from excb.remote.fetch import fetch_url
print(fetch_url(sys.argv[1], digest=None, reporter=Reporter(), name="net"))
"""


@pytest.fixture(autouse=True)
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty zoo, no waiting, and no proxy between the tests and their server."""
    monkeypatch.setattr(download, "BACKOFF", 0.0)
    for name, value in {"EXCB_HOME": str(tmp_path / "zoo"), "NO_PROXY": "*", "no_proxy": "*"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "zoo"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer({FILE: Served(CONTENT)}) as running:
        yield running


def fetch(url: str, digest: str | None = None) -> Path:
    return fetch_url(url, digest=digest, reporter=Reporter(), name="net")


def kept(zoo: Path) -> list[str]:
    """The files among the downloads, without the locks."""
    return sorted(file.name for file in (zoo / "downloads").iterdir() if file.suffix != ".lock")


# ---------------------------------------------------------------------------------------------------------------------
# Kept and verified
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", [None, f"sha256:{SHA256}", f"sha256:{SHA256[:8]}", f"md5:{MD5}"])
def test_file_is_downloaded_once(digest: str | None, server: FileServer, zoo: Path) -> None:
    url = server.url(FILE)
    file = fetch(url, digest)
    assert file == zoo / "downloads" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-net.pth"
    assert file.read_bytes() == CONTENT
    assert kept(zoo) == [file.name]
    assert fetch(url, digest) == file
    assert len(server.asked) == 1


def test_files_of_one_name_are_kept_apart(server: FileServer) -> None:
    server.files["/others/net.pth"] = Served(b"others")
    assert fetch(server.url(FILE)).read_bytes() == CONTENT
    assert fetch(server.url("/others/net.pth")).read_bytes() == b"others"


def test_cut_download_goes_on_at_the_next_call(server: FileServer, zoo: Path) -> None:
    server.cuts, server.failures = [5000], [200, 503, 503, 503]
    with pytest.raises(UserError, match="answers 503"):
        fetch(server.url(FILE), f"sha256:{SHA256}")
    assert sorted(Path(name).suffix for name in kept(zoo)) == [".json", ".part"]
    file = fetch(server.url(FILE), f"sha256:{SHA256}")
    assert file.read_bytes() == CONTENT
    assert server.asked[-1].range == "bytes=5000-"
    assert server.sent == len(CONTENT)
    assert kept(zoo) == [file.name]


def test_offline_is_the_kept_file_or_one_line(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.url(FILE)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE is set.*`excb-zoo import FILE --name net`"):
        fetch(url)
    assert server.asked == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    file = fetch(url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(url) == file
    assert len(server.asked) == 1


def test_kept_file_needs_no_network_and_no_right_to_write(
    server: FileServer, zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fetch(server.url(FILE))
    for lock in (zoo / "downloads").glob("*.lock"):
        lock.unlink()
    monkeypatch.setattr(socket, "socket", None)
    assert fetch(server.url(FILE)) == file
    assert not list((zoo / "downloads").glob("*.lock"))


# ---------------------------------------------------------------------------------------------------------------------
# Wrong files
# ---------------------------------------------------------------------------------------------------------------------


def test_wrong_hash_is_one_line_and_the_file_kept_aside(server: FileServer, zoo: Path) -> None:
    wanted = "0" * 64
    with pytest.raises(UserError) as caught:
        fetch(server.url(FILE), f"sha256:{wanted}")
    (aside,) = kept(zoo)
    assert aside.endswith("-net.pth.wrong")
    assert (zoo / "downloads" / aside).read_bytes() == CONTENT
    for part in (SHA256, wanted, str(zoo / "downloads" / aside)):
        assert part in str(caught.value)
    assert recorded(server.url(FILE)) is None
    # The file aside is not taken for the right one, which is fetched once it is there.
    assert fetch(server.url(FILE), f"sha256:{SHA256}").name == aside.removesuffix(".wrong")
    assert len(server.asked) == 2


@pytest.mark.parametrize("said", ["x.wrong", "x.wrong.wrong", ".wrong", "x.pt.WRONG"])
def test_file_that_its_server_calls_wrong_is_downloaded_once(said: str, server: FileServer, zoo: Path) -> None:
    """Here that ending names a file set aside."""
    server.files[FILE].disposition = f'attachment; filename="{said}"'
    file = fetch(server.url(FILE))
    assert file.suffix != ".wrong"
    assert fetch(server.url(FILE)) == file
    assert len(server.asked) == 1


def test_kept_file_that_was_damaged_is_refused_then_fetched_anew(server: FileServer) -> None:
    url = server.url(FILE)
    file = fetch(url)
    file.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(UserError, match=rf"{SHA256} was recorded at its first download"):
        fetch(url)
    assert not file.exists()
    assert fetch(url) == file
    assert file.read_bytes() == CONTENT


def test_file_that_changed_at_its_origin_is_refused(server: FileServer) -> None:
    url = server.url(FILE)
    fetch(url).unlink()
    server.files[FILE] = Served(b"others")
    with pytest.raises(UserError, match=rf"{hashlib.sha256(b'others').hexdigest()}, but {SHA256} was recorded"):
        fetch(url)


def test_page_instead_of_a_file_leaves_nothing(server: FileServer, zoo: Path) -> None:
    server.files[FILE] = Served(b"<!doctype html><p>Quota exceeded", kind="text/html")
    with pytest.raises(UserError, match="web page"):
        fetch(server.url(FILE))
    assert kept(zoo) == []
    assert recorded(server.url(FILE)) is None


def test_wrong_arguments_are_one_line(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="is not a hash"):
        fetch("https://example.com/a", "crc32:0")
    zoo.write_text("a file in its place")
    with pytest.raises(UserError, match=r"cannot write .*EXCB_HOME"):
        fetch("https://example.com/a")


# ---------------------------------------------------------------------------------------------------------------------
# Two processes
# ---------------------------------------------------------------------------------------------------------------------


def start(url: str) -> subprocess.Popen[str]:
    # A new interpreter, without torch.
    command = [sys.executable, "-c", FETCH, url]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_two_processes_download_one_file_once(server: FileServer) -> None:
    server.gate.clear()
    with start(server.url(FILE)) as first:
        assert server.reached.wait(60)  # the first holds the lock, and waits for its bytes
        with start(server.url(FILE)) as second:
            assert second.stderr is not None
            assert f"process {first.pid} " in second.stderr.readline()
            server.gate.set()
            answers = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert answers[0] == answers[1]
    assert Path(answers[0].strip()).read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_process_that_is_killed_holds_nobody_up(server: FileServer) -> None:
    server.gate.clear()
    with start(server.url(FILE)) as killed:
        assert server.reached.wait(60)
        killed.kill()
    server.gate.set()
    assert fetch(server.url(FILE)).read_bytes() == CONTENT


@pytest.mark.parametrize("end", ["\ud800", "\udce9.pt", "two words"])
def test_an_address_that_cannot_be_sent_is_one_line(server: FileServer, end: str) -> None:
    with pytest.raises(UserError):
        fetch(server.url(FILE) + end)
