"""The loop: what a run writes, that it resumes exactly where it was, and what it refuses."""

import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import excb
from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.errors import UserError
from excb.files.run_files import read_metrics
from excb.images.scanning import scan_folder
from excb.pretrain import loop, step
from excb.pretrain.__main__ import main
from excb.pretrain.data import feed, loader
from excb.pretrain.initialise import build_model
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.run.progress import MEANINGS
from excb.pretrain.run.remote_mirror import RunLocation
from excb.pretrain.run.run_folder import RunFolder
from excb.pretrain.training import start
from tests.pretrain.small_runs import OVERRIDES, assert_same, stopped_before, write_images

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")

STEPS = 9  # 27 images, batches of 8, 3 epochs


@pytest.fixture(scope="module")
def images(finished_run: Path) -> Path:
    """A folder of labelled pictures."""
    return finished_run.parent / "images"


def pretrain(images: Path, out: Path, *overrides: str) -> int:
    """Run the loop in this process."""
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES, *overrides])
    return loop.run_training(recipe, scan_folder(images), out, Reporter(quiet=True), table=False)


def newest(out: Path) -> dict[str, Any]:
    """The newest checkpoint's contents."""
    return run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(out)[0])


def figures(out: Path) -> list[dict[str, Any]]:
    """The journal without speeds."""
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in read_metrics(out)]


@pytest.fixture(scope="module")
def finished(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    return shutil.copytree(finished_run, tmp_path_factory.mktemp("runs") / "finished")


def test_a_run_folder_holds_what_was_promised(finished: Path) -> None:
    assert {"recipe.json", "metrics.jsonl", "curves.png", "report.json", "checkpoints", "tensorboard"} <= {
        entry.name for entry in finished.iterdir()
    }
    report = json.loads((finished / "report.json").read_text())
    assert report["steps"] == STEPS
    assert (finished / report["checkpoint"]).is_file()
    assert (finished / report["best"]["checkpoint"]).is_file()
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = read_metrics(finished)
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, STEPS + 1))
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [line["epoch"] for line in epochs] == [1, 2, 3]
    named = set().union(*epochs) - {"kind", "step", "epoch"}
    assert named <= set(MEANINGS)  # which the table of the last epoch shows beside them
    wanted = {"loss", "confidence", "agreement", "purity", "smallest_cluster", "largest_cluster"} | {
        "empty_clusters_balanced",
        "empty_clusters_unbalanced",
    }
    assert all(wanted <= line.keys() for line in epochs)
    assert ["knn_top1" in line for line in epochs] == [False, True, True]  # every second epoch, and the last


def test_epoch_figures_agree_with_the_steps(finished: Path) -> None:
    lines = read_metrics(finished)
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    epochs = [line["loss"] for line in lines if line["kind"] == "epoch"]
    assert epochs == pytest.approx([sum(losses[i : i + 3]) / 3 for i in (0, 3, 6)])


def test_the_result_loads_with_its_preprocessing(finished: Path, images: Path) -> None:
    backbone = excb.load(finished)
    assert backbone.transform.crop == 32
    assert backbone.entry.step == STEPS
    assert backbone.entry.recipe["optim"]["batch"] == 8
    image = scan_folder(images).file(0)
    features = backbone(backbone.transform(excb.images.decoding.open_image(image))[None])
    assert features.shape == (1, backbone.width)
    assert not torch.equal(
        features,
        excb.load(finished, network="student")(backbone.transform(excb.images.decoding.open_image(image))[None]),
    )


def test_the_teacher_has_moved_and_the_sizes_sum_to_one(finished: Path) -> None:
    model = newest(finished)["model"]
    assert model["sizes"].sum().item() == pytest.approx(1, abs=1e-5)
    assert not torch.equal(model["sizes"], torch.full_like(model["sizes"], 1 / 12))
    weights = [model[f"{network}.projector.0.weight"] for network in ("student", "teacher")]
    assert not torch.equal(*weights)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    images: Path, finished: Path, tmp_path: Path
) -> None:
    pretrain(images, tmp_path / "same", "efficiency.workers=2")
    assert_same(newest(finished)["model"], newest(tmp_path / "same")["model"])
    assert figures(finished) == figures(tmp_path / "same")
    pretrain(images, tmp_path / "other", "run.seed=1")
    other = newest(tmp_path / "other")["model"]
    assert not torch.equal(
        other["student.backbone.conv1.0.weight"], newest(finished)["model"]["student.backbone.conv1.0.weight"]
    )


