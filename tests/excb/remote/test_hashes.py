"""Tests of hashes: how they are published, and which of two counts."""

import hashlib
from pathlib import Path

import pytest

from excb.console import Reporter
from excb.errors import UserError
from excb.remote.hashes import Published, hashes_of, parse_digest, verify_hash
from excb.remote.home import record_hash, recorded

CONTENT = b"weights" * 1000
SHA256, MD5 = hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest()
OTHER = hashlib.sha256(b"others").hexdigest()
SOURCE = "https://example.com/a.pth"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))
    (tmp_path / "a.pth").write_bytes(CONTENT)
    return tmp_path / "a.pth"


def check(file: Path, published: Published | None) -> None:
    aside, hashes = file.with_name("a.pth.wrong"), hashes_of(file, ["sha256", "md5"])
    verify_hash(file, hashes, published, source=SOURCE, aside=aside, reporter=Reporter(), name="net")


@pytest.mark.parametrize(
    ("text", "algorithm", "digits", "complete"),
    [
        (f"sha256:{SHA256}", "sha256", SHA256, True),
        (f"sha256:{SHA256.upper()}", "sha256", SHA256, True),
        ("sha256:0676ba61", "sha256", "0676ba61", False),
        (f"md5:{MD5}", "md5", MD5, False),  # two files of one MD5 are easily made
    ],
)
def test_published_hashes_are_read(text: str, algorithm: str, digits: str, complete: bool) -> None:
    assert parse_digest(text) == (algorithm, digits)
    assert parse_digest(text).complete is complete


@pytest.mark.parametrize(
    "text", ["", SHA256, "sha256:", "sha256:0676ba6", "sha1:0676ba61", "md5:" + "0" * 33, "md5:x" * 9]
)
def test_what_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a hash: write sha256:HEX or md5:HEX"):
        parse_digest(text)


def test_hashes_of_a_file_are_those_of_its_bytes(file: Path) -> None:
    assert hashes_of(file, ["sha256", "md5"]) == {"sha256": SHA256, "md5": MD5}
    with pytest.raises(UserError, match=r"cannot read .*missing"):
        hashes_of(file.with_name("missing"), ["sha256"])


def test_unpublished_hash_is_recorded_and_told_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(file, None)
    assert recorded(SOURCE) == SHA256
    assert capsys.readouterr().err == f"net: no hash of {SOURCE} is published: from now on it must be sha256:{SHA256}\n"
    check(file, None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "published", [Published("sha256", SHA256), Published("sha256", SHA256[:8]), Published("md5", MD5)]
)
def test_right_file_passes_and_its_sha256_is_recorded(
    file: Path, published: Published, capsys: pytest.CaptureFixture[str]
) -> None:
    check(file, published)
    check(file, published)
    assert recorded(SOURCE) == SHA256
    assert file.read_bytes() == CONTENT
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "published", [Published("sha256", OTHER), Published("sha256", OTHER[:8]), Published("md5", "0" * 32)]
)
def test_wrong_file_is_kept_aside_with_both_hashes_named(file: Path, published: Published) -> None:
    actual = {"sha256": SHA256, "md5": MD5}[published.algorithm]
    aside = file.with_name("a.pth.wrong")
    with pytest.raises(
        UserError, match=f"net: {SOURCE} .*{aside}.*{published.algorithm} is {actual}, but {published.digits}"
    ):
        check(file, published)
    assert not file.exists()
    assert aside.read_bytes() == CONTENT
    assert recorded(SOURCE) is None


@pytest.mark.parametrize("published", [None, Published("sha256", SHA256[:8]), Published("md5", MD5)])
def test_file_that_changed_since_its_first_download_is_refused(file: Path, published: Published | None) -> None:
    record_hash(SOURCE, OTHER, 6)
    with pytest.raises(UserError, match=rf"{SHA256}, but {OTHER} was recorded at its first download.*hashes\.json"):
        check(file, published)
    assert file.with_name("a.pth.wrong").exists()
    assert recorded(SOURCE) == OTHER


def test_whole_published_sha256_counts_more_than_what_was_recorded(file: Path) -> None:
    record_hash(SOURCE, OTHER, 6)
    check(file, Published("sha256", SHA256))
    assert recorded(SOURCE) == SHA256
