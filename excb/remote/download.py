"""Download of one file: resumed where it was cut, hashed as it arrives, with one-line errors."""

import errno
import ipaddress
import json
import os
import re
import shutil
import socket
import ssl
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from email.message import Message
from enum import IntEnum
from http.client import HTTPException, HTTPResponse, InvalidURL
from pathlib import Path
from typing import IO, cast
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from excb.console import Reporter
from excb.errors import NO_ROOM, UserError
from excb.files import json_text
from excb.files.atomic import write_text
from excb.files.foreign import open_file, read_bytes
from excb.files.records import record_of, rules_of
from excb.remote.hashes import Hashes
from excb.remote.home import VARIABLE

CHUNK = 1 << 20  # bytes
MB = 1_000_000
TIMEOUT = 30.0  # seconds without any data
ATTEMPTS = 4
BACKOFF = 2.0  # seconds before the second attempt, twice as long before each further one
LOOPBACK = ("127.0.0.1", "localhost")
LARGEST = 10**15  # bytes: what a server states beyond it is not a size of a file
DRIVE = "https://drive.usercontent.google.com/download?"


class _CutError(Exception):
    """The connection broke, or the server failed temporarily: worth another attempt."""


def direct(url: str) -> str:
    """`url`, or the file behind a link of Google Drive, Dropbox or Google Cloud. Raises UserError for no address."""
    parts = _split(url)
    query = dict(parse_qsl(parts.query))
    if parts.hostname in ("drive.google.com", "docs.google.com"):
        in_path = re.search(r"/file/d/([\w-]+)", parts.path)
        if identity := in_path[1] if in_path else query.get("id"):
            key = {"resourcekey": query["resourcekey"]} if "resourcekey" in query else {}
            return DRIVE + urlencode({"id": identity, "export": "download", "confirm": "t"} | key)
    if parts.hostname in ("dropbox.com", "www.dropbox.com"):
        return urlunsplit(parts._replace(query=urlencode(query | {"dl": "1"})))
    if parts.hostname == "storage.cloud.google.com":
        return urlunsplit(parts._replace(netloc="storage.googleapis.com"))
    return url


def download(
    url: str, part: Path, *, algorithms: Collection[str], reporter: Reporter, name: str
) -> tuple[str, dict[str, str]]:
    """Download the file at `url` to `part`, resuming what an earlier call left there.

    What is needed to resume is kept beside the part, in a small .json file.

    Args:
        url: of the file, or a share link to it.
        part: where the bytes go. Its folder exists, and no other process uses it.
        algorithms: of the hashes to return, such as "sha256".
        reporter: shows progress, in MB, and further attempts.
        name: of the checkpoint, for messages.

    Returns:
        The file's name, made safe for this disk, and its hashes in hexadecimal digits.

    Raises:
        UserError: the file cannot be fetched or written. What arrived is kept, unless it is not part of the file.
    """
    task = _Download(_checked(direct(url)), part, algorithms, reporter, name)
    wait = BACKOFF
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return task.attempt()
        except _CutError as error:
            if attempt == ATTEMPTS:
                raise UserError(f"{name}: {error}, in {ATTEMPTS} attempts: run again to resume from there") from None
            reporter.warn(f"{name}: {error}: trying again")
        except OSError as error:
            what = "the disk is full" if error.errno in NO_ROOM else "cannot write"
            raise UserError(
                f"{name}: {what} at {part.parent} ({error.strerror}): make room or name a folder elsewhere in "
                f"{VARIABLE}, and run again"
            ) from None
        time.sleep(wait)
        wait *= 2
    raise AssertionError("unreachable")


def browser_download(name: str) -> str:
    """Instructions for a file that only a browser can download; `name` is the checkpoint's, and may be a URL."""
    return f"download it with a browser, then run `excb-zoo import FILE --name {'NAME' if '/' in name else name}`"


@dataclass(frozen=True)
class _Known:
    """The server's description of the file at its first byte."""

    name: str  # safe for this disk
    total: int | None  # bytes
    version: str | None  # strong ETag, else Last-Modified


