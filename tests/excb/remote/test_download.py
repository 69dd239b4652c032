"""Tests of one download: share links, resuming, retries, refusals; each failure is one line and loses no bytes."""

import errno
import hashlib
import io
import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request

import pytest

from excb.console import Reporter
from excb.errors import UserError
from excb.remote import download as module
from excb.remote.download import direct, download
from tests.file_server import FileServer, Served

CONTENT = bytes(range(256)) * 40
HASHES = {"sha256": hashlib.sha256(CONTENT).hexdigest()}
FILE = "/files/net.pth"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting, small pieces, and no proxy between the tests and their server."""
    monkeypatch.setattr(module, "BACKOFF", 0.0)
    monkeypatch.setattr(module, "CHUNK", 1000)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer({FILE: Served(CONTENT)}) as running:
        yield running


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "a.part"


def fetch(url: str, part: Path) -> str:
    name, hashes = download(url, part, algorithms=["sha256"], reporter=Reporter(), name="net")
    assert part.read_bytes() == CONTENT
    assert hashes == HASHES
    return name


def line(url: str, part: Path) -> str:
    """The one line of a download that must fail."""
    with pytest.raises(UserError) as caught:
        fetch(url, part)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Addresses
# ---------------------------------------------------------------------------------------------------------------------

DRIVE = "https://drive.usercontent.google.com/download?id=1K_kX-7bV&export=download&confirm=t"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://drive.google.com/file/d/1K_kX-7bV/view?usp=sharing", DRIVE),
        ("https://drive.google.com/file/d/1K_kX-7bV", DRIVE),
        ("https://drive.google.com/open?id=1K_kX-7bV", DRIVE),
        ("https://drive.google.com/uc?export=download&id=1K_kX-7bV", DRIVE),
        ("https://docs.google.com/uc?id=1K_kX-7bV", DRIVE),
        ("http://drive.google.com/open?id=1K_kX-7bV", DRIVE),
        ("https://drive.google.com/file/d/1K_kX-7bV/view?resourcekey=0-xY&usp=drive_link", DRIVE + "&resourcekey=0-xY"),
        ("https://drive.google.com/drive/folders/1K_kX-7bV", "https://drive.google.com/drive/folders/1K_kX-7bV"),
        (DRIVE, DRIVE),
        ("https://www.dropbox.com/s/m5n/mira.pth.tar?dl=0", "https://www.dropbox.com/s/m5n/mira.pth.tar?dl=1"),
        ("https://www.dropbox.com/s/m5n/mira.pth.tar", "https://www.dropbox.com/s/m5n/mira.pth.tar?dl=1"),
        (
            "https://www.dropbox.com/scl/fi/x/mira.pth?rlkey=abc&dl=0",
            "https://www.dropbox.com/scl/fi/x/mira.pth?rlkey=abc&dl=1",
        ),
        ("https://storage.cloud.google.com/simclr/a.zip", "https://storage.googleapis.com/simclr/a.zip"),
        ("https://example.com/file/d/1K_kX-7bV?dl=0", "https://example.com/file/d/1K_kX-7bV?dl=0"),
        (
            "https://example.com/?u=https://www.dropbox.com/s/a?dl=0",
            "https://example.com/?u=https://www.dropbox.com/s/a?dl=0",
        ),
    ],
)
def test_share_links_lead_to_the_file_itself(url: str, expected: str) -> None:
    assert direct(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a.pth",
        "http://127.0.0.1.example.com/a.pth",
        "http://localhost@example.com/a.pth",
        "ftp://example.com/a.pth",
        "file:///etc/passwd",
        "/etc/passwd",
        "https:///a.pth",
        "",
    ],
)
def test_only_https_is_fetched_from_elsewhere(url: str, part: Path) -> None:
    assert "https:// addresses only" in line(url, part)


@pytest.mark.parametrize(
    "url", ["https://[::1/a", "http://127.0.0.1:port/a", "http://127.0.0.1:1/a b", "http://127.0.0.1:1/ä"]
)
def test_broken_address_is_one_line(url: str, part: Path) -> None:
    assert "is not an address" in line(url, part)


def test_redirect_is_followed(server: FileServer, part: Path) -> None:
    server.files["/old"] = Served(status=302, location=f"http://localhost:{server.port}{FILE}")
    assert fetch(server.url("/old"), part) == "old"
    assert [asked.path for asked in server.asked] == ["/old", FILE]


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("http://example.com/a.pth", "https:// addresses only"),
        ("ftp://example.com/a.pth", "https:// addresses only"),
        ("file:///etc/passwd", "answers 302"),
    ],
)
def test_redirect_to_less_than_https_is_refused(location: str, said: str, server: FileServer, part: Path) -> None:
    server.files["/old"] = Served(status=302, location=location)
    assert said in line(server.url("/old"), part)
    assert not part.exists()


def test_redirect_from_elsewhere_into_this_machine_is_refused() -> None:
    redirects, request = module._Redirects(), Request("https://example.com/a.pth")
    headers: Any = {}
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:1/a.*from https://example\.com.*https:// addresses only"):
        redirects.redirect_request(request, io.BytesIO(), 302, "Found", headers, "http://127.0.0.1:1/a")


ADDRESSES = {
    "internet.example": "93.184.215.14",
    "intranet.example": "10.0.0.7",
    "rebound.example": "127.0.0.1",
    "half.example": "93.184.215.14 192.168.1.1",
}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of hosts, as a resolver tells them; addresses in any form are the system's business."""
    real = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **options: Any) -> Any:
        if host in ADDRESSES:
            return [(0, 0, 0, "", (address, 0)) for address in ADDRESSES[host].split()]
        return real(host, *rest, **{"flags": socket.AI_NUMERICHOST} | options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def redirected(before: str, after: str) -> Request | None:
    headers: Any = {}
    request = Request(before)
    request.set_proxy("127.0.0.1:3128", "http")  # where a proxy is used, the request names that
    return module._Redirects().redirect_request(request, io.BytesIO(), 302, "Found", headers, after)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.9.9.9", "[::1]", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "127.1"),
        *("rebound.example", "%31%32%37.0.0.1", "127.0.0.1:8443", "user@127.0.0.1"),
        *("10.0.0.1", "192.168.1.1", "169.254.169.254", "172.16.5.5", "100.64.0.1", "[fd00::1]", "[fe80::1]"),
        *("intranet.example", "half.example"),
    ],
)
def test_redirect_from_the_internet_into_a_private_place_is_refused(host: str, names: None) -> None:
    with pytest.raises(UserError, match=r"leads into (this machine|the private network)"):
        redirected("https://internet.example/a.pth", f"https://{host}/a.pth")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("internet.example", "8.8.8.8"),
        ("internet.example", "[2606:4700::1111]"),
        ("internet.example", "unknown.example"),  # a proxy may know it
        ("intranet.example", "10.0.0.8"),
        ("intranet.example", "internet.example"),
        ("127.0.0.1", "127.0.0.1"),
        ("rebound.example", "192.168.1.1"),
    ],
)
def test_redirect_to_a_place_as_far_away_is_followed(before: str, after: str, names: None) -> None:
    assert redirected(f"https://{before}/a.pth", f"https://{after}/a.pth") is not None


