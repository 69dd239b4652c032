"""A dry run refuses what the run refuses, in the same words; a run that is refused leaves nothing behind."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest
import torch

from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.errors import UserError
from excb.images.scanning import scan_folder
from excb.pretrain.__main__ import main
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.plan import plan as planning
from excb.pretrain.run import run_folder
from excb.pretrain.run.remote_mirror import RunLocation, run_place
from excb.pretrain.run.run_folder import RunFolder
from excb.pretrain.training import epoch_end
from excb.pretrain.training.rehearsal import rehearse
from excb.remote import object_store
from tests.faulty_store import FaultyStore
from tests.pretrain.adapt.adapted_runs import CONV, write_start
from tests.pretrain.adapt.adapted_runs import command as adapt
from tests.pretrain.small_runs import OVERRIDES, stopped_before, write_images

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(planning, "BRIEF_SECONDS", 0.0)
    monkeypatch.setattr(object_store, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def images(finished_run: Path) -> Path:
    return finished_run.parent / "images"


def quickstart(images: Path, out: Path | str, *words: str) -> list[str]:
    return ["quickstart", "--data", str(images), "--out", str(out), *OVERRIDES, *words]


def refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """The one line that a command ends with."""
    assert main([*words, "--quiet"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1), said.err
    return said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("adapt model.backbone=resnet18", "set model.backbone=conv4"),
        ("adapt --monitor {run}/nowhere", "nowhere"),
        ("quickstart init={run} method.hidden=8", "full checkpoint"),
        ("quickstart efficiency.accumulate=8", "BatchNorm needs two images at once"),
    ],
)
def test_a_start_that_the_run_refuses_is_refused_by_its_dry_run(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    name, *given = words.format(run=finished_run).split()
    images, out = finished_run.parent / "images", tmp_path / "runs" / "new"
    line = adapt(write_start(tmp_path, CONV), images, out) if name == "adapt" else quickstart(images, out)
    said = {refused(capsys, [*line, *given, *more]) for more in ((), ("--dry-run",), ())}
    assert len(said) == 1
    assert message in said.pop()
    assert not out.parent.exists()


def test_other_images_to_measure_on_are_refused_by_the_dry_run_as_well(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("before", 1), ("after", 2)):
        write_images(tmp_path / name, each=4 + seed)
    start, out, finished = write_start(tmp_path, CONV), tmp_path / "run", tmp_path / "finished"
    before, after = (f"monitor.data={tmp_path / name}" for name in ("before", "after"))
    begun = adapt(start, images, out, "optim.epochs=2")
    with stopped_before(2):
        assert main([*begun, before]) == 143
    done = quickstart(images, finished, "optim.epochs=1")
    assert main([*done, before]) == 0
    for line, message in ((begun, "than the start of this run was measured on"), (done, "than its figures are of")):
        for other in ([after], []):
            capsys.readouterr()
            said = {refused(capsys, [*line, *other, *more]) for more in ((), ("--dry-run",))}
            assert len(said) == 1
            assert f"monitor.data names other images {message}" in said.pop()
        assert main([*line, before, "--dry-run"]) == 0
        assert main([*line, before]) == 0


def test_a_start_that_fits_after_one_that_does_not(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the refused one was killed: its recipe decides nothing."""
    start, out = write_start(tmp_path, CONV), tmp_path / "run"
    line = adapt(start, images, out, "optim.epochs=1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "abandon", lambda folder: folder.close())
        refused(capsys, [*line, "model.backbone=resnet18"])
    assert (out / "recipe.json").is_file()
    assert main([*line, "--dry-run"]) == 0
    assert main(line) == 0


def test_a_run_that_is_refused_late_leaves_what_was_there(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("no k-means today")

    out = tmp_path / "run"
    (out / "slurm").mkdir(parents=True)
    (out / "mine.txt").touch()
    monkeypatch.setattr("excb.pretrain.loop.start_centroids", refuse)
    line = quickstart(images, out, "method.centroid_init=kmeans", "method.kmeans_samples=27")
    assert "no k-means today" in refused(capsys, line)  # with the journal open
    assert {file.name for file in out.iterdir()} == {"slurm", "mine.txt"}


def test_a_run_that_has_trained_keeps_its_files(
    images: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (out / run_folder.LOCK).unlink(missing_ok=True)
    before = {file.name for file in out.rglob("*")}
    assert "another run" in refused(capsys, quickstart(images, out, "run.seed=1"))
    assert {file.name for file in out.rglob("*")} - {run_folder.LOCK} == before


def test_a_run_at_a_url_leaves_nothing_there_either(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("no monitor today")

    url, start = "faulty://bucket/run", write_start(tmp_path, CONV)
    FaultyStore.reset()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(epoch_end, "Monitor", refuse)
            assert "no monitor today" in refused(capsys, [*quickstart(images, url)])
        assert not FaultyStore.names()
        assert not run_place(url).folder.exists()
        line = [word if word != "OUT" else url for word in adapt(start, images, Path("OUT"), "optim.epochs=1")]
        refused(capsys, [*line, "model.backbone=resnet18"])
        assert not FaultyStore.names()
        assert main(line) == 0
        assert main([*line, "--dry-run"]) == 0
    finally:
        FaultyStore.reset()


def test_a_lock_that_a_refused_run_removes_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two processes could hold locks of one folder: a file without a name, and the next one's."""
    first, usual = RunFolder(RunLocation(tmp_path / "run"), print), fcntl.flock

    def just_then(lock: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", usual)
        first.abandon()
        (tmp_path / "run").mkdir()
        usual(lock, how)

    monkeypatch.setattr(fcntl, "flock", just_then)
    second = RunFolder(RunLocation(tmp_path / "run"), print)
    with pytest.raises(UserError, match="another process is training"):
        RunFolder(RunLocation(tmp_path / "run"), print)
    second.close()


def test_a_dry_run_says_the_precision_of_the_run_that_was_begun(
    images: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(finished_run, tmp_path / "run"))
    stored = json.loads((out / "recipe.json").read_text())
    stored["recipe"]["efficiency"]["precision"] = "fp64"
    (out / "recipe.json").write_text(json.dumps(stored))
    line = quickstart(images, out, "efficiency.precision=auto", "--dry-run")
    assert main(line) == 0
    said = capsys.readouterr()
    assert "1 process, fp64 (auto)" in said.out
    assert "the run stays in fp64, in which it began" in said.err
    assert main([*line, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["precision"], report["precision_asked"]) == ("fp64", "auto")


@pytest.mark.skipif(torch.cuda.is_available(), reason="fp16 is fast on a GPU")
def test_a_dry_run_takes_no_step_in_fp16_on_a_cpu(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(planning, "measure_step")
    assert main(quickstart(images, tmp_path / "run", "efficiency.precision=fp16", "--dry-run")) == 0
    assert "nothing was measured: fp16 is many times slower than fp32 on a CPU" in capsys.readouterr().out


def test_an_extension_is_refused_by_its_dry_run_too(
    images: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(finished_run, tmp_path / "run"))
    newest, *older = run_checkpoint.in_run(out)
    for old in older:
        old.unlink()
    newest.rename(newest.with_name(run_checkpoint.name_of(2)))
    (out / "report.json").unlink()
    line = quickstart(images, out, "--extend", "2")
    said = {refused(capsys, [*line, *more]) for more in ((), ("--dry-run",))}
    assert len(said) == 1
    assert "has not finished its 3 epochs" in said.pop()


def test_a_dry_run_looks_at_the_url(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, others = "faulty://bucket/run", write_images(tmp_path / "others", each=5)
    begun = adapt(write_start(tmp_path, CONV), images, Path("OUT"), "optim.epochs=2")
    line = [word if word != "OUT" else url for word in begun]
    FaultyStore.reset()
    try:
        with stopped_before(2):
            assert main([*line, f"monitor.data={images}"]) == 143
        done = run_place(url).folder
        for given, message in (
            ([*line, "run.seed=1"], "belongs to another run"),
            (
                [*line, f"monitor.data={others}"],
                "monitor.data names other images than the start of this run was measured on",
            ),
            ([*line, "--extend", "2"], "has not finished its 2 epochs"),
        ):
            said = set[str]()
            for turn, more in enumerate((["--dry-run"], [])):
                monkeypatch.setenv("EXCB_CACHE", str(tmp_path / f"machine {message} {turn}"))
                capsys.readouterr()
                before = FaultyStore.names()
                said.add(refused(capsys, [*given, *more]))
                if more:
                    assert (FaultyStore.names(), run_place(url).folder.exists()) == (before, False)
            assert len(said) == 1
            assert message in said.pop()
        there = FaultyStore.names()
        monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "another machine"))
        assert main([*line, f"monitor.data={images}", "--dry-run"]) == 0
        assert f"it can run, into {url}: 3 of 6 steps are done" in capsys.readouterr().out
        assert (FaultyStore.names(), run_place(url).folder.exists()) == (there, False)
        monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "cache"))
        assert run_place(url).folder == done
        times = {file: file.stat().st_mtime_ns for file in done.rglob("*")}
        assert main([*line, f"monitor.data={images}", "--dry-run"]) == 0
        assert {file: file.stat().st_mtime_ns for file in done.rglob("*")} == times
        FaultyStore.reset()
        capsys.readouterr()
        said = {refused(capsys, [*line, *more]) for more in (["--dry-run"], [])}
        assert len(said) == 1
        assert f"the run at {url} is gone" in said.pop()
    finally:
        FaultyStore.reset()


@pytest.mark.parametrize("url", ["nowhere://bucket/run", "faulty://bucket/*"])
def test_a_url_that_the_run_refuses_is_refused_by_its_dry_run(
    images: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len({refused(capsys, quickstart(images, url, *more)) for more in ((), ("--dry-run",))}) == 1


def test_powersgd_that_cannot_resume_is_refused_by_the_dry_run(images: Path, tmp_path: Path) -> None:
    line = quickstart(images, tmp_path / "run", "efficiency.compression=powersgd")
    with stopped_before(4):
        assert main(line) == 143
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES, "efficiency.compression=powersgd", "efficiency.device=cpu"])
    place, quiet = RunLocation(tmp_path / "run"), Reporter(quiet=True)
    assert rehearse(recipe, scan_folder(images), place, quiet)[-1] == 5
    with pytest.raises(UserError, match="its error feedback is in no checkpoint"):
        rehearse(recipe, scan_folder(images), place, quiet, processes=2)
