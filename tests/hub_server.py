"""A model hub on the loopback for tests: what the huggingface_hub client asks of one, held in memory.

Large files come by Git LFS or, where the client has `hf_xet`, into a Xet store in a local folder, as the real hub has
both.
"""

import base64
import hashlib
import json
import re
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import yaml  # type: ignore[import-untyped]

USER, TOKEN = "tester", "hf_of_the_tester"


@dataclass(frozen=True)
class File:
    """A file of a commit; one in a Xet store has no content here."""

    oid: str  # sha256 of a large file, else git's sha1
    size: int
    content: bytes | None
    large: bool = False
    xet: str | None = None

    def describe(self, path: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "oid": self.oid, "size": self.size}
        if self.large:
            entry["oid"] = hashlib.sha1(self.oid.encode()).hexdigest()
            entry["lfs"] = {"oid": self.oid, "size": self.size, "pointerSize": 134}
        return entry | ({"xetHash": self.xet} if self.xet else {})


@dataclass
class Repository:
    """Commits by their hash, each with all its files; branch main, tags, and what came by LFS, by its sha256."""

    private: bool = False
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)

    def commit(self, files: dict[str, File]) -> str:
        state = [len(self.commits), sorted((path, file.oid) for path, file in files.items())]
        oid = hashlib.sha1(json.dumps(state).encode()).hexdigest()
        self.commits[oid] = files
        self.refs["main"] = oid
        return oid

    def resolve(self, revision: str) -> str:
        found = self.refs.get(revision) or self.tags.get(revision) or revision
        if found not in self.commits:
            raise RefusalError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found


class RefusalError(Exception):
    """An answer of 400 or above, as the hub words it."""

    def __init__(self, status: int, code: str = "", message: str = "", **headers: str) -> None:
        super().__init__(message)
        self.status = status
        named = {"X-Error-Code": code, "X-Error-Message": message}
        self.headers = {key: value for key, value in named.items() if value} | headers


@dataclass
class Answer:
    """The answer of a route; a dictionary or list becomes JSON."""

    body: Any = b""
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200