@dataclass(frozen=True)
class _Download:
    """The arguments of `download`."""

    address: str
    part: Path
    algorithms: Collection[str]
    reporter: Reporter
    name: str

    def attempt(self) -> tuple[str, dict[str, str]]:
        """Do what `download` does, once."""
        hashes, have, headers = Hashes(self.algorithms), 0, {}
        if (known := _read_known(self.part)) is not None:
            have = hashes.add_file(self.part)
            if have and have == known.total:  # an earlier call was stopped after the last byte
                return self._whole(known, hashes)
            if have and known.version is not None:
                headers = {"Range": f"bytes={have}-", "If-Range": known.version}
        with _opened(self.address, headers, self.part, self.name) as response:
            host = urlsplit(self.address).hostname
            if response.headers.get_content_type() == "text/html":
                raise self._page()
            described, end = _described(response, self.address), None
            if response.status == 200:  # the whole file: the server does not resume, or has another one now
                known, have, hashes = described, 0, Hashes(self.algorithms)
                self.part.unlink(missing_ok=True)
            elif response.status != 206 or known is None or not headers:
                raise _CutError(f"{host} answers {response.status}, where the whole file was asked for")
            elif described.version not in (None, known.version) or (
                (span := _span(response, have, known.total)) is None
            ):
                _forget(self.part)
                raise _CutError(f"{host} continued with another file")
            else:
                end, total = span
                known = replace(known, total=total)
            write_text(json.dumps(asdict(known)), self.part.with_suffix(".json"))
            check_room(self.part.parent, (known.total or have) - have)
            have = self._write(response, have, known.total, hashes, end=end or known.total)
        if not have or have < (known.total or 0):
            raise _CutError(f"the connection was cut at byte {have}")
        return self._whole(known, hashes)

    def _write(self, response: HTTPResponse, have: int, total: int | None, hashes: Hashes, *, end: int | None) -> int:
        """Append what arrives to the part, not atomically, so that the next download resumes it. Returns its size.

        No answer may send bytes beyond `end`, where it stated one.
        """
        reporter = self.reporter if total is None or total >= MB else Reporter(quiet=True)
        with (
            open(self.part, "ab", opener=_opened_here) as stream,
            reporter.progress(f"{self.name}, MB", (total or 0) // MB, done=have // MB) as progress,
        ):
            for chunk in _chunks(response):
                if have + len(chunk) > (end or LARGEST):
                    _forget(self.part)
                    raise _CutError(f"{urlsplit(self.address).hostname} sends more bytes than it stated")
                stream.write(chunk)
                hashes.add(chunk)
                progress.advance((have + len(chunk)) // MB - have // MB)
                have += len(chunk)
            stream.flush()
            os.fsync(stream.fileno())
        return have

    def _whole(self, known: _Known, hashes: Hashes) -> tuple[str, dict[str, str]]:
        with open_file(self.part) as stream:
            start = stream.read(512).lstrip().lower()
        if start.startswith((b"<!doctype html", b"<html")):  # whatever its type in the headers
            _forget(self.part)
            raise self._page()
        return known.name, hashes.digits()

    def _page(self) -> UserError:
        return UserError(
            f"{self.name}: {self.address} gives a web page instead of a file, as share links do that ask something or "
            f"are over their quota: {browser_download(self.name)}"
        )


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    # Not `read`, which would lose its last bytes when the connection breaks.
    try:
        while chunk := response.read1(CHUNK):
            yield chunk
    except (OSError, HTTPException) as error:
        raise _CutError(f"the connection was cut ({error!r})") from None


def check_room(folder: Path, wanted: int) -> None:
    """Raise OSError if a folder's disk has less free space than `wanted` bytes."""
    if (free := shutil.disk_usage(folder).free) < wanted:
        raise OSError(errno.ENOSPC, f"{wanted / MB:,.1f} MB are needed and {free / MB:,.1f} MB free")


def _read_known(part: Path) -> _Known | None:
    try:
        values = json_text.parse(read_bytes(part.with_suffix(".json")))
    except (FileNotFoundError, ValueError):
        return None
    rules = rules_of(_Known, most=LARGEST)
    valid = record_of(rules, required=rules)(values) is None and part.is_file() and not part.is_symlink()
    return replace(_Known(**values), version=_sendable(values["version"])) if valid else None


def _opened_here(path: str, flags: int) -> int:
    """Open a file, but not through a link that somebody else has put there to have another file written."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _forget(part: Path) -> None:
    for file in (part, part.with_suffix(".json")):
        file.unlink(missing_ok=True)


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise UserError(f"{address!r} is not an address ({error})") from None


def _checked(address: str, *, came_from: str | None = None) -> str:
    parts = _split(address)
    # Unencrypted data can be changed on its way through a network, but not within this machine.
    inside = parts.hostname in LOOPBACK and (came_from is None or urlsplit(came_from).hostname in LOOPBACK)
    if parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and inside)):
        return address
    origin = f" (from {came_from})" if came_from else ""
    raise UserError(f"{address!r}{origin}: files are fetched from https:// addresses only")


class _Redirects(HTTPRedirectHandler):
    def redirect_request(  # noqa: PLR0917 - the library's signature
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        try:
            _checked(newurl, came_from=req.full_url)
            following = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
            if following is not None:
                _check_reach(req, following)
        except UserError:
            fp.close()
            raise
        return following


class _Zone(IntEnum):
    """How far away an address is."""

    MACHINE = 0
    NETWORK = 1  # private, or reached by no router
    INTERNET = 2


def _check_reach(before: Request, following: Request) -> None:
    """Refuse a redirect from the internet into the private network, or from there into this machine.

    What listens there trusts whoever can reach it, and the server that redirects could not.
    """
    # What the library will connect to, not what the address seems to say: the two read escapes differently.
    nearer = _zone(_host(following.full_url))
    if nearer < _Zone.INTERNET and nearer < _zone(_host(before.full_url)):
        where = "this machine" if nearer is _Zone.MACHINE else "the private network"
        raise UserError(
            f"{following.full_url!r} (from {before.full_url}): it leads into {where}, where no server elsewhere may "
            "send us: if you trust it, give that address itself"
        )


def _host(address: str) -> str:
    host = Request(address).host  # noqa: S310 - nothing is opened; of a request in use it may be that of a proxy
    return re.sub(r":[0-9]*$", "", host.rpartition("@")[2]).strip("[]")


def _zone(host: str) -> _Zone:
    """How far away the nearest address of a host is; a name that is unknown here (a proxy may know it) is far away."""
    try:
        addresses = {str(address[4][0]) for address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except socket.gaierror:
        return _Zone.INTERNET
    return min(_zone_of(ipaddress.ip_address(text)) for text in addresses)


def _zone_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> _Zone:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback or address.is_unspecified:
        return _Zone.MACHINE
    return _Zone.INTERNET if address.is_global else _Zone.NETWORK


def open_address(request: Request | str, *, timeout: float) -> HTTPResponse:
    """Open an address for reading, with a limit of seconds without data.

    Raises:
        UserError: it redirects to less than https, or into a place that the server has no business in.
        OSError, HTTPException: it cannot be opened.
    """
    return cast(HTTPResponse, build_opener(_Redirects).open(request, timeout=timeout))


def _opened(address: str, headers: dict[str, str], part: Path, name: str) -> HTTPResponse:
    host = urlsplit(address).hostname
    request = Request(address, headers={"User-Agent": "excb", **headers})  # noqa: S310 - `_checked` lets https pass
    try:
        return open_address(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # the file is now shorter than the part
            _forget(part)
        if error.code == 416 or error.code >= 500:
            raise _CutError(f"{host} answers {error.code} {error.reason}") from None
        raise _refusal(error, address, name) from None
    except URLError as error:
        if isinstance(error.reason, socket.gaierror):
            raise UserError(f"{name}: no host {host} ({error.reason.strerror}): is this machine online?") from None
        if isinstance(error.reason, ssl.SSLError):
            raise UserError(
                f"{name}: no secure connection to {host} ({error.reason}): check the clock, and the certificates of a "
                "proxy (SSL_CERT_FILE)"
            ) from None
        raise _CutError(f"cannot reach {host} ({error.reason})") from None
    except (InvalidURL, ValueError) as error:
        raise UserError(f"{address!r} is not an address ({error})") from None
    except (OSError, HTTPException) as error:
        raise _CutError(f"cannot reach {host} ({error!r})") from None


def _refusal(error: HTTPError, address: str, name: str) -> UserError:
    if error.code in (404, 410):
        return UserError(f"{name}: there is no file at {address} ({error.code}): look for it elsewhere")
    if error.code in (401, 403, 429):
        return UserError(
            f"{name}: {urlsplit(address).hostname} refuses {address} ({error.code}: private, or over its quota): try "
            f"again later, or {browser_download(name)}"
        )
    return UserError(f"{name}: {address} answers {error.code} {error.reason}: {browser_download(name)}")


def _described(response: HTTPResponse, address: str) -> _Known:
    headers, length = response.headers, response.length  # None if it is not stated, or is not a number
    tag = headers.get("ETag", "")
    version = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")
    name = _stated_name(headers) or unquote(urlsplit(address).path)
    return _Known(_safe(name), length if length is not None and length <= LARGEST else None, _sendable(version))


def _stated_name(headers: Message) -> str | None:
    """The file's name in Content-Disposition; None where it states none, or one that cannot be decoded."""
    try:
        return headers.get_filename()
    except (LookupError, TypeError, ValueError):  # charsets and numbers of parts are as the server wrote them
        return None


def _sendable(version: str | None) -> str | None:
    """A version that can be sent back; None of one with what no header may hold."""
    return version if version is not None and version.isascii() and version.isprintable() else None


def _safe(name: str) -> str:
    """The last part of a path or name, without what could lead elsewhere, hide the file or be too long."""
    last = name.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]", "_", last).lstrip(".")[-100:].lstrip(".") or "file"


def _span(response: HTTPResponse, have: int, known: int | None) -> tuple[int, int] | None:
    """Where a partial answer ends, and the size of the file; None unless it begins where the part ends, in that file.

    Args:
        response: the answer.
        have: bytes of the part.
        known: the size of the file, as far as it was stated.
    """
    span = re.fullmatch(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})", response.headers.get("Content-Range", ""))
    if span is None:
        return None
    first, last, total = map(int, span.groups())
    return (last + 1, total) if first == have <= last < total and known in (None, total) else None
