"""Runs kept at a URL: the same run as in a folder, gone on with by any machine, whatever fails on the way."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from excb.checkpoint import run_checkpoint
from excb.files.run_files import read_metrics
from excb.pretrain import loop
from excb.pretrain.__main__ import main
from excb.pretrain.data.batch import ViewBatch
from excb.pretrain.run.remote_mirror import Mirror, run_place
from excb.remote import object_store
from tests.faulty_store import FaultyStore
from tests.made_once import MadeOnce
from tests.pretrain.small_runs import OVERRIDES, stopped_before, write_images

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")

STEPS = 9  # 27 images, batches of 8, 3 epochs
URL = "faulty://bucket/run"
RUN = "bucket/run/"
LEFT = {"recipe.json", "metrics.jsonl", "curves.png", "report.json"}


@pytest.fixture(scope="module")
def undisturbed(made_once: MadeOnce) -> Path:
    def train(folder: Path) -> None:
        assert main(command(write_images(folder / "images"), str(folder / "run"))) == 0

    return made_once("saved-often", train) / "run"


@pytest.fixture(scope="module")
def images(undisturbed: Path) -> Path:
    return undisturbed.parent / "images"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(object_store, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setenv("EXCB_CACHE", str(tmp_path / "machine"))
    FaultyStore.reset()
    yield monkeypatch
    FaultyStore.reset()


def command(images: Path, out: str, *more: str) -> list[str]:
    return ["quickstart", "--data", str(images), "--out", out, *OVERRIDES, "run.save_steps=2", *more]


def local(url: str = URL) -> Path:
    return run_place(url).folder


def stored() -> set[str]:
    return {name.removeprefix(RUN) for name in FaultyStore.names()}


def download(target: Path) -> Path:
    """Download what is stored, as a run folder."""
    for name in stored():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(FaultyStore.store[f"/{RUN}{name}"].getvalue())
    return target


def assert_same_run(one: Path, other: Path) -> None:
    first, second = (run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(run)[0]) for run in (one, other))
    assert first["step"] == second["step"]
    assert all(torch.equal(first["model"][name], second["model"][name]) for name in first["model"])
    timeless = [
        [{name: value for name, value in line.items() if name != "images_per_second"} for line in read_metrics(run)]
        for run in (one, other)
    ]
    assert timeless[0] == timeless[1]


# ---------------------------------------------------------------------------------------------------------------------
# All is well
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["memory", "file", "local", "faulty"])
def test_a_finished_run_is_there_as_it_is_here(
    images: Path, undisturbed: Path, tmp_path: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import fsspec

    url = f"{protocol}://{tmp_path}/bucket/run"
    assert main(command(images, url)) == 0
    assert f"run folder {url}: checkpoints/step-9.pt" in capsys.readouterr().err
    system, root = fsspec.url_to_fs(url)
    target = tmp_path / "copy"
    for path in system.find(root):
        file = target / Path(path).relative_to(root)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(system.cat_file(path))
    assert_same_run(undisturbed, target)
    assert {file.name for file in target.iterdir()} == {*LEFT - {"curves.png"}, "checkpoints", "tensorboard"}
    kept = {file.name for file in run_checkpoint.in_run(undisturbed)}
    assert {file.name for file in (target / "checkpoints").iterdir()} == kept  # the last ones and the best one
    assert {file.name for file in (target / "tensorboard").iterdir()} == {
        file.name for file in (local(url) / "tensorboard").iterdir()
    }


@pytest.mark.parametrize("same_machine", [True, False])
def test_a_stopped_run_resumes_from_there(
    images: Path, undisturbed: Path, tmp_path: Path, machine: pytest.MonkeyPatch, same_machine: bool
) -> None:
    with stopped_before(4):
        assert main(command(images, URL)) == 143
    assert "checkpoints/step-5.pt" in stored()  # SIGTERM's checkpoint: the exit has waited
    assert "owner.json" not in stored()
    if not same_machine:
        machine.setenv("EXCB_CACHE", str(tmp_path / "other machine"))
    assert main(command(images, URL)) == 0
    assert_same_run(undisturbed, download(tmp_path / "copy"))


def test_two_machines_in_turn(images: Path, undisturbed: Path, tmp_path: Path, machine: pytest.MonkeyPatch) -> None:
    for turn, step in enumerate((1, 3, 6)):
        machine.setenv("EXCB_CACHE", str(tmp_path / f"machine {turn % 2}"))
        with stopped_before(step):
            assert main(command(images, URL)) == 143
    machine.setenv("EXCB_CACHE", str(tmp_path / "machine 1"))
    assert main(command(images, URL)) == 0
    assert_same_run(undisturbed, download(tmp_path / "copy"))


def test_what_is_newer_here_stays(images: Path, undisturbed: Path, tmp_path: Path, machine: pytest.MonkeyPatch) -> None:
    with stopped_before(2):
        assert main(command(images, URL)) == 143
    with stopped_before(5), machine.context() as patch:
        patch.setattr(Mirror, "_send", lambda _self: "the network is gone")
        assert main(command(images, URL)) == 2
    assert max(name for name in stored() if name.startswith("checkpoints/")) == "checkpoints/step-3.pt"
    assert run_checkpoint.step_of(run_checkpoint.in_run(local())[0]) == 6
    FaultyStore.asked.clear()
    assert main(command(images, URL)) == 0
    assert ("get", f"/{RUN}metrics.jsonl") not in FaultyStore.asked
    assert_same_run(undisturbed, download(tmp_path / "copy"))


def test_steps_do_not_wait_and_the_newest_is_sent(images: Path, machine: pytest.MonkeyPatch) -> None:
    trained, usual, request = threading.Event(), loop.TrainingLoop._step, FaultyStore._request

    def step(run: loop.TrainingLoop, batch: ViewBatch) -> object:
        if run.progress.step == STEPS - 1:
            trained.set()
        return usual(run, batch)

    def slow(store: FaultyStore, kind: str, path: str) -> None:
        if kind == "put" and "step-2.pt" in path:
            assert trained.wait(120)  # steps go on meanwhile
        request(store, kind, path)

    machine.setattr(loop.TrainingLoop, "_step", step)
    machine.setattr(FaultyStore, "_request", slow)
    assert main(command(images, URL, "monitor.every_epochs=9", "run.keep=1")) == 0
    sent = [path.rpartition("/")[2] for kind, path in FaultyStore.asked if kind == "mv" and "/step-" in path]
    assert sent[0] == "step-2.pt"
    assert not {"step-4.pt", "step-6.pt"} & {*sent}  # older than the newest before their turn came
    assert "step-9.pt" in sent
    assert stored() >= {f"checkpoints/{file.name}" for file in run_checkpoint.in_run(local())}


# ---------------------------------------------------------------------------------------------------------------------
# The store fails
# ---------------------------------------------------------------------------------------------------------------------


def test_failures_on_the_way_are_borne(images: Path, undisturbed: Path, tmp_path: Path) -> None:
    FaultyStore.fails.update({"mv": 1, "ls": 2, "get": 2, "rm": 1})
    FaultyStore.cut = 1
    assert main(command(images, URL)) == 0
    assert_same_run(undisturbed, download(tmp_path / "copy"))


def test_a_store_that_goes_down_stops_nothing_and_is_reported(
    images: Path, undisturbed: Path, tmp_path: Path, machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = loop.TrainingLoop._step

    def down(run: loop.TrainingLoop, batch: ViewBatch) -> object:
        if run.progress.step == 3:
            FaultyStore.fails["put"] = 10_000
        return usual(run, batch)

    with machine.context() as patch:
        patch.setattr(loop.TrainingLoop, "_step", down)
        assert main(command(images, URL)) == 2
    messages = capsys.readouterr().err.splitlines()
    assert any(
        "warning: cannot write faulty://bucket/run/" in line and "the run continues" in line for line in messages
    )
    assert f"excb-pretrain: error: the run is complete in {local()}, but not at {URL}" in messages[-1]
    assert_same_run(undisturbed, local())
    FaultyStore.fails.clear()
    assert main(command(images, URL)) == 0  # uploads the rest
    assert_same_run(undisturbed, download(tmp_path / "copy"))


def test_no_checkpoint_there_is_ever_half_one(images: Path, tmp_path: Path, machine: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    request = FaultyStore._request

    def look(store: FaultyStore, kind: str, path: str) -> None:
        for name in stored():
            if name.startswith("checkpoints/step-"):
                (tmp_path / "one.pt").write_bytes(FaultyStore.store[f"/{RUN}{name}"].getvalue())
                seen.append(name)
                assert run_checkpoint.read_run_checkpoint(tmp_path / "one.pt")["step"] == run_checkpoint.step_of(
                    Path(name)
                )
                # All lines up to its step are there as well.
                lines = FaultyStore.store[f"/{RUN}metrics.jsonl"].getvalue().decode().splitlines()
                assert max(json.loads(line)["step"] for line in lines) >= run_checkpoint.step_of(Path(name))
        request(store, kind, path)

    machine.setattr(FaultyStore, "_request", look)
    FaultyStore.fails.update({"mv": 1, "rm": 1})
    FaultyStore.cut = 1
    assert main(command(images, URL)) == 0
    assert len(set(seen)) >= 3


def test_a_damaged_checkpoint_there_is_named_and_the_one_before_used(
    images: Path, undisturbed: Path, tmp_path: Path, machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with stopped_before(5):
        assert main(command(images, URL)) == 143
    newest = FaultyStore.store[f"/{RUN}checkpoints/step-6.pt"]
    newest.truncate(newest.size - 500)
    machine.setenv("EXCB_CACHE", str(tmp_path / "other machine"))
    capsys.readouterr()
    assert main(command(images, URL)) == 0
    messages = capsys.readouterr().err
    assert "step-6.pt is damaged" in messages
    assert "resuming from step 4" in messages
    assert_same_run(undisturbed, download(tmp_path / "copy"))


def test_a_listing_that_leaves_out_the_newest_loses_nothing(
    images: Path, undisturbed: Path, tmp_path: Path, machine: pytest.MonkeyPatch
) -> None:
    with stopped_before(5):
        assert main(command(images, URL)) == 143
    FaultyStore.hidden.update({"step-6.pt", "step-4.pt"})
    machine.setenv("EXCB_CACHE", str(tmp_path / "other machine"))
    with stopped_before(2):
        main(command(images, URL))
    assert "checkpoints/step-6.pt" in stored()  # unknown to the second machine: not its to remove
    FaultyStore.hidden.clear()
    assert main(command(images, URL)) == 0
    assert_same_run(undisturbed, download(tmp_path / "copy"))


# ---------------------------------------------------------------------------------------------------------------------
# Others at the same URL, and mistakes
# ---------------------------------------------------------------------------------------------------------------------


def test_the_later_of_two_machines_takes_over(
    images: Path, tmp_path: Path, machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = loop.TrainingLoop._step

    def taken_over(run: loop.TrainingLoop, batch: ViewBatch) -> object:
        if run.progress.step == 3:
            owner = {"host": "elsewhere", "process": 7, "since": "today", "token": "another"}
            FaultyStore().pipe_file(f"/{RUN}owner.json", json.dumps(owner).encode())
        return usual(run, batch)

    with machine.context() as patch:
        patch.setattr(loop.TrainingLoop, "_step", taken_over)
        assert main(command(images, URL)) == 2
    assert "process 7 on elsewhere has taken over the run" in capsys.readouterr().err
    assert not stored() & {f"checkpoints/step-{step}.pt" for step in (6, 8, 9)}
    assert main(command(images, URL)) == 0  # and this one takes it back
    messages = capsys.readouterr().err
    assert f"process 7 on elsewhere has not left {URL} (since today)" in messages
    assert "owner.json" not in stored()


def test_another_run_there_is_refused_and_kept(
    images: Path, tmp_path: Path, machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(images, URL, "optim.epochs=1")) == 0
    before = {name: FaultyStore.store[f"/{RUN}{name}"].getvalue() for name in stored()}
    machine.setenv("EXCB_CACHE", str(tmp_path / "other machine"))
    capsys.readouterr()
    assert main(command(images, URL, "optim.epochs=2")) == 2
    assert f"{URL} belongs to another run (optim.epochs was 1, now 2)" in capsys.readouterr().err
    assert before == {name: FaultyStore.store[f"/{RUN}{name}"].getvalue() for name in stored()}


def test_a_run_removed_there_is_not_silently_sent_again(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(images, URL, "optim.epochs=1")) == 0
    FaultyStore.store.clear()
    assert main(command(images, URL, "optim.epochs=1")) == 2
    assert f"the run at {URL} is gone, its copy is still in {local()}: move" in capsys.readouterr().err
    shutil.rmtree(local())
    assert main(command(images, URL, "optim.epochs=1")) == 0


@pytest.mark.parametrize(
    ("out", "fails", "words"),
    [
        ("nosuch://bucket/run", {}, "cannot use nosuch://bucket/run"),
        (URL, {"put": 99}, "cannot write faulty://bucket/run/owner.json (the store is down): check the name"),
        (URL, {"get": 99}, "cannot read faulty://bucket/run/recipe.json (the store is down): check the name"),
        (URL, {"ls": 99}, "cannot list faulty://bucket/run/checkpoints (the store is down): check your access"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_line(
    images: Path, out: str, fails: dict[str, int], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    FaultyStore.fails.update(fails)
    assert main(command(images, out)) == 2
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 1
    assert words in messages[0]


def test_the_quickstart_itself_stays_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", "--out", URL]) == 2
    assert "the quickstart writes to this machine" in capsys.readouterr().err
