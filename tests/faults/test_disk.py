"""A disk that is full, or read-only, in the middle of a run: one line, nothing lost, and it resumes once fixed."""

import resource
import signal
from pathlib import Path

import pytest

from tests.faults.runs import Running, assert_equal, check_whole, figures, newest, run, start


def full_above(running: Running, size: int) -> None:
    """No file of a process may grow beyond so many bytes: the kernel refuses the write, as where the disk is full."""
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize("file", ["checkpoints/step-6.pt", "metrics.jsonl"])
def test_a_full_disk_is_one_line_and_loses_nothing_saved(
    images: Path, undisturbed: Path, tmp_path: Path, file: str
) -> None:
    out = tmp_path / "run"
    running = start(images, out, deed="pause_at=5")
    running.until_stopped()
    full_above(running, 100_000 if file.startswith("checkpoints") else (out / "metrics.jsonl").stat().st_size + 9)
    running.send(signal.SIGCONT)
    ended = running.wait()
    assert ended.code == 2, ended.said
    assert f"cannot write {out / file}" in ended.error
    assert "File too large" in ended.error
    assert check_whole(out) == 4
    assert not list((out / "checkpoints").glob(".*"))
    assert run(images, out).code == 0
    assert_equal(undisturbed, out)


def test_a_disk_that_stays_full_is_the_same_line_again(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = []
    for _ in range(2):
        running = start(images, out, deed="pause_at=0")
        running.until_stopped()
        full_above(running, 100_000)
        running.send(signal.SIGCONT)
        ended = running.wait()
        assert ended.code == 2, ended.said
        said.append(ended.error)
    assert said[0] == said[1]
    assert newest(out) == 0
    assert run(images, out).code == 0
    assert_equal(undisturbed, out)


@pytest.mark.usefixtures("full_end")
def test_a_picture_that_cannot_be_drawn_stops_nothing(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "curves.png" / "in the way").mkdir(parents=True)
    ended = run(images, out)
    assert ended.code == 0, ended.said
    assert f"warning: cannot write {out / 'curves.png'}" in ended.said
    assert_equal(undisturbed, out)
    (out / "curves.png" / "in the way").rmdir()
    (out / "curves.png").rmdir()
    assert run(images, out).code == 0  # it says that it is finished, and draws
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_becomes_read_only(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    folders = [out, out / "checkpoints", out / "tensorboard"]
    running = start(images, out, deed="obey_permissions;pause_at=5")
    running.until_stopped()
    for folder in folders:
        folder.chmod(0o555)
    running.send(signal.SIGCONT)
    ended = running.wait()
    lines = figures(out)
    again = run(images, out, deed="obey_permissions")
    for folder in folders:
        folder.chmod(0o755)
    assert (ended.code, again.code) == (2, 2)
    assert f"cannot write {out / 'checkpoints' / 'step-6.pt'}" in ended.error
    assert "Permission denied" in ended.error
    assert f"cannot write {out / 'recipe.json'}" in again.error
    assert check_whole(out) == 4
    assert figures(out) == lines
    assert run(images, out).code == 0
    assert_equal(undisturbed, out)