def test_redirect_from_the_private_network_into_this_machine_is_refused(names: None) -> None:
    with pytest.raises(UserError, match="leads into this machine"):
        redirected("https://intranet.example/a.pth", "https://127.0.0.1/a.pth")


# ---------------------------------------------------------------------------------------------------------------------
# Headers that lie
# ---------------------------------------------------------------------------------------------------------------------

DIGITS = "9" * 5000


@pytest.mark.parametrize("length", [DIGITS, "9" * 4000, "9" * 17, "-1", "x", "\u00b2", ""])
def test_length_that_is_no_size_is_not_known(length: str, server: FileServer, part: Path) -> None:
    server.files[FILE].headers = {"Content-Length": length}
    assert fetch(server.url(FILE), part) == "net.pth"
    assert json.loads(part.with_suffix(".json").read_text())["total"] is None


@pytest.mark.parametrize(
    "span",
    [
        f"bytes 1000-{DIGITS}/{DIGITS}",
        f"bytes {DIGITS}-1/2",
        "bytes 1000-999/10240",
        "bytes 1000-10240/10240",
        "bytes 1000-10239/*",
        "bytes 1000-10239/10241",
        "bytes 1000-1000/10240",  # and more is sent than that one byte
        "bytes 1000-10238/10240",
        "bytes 999-10239/10240",
        "bytes \u00b9000-10239/10240",
        "",
    ],
)
def test_range_that_does_not_go_on_starts_over(span: str, server: FileServer, part: Path) -> None:
    left(part, CONTENT[:1000], total=len(CONTENT), version='"1"')
    server.files[FILE].headers = {"Content-Range": span}
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == ["bytes=1000-", None]


