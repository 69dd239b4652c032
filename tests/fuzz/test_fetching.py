"""Answers of servers: any bytes, headers with names that lead elsewhere, wrong lengths, redirects."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from hypothesis import strategies as st

import excb
from excb.console import Reporter
from excb.remote import download
from excb.remote.fetch import fetch_url
from excb.remote.hf_repository import fetch_repo
from tests.fuzz import hostile
from tests.fuzz.guard import Guard
from tests.fuzz.lane import fuzz

KIND = "servers"
Answer = Callable[[bytes], bytes]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """The address of a server that answers each request with bytes, and then hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    request = b""
                    while b"\r\n\r\n" not in request and (part := connection.recv(65536)):
                        request += part
                    connection.sendall(answer(request))
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=10)


HEADERS = (
    *("Content-Length", "Content-Disposition", "ETag", "Last-Modified", "Content-Type", "Content-Range", "Location"),
    *("Transfer-Encoding", "X-Repo-Commit", "X-Linked-Etag", "X-Linked-Size", "Connection"),
)
# Numbers of any length, also of more digits than Python converts, and of digits that are not ASCII.
digits = st.one_of(
    st.sampled_from(("9" * 5000, "9" * 4000, "0" * 5000 + "1", "\u0661\u0662", "\u00b2", "")),
    st.integers(0, 60).map(str),
)
ranges = st.builds("bytes {}-{}/{}".format, digits, digits, st.one_of(digits, st.just("*")))
charsets = st.sampled_from(
    ("utf-8", "undefined", "idna", "punycode", "rot13", "hex", "utf-8%00", "unicode_escape", "x" * 5000)
)
contents = st.one_of(
    digits,
    ranges,
    st.builds(
        "attachment; filename*={}''{}".format, charsets, st.sampled_from(("%ff%00a", "..%2fup", "a.wrong", "%zz"))
    ),
    st.builds("attachment; filename*{}*=a; filename*{}=b".format, digits, digits),
    hostile.names.map(lambda name: f'attachment; filename="{name}"'),
    hostile.names.map(lambda name: f"attachment; filename*=UTF-8''{name}"),
    hostile.numbers.map(str),
    hostile.names,
    st.sampled_from(
        ("chunked", "text/html", "bytes 0-5/2", "close", "file:///etc/passwd", "http://127.0.0.1:1/x", "/again")
    ),
)
headers = st.lists(st.tuples(st.sampled_from(HEADERS), contents), max_size=4)
bodies = st.one_of(
    st.binary(max_size=50), st.just(b"x" * 3000), st.just(b"<!DOCTYPE html><p>"), st.just(b"ffffffff\r\nxx")
)
statuses = st.sampled_from((200, 200, 200, 200, 206, 302, 301, 404, 403, 416, 500, 429, 0, 999))


def answered(status: int, lines: list[tuple[str, str]], body: bytes) -> bytes:
    head = f"HTTP/1.1 {status:03} words\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines)
    return head.encode("utf-8", "surrogatepass") + b"\r\n" + body


