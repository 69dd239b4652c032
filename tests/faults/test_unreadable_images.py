"""Images that become unreadable during a run: counted, named once, replaced alike each time; refused if many."""

import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.runs import Ended, assert_equal, check_whole, figures, newest, run, start
from tests.pretrain.small_runs import write_images

ONE_EPOCH = ("optim.batch=20", "optim.epochs=2", "run.save_steps=2")  # of 300 images: 30 steps
BATCHES = "pause_at=3"  # 80 images are read by then


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """300 pictures that may be damaged."""
    return write_images(tmp_path / "many", each=100, side=32)


def damaged(many: Path, out: Path, files: Sequence[Path], *, workers: int = 0) -> Ended:
    """A run whose images are damaged in the middle of an epoch, each in another way."""
    running = start(many, out, *ONE_EPOCH, f"efficiency.workers={workers}", deed=f"{BATCHES};obey_permissions")
    running.until_stopped()
    for number, file in enumerate(files):
        match number % 5:
            case 0:
                file.unlink()
            case 1:
                file.write_bytes(file.read_bytes()[:200])
            case 2:
                file.chmod(0)
            case 3:
                file.write_bytes(b"")
            case 4:
                file.unlink()
                file.mkdir()
    running.send(signal.SIGCONT)
    return running.wait()


def test_a_few_are_replaced_and_named_once(many: Path, tmp_path: Path) -> None:
    files = [many / "class0" / "5.png", many / "class2" / "70.png"]
    kept = {file: file.read_bytes() for file in files}
    ended = damaged(many, tmp_path / "one", files)
    assert ended.code == 0, ended.said
    for file in files:
        assert ended.said.count(f"{file.relative_to(many)} cannot be read") == 1
    report = json.loads((tmp_path / "one" / "report.json").read_text())
    assert 2 <= report["broken_images"] <= 4  # each is due once an epoch
    for file in files:
        file.write_bytes(kept[file])
    again = damaged(many, tmp_path / "two", files)
    assert again.code == 0, again.said
    assert_equal(tmp_path / "one", tmp_path / "two")


def test_more_than_a_hundredth_is_refused_until_they_are_fixed(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    files = [many / f"class{number % 3}" / f"{number}.png" for number in range(30)]
    kept = {file: file.read_bytes() for file in files}
    ended = damaged(many, out, files)
    assert ended.code == 2, ended.said
    assert "images seen are broken (more than 1 % of 300), such as class" in ended.error
    assert "fix them and repeat the command to resume" in ended.error
    last = check_whole(out)
    assert last >= 8  # judged from the 200th image on
    missing = run(many, out, *ONE_EPOCH)
    assert missing.code == 2
    assert "other images" in missing.error
    assert f"use the 300 images of {many} again" in missing.error
    for file, contents in kept.items():
        if file.is_dir():
            file.rmdir()
        elif file.exists():
            file.chmod(0o644)
        file.write_bytes(contents)
    assert run(many, out, *ONE_EPOCH).code == 0
    assert newest(out) == 30
    assert json.loads((out / "report.json").read_text())["broken_images"] > 0


def test_a_folder_that_is_unmounted_and_comes_back(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    """No image can be read, nor any replacement: refused before a step is taken without images."""
    data, out = shutil.copytree(images, tmp_path / "data"), tmp_path / "run"
    running = start(data, out, deed="pause_at=4")
    running.until_stopped()
    data.rename(tmp_path / "elsewhere")
    running.send(signal.SIGCONT)
    ended = running.wait()
    assert ended.code == 2, ended.said
    assert "images seen are broken" in ended.error
    assert [line["step"] for line in figures(out) if line["kind"] == "step"] == [1, 2, 3, 4, 5]
    gone = run(data, out)
    assert gone.code == 2
    assert f"no folder {data}" in gone.error
    (tmp_path / "elsewhere").rename(data)
    assert run(data, out).code == 0
    assert_equal(undisturbed, out, data=False)