CHARSETS = ("undefined", "idna", "punycode", "rot13", "hex", "no-such", "utf-8%00", "x" * 5000, "../../x")


@pytest.mark.parametrize("charset", CHARSETS)
def test_name_in_an_odd_charset_is_a_name(charset: str, server: FileServer, part: Path) -> None:
    server.files[FILE].disposition = f"attachment; filename*={charset}''%ff%00..a.pth"
    name = fetch(server.url(FILE), part)
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name)


@pytest.mark.parametrize(
    "parts", [f"filename*{DIGITS}*=x", "filename*=a; filename*0=b; filename*x*=c", "filename*0*=''"]
)
def test_name_in_odd_parts_is_a_name(parts: str, server: FileServer, part: Path) -> None:
    server.files[FILE].disposition = f"attachment; {parts}"
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", fetch(server.url(FILE), part))


@pytest.mark.parametrize("status", [206, 202, 203, 226, 299])
def test_part_that_nobody_asked_for_is_not_the_file(status: int, server: FileServer, part: Path) -> None:
    server.files[FILE] = Served(CONTENT[:500], answered=status, headers={"Content-Range": "bytes 0-499/10240"})
    assert f"127.0.0.1 answers {status}, where the whole file was asked for" in line(server.url(FILE), part)
    assert not part.exists()


@pytest.mark.parametrize("chunked", [False, True])
def test_rest_that_is_longer_than_stated_is_not_the_file(chunked: bool, server: FileServer, part: Path) -> None:
    left(part, CONTENT[:1000], total=len(CONTENT), version='"1"')
    server.files[FILE] = Served(CONTENT, more=b"more", chunked=chunked, headers={"Content-Length": None})
    download(server.url(FILE), part, algorithms=["sha256"], reporter=Reporter(), name="net")
    assert [asked.range for asked in server.asked] == ["bytes=1000-", None]  # the second time it states no size


def test_size_in_a_partial_answer_is_held_against_what_arrives(server: FileServer, part: Path) -> None:
    """The first answer stated no size, and the rest is cut silently."""
    left(part, CONTENT[:1000], total=None, version='"1"')
    server.cuts, server.files[FILE].headers = [5000], {"Content-Length": None}
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == ["bytes=1000-", "bytes=5000-"]


@pytest.mark.parametrize("tag", ['"\u00e9"', '"a\r\n b"', '"\x01"'])
def test_version_that_cannot_be_sent_back_is_none(tag: str, server: FileServer, part: Path) -> None:
    server.files[FILE].etag = tag
    broken(server, part)
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == [None]


def test_version_on_the_disk_that_cannot_be_sent_is_none(server: FileServer, part: Path) -> None:
    left(part, CONTENT[:1000], total=len(CONTENT), version="a\r\nX: b")
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == [None]