def online() -> mock._patch_dict:
    return mock.patch.dict("os.environ", {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"})


@fuzz(
    KIND,
    inputs=60,
    status=statuses,
    lines=headers,
    body=bodies,
    raw=st.one_of(st.none(), st.none(), st.binary(max_size=80)),
    path=hostile.names,
    digest=st.sampled_from((None, "sha256:" + "0" * 64, "md5:00000000")),
)
def test_downloads(guard: Guard, **drawn: object) -> None:
    status, lines, body, raw = drawn["status"], drawn["lines"], drawn["body"], drawn["raw"]
    answer = raw if isinstance(raw, bytes) else answered(status, lines, body)  # type: ignore[arg-type]
    waits = mock.patch.multiple(download, BACKOFF=0.0, TIMEOUT=2.0, ATTEMPTS=2)
    with serving(lambda _request: answer) as address, online(), waits:
        url = f"{address}/{drawn['path']}"
        for _ in range(2):  # the second resumes what the first left
            found = guard.run(
                lambda: fetch_url(url, digest=drawn["digest"], reporter=Reporter(quiet=True), name="net")  # type: ignore[arg-type]
            )
            assert found is None or found.parent == guard.folder / "excb_home" / "downloads"
        guard.run(lambda: excb.load(url))


@fuzz(
    KIND,
    inputs=60,
    lines=headers,
    span=st.one_of(ranges, st.just("bytes 20-39/40"), st.just("bytes 20-39/40")),
    rest=st.one_of(st.binary(max_size=50), st.just(bytes(range(20, 40))), st.just(b"x" * 3000)),
    status=st.sampled_from((206, 206, 206, 200, 226)),
    tag=st.one_of(st.just('"1"'), st.just('"1"'), hostile.names),
    chunked=st.booleans(),
)
def test_resumed_downloads(  # noqa: PLR0917 - named by the strategies
    guard: Guard, lines: list[tuple[str, str]], span: str, rest: bytes, status: int, tag: str, chunked: bool
) -> None:
    """The first half arrives, and the rest is anything: what is kept is the file, whole, or another one's answer."""
    whole = bytes(range(40))

    def answer(request: bytes) -> bytes:
        if b"\r\nRange:" not in request:
            return answered(200, [("Content-Length", "40"), ("ETag", tag)], whole[:20])
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest) if chunked and rest else rest
        length = [("Transfer-Encoding", "chunked")] if chunked and rest else []
        return answered(status, [("Content-Range", span), *length, *lines], body)

    waits = mock.patch.multiple(download, BACKOFF=0.0, TIMEOUT=2.0, ATTEMPTS=3)
    with serving(answer) as address, online(), waits:
        found = guard.run(lambda: fetch_url(f"{address}/a.pt", digest=None, reporter=Reporter(quiet=True), name="net"))
    if found is not None and status == 206:
        assert len(found.read_bytes()) == 40
        assert found.read_bytes()[:20] == whole[:20]


MODEL = {
    "id": "user/name",
    "modelId": "user/name",
    "sha": "a" * 40,
    "siblings": [
        {"rfilename": "config.json", "size": 2},
        {"rfilename": "model.safetensors", "size": 8, "lfs": {"sha256": "0" * 64, "size": 8, "pointerSize": 1}},
        {"rfilename": "results/../../../escaped.json", "size": 1},
    ],
    "tags": [],
    "private": False,
    "downloads": 0,
}


@fuzz(
    KIND,
    inputs=40,
    listing=st.one_of(hostile.json_text(MODEL), st.just(json.dumps(MODEL).encode())),
    lines=headers,
    commit=st.one_of(st.just("a" * 40), hostile.names),
    etag=st.one_of(st.just("abc"), hostile.names),
    body=bodies,
)
def test_the_hub(  # noqa: PLR0917 - named by the strategies
    guard: Guard, listing: bytes, lines: list[tuple[str, str]], commit: str, etag: str, body: bytes
) -> None:
    clean = [("X-Repo-Commit", commit), ("ETag", f'"{etag}"'), ("Content-Length", str(len(body)))]

    def answer(request: bytes) -> bytes:
        if b"/api/" in request.partition(b"\r\n")[0]:
            return answered(200, [("Content-Type", "application/json"), ("Content-Length", str(len(listing)))], listing)
        head = request.startswith(b"HEAD")
        return answered(200, [*clean, *lines], b"" if head else body)

    import huggingface_hub.constants as hub

    offline = mock.patch.object(hub, "HF_HUB_OFFLINE", False)
    with serving(answer) as address, online(), offline, mock.patch.dict("os.environ", {"EXCB_ENDPOINT": address}):
        found = guard.run(lambda: fetch_repo("user/name", None, reporter=Reporter(quiet=True)))
    assert found is None or Path(found).is_relative_to(guard.folder)
