"""Places that may not be read, written or looked at: one line, exit code 2, and nothing is left out without a word."""

import glob
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from excb.checkpoint import run_checkpoint
from excb.errors import UserError
from excb.images.scanning import scan_folder
from excb.images.tars.places import find_shards
from excb.pretrain.__main__ import main as pretrain
from excb.transfer.cli import main as evaluate
from excb.transfer.leaderboard.gather import results_of
from excb.zoo.__main__ import main as zoo
from tests.ordinary_user import ordinary_user
from tests.transfer.labelled_images import write_folder

PROGRAMS = {"excb-pretrain": pretrain, "excb-eval": evaluate, "excb-zoo": zoo}
ON_CPU = "--device cpu --workers 0 --quiet"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with labels, to train and to test on."""
    place = tmp_path_factory.mktemp("data")
    for number, part in enumerate(("train", "test")):
        write_folder(place / part, each=2, classes=("ant", "bee"), seed=number)
    return place


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A place behind a folder that nobody may enter."""
    (tmp_path / "locked" / "inner").mkdir(parents=True)
    (tmp_path / "locked").chmod(0)
    with ordinary_user():
        yield tmp_path / "locked" / "inner"
    (tmp_path / "locked").chmod(0o700)


@pytest.mark.parametrize(
    "words",
    [
        "excb-pretrain quickstart --data LOCKED --out OUT --quiet",
        "excb-pretrain quickstart --data DATA --list LOCKED/list --out OUT --quiet",
        "excb-pretrain quickstart --data LOCKED/*.tar --out OUT --quiet",
        "excb-pretrain quickstart --data DATA --out LOCKED/run --quiet optim.batch=2",
        "excb-pretrain quickstart --data DATA --out OUT --quiet optim.batch=2 init=LOCKED/x.pt",
        "excb-pretrain doctor quickstart --data LOCKED --quiet",
        "excb-pretrain quickstart --data DATA --out LOCKED/run --quiet optim.batch=2 --dry-run",
        "excb-pretrain study balancers --data DATA --out LOCKED/study --quiet optim.batch=2",
        "excb-pretrain study balancers --data DATA --out LOCKED/study --quiet optim.batch=2 --dry-run",
        "excb-pretrain choose --data DATA --out LOCKED/choose --quiet",
        "excb-pretrain draw statistics LOCKED/run --out OUT.svg",
        "excb-pretrain draw balancing --out LOCKED/x.svg",
        f"excb-eval knn --ckpt tiny_grocery --data LOCKED {ON_CPU}",
        f"excb-eval knn --ckpt LOCKED/x.pt --data DATA {ON_CPU}",
        f"excb-eval knn --ckpt tiny_grocery --train DATA/train --test LOCKED/list.txt {ON_CPU}",
        f"excb-eval knn --ckpt tiny_grocery --data DATA --out LOCKED/x.json {ON_CPU}",
        f"excb-eval knn --ckpt tiny_grocery --data DATA --cache LOCKED/cache {ON_CPU}",
        f"excb-eval linear --ckpt tiny_grocery --data DATA --state LOCKED/state --protocol resnet --epochs 1 {ON_CPU}",
        f"excb-eval features --ckpt tiny_grocery --data DATA --out LOCKED/x.npz {ON_CPU}",
        f"excb-eval clusters --ckpt tiny_grocery --data DATA --out LOCKED/clusters {ON_CPU}",
        f"excb-eval all --ckpt tiny_grocery --data DATA --out LOCKED/report {ON_CPU}",
        f"excb-eval reproduce tiny_grocery --data DATA --out LOCKED/out {ON_CPU}",
        f"excb-eval detection --ckpt tiny_grocery --engine torchvision --data LOCKED {ON_CPU}",
        "excb-eval compare LOCKED/a.json LOCKED/b.json",
        "excb-eval leaderboard LOCKED --out OUT",
        "excb-eval leaderboard --out LOCKED/board",
        "excb-eval cache --cache LOCKED/cache --clear",
        "excb-zoo import LOCKED/x.pt --name mine",
        "excb-zoo verify LOCKED/x.pt",
        "excb-zoo export tiny_grocery --out LOCKED/out",
        "excb-zoo package tiny_grocery --out LOCKED/out --licence apache-2.0",
    ],
)
def test_what_may_not_be_entered_is_one_line(
    data: Path, locked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    program, *rest = words.replace("LOCKED", str(locked)).replace("DATA", str(data)).split()
    assert PROGRAMS[program]([word.replace("OUT", str(tmp_path / "out")) for word in rest]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"{program}: error: ")
    assert err.count("\n") == 1
    assert str(locked.parent) in err
    assert "Permission denied" in err


def test_a_dry_run_refuses_a_cache_that_may_not_be_written(
    data: Path, locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXCB_CACHE", str(locked / "cache"))
    words = ["distil", "tiny_grocery", "--data", str(data), "--out", str(tmp_path / "run"), "optim.batch=2"]
    assert pretrain([*words, "--dry-run", "--quiet"]) == 2
    assert capsys.readouterr().err.endswith("name a folder elsewhere in EXCB_CACHE\n")
    keeps_none = ["distil.teacher_sees=view", "distil.statistics=none", "optim.epochs=1", "--quiet"]
    assert pretrain([*words, *keeps_none, "--dry-run"]) == 0
    assert pretrain([*words, *keeps_none]) == 0


def test_a_dry_run_takes_a_cache_that_holds_all_features_and_may_not_be_written(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("EXCB_CACHE", str(cache))
    words = ["distil", "tiny_grocery", "--data", str(data), "optim.batch=2", "optim.epochs=1", "--quiet"]
    words += ["efficiency.device=cpu", "efficiency.workers=0"]
    for more in ([], ["distil.teacher_sees=view"]):  # features of all images, or of a sample
        line = [*words, *more, "--out", str(tmp_path / "run")]
        assert pretrain(line) == 0
        shutil.rmtree(tmp_path / "run")
        folders = [cache, *(each for each in cache.rglob("*") if each.is_dir())]
        for folder in folders:
            folder.chmod(0o500)
        with ordinary_user():
            assert pretrain([*line, "--dry-run"]) == 0
            assert pretrain([*line, "distil.teacher_size=64", "--dry-run"]) == 2
        for folder in folders:
            folder.chmod(0o700)
        assert capsys.readouterr().err.endswith("name a folder elsewhere in EXCB_CACHE\n")


@pytest.mark.parametrize("words", ["list", "pull rn50_400ep"])
def test_so_is_a_zoo_that_may_not_be_entered(
    locked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    monkeypatch.setenv("EXCB_HOME", str(locked / "zoo"))
    assert zoo(words.split()) == 2
    last = capsys.readouterr().err.splitlines()[-1]  # some versions of Python come to a warning before
    assert last.startswith("excb-zoo: error: ")
    assert "Permission denied" in last


def test_the_doctor_tells_it_among_its_checks(data: Path, locked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", str(data / "train"), "--out", str(locked / "run"), "--gpus", "0", "--json", "--quiet"]
    assert pretrain(["doctor", "quickstart", *words, "optim.batch=2"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["run folder"]["verdict"] == "error"
    assert "Permission denied" in checks["run folder"]["found"]


def test_a_class_that_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    images = tmp_path / "images"
    write_folder(images, each=2)
    (images / "bee").chmod(0)
    (images / "lost+found").mkdir(mode=0)  # as at the top of a disk, where it is nobody's mistake
    with ordinary_user(), pytest.raises(UserError, match=f"cannot read {images / 'bee'} .Permission denied"):
        scan_folder(images)
    (images / "bee").chmod(0o755)
    with ordinary_user():
        assert len(scan_folder(images).classes or ()) == 7


def test_neither_is_one_behind_a_link(locked: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "images", each=2)
    (tmp_path / "images" / "hen").symlink_to(locked)
    with pytest.raises(UserError, match=r"cannot read .*hen"):
        scan_folder(tmp_path / "images")


def test_neither_are_shards_results_and_checkpoints(tmp_path: Path) -> None:
    for folder in ("a1", "a2", "b1"):
        (tmp_path / folder).mkdir()
        for name in ("1.tar", "2.tar", ".3.tar"):
            (tmp_path / folder / name).touch()
    for pattern in ("a?/*.tar", "a1/[12].tar", "*/1.tar", "*1/.*.tar", "a*/1.*"):
        text = str(tmp_path / pattern)
        assert find_shards(text) == sorted(glob.glob(text))  # noqa: PTH207 - the oracle
    (tmp_path / "a2").chmod(0)
    with ordinary_user():
        with pytest.raises(PermissionError, match="a2"):
            find_shards(str(tmp_path / "a?" / "*.tar"))
        with pytest.raises(UserError, match=r"cannot read .*a2"):
            results_of([tmp_path])
        with pytest.raises(PermissionError, match="a2"):
            run_checkpoint.among(tmp_path / "a2")


def test_a_name_without_end_is_one_line(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        f"knn --ckpt tiny_grocery --data {data} --out {tmp_path}/{'x' * 300}.json {ON_CPU}",
        f"knn --ckpt tiny_grocery --data {data}/{'x' * 300} {ON_CPU}",
        f"leaderboard {'x' * 300} --out {tmp_path}/board",
    ):
        assert evaluate(words.split()) == 2
        err = capsys.readouterr().err
        assert "File name too long" in err
        assert err.count("\n") == 1