def test_link_in_place_of_the_part_is_not_written_through(server: FileServer, part: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(CONTENT[:1000])
    part.symlink_to(target)
    part.with_suffix(".json").write_text(json.dumps({"name": "a", "total": len(CONTENT), "version": '"1"'}))
    fetch(server.url(FILE), part)
    assert target.read_bytes() == CONTENT[:1000]
    assert not part.is_symlink()


# ---------------------------------------------------------------------------------------------------------------------
# Names
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("disposition", "expected"),
    [
        (None, "net.pth"),
        ("attachment", "net.pth"),
        ('attachment; filename="mira 800.pth.tar"', "mira_800.pth.tar"),
        ("attachment; filename*=UTF-8''m%C3%AFra.pth", "m_ra.pth"),
        ('attachment; filename="../../up.pth"', "up.pth"),
        ('attachment; filename="C:\\\\files\\\\up.pth"', "up.pth"),
        ('attachment; filename="/etc/passwd"', "passwd"),
        ('attachment; filename="...hidden"', "hidden"),
        ('attachment; filename=".."', "file"),
        (f'attachment; filename="{"x" * 300}.pth"', "x" * 96 + ".pth"),
        (f'attachment; filename="x.{"y" * 99}"', "y" * 99),
    ],
)
def test_files_name_is_safe_here(disposition: str | None, expected: str, server: FileServer, part: Path) -> None:
    server.files[FILE].disposition = disposition
    assert fetch(server.url(FILE), part) == expected


@pytest.mark.parametrize(
    ("path", "expected"), [("/a%20b.pth?x=1", "a_b.pth"), ("/a/", "a"), ("/", "file"), ("/%2e%2e%2fa.pth", "a.pth")]
)
def test_name_comes_from_the_address_else(path: str, expected: str, server: FileServer, part: Path) -> None:
    server.files[path] = Served(CONTENT)
    assert fetch(server.url(path), part) == expected


# ---------------------------------------------------------------------------------------------------------------------
# Resuming
# ---------------------------------------------------------------------------------------------------------------------


def broken(server: FileServer, part: Path, at: int = 4321) -> None:
    """Make a download that breaks at a byte, all further attempts of which are refused."""
    server.cuts, server.failures = [at], [200, 503, 503, 503]
    assert "answers 503" in line(server.url(FILE), part)
    assert part.read_bytes() == CONTENT[:at]
    server.asked.clear()
    server.sent = 0


def left(part: Path, content: bytes, *, total: int | None, version: str | None) -> None:
    """Leave what an earlier download left."""
    part.write_bytes(content)
    part.with_suffix(".json").write_text(json.dumps({"name": "net.pth", "total": total, "version": version}))


