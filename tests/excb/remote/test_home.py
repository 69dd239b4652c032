"""Tests of the zoo's folder: where it is, which names lead into it, and the record of hashes."""

import json
import os
import threading
from pathlib import Path

import pytest

from excb.errors import UserError
from excb.remote import hf_repository
from excb.remote.home import cache_root, folder_of, home, record_hash, recorded

URL = "https://example.com/a.pth"


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))
    return tmp_path / "zoo"


# ---------------------------------------------------------------------------------------------------------------------
# Places
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"EXCB_HOME": "/zoo", "XDG_DATA_HOME": "/data"}, "/zoo"),
        ({"EXCB_HOME": "~/zoo"}, "/users/me/zoo"),
        ({"EXCB_HOME": "", "XDG_DATA_HOME": "/data"}, "/data/excb"),
        ({"XDG_DATA_HOME": "relative"}, "/users/me/.local/share/excb"),
        ({}, "/users/me/.local/share/excb"),
    ],
)
def test_home_is_what_the_environment_says(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EXCB_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/users/me"} | variables).items():
        monkeypatch.setenv(name, value)
    assert home() == Path(expected)


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"EXCB_HOME": "~nosuchuser/zoo"}, "EXCB_HOME"),
        ({"EXCB_CACHE": "~nosuchuser"}, "EXCB_CACHE"),
        ({"HF_HUB_CACHE": "~nosuchuser"}, "HF_HUB_CACHE"),
        ({"HF_HOME": "~nosuchuser"}, "HF_HUB_CACHE"),
        ({}, "EXCB_HOME"),  # an account without a home, as containers have
        ({}, "EXCB_CACHE"),
    ],
)
def test_a_home_of_nobody_is_one_line(variables: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXCB_HOME", "EXCB_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if not variables:
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    read = {
        "EXCB_HOME": home,
        "EXCB_CACHE": cache_root,
        "HF_HUB_CACHE": hf_repository._cache,
    }
    with pytest.raises(UserError, match=f"no home folder for ~(nosuchuser)?: name a folder in {named}$"):
        read[named]()


@pytest.mark.parametrize("name", ["rn50_400ep", "vits16-800ep", "a", "1.5", "A..b"])
def test_plain_names_have_folders(name: str, zoo: Path) -> None:
    assert folder_of(name) == zoo / name
    assert not zoo.exists()  # asking makes nothing


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../up", "a/b", "a\\b", "/etc", ".hidden", "-rf", "a b", "a\n", "ä", "a\0", "x" * 129]
)
def test_names_that_could_lead_elsewhere_are_refused(name: str, zoo: Path) -> None:
    with pytest.raises(UserError, match="is not a name for a checkpoint: letters"):
        folder_of(name)


@pytest.mark.parametrize(
    "name", ["downloads", "hashes.json", "catalogue.toml", "hashes.json.lock", "catalogue.toml.lock"]
)
def test_names_of_the_zoos_own_files_are_refused(name: str, zoo: Path) -> None:
    with pytest.raises(UserError, match="the zoo keeps something else"):
        folder_of(name)


# ---------------------------------------------------------------------------------------------------------------------
# The record of hashes
# ---------------------------------------------------------------------------------------------------------------------


def test_record_is_read_again_and_replaced_by_a_newer_one(zoo: Path) -> None:
    assert recorded(URL) is None
    record_hash(URL, "a" * 64, 10)
    record_hash("https://example.com/b.pth", "b" * 64, 20)
    assert recorded(URL) == "a" * 64
    record_hash(URL, "c" * 64, 30)
    assert json.loads((zoo / "hashes.json").read_text()) == {
        URL: {"sha256": "c" * 64, "size": 30},
        "https://example.com/b.pth": {"sha256": "b" * 64, "size": 20},
    }


def test_records_made_at_once_are_all_kept(zoo: Path) -> None:
    addresses = [f"https://example.com/{number}" for number in range(8)]
    threads = [threading.Thread(target=record_hash, args=(address, "d" * 64, 1)) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [recorded(address) for address in addresses] == ["d" * 64] * 8


@pytest.mark.parametrize("text", ["{", "[]", '{"u": 1}', '{"u": {}}', '{"u": {"sha256": 1}}', "\xff"])
def test_damaged_record_is_refused_not_forgotten(text: str, zoo: Path) -> None:
    zoo.mkdir()
    (zoo / "hashes.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"hashes\.json is damaged"):
        recorded(URL)
    with pytest.raises(UserError, match=r"hashes\.json is damaged"):
        record_hash(URL, "a" * 64, 1)
    assert (zoo / "hashes.json").read_bytes() == text.encode("latin-1")


def test_home_that_cannot_be_made_is_one_line(zoo: Path) -> None:
    zoo.write_text("a file in its place")
    with pytest.raises(UserError, match=r"cannot write .*hashes\.json: .*EXCB_HOME"):
        record_hash(URL, "a" * 64, 1)