def test_how_images_are_read_reaches_every_loader(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    real = loader.loader

    def record(*arguments: Any, **options: Any) -> Any:
        made.extend([real(*arguments, **options), real(*arguments, **options | {"workers": 1})])
        return made[-2]

    monkeypatch.setattr(feed, "loader", record)
    how = ["efficiency.prefetch=3", "efficiency.scaled_decoding=true", "efficiency.decoder=pillow"]
    pretrain(images, tmp_path, *how, "optim.epochs=1")
    assert len(made) >= 2
    for alone, with_a_worker in zip(made[::2], made[1::2], strict=True):
        assert (alone.num_workers, with_a_worker.num_workers) == (0, 1)
        assert with_a_worker.prefetch_factor == 3
        assert (alone.dataset._scaled, alone.dataset._decoder) == (True, "pillow")


@pytest.mark.parametrize("stop_after", [2, 3, 4, 7])
def test_a_stopped_run_resumes_to_the_same_end(
    images: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    """SIGTERM in the middle and at the end of an epoch: the step ends, the run saves, and later ends up the same."""
    real = step.Trainer.step

    def stopping(self: step.Trainer, batch: Any, number: int) -> Any:
        if number + 1 == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, batch, number)

    with monkeypatch.context() as patch:
        patch.setattr(step.Trainer, "step", stopping)
        assert pretrain(images, tmp_path) == 128 + signal.SIGTERM
    assert newest(tmp_path)["step"] == stop_after
    assert pretrain(images, tmp_path) == 0
    assert_same(newest(finished), newest(tmp_path))
    assert figures(finished) == figures(tmp_path)


def test_an_epoch_that_is_summed_up_again_has_its_lines_once(
    images: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at the end of an epoch, which the next start sums up; that one dies before it saves."""
    with stopped_before(2):
        assert pretrain(images, tmp_path) == 128 + signal.SIGTERM
    with monkeypatch.context() as patch:
        patch.setattr(step.Trainer, "step", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pretrain(images, tmp_path, "run.save_epochs=9")
    assert [line["kind"] for line in read_metrics(tmp_path)].count("epoch") == 1
    assert pretrain(images, tmp_path) == 0
    assert figures(finished) == figures(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux, to name an open file")
def test_lines_are_on_the_disk_before_a_checkpoint(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def note_sync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        done.append(f"sync {re.sub(r'[.][0-9a-f]{32}[.]', '.', name)}")
        sync(descriptor)

    def note_name(self: Path, target: Path) -> Path:
        done.append(f"name {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_name)
    assert pretrain(images, tmp_path, "optim.epochs=1", "run.save_steps=2") == 0
    for file in ("step-2.pt", "step-3.pt"):
        place = done.index(f"name {file}")
        assert done[place - 2 : place] == ["sync metrics.jsonl", f"sync .{file}.tmp"]


def test_the_newest_n_checkpoints_and_the_best_are_kept(images: Path, tmp_path: Path) -> None:
    pretrain(images, tmp_path, "run.keep=1", "run.save_steps=1", "optim.epochs=4")
    steps = {run_checkpoint.step_of(file) for file in run_checkpoint.in_run(tmp_path)}
    best = json.loads((tmp_path / "report.json").read_text())["best"]["step"]
    assert steps == {12, best}


SIMCLR = (
    "method.clustering=false",
    "method.contrast=1",
    "method.predictor=false",
    "method.teacher_statistics=averaged",
)


@pytest.mark.usefixtures("full_end")
def test_a_run_without_clusters_says_nothing_of_them(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(images, tmp_path / "run", *SIMCLR, "optim.epochs=2")) == 0
    assert "contrast" in capsys.readouterr().out
    epochs = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "epoch"]
    assert {"loss", "contrast"} <= epochs[-1].keys()
    assert not {"confidence", "agreement", "smallest_cluster", "coincident_centroids"} & epochs[-1].keys()
    assert (tmp_path / "run" / "curves.png").is_file()
    before, after = (build_model(apply(find_recipe("quickstart"), [*OVERRIDES, *SIMCLR])), newest(tmp_path / "run"))
    centroids = before.state_dict()["student.centroids.weight"]
    assert torch.equal(after["model"]["student.centroids.weight"], centroids)  # nothing trained them


@pytest.mark.usefixtures("full_end")
def test_the_verdict_counts_the_images_that_were_measured(images: Path, tmp_path: Path) -> None:
    """Those that cannot be read are in no figure; guessing is of the others' classes as well."""
    data, run = Path(shutil.copytree(images, tmp_path / "data")), tmp_path / "run"
    broken = sorted((data / "class1").iterdir())[:4]
    for file in broken:
        file.write_bytes(b"no image")
    count = len(list(data.rglob("*.png"))) - len(broken)
    assert pretrain(data, run) == 0
    verdict = json.loads((run / "report.json").read_text())["verdict"]
    assert verdict["measured"] == count
    assert f"of {count} train images" in verdict["summary"]
    assert f"{count} train images" in verdict["units"]["knn_top1"]
    most = max(len([file for file in folder.iterdir() if file not in broken]) for folder in data.iterdir())
    assert verdict["references"]["guessing"]["knn_top1"] == round(100 * most / count, 2)
    assert pretrain(data, run) == 0  # the same from the report
    assert json.loads((run / "report.json").read_text())["verdict"] == verdict


def test_a_finished_run_says_so_and_changes_nothing(
    images: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = newest(finished)
    recipe = apply(find_recipe("quickstart"), OVERRIDES)
    assert loop.run_training(recipe, scan_folder(images), finished, Reporter(), table=False) == 0
    assert "is finished" in capsys.readouterr().err
    assert_same(before, newest(finished))


def test_repeating_a_finished_run_keeps_the_facts_of_the_process_that_trained(
    images: Path, finished: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    assert pretrain(images, run) == 0
    report = json.loads((run / "report.json").read_text())
    environment = report["environment"] | {"torch": "2.11.0"}
    written = report | {"peak_memory": 12345, "processes": 4, "environment": environment}
    (run / "report.json").write_text(json.dumps(written))
    recipe = (run / "recipe.json").read_bytes()
    assert pretrain(images, run, "efficiency.workers=1", "run.keep=1") == 0
    assert json.loads((run / "report.json").read_text()) == written
    assert (run / "recipe.json").read_bytes() == recipe


def test_a_finished_run_names_the_device_that_trained(
    images: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    file = run_checkpoint.in_run(run)[0]
    kept = {name: value for name, value in newest(run).items() if name not in ("format", "version", "arithmetic")}
    for stored, where in (({"arithmetic": {"device": "NVIDIA H100"}}, " on NVIDIA H100;"), ({}, ";")):
        run_checkpoint.write_run_checkpoint(kept | stored, file)
        assert main(command(images, run)) == 0
        said = capsys.readouterr().err
        assert f" images/s{where}" in said
        assert "bit-exact" not in said  # nothing is computed


def test_a_dry_run_beside_a_process_that_trains_is_refused_as_a_run_is(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = RunFolder(RunLocation(tmp_path), print)
    try:
        said = {refused(capsys, *command(images, tmp_path, *more)) for more in ((), ("--dry-run",))}
    finally:
        training.close()
    assert len(said) == 1
    assert "another process is training" in said.pop()


def test_a_finished_run_whose_recipe_was_removed_has_it_again(images: Path, finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "recipe.json").unlink()
    assert pretrain(images, run) == 0
    assert excb.Run(run).folder == run


def test_a_dry_run_looks_where_the_run_measures(images: Path, tmp_path: Path) -> None:
    for name in ("train", "val"):
        shutil.copytree(images, tmp_path / "sets" / name)
    (tmp_path / "sets" / "test").mkdir()  # without an image: the run measures on val
    words = command(images, tmp_path / "run", f"monitor.data={tmp_path / 'sets'}", "optim.epochs=1", "--quiet")
    assert main([*words, "--dry-run"]) == 0
    assert main(words) == 0


@pytest.mark.parametrize(
    "words", [["efficiency.decoder=nvjpeg"], ["efficiency.device=cuda"], ["--gpus", "2"], ["--against", "no_such_name"]]
)
def test_a_dry_run_refuses_the_machine_that_the_run_refuses(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    if torch.cuda.is_available() or torch.cuda.device_count():
        pytest.skip("this machine has a GPU")
    said = {refused(capsys, *command(images, tmp_path / "run", *words, *more)) for more in ((), ("--dry-run",))}
    assert len(said) == 1
    assert not (tmp_path / "run").exists()


def test_only_the_process_that_loads_the_start_needs_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES, f"init={tmp_path / 'elsewhere.pt'}"])
    with pytest.raises(UserError, match="no checkpoint"):
        start.check_run(recipe, scan_folder(images))
    monkeypatch.setattr(start, "rank", lambda: 1)  # on another machine
    start.check_run(recipe, scan_folder(images))


def test_peak_memory_is_of_all_processes_of_a_run(images: Path, tmp_path: Path) -> None:
    assert pretrain(images, tmp_path, "optim.epochs=1") == 0
    file = run_checkpoint.in_run(tmp_path)[0]
    contents = run_checkpoint.read_run_checkpoint(file)
    assert 2**20 < contents["peak_memory"] < 2**40
    kept = {name: value for name, value in contents.items() if name not in ("format", "version")}
    run_checkpoint.write_run_checkpoint(kept | {"peak_memory": 2**50}, file)
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES, "optim.epochs=1"])
    code = loop.run_training(recipe, scan_folder(images), tmp_path, Reporter(quiet=True), table=False, extend=1)
    assert code == 0
    assert json.loads((tmp_path / "report.json").read_text())["peak_memory"] == 2**50


def test_a_finished_run_is_not_measured_otherwise(
    images: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    before = {file.name: file.read_bytes() for file in run.iterdir() if file.suffix == ".json"}
    assert "measured with monitor.k=3" in refused(capsys, *command(images, run, "monitor.k=2"))
    assert "measured with monitor.k=3" in refused(capsys, *command(images, run, "monitor.k=2", "--dry-run"))
    assert "monitor.data names other images" in refused(capsys, *command(images, run, f"monitor.data={images}"))
    assert {file.name: file.read_bytes() for file in run.iterdir() if file.suffix == ".json"} == before


def test_a_run_that_resumes_with_another_k_chooses_its_best_epoch_anew(
    images: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    file = run_checkpoint.in_run(run)[0]
    kept = {name: value for name, value in newest(run).items() if name not in ("format", "version")}
    run_checkpoint.write_run_checkpoint(kept | {"best": kept["best"] | {"score": 100.0}}, file)
    extended = ["--extend", "2"]  # a note is told of k alone, as it is
    assert main([word for word in command(images, run, *extended, "monitor.k=2") if word != "--quiet"]) == 0
    assert "monitor.k changed: the best epoch is chosen anew" in capsys.readouterr().err
    best = json.loads((run / "report.json").read_text())["best"]
    assert best["epoch"] > 3
    assert best["score"] < 100


@pytest.mark.parametrize(
    "overrides",
    [
        ("method.centroid_init=kmeans", "method.kmeans_iterations=5"),
        ("views.local_views=0",),
        ("method.predictor=false", "method.balancing=squared", "method.centroid_gradient_from_local=true"),
        # At 1 x 1 pixels oneDNN's bf16 convolution reads memory that nobody wrote (torch 2.15): larger local views.
        ("efficiency.precision=bf16", "views.local_size=32"),
        ("optim.optimizer=adamw", "optim.clip=0.5", "optim.frozen_centroid_epochs=1", "optim.base_lr=0.001"),
        ("method.balancing=centering", "method.center_momentum=0.5"),
        ("method.sizes_counted=raw", "method.sizes_updated=before_balancing", "method.head_batches=per_resolution"),
        ("method.contrast=2", "method.projector_output_norm=true", "model.backbone=conv4", "model.options={}"),
        (*SIMCLR, "optim.optimizer=adamw", "optim.base_lr=0.001"),
        ("method.clustering=false", "method.regression=1"),
        (
            "model.backbone=timm:vit_tiny_patch16_224",
            'model.options={"depth": 2, "embed_dim": 24}',
            "model.drop_path=0.5",
        ),
    ],
)
def test_other_settings_run_and_resume_exactly(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: Sequence[str]
) -> None:
    assert pretrain(images, tmp_path / "whole", *overrides, "optim.epochs=2") == 0
    real = step.Trainer.step

    def stopping(self: step.Trainer, batch: Any, number: int) -> Any:
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, batch, number)

    with monkeypatch.context() as patch:
        patch.setattr(step.Trainer, "step", stopping)
        assert pretrain(images, tmp_path / "halves", *overrides, "optim.epochs=2") == 128 + signal.SIGINT
    assert pretrain(images, tmp_path / "halves", *overrides, "optim.epochs=2") == 0
    assert_same(newest(tmp_path / "whole"), newest(tmp_path / "halves"))


def test_a_diverging_run_keeps_its_good_checkpoints(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = step.Trainer.step

    def poisoned(self: step.Trainer, batch: Any, number: int) -> Any:
        output = real(self, batch, number)
        if number == 4:
            self.model.student.centroids.weight.data[0, 0] = torch.nan
        return output

    monkeypatch.setattr(step.Trainer, "step", poisoned)
    said = refused(capsys, *command(images, tmp_path, "run.save_steps=1", "run.log_steps=100"))
    assert "student.centroids.weight is not finite" in said
    assert "at step 5" in said
    assert newest(tmp_path)["step"] == 4


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_run_is_the_same_run_and_its_checkpoints_are_exchangeable(images: Path, tmp_path: Path) -> None:
    exact = ("efficiency.precision=fp64", "monitor.every_epochs=1", "method.centroid_init=kmeans")
    assert pretrain(images, tmp_path / "plain", *exact) == 0
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert pretrain(images, tmp_path / "compiled", *exact, "efficiency.compile=true") == 0
    plain, compiled = (newest(tmp_path / name)["model"] for name in ("plain", "compiled"))
    assert plain.keys() == compiled.keys()
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-9, atol=1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3  # the student's two, and the teacher's
    excb.load(tmp_path / "compiled")


def test_without_labels_two_figures_choose_the_checkpoint(images: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(scan_folder(images).paths):
        os.link(images / path, flat / f"{number:03}.png")
    pretrain(flat, tmp_path / "run")
    last = json.loads((tmp_path / "run" / "report.json").read_text())["last"]
    assert "knn_top1" not in last
    assert "purity" not in last
    assert last["score"] == pytest.approx(last["neighbour_agreement"] * last["effective_rank"] / 16)


def test_going_on_from_a_full_checkpoint(images: Path, finished: Path, tmp_path: Path) -> None:
    """`init`: both networks, centroids and s; s anew with other images, centroids too with another K."""
    from excb.pretrain.initialise import build_model, start_from

    source = newest(finished)["model"]
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES, f"init={finished}"])
    model = build_model(recipe)
    said = start_from(model, recipe, scan_folder(images))
    assert said == f"both networks from {finished}, step {newest(finished)['step']}, centroids and s too"
    assert_same(dict(model.state_dict()), source)

    others = write_images(tmp_path / "others", each=10)
    model = build_model(recipe)
    assert "s start" in start_from(model, recipe, scan_folder(others))
    assert torch.equal(model.sizes, torch.full_like(model.sizes, 1 / 12))
    assert_same(model.state_dict()["teacher.centroids.weight"], source["teacher.centroids.weight"])

    recipe = apply(recipe, ["method.clusters=10"])
    model = build_model(recipe)
    fresh = model.student.centroids.weight.clone()
    assert "centroids and s start from scratch" in start_from(model, recipe, scan_folder(images))
    assert torch.equal(model.student.centroids.weight, fresh)
    assert_same(model.state_dict()["student.projector.0.weight"], source["student.projector.0.weight"])


def test_going_on_with_another_balancer(images: Path, finished: Path, tmp_path: Path) -> None:
    """DINO's centre is kept with its meaning: same images, same clusters, same balancer; s whatever the balancer."""
    from excb import load
    from excb.pretrain.initialise import build_model, start_from

    assert "balancer.center" not in newest(finished)["model"]
    centred = tmp_path / "centred"
    assert pretrain(images, centred, "method.balancing=centering", "optim.epochs=1") == 0
    source = newest(centred)["model"]
    assert bool(source["balancer.center"].any())
    heads = load(str(centred), heads=True).heads  # assignments after training ignore the centre
    assert heads is not None
    assert_same(heads.sizes, source["sizes"])

    same = apply(find_recipe("quickstart"), [*OVERRIDES, f"init={centred}", "method.balancing=centering"])
    model = build_model(same)
    assert "centroids and s too" in start_from(model, same, scan_folder(images))
    assert_same(dict(model.state_dict()), source)

    model = build_model(same)
    assert "s start" in start_from(model, same, scan_folder(write_images(tmp_path / "others", each=10)))
    assert not model.state_dict()["balancer.center"].any()

    plain = apply(same, ["method.balancing=linear"])
    model = build_model(plain)
    assert "centroids and s too" in start_from(model, plain, scan_folder(images))
    assert_same(model.sizes, source["sizes"])

    back = apply(same, [f"init={finished}"])
    model = build_model(back)
    assert "the balancer start from scratch" in start_from(model, back, scan_folder(images))
    assert_same(model.sizes, newest(finished)["model"]["sizes"])


def test_a_run_of_an_earlier_version_resumes(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An option that it did not have counts as its default, and only as that."""
    assert pretrain(images, tmp_path, "optim.epochs=1") == 0
    file = tmp_path / "recipe.json"
    written = json.loads(file.read_text())
    del written["recipe"]["method"]["mira_beta"]
    file.write_text(json.dumps(written))
    said = refused(capsys, *command(images, tmp_path, "optim.epochs=1", "method.mira_beta=0.5"))
    assert "method.mira_beta was 0.6" in said
    assert pretrain(images, tmp_path, "optim.epochs=1") == 0


def test_going_on_from_an_exported_backbone(images: Path, finished: Path, tmp_path: Path) -> None:
    from excb.zoo.export import export

    folder = export(str(finished), tmp_path / "exported")
    assert pretrain(images, tmp_path / "run", f"init={folder}", "optim.epochs=1") == 0


def test_large_k_with_a_small_batch(images: Path, tmp_path: Path) -> None:
    assert pretrain(images, tmp_path, "method.clusters=16384", "optim.epochs=1") == 0
    assert newest(tmp_path)["model"]["sizes"].shape == (16_384,)


# ---------------------------------------------------------------------------------------------------------------------
# What is refused: one line, exit code 2, nothing lost
# ---------------------------------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command line; it must leave with 2 and one line of error on stderr, which is returned."""
    assert main([*arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    *warnings, error = said.err.splitlines()
    assert error.startswith("excb-pretrain: error: ")
    assert all(line.startswith("warning: ") for line in warnings), said.err
    return error


def command(images: Path, out: Path, *overrides: str) -> list[str]:
    """A command line for the loop."""
    return ["quickstart", "--data", str(images), "--out", str(out), *OVERRIDES, *overrides]


def test_bad_input_is_one_line(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    empty = tmp_path / "empty"
    empty.mkdir()
    one = tmp_path / "one"
    one.mkdir()
    os.link(images / "class0" / "0.png", one / "0.png")
    assert "no folder" in refused(capsys, *command(tmp_path / "nowhere", out))
    assert "no image below" in refused(capsys, *command(empty, out))
    assert "one image" in refused(capsys, *command(one, out))
    assert "name a place outside that folder" in refused(capsys, *command(images, images / "runs" / "new"))
    assert "did you mean 'rn50_400ep'?" in refused(capsys, "rn50_400", "--data", str(images))
    assert "did you mean 'optim.epochs'?" in refused(capsys, *command(images, out, "optim.epoch=3"))
    assert "did you mean 'optim.batch'?" in refused(capsys, *command(images, out, "batch=3"))
    assert "whole number" in refused(capsys, *command(images, out, "optim.epochs=ten"))
    assert "one of linear" in refused(capsys, *command(images, out, "method.balancing=linaer"))
    assert "at least 2" in refused(capsys, *command(images, out, "method.clusters=1"))
    kmeans = refused(
        capsys, *command(images, out, "method.centroid_init=kmeans", "method.clusters=25", "efficiency.device=cpu")
    )
    assert "24 training views for 25 clusters" in kmeans
    assert "larger than the set of 27" in refused(capsys, *command(images, out, "optim.batch=28"))
    for values in (("optim.batch=1",), ("optim.batch=4", "efficiency.accumulate=4")):
        assert "BatchNorm needs two images at once" in refused(capsys, *command(images, out, *values))
    assert "--data" in refused(capsys, "rn18_small")
    assert "no backbone" in refused(capsys, *command(images, out, "model.backbone=resnet49", "model.options={}"))
    assert "cannot take images" in refused(
        capsys,
        *command(images, out, "model.backbone=timm:vit_tiny_patch16_224", "model.options={}", "views.local_size=20"),
    )
    assert "cannot be used" in refused(capsys, *command(images, out, "efficiency.device=warp"))


def test_a_list_of_files_that_are_not_there(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, listed = tmp_path / "run", tmp_path / "list.txt"
    names = scan_folder(images).paths
    for wrong in ([f"{images.name}/{name}" for name in names], [f"{name} 0" for name in names]):
        listed.write_text("\n".join(wrong), encoding="utf-8")
        error = refused(capsys, *command(images, out), "--list", str(listed))
        assert f"there is no file {images / wrong[0]}" in error
        assert not out.exists()


def test_init_of_another_architecture(
    images: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(images, tmp_path / "run", f"init={finished}", "model.backbone=resnet18", "model.options={}")
    assert "timm:resnet10t" in refused(capsys, *arguments)
    assert "no checkpoint" in refused(capsys, *command(images, tmp_path / "run2", f"init={tmp_path / 'nothing'}"))
    other = 'model.options={"channels": [8, 8, 16, 24], "stem_width": 4}'
    said = refused(capsys, *command(images, tmp_path / "run3", f"init={finished}", other))
    advice = shlex.split(said.partition(": set ")[2].partition(" or choose")[0])
    assert advice == [next(value for value in OVERRIDES if value.startswith("model.options="))]


def test_what_was_refused_before_its_first_step_does_not_keep_the_folder(
    images: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert "no checkpoint" in refused(capsys, *command(images, out, f"init={tmp_path / 'nothing'}"))
    assert main(command(images, out, f"init={finished}", "optim.epochs=1")) == 0
    capsys.readouterr()
    assert "optim.epochs was 1" in refused(capsys, *command(images, out, f"init={finished}"))


def test_a_folder_with_another_run_is_left_alone(
    images: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file: file.read_bytes() for file in finished.rglob("*") if file.is_file()}
    assert "optim.batch was 8, now 9" in refused(capsys, *command(images, finished, "optim.batch=9"))
    others = write_images(tmp_path / "others", each=10)
    assert "other images" in refused(capsys, *command(others, finished))
    assert before == {file: file.read_bytes() for file in finished.rglob("*") if file.is_file()}


def test_two_processes_do_not_train_in_one_folder(images: Path, tmp_path: Path) -> None:
    from excb.pretrain.run.remote_mirror import RunLocation
    from excb.pretrain.run.run_folder import RunFolder

    folder = RunFolder(RunLocation(tmp_path), print)
    with pytest.raises(UserError, match="another process"):
        pretrain(images, tmp_path)
    folder.close()
    assert pretrain(images, tmp_path, "optim.epochs=1") == 0


def test_a_read_only_folder_is_named(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert "cannot write the run folder" in refused(capsys, *command(images, blocked / "run"))