def test_cut_download_goes_on_within_one_call(
    server: FileServer, part: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.cuts = [4321]
    fetch(server.url(FILE), part)
    assert [(asked.range, asked.if_range) for asked in server.asked] == [(None, None), ("bytes=4321-", '"1"')]
    assert server.sent == len(CONTENT)
    assert "the connection was cut at byte 4321: trying again" in capsys.readouterr().err


def test_next_call_asks_only_for_the_rest(server: FileServer, part: Path) -> None:
    broken(server, part)
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == ["bytes=4321-"]
    assert server.sent == len(CONTENT) - 4321


def test_resuming_by_date_where_there_is_no_etag(server: FileServer, part: Path) -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    server.files[FILE] = Served(CONTENT, etag='W/"1"', modified=date)  # a weak ETag may stay while bytes change
    broken(server, part)
    fetch(server.url(FILE), part)
    assert [(asked.range, asked.if_range) for asked in server.asked] == [("bytes=4321-", date)]


def test_file_without_a_version_starts_over(server: FileServer, part: Path) -> None:
    server.files[FILE] = Served(CONTENT, etag=None)
    broken(server, part)
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == [None]


def test_server_that_ignores_range_starts_over(server: FileServer, part: Path) -> None:
    broken(server, part)
    server.files[FILE].resumes = False
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == ["bytes=4321-"]
    assert server.sent == len(CONTENT)


@pytest.mark.parametrize("total", [len(CONTENT), 5000, 20_000, None])
def test_file_that_changed_at_the_server_starts_over(total: int | None, server: FileServer, part: Path) -> None:
    left(part, bytes(1000), total=total, version='"0"')
    fetch(server.url(FILE), part)
    assert [(asked.range, asked.if_range) for asked in server.asked] == [("bytes=1000-", '"0"')]


@pytest.mark.parametrize(("etag", "total"), [('"2"', len(CONTENT)), (None, len(CONTENT) + 1)])
def test_server_that_goes_on_with_another_file_starts_over(
    etag: str | None, total: int, server: FileServer, part: Path
) -> None:
    left(part, bytes(1000), total=total, version="Wed, 21 Oct 2015 07:28:00 GMT")
    server.files[FILE] = Served(CONTENT, etag=etag, modified="Wed, 21 Oct 2015 07:28:00 GMT")
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == ["bytes=1000-", None]


def test_part_longer_than_the_file_starts_over(server: FileServer, part: Path) -> None:
    left(part, CONTENT + b"more", total=None, version='"1"')
    server.failures = [416]
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == [f"bytes={len(CONTENT) + 4}-", None]


def test_whole_part_needs_no_request(server: FileServer, part: Path) -> None:
    fetch(server.url(FILE), part)
    server.asked.clear()
    assert fetch(server.url(FILE), part) == "net.pth"  # as after a stop between the last byte and the file's name
    assert server.asked == []


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"name": "a"}'])
def test_part_of_which_nothing_is_known_starts_over(text: str | None, server: FileServer, part: Path) -> None:
    part.write_bytes(CONTENT[:100])
    if text is not None:
        part.with_suffix(".json").write_text(text)
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == [None]


def test_file_of_unknown_size_is_resumed_as_well(server: FileServer, part: Path) -> None:
    server.files[FILE] = Served(CONTENT, chunked=True)
    server.cuts = [4321]
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == [None, "bytes=4321-"]


# ---------------------------------------------------------------------------------------------------------------------
# Servers that fail
# ---------------------------------------------------------------------------------------------------------------------


def test_server_that_fails_for_the_moment_is_asked_again(server: FileServer, part: Path) -> None:
    server.failures = [500, 503]
    fetch(server.url(FILE), part)
    assert len(server.asked) == 3


def test_server_that_fails_on_is_given_up(server: FileServer, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module, "BACKOFF", 2.0)
    monkeypatch.setattr(time, "sleep", pauses.append)
    server.files[FILE].status = 500
    assert "answers 500" in line(server.url(FILE), part)
    assert len(server.asked) == module.ATTEMPTS == 4
    assert pauses == [2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, "there is no file at"),
        (410, "there is no file at"),
        (401, r"refuses .*excb-zoo import FILE --name net`"),
        (403, r"refuses .*excb-zoo import FILE --name net`"),
        (429, r"refuses .*excb-zoo import FILE --name net`"),
        (418, r"answers 418"),
    ],
)
def test_refusal_is_one_line_and_final(status: int, said: str, server: FileServer, part: Path) -> None:
    server.files[FILE].status = status
    text = line(server.url(FILE), part)
    assert text.startswith("net: ")
    with pytest.raises(UserError, match=said):
        fetch(server.url(FILE), part)
    assert str(status) in text
    assert len(server.asked) == 2  # one for each call
    assert not part.exists()