class Hub:
    """The hub and its switches; a context manager.

    Args:
        folder: where Xet's store is to lie.

    Attributes:
        url: what HF_ENDPOINT is to be.
        repositories: by "user/name".
        cut: path -> how many of its next downloads break off after half of what was asked for.
        overtaken: whether someone else commits just before each commit that arrives.
        requests: every request so far, "METHOD /path", and " bytes=..." where it asked for a range.
    """

    def __init__(self, folder: Path) -> None:
        self.repositories: dict[str, Repository] = {}
        self.cut: dict[str, int] = {}
        self.overtaken = False
        self.requests: list[str] = []
        self._xet = folder / "xet-store"
        self._xet.mkdir(parents=True)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count(self, pattern: str) -> int:
        """How many requests there were like this."""
        return sum(re.search(pattern, request) is not None for request in self.requests)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                wanted = self.headers.get("Range", "")
                hub.requests.append(f"{self.command} {self.path} {wanted}".rstrip())
                try:
                    found = hub.route(self.command, self.path, body, dict(self.headers))
                except RefusalError as refusal:
                    text = {"error": str(refusal)}
                    found = Answer(text, refusal.headers, refusal.status)
                content = found.body if isinstance(found.body, bytes) else json.dumps(found.body).encode()
                self.send_response(found.status)
                for name, value in ({"Content-Length": str(len(content))} | found.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                path = self.path.rpartition("/")[2]
                if self.command == "GET" and hub.cut.get(path):
                    hub.cut[path] -= 1
                    content = content[: len(content) // 2]
                    self.close_connection = True
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler

    # -----------------------------------------------------------------------------------------------------------------
    # Routes
    # -----------------------------------------------------------------------------------------------------------------

    def route(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Answer one request.

        Raises:
            RefusalError: unknown, not allowed, or in conflict with what is there.
        """
        path = unquote(urlsplit(target).path)
        authorised = self._authorised(headers) or path.startswith("/_lfs/")  # those addresses are their own proof
        for methods, pattern, answer in self._ROUTES:
            if method in methods and (match := re.fullmatch(pattern, path)):
                names: dict[str, Any] = {name: value for name, value in match.groupdict().items() if value}
                if method in ("POST", "PUT") and not authorised:
                    raise RefusalError(401, message="Invalid username or password.")
                if repo := names.pop("repo", None):
                    names["at"] = self._open(repo, authorised)
                    names["repo"] = repo
                return answer(self, body=body, headers=headers, **names)
        raise RefusalError(404, message=f"no route {method} {path}")

    def _authorised(self, headers: dict[str, str]) -> bool:
        given = {name.lower(): value for name, value in headers.items()}.get("authorization")
        if given not in (None, f"Bearer {TOKEN}"):
            raise RefusalError(401, message="Invalid credentials in Authorization header")
        return given is not None

    def _open(self, repo: str, authorised: bool) -> Repository:
        found = self.repositories.get(repo)
        if found is None or (found.private and not authorised):  # which of the two, the real hub does not say either
            raise RefusalError(404 if authorised else 401, "RepoNotFound", "Repository not found")
        return found

    def _whoami(self, *, headers: dict[str, str], **_rest: Any) -> Answer:
        if not self._authorised(headers):
            raise RefusalError(401, message="Invalid username or password.")
        return Answer({"type": "user", "name": USER, "orgs": [], "auth": {"accessToken": {"role": "write"}}})

    def _create(self, *, body: bytes, **_rest: Any) -> Answer:
        wanted = json.loads(body)
        owner = wanted.get("organization") or USER
        repo = f"{owner}/{wanted['name']}"
        if owner != USER:
            raise RefusalError(
                403, message=f"You don't have the rights to create a model under the namespace {owner!r}"
            )
        answer = {"url": f"{self.url}/{repo}"}
        if repo in self.repositories:
            return Answer({"error": "You already created this model repo", **answer}, status=409)
        self.repositories[repo] = Repository(private=wanted.get("visibility") == "private")
        self.repositories[repo].commit({".gitattributes": _small(b"*.safetensors filter=lfs\n")})
        return Answer(answer)

    def _validate(self, *, body: bytes, **_rest: Any) -> Answer:
        header = re.match(r"---\n(.*?)\n---\n", json.loads(body)["content"], re.DOTALL)
        try:
            known = yaml.safe_load(header[1]) if header else {}
            errors = [] if isinstance(known, dict) else [{"message": "metadata is not a mapping"}]
        except yaml.YAMLError as error:
            errors = [{"message": f"metadata is not YAML: {error}"}]
        return Answer({"errors": errors, "warnings": []}, status=400 if errors else 200)

    def _info(self, *, at: Repository, repo: str, revision: str = "main", **_rest: Any) -> Answer:
        oid = at.resolve(revision)
        files = []
        for path, file in at.commits[oid].items():
            known = file.describe(path)
            large = {"lfs": {"sha256": file.oid, "size": file.size, "pointerSize": 134}} if file.large else {}
            files.append({"rfilename": path, "size": file.size, "blobId": known["oid"]} | large)
        fixed = {"author": USER, "gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0}
        return Answer({"id": repo, "sha": oid, "private": at.private, "siblings": files} | fixed)

    def _tree(self, *, at: Repository, revision: str, **_rest: Any) -> Answer:
        return Answer([file.describe(path) for path, file in at.commits[at.resolve(revision)].items()])

    def _refs(self, *, at: Repository, **_rest: Any) -> Answer:
        branches = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": oid} for n, oid in at.refs.items()]
        tags = [{"name": n, "ref": f"refs/tags/{n}", "targetCommit": oid} for n, oid in at.tags.items()]
        return Answer({"branches": branches, "tags": tags, "converts": []})

    def _tag(self, *, at: Repository, revision: str, body: bytes, **_rest: Any) -> Answer:
        oid, name = at.resolve(revision), json.loads(body)["tag"]
        if name in at.tags:
            raise RefusalError(409, message=f"Tag {name} already exists")
        at.tags[name] = oid
        return Answer({})

    def _preupload(self, *, at: Repository, revision: str, body: bytes, **_rest: Any) -> Answer:
        there = at.commits[at.resolve(revision)]
        files = []
        for wanted in json.loads(body)["files"]:
            path = wanted["path"]
            mode = {"uploadMode": "lfs" if path.endswith(".safetensors") else "regular", "shouldIgnore": False}
            files.append({"path": path, **mode} | ({"oid": there[path].oid} if path in there else {}))
        return Answer({"files": files})

    def _batch(self, *, at: Repository, repo: str, body: bytes, **_rest: Any) -> Answer:
        objects = json.loads(body)["objects"]
        for wanted in objects:
            if wanted["oid"] not in at.large:
                upload, verify = (f"{self.url}/_lfs/{repo}/{wanted['oid']}{end}" for end in ("", "/verify"))
                wanted["actions"] = {"upload": {"href": upload}, "verify": {"href": verify}}
        return Answer({"transfer": "basic", "objects": objects})

    def _upload(self, *, at: Repository, body: bytes, oid: str, **_rest: Any) -> Answer:
        if hashlib.sha256(body).hexdigest() != oid:
            raise RefusalError(400, message="content and oid differ")
        at.large[oid] = body
        return Answer()

    def _verify(self, *, at: Repository, body: bytes, oid: str, **_rest: Any) -> Answer:
        wanted = json.loads(body)
        if wanted["oid"] != oid or len(at.large.get(oid, b"")) != wanted["size"]:
            raise RefusalError(404, message="no such object")
        return Answer()

    def _xet_token(self, **_rest: Any) -> Answer:
        url, expiry = f"local://{self._xet}", int(time.time()) + 3600
        headers = {"X-Xet-Cas-Url": url, "X-Xet-Access-Token": "x", "X-Xet-Token-Expiration": str(expiry)}
        return Answer({"casUrl": url, "accessToken": "x", "exp": expiry}, headers)

    def _commit(self, *, at: Repository, repo: str, revision: str, body: bytes, **_rest: Any) -> Answer:
        if self.overtaken:
            at.commit(at.commits[at.resolve(revision)] | {"note.txt": _small(b"from elsewhere")})
        parent = at.resolve(revision)
        files, xet = dict(at.commits[parent]), dict[str, str]()
        for line in map(json.loads, body.splitlines()):
            kind, value = line["key"], line["value"]
            if kind == "header" and value.get("parentCommit", parent) != parent:
                raise RefusalError(412, message="A commit has happened since. Please refresh and try again.")
            if kind == "file":
                files[value["path"]] = _small(base64.b64decode(value["content"]))
            elif kind == "lfsFile":
                oid, content = value["oid"], at.large.get(value["oid"])
                xet = xet or _xet_hashes(self._xet)
                if content is None and oid not in xet:
                    raise RefusalError(400, message=f"{value['path']} was not uploaded")
                files[value["path"]] = File(oid, value["size"], content, True, None if content else xet[oid])
            elif kind == "deletedFile":
                del files[value["path"]]
        oid = at.commit(files)
        return Answer({"success": True, "commitOid": oid, "commitUrl": f"{self.url}/{repo}/commit/{oid}"})

    def _download(
        self, *, at: Repository, repo: str, revision: str, path: str, headers: dict[str, str], **_rest: Any
    ) -> Answer:
        oid = at.resolve(revision)
        file = at.commits[oid].get(path)
        if file is None:
            raise RefusalError(404, "EntryNotFound", "Entry not found", **{"X-Repo-Commit": oid})
        found = {"X-Repo-Commit": oid, "ETag": f'"{file.oid}"', "Accept-Ranges": "bytes"}
        if file.xet:
            route = f"{self.url}/api/models/{repo}/xet-read-token/{oid}"
            found |= {"X-Xet-Hash": file.xet, "X-Xet-Refresh-Route": route, "X-Linked-Size": str(file.size)}
        content = file.content or b""
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range", headers.get("range", ""))):
            start, stop = int(wanted[1]), min(int(wanted[2] or file.size - 1) + 1, file.size)
            found["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
            return Answer(content[start:stop], found, status=206)
        return Answer(content, found)

    _REPO, _REVISION = r"(?P<repo>[\w.-]+/[\w.-]+)", r"(?P<revision>[^/]+)"
    _ROUTES: tuple[tuple[tuple[str, ...], str, Callable[..., Answer]], ...] = (
        (("GET",), r"/api/whoami-v2", _whoami),
        (("POST",), r"/api/repos/create", _create),
        (("POST",), r"/api/validate-yaml", _validate),
        (("GET",), rf"/api/models/{_REPO}(/revision/{_REVISION})?", _info),
        (("GET",), rf"/api/models/{_REPO}/tree/{_REVISION}", _tree),
        (("GET",), rf"/api/models/{_REPO}/refs", _refs),
        (("POST",), rf"/api/models/{_REPO}/tag/{_REVISION}", _tag),
        (("POST",), rf"/api/models/{_REPO}/preupload/{_REVISION}", _preupload),
        (("POST",), rf"/{_REPO}\.git/info/lfs/objects/batch", _batch),
        (("PUT",), rf"/_lfs/{_REPO}/(?P<oid>\w+)", _upload),
        (("POST",), rf"/_lfs/{_REPO}/(?P<oid>\w+)/verify", _verify),
        (("GET",), rf"/api/models/{_REPO}/xet-(read|write)-token/{_REVISION}", _xet_token),
        (("POST",), rf"/api/models/{_REPO}/commit/{_REVISION}", _commit),
        (("HEAD", "GET"), rf"/{_REPO}/resolve/{_REVISION}/(?P<path>.+)", _download),
    )


def _small(content: bytes) -> File:
    return File(hashlib.sha1(b"blob %d\0%s" % (len(content), content)).hexdigest(), len(content), content)


def _xet_hashes(store: Path) -> dict[str, str]:
    """The Xet hash of every file in a local Xet store, by its sha256, from the shards that the client left there.

    A shard is 48-byte records after one of 48 bytes: for each file its hash, flags and number of parts; the parts; as
    many records of checks (flag 31); and one that starts with the sha256 (flag 30). A hash of ones ends the files.
    """
    found, size = dict[str, str](), 48
    for shard in (store / "xet" / "xorbs" / "shards").glob("*.mdb"):
        contents, at = shard.read_bytes(), size
        while contents[at : at + 32] != b"\xff" * 32:
            flags, parts = struct.unpack_from("<II", contents, at + 32)
            last = at + size * (parts * (1 + (flags >> 31)) + (flags >> 30 & 1))
            found[_hexadecimal(contents, last)] = _hexadecimal(contents, at)
            at = last + size
    return found


def _hexadecimal(contents: bytes, at: int) -> str:
    return "".join(f"{word:016x}" for word in struct.unpack_from("<4Q", contents, at))
