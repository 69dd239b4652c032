"""A file server on the loopback for tests: resumes or not, cuts, refuses, redirects, shows pages, and counts."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass
class Served:
    """The contents of one path, and how they are sent.

    Args:
        content: the bytes.
        etag: with its quotes, as the header has it; None sends none.
        modified: the Last-Modified header; None sends none.
        kind: the Content-Type.
        disposition: the Content-Disposition; None sends none.
        resumes: whether Range is understood.
        chunked: no Content-Length, but pieces with their own lengths.
        status: anything but 200 is sent with an empty page instead of the content.
        location: of a redirect, with status 302.
        headers: sent in place of these, or besides; None leaves one out.
        answered: the status of the content, where it is a lie.
        more: bytes sent after the content.
    """

    content: bytes = b""
    etag: str | None = '"1"'
    modified: str | None = None
    kind: str = "application/octet-stream"
    disposition: str | None = None
    resumes: bool = True
    chunked: bool = False
    status: int = 200
    location: str | None = None
    headers: dict[str, str | None] = field(default_factory=dict)
    answered: int | None = None
    more: bytes = b""


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    path: str
    range: str | None
    if_range: str | None


@dataclass
class FileServer:
    """Serves `files` by path while its block runs.

    Args:
        files: may change at any time.
        cuts: for each of the next answers, the byte of the file before which the connection breaks.
        failures: for each of the next requests, the status of a refusal; 200 refuses nothing.
        gate: answers wait until it is set; `reached` says that one does.
        asked: every request so far.
        sent: bytes of files sent so far.
    """

    files: dict[str, Served] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)
    asked: list[Asked] = field(default_factory=list)
    sent: int = 0

    def __post_init__(self) -> None:
        self.gate.set()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that break off are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FileServer

    def do_GET(self) -> None:
        owner = self.owner
        owner.asked.append(Asked(self.path, self.headers["Range"], self.headers["If-Range"]))
        owner.reached.set()
        owner.gate.wait()
        served = owner.files.get(self.path, Served(status=404))
        status = owner.failures.pop(0) if owner.failures else served.status
        if status != 200:
            self._begin(status, {"Content-Length": "0", "Location": served.location})
            return
        start, size = self._start(served), len(served.content)
        length = ("Transfer-Encoding", "chunked") if served.chunked else ("Content-Length", str(size - start))
        headers = {
            "Content-Type": served.kind,
            "Content-Disposition": served.disposition,
            "Content-Range": f"bytes {start}-{size - 1}/{size}" if start else None,
            "ETag": served.etag,
            "Last-Modified": served.modified,
            length[0]: length[1],
        }
        self._begin(served.answered or (206 if start else 200), headers | served.headers)
        self._send(served, start, owner.cuts.pop(0) if owner.cuts else None)

    def _start(self, served: Served) -> int:
        """The first byte to send."""
        asked, condition = self.headers["Range"], self.headers["If-Range"]
        if asked is None or not served.resumes or condition not in (None, served.etag, served.modified):
            return 0
        return int(asked.removeprefix("bytes=").removesuffix("-"))

    def _begin(self, status: int, headers: dict[str, str | None]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()

    def _send(self, served: Served, start: int, cut: int | None) -> None:
        body = (served.content + served.more)[start:cut]
        self.wfile.write(b"%x\r\n%b\r\n" % (len(body), body) if served.chunked else body)
        self.owner.sent += len(body)
        if served.chunked and cut is None:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_arguments: object) -> None:
        """The tests read `asked` instead."""