def test_unknown_host_is_one_line(part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_arguments: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert line("https://nowhere.example/a", part).startswith(
        "net: no host nowhere.example (Name or service not known)"
    )


def test_server_without_tls_is_one_line(server: FileServer, part: Path) -> None:
    assert "no secure connection to 127.0.0.1" in line(f"https://127.0.0.1:{server.port}{FILE}", part)


def test_nobody_listens(server: FileServer, part: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "cannot reach 127.0.0.1" in line(f"http://127.0.0.1:{port}/a", part)


def test_silent_server_is_given_up(server: FileServer, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.02)
    server.gate.clear()
    assert "timed out" in line(server.url(FILE), part)


def test_empty_answer_is_no_file(server: FileServer, part: Path) -> None:
    server.files[FILE] = Served(b"")
    assert "cut at byte 0" in line(server.url(FILE), part)


# ---------------------------------------------------------------------------------------------------------------------
# Pages instead of files
# ---------------------------------------------------------------------------------------------------------------------

PAGE = b"\n <!DOCTYPE html><html><title>Quota exceeded</title></html>"


@pytest.mark.parametrize(
    "served",
    [
        Served(PAGE, kind="text/html; charset=utf-8"),
        Served(PAGE),
        Served(b"<HTML>", kind="application/octet-stream"),
    ],
)
def test_page_is_no_file(served: Served, server: FileServer, part: Path) -> None:
    server.files[FILE] = served
    text = line(server.url(FILE), part)
    assert "gives a web page instead of a file" in text
    assert "download it with a browser, then run `excb-zoo import FILE --name net`" in text
    assert list(part.parent.iterdir()) == []


def test_page_in_the_midst_of_a_download_spoils_nothing(server: FileServer, part: Path) -> None:
    broken(server, part)
    server.files[FILE] = Served(PAGE, etag=None, kind="text/html")
    assert "web page" in line(server.url(FILE), part)
    server.files[FILE] = Served(CONTENT)
    fetch(server.url(FILE), part)
    assert server.asked[-1].range == "bytes=4321-"


# ---------------------------------------------------------------------------------------------------------------------
# The disk, and progress
# ---------------------------------------------------------------------------------------------------------------------


def test_too_small_a_disk_is_found_before_the_first_byte(
    server: FileServer, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(part.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: usage._replace(free=len(CONTENT) - 1))
    text = line(server.url(FILE), part)
    assert f"the disk is full at {part.parent}" in text
    assert "EXCB_HOME" in text
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: usage._replace(free=len(CONTENT)))
    fetch(server.url(FILE), part)


def test_disk_that_fills_up_is_one_line_and_the_part_stays(
    server: FileServer, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell() + len(data) > 4000:
                super().write(data[: 4000 - self.tell()])
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    with monkeypatch.context() as patch:
        patch.setattr(module, "open", lambda file, mode, **_options: FullDisk(file, mode), raising=False)
        assert f"the disk is full at {part.parent} (No space left on device)" in line(server.url(FILE), part)
    assert part.read_bytes() == CONTENT[:4000]
    server.asked.clear()
    fetch(server.url(FILE), part)
    assert [asked.range for asked in server.asked] == ["bytes=4000-"]


def test_folder_that_cannot_be_written_is_one_line(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert "cannot write" in line(server.url(FILE), tmp_path / "file" / "a.part")


class Told(Reporter):
    """Keeps what its progress bars are told: the total, what was done before, and then after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.bars: list[list[int]] = []

    @contextmanager
    def progress(self, _title: str, total: int, *, done: int = 0) -> Iterator[Any]:
        bar = [total, done]
        self.bars.append(bar)
        yield SimpleNamespace(advance=lambda steps: bar.append(bar[-1] + steps))


def test_progress_is_in_megabytes_and_goes_on_from_the_part(
    server: FileServer, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MB", 1000)  # of the test: 10.24 of them, in pieces of one
    told = Told()
    server.cuts = [4321]
    download(server.url(FILE), part, algorithms=["sha256"], reporter=told, name="net")
    (total, *first), (again, *second) = told.bars
    assert total == again == 10
    assert (first[0], first[-1]) == (0, 4)
    assert (second[0], second[-1]) == (4, 10)
    assert first == sorted(first)


def test_small_file_shows_no_progress(server: FileServer, part: Path) -> None:
    told = Told()
    download(server.url(FILE), part, algorithms=["sha256"], reporter=told, name="net")
    assert told.bars == []
