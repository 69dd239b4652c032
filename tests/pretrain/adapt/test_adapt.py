"""Runs that adapt a backbone, end to end: start, best epoch, patience, verdict, resuming, processes, mistakes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import excb
from excb.checkpoint import run_checkpoint
from excb.checkpoint.stored import Which
from excb.files.run_files import read_metrics
from excb.networks.features import Inputs, extract
from excb.pretrain.__main__ import main
from excb.pretrain.run.sets import find_sets
from excb.pretrain.training.epoch_end import EpochEnd
from excb.transfer.cli import main as evaluate
from excb.zoo.export import export
from tests import forked
from tests.forked import launch
from tests.pretrain.adapt.adapted_runs import CONV, VIT, command, write_start
from tests.pretrain.small_runs import assert_same, stopped_before, write_images

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 training images, three steps an epoch, and 12 labelled held-out ones."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder / "train", each=8)
    write_images(folder / "val", each=4, side=40)
    return folder


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_start(tmp_path_factory.mktemp(name), model) for name, model in (("conv", CONV), ("vit", VIT))}


@pytest.fixture(scope="module")
def finished(starts: dict[str, Path], images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all that can be on, to its last epoch."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert main(command(starts["conv"], images, out, f"monitor.data={images}", f"monitor.source={images}/val")) == 0
    return out


def report(run: Path) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((run / "report.json").read_text(encoding="utf-8"))
    return contents


def checkpoint(run: Path, step: int) -> dict[str, Any]:
    return run_checkpoint.read_run_checkpoint(run / "checkpoints" / run_checkpoint.name_of(step))


def scores(monkeypatch: pytest.MonkeyPatch, *values: float) -> None:
    """Let measurements of runs have these scores, the start's first."""
    usual, left = EpochEnd._measure, list(values)

    def measured(self: EpochEnd, *rest: Any, **options: Any) -> Any:
        figures, readings = usual(self, *rest, **options)
        return figures | {"score": left.pop(0)}, readings

    monkeypatch.setattr(EpochEnd, "_measure", measured)


# ---------------------------------------------------------------------------------------------------------------------
# The probes
# ---------------------------------------------------------------------------------------------------------------------


def test_the_start_is_epoch_0_and_the_probe_is_the_cores_knn(
    finished: Path, starts: dict[str, Path], images: Path, tmp_path: Path
) -> None:
    epochs = [line for line in read_metrics(finished) if line["kind"] == "epoch"]
    assert [line["epoch"] for line in epochs] == [0, 1, 2, 3, 4]
    assert "loss" not in epochs[0]
    assert {"target_knn_top1", "source_knn_top1", "effective_rank"} <= epochs[0].keys()
    assert [line.get("score") for line in epochs] == [line.get("target_knn_top1") for line in epochs]
    for name, expected in ((str(starts["conv"]), epochs[0]), (str(finished / "checkpoints/step-12.pt"), epochs[4])):
        options = ["--train", f"{images}/train", "--test", f"{images}/val", "--no-cache", "--workers", "0"]
        out = tmp_path / "knn.json"
        words = ["knn", "--ckpt", name, *options, "--k", "3", "--device", "cpu", "--quiet"]
        assert evaluate([*words, "--out", str(out), "--overwrite"]) == 0
        figures = json.loads(out.read_text(encoding="utf-8"))["figures"]
        assert figures["knn_top1_k3"] == pytest.approx(expected["target_knn_top1"])


def test_the_warm_up_is_not_measured_as_the_network_is_the_start(finished: Path) -> None:
    epochs = [line for line in read_metrics(finished) if line["kind"] == "epoch"]
    assert ["score" in line for line in epochs] == [True, False, True, True, True]
    assert epochs[1]["anchor"] == 0
    assert epochs[4]["anchor"] > 0
    steps = [line for line in read_metrics(finished) if line["kind"] == "step"]
    assert [line["released_layers"] for line in steps] == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4]


def test_without_labels_the_probe_is_retrieval(starts: dict[str, Path], images: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted(images.rglob("*.png"))):
        (flat / f"{number}.png").write_bytes(file.read_bytes())
    assert main(command(starts["conv"], flat, tmp_path / "run", "optim.epochs=1")) == 0
    start = report(tmp_path / "run")["start"]
    assert start["score"] == start["instance_retrieval"]
    assert "knn_top1" not in start


def test_the_probe_prefers_val_and_leaves_test_unseen(images: Path, tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        write_images(tmp_path / part, each=2)
    chosen = find_sets(tmp_path, held_out=("val", "test")).held_out
    studied = find_sets(tmp_path).held_out
    assert chosen is not None
    assert studied is not None
    assert (Path(chosen.root).name, Path(studied.root).name) == ("val", "test")


@pytest.mark.usefixtures("full_end")
def test_a_plain_recipe_measures_monitor_data_too(starts: dict[str, Path], images: Path, tmp_path: Path) -> None:
    """The naive way, with its start and its verdict."""
    words = command(starts["conv"], images, tmp_path / "run", f"monitor.data={images}", "monitor.every_epochs=1")
    own = [word for word in words[2:] if not word.startswith("adapt.")]
    heads = ("method.hidden=8", "method.width=4", "method.clusters=4")  # the checkpoint's, which this recipe takes
    assert main(["quickstart", *own, f"init={starts['conv']}", "method.contrast=0", *heads]) == 0
    contents = report(tmp_path / "run")
    assert contents["start"]["score"] == contents["start"]["target_knn_top1"]
    assert "original" in contents["verdict"]["summary"]


# ---------------------------------------------------------------------------------------------------------------------
# Best epoch, patience, verdict
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("full_end")
def test_a_run_that_only_loses_stops_and_keeps_the_original(
    starts: dict[str, Path], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    scores(monkeypatch, 50, 40, 50)  # a tie is not a gain; the warm-up's epoch is not measured
    line = command(starts["conv"], images, run, "adapt.patience=2")
    assert main(line) == 0
    contents = report(run)
    assert contents["steps"] == 9
    assert contents["best"]["step"] == 0
    assert contents["ended"].startswith("2 measurements in a row")
    assert contents["verdict"]["learned"] is False
    assert contents["verdict"]["summary"].startswith("Keep the original: none of 2 measurements")
    loaded, start = excb.load(run), excb.load(starts["conv"])
    assert excb.load(run / "checkpoints" / "step-9.pt").entry.step == 9
    assert loaded.entry.step == 0
    for name, tensor in start.network.state_dict().items():
        assert torch.equal(loaded.network.state_dict()[name], tensor), name
    before = (run / "metrics.jsonl").read_text(encoding="utf-8")
    assert main(line) == 0  # finished: nothing is trained or measured
    assert (run / "metrics.jsonl").read_text(encoding="utf-8") == before
    assert report(run)["verdict"] == contents["verdict"]


@pytest.mark.usefixtures("full_end")
def test_the_best_epoch_is_kept_loaded_and_judged(
    starts: dict[str, Path], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    scores(monkeypatch, 50, 60, 55, 58)
    assert main(command(starts["conv"], images, run, "adapt.patience=3", "run.keep=1")) == 0
    contents = report(run)
    assert contents["best"]["checkpoint"] == "checkpoints/step-6.pt"
    assert contents["ended"] is None
    assert {file.name for file in (run / "checkpoints").iterdir()} == {"step-6.pt", "step-12.pt"}
    backbone = excb.load(run)
    assert backbone.entry.step == 6
    # The run's figures in the verdict are those of this network.
    train = find_sets(images).train
    rows = extract(backbone, Inputs(train, backbone.transform)).rows
    assert len(rows) == 24
    epoch = next(line for line in read_metrics(run) if line["kind"] == "epoch" and line["epoch"] == 2)
    assert contents["verdict"]["figures"]["knn_top1"] == pytest.approx(epoch["knn_top1"], abs=0.01)
    (run / "checkpoints" / "step-6.pt").unlink()
    with pytest.warns(UserWarning, match="its best checkpoint cannot be used, the newest one is"):
        assert excb.load(run).entry.step == 12


@pytest.mark.usefixtures("full_end")
def test_the_original_is_also_measured_at_the_size_of_its_checkpoint(
    finished: Path, starts: dict[str, Path], images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    line = command(starts["conv"], images, out, "optim.epochs=2", "views.eval_resize=16", "views.eval_crop=16")
    assert main(line) == 0
    references = report(out)["verdict"]["references"]
    train = find_sets(images).train
    assert train.labels is not None
    for name, network in (("the original", starts["conv"]), ("this run", out)):
        backbone = excb.load(network)
        prepared = replace(backbone.transform, resize=32, crop=32)
        rows = extract(backbone, Inputs(train, prepared)).rows.double().numpy()
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = rows @ rows.T
        np.fill_diagonal(cosines, -2)
        right = []
        for row, label in zip(cosines, train.labels, strict=True):
            nearest = np.argsort(-row)[:3]
            votes = np.bincount(train.labels[nearest], np.exp(row[nearest] / 0.07), minlength=3)
            right.append(votes.argmax() == label)
        assert references[f"{name} at 32 pixels"] == {"knn_top1": pytest.approx(100 * np.mean(right), abs=0.01)}
    assert not any("pixels" in name for name in report(finished)["verdict"]["references"] if name != "pixels")


def test_the_verdict_says_what_became_of_the_source(finished: Path) -> None:
    verdict = excb.Run(finished).verdict
    assert verdict is not None
    assert verdict.gains.keys() == {"target", "source"}
    gain, contents = verdict.gains["target"], report(finished)
    assert gain.start == pytest.approx(contents["start"]["target_knn_top1"])
    assert gain.now == pytest.approx(contents["best"]["target_knn_top1"])
    assert gain.low is not None
    assert gain.high is not None
    assert gain.low <= gain.lead <= gain.high
    assert gain.measured_on == f"12 images of {gain.measured_on.rpartition(' ')[2]}"


# ---------------------------------------------------------------------------------------------------------------------
# Resuming and processes
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 2, 5, 10])
def test_a_stopped_run_resumes_bit_exact_without_the_start(
    finished: Path, starts: dict[str, Path], images: Path, tmp_path: Path, step: int
) -> None:
    """Before the first step, in the warm-up, in the release and with the anchor; the file of init is gone by then."""
    start = tmp_path / "start.pt"
    start.write_bytes(starts["conv"].read_bytes())
    line = command(start, images, tmp_path / "run", f"monitor.data={images}", f"monitor.source={images}/val")
    with stopped_before(step):
        assert main(line) == 143
    start.unlink()
    assert main(line) == 0
    one, other = checkpoint(finished, 12), checkpoint(tmp_path / "run", 12)
    for contents in (one, other):
        contents["recipe"]["init"] = None
    assert_same(one, other)
    lines = [
        [{name: value for name, value in each.items() if name != "images_per_second"} for each in read_metrics(run)]
        for run in (finished, tmp_path / "run")
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("values", [("adapt.frozen_statistics=true",), ("adapt.frozen_statistics=false",)])
def test_two_processes_adapt_as_one(
    starts: dict[str, Path], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    exact = ("efficiency.precision=fp64", *values)
    for name, processes in (("one", 1), ("two", 2)):
        line = command(starts["conv"], images, tmp_path / name, *exact)
        assert (main(line) if processes == 1 else launch("excb.pretrain", line, processes)) == 0
    one, two = (checkpoint(tmp_path / name, 12) for name in ("one", "two"))
    for name, tensor in one["model"].items():
        torch.testing.assert_close(tensor, two["model"][name], rtol=1e-9, atol=1e-9, msg=name)
    assert all(torch.equal(tensor, two["anchor"][name]) for name, tensor in one["anchor"].items())


def test_lora_resumes_and_its_networks_are_ordinary(starts: dict[str, Path], images: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    line = command(starts["vit"], images, tmp_path / "run", "adapt.lora_rank=2")
    assert main(command(starts["vit"], images, tmp_path / "whole", "adapt.lora_rank=2")) == 0
    with stopped_before(7):
        assert main(line) == 143
    assert main(line) == 0
    assert_same(checkpoint(tmp_path / "whole", 12), checkpoint(tmp_path / "run", 12))
    file = tmp_path / "run" / "checkpoints" / "step-12.pt"
    model = run_checkpoint.read_run_checkpoint(file)["model"]
    networks: tuple[Which, ...] = ("student", "teacher")
    for network in networks:
        backbone = excb.load(file, network=network)
        state = backbone.network.state_dict()
        assert state.keys() == excb.load(starts["vit"]).network.state_dict().keys()
    prefix = "student.backbone.blocks.0.attn.qkv"
    student = excb.load(file, network="student").network.state_dict()
    update = model[f"{prefix}.lora_B.default.weight"] @ model[f"{prefix}.lora_A.default.weight"]
    assert update.abs().max() > 0
    assert torch.equal(student["blocks.0.attn.qkv.weight"], model[f"{prefix}.base_layer.weight"] + update)
    for network in networks:
        exported = excb.load(export(str(file), tmp_path / network, network=network), network=network)
        loaded = excb.load(file, network=network).network.state_dict()
        assert all(torch.equal(tensor, loaded[name]) for name, tensor in exported.network.state_dict().items())


@pytest.mark.usefixtures("full_end")
def test_python_has_the_same_door(starts: dict[str, Path], images: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "method": {"clusters": 6, "hidden": 16, "width": 8},
        "optim": {"epochs": 1, "batch": 8},
        "efficiency": {"workers": 0, "device": "cpu"},
    }
    run = excb.train("adapt", init=starts["conv"], data=images, out=tmp_path / "run", quiet=True, **values)
    assert run.verdict is not None
    assert "original" in run.verdict.summary
    with pytest.raises(excb.UserError, match="name one, as in `excb-pretrain adapt NAME`"):
        excb.train("adapt", data=images, out=tmp_path / "none", quiet=True)


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("adapt --data {images}", "adapt which backbone? name one"),
        ("adapt optim.epochs=3 --data {images}", "adapt which backbone? name one"),
        (
            "adapt optim.epochs=3 tiny_grocery --data {images} rn50_400ep",
            "adapt one backbone, not 2 (tiny_grocery, rn50",
        ),
        ("adapt tiny_grocery --data {images} epochs=3", "did you mean 'optim.epochs'?"),
        ("train adapt --data {images} --out {out}", "name one, as in `excb-pretrain adapt NAME`"),
        ("adapt tiny_grocery --data {images} --out {out} --monitor {out}/nowhere {small}", "nowhere"),
        ("adapt tiny_grocery --data {images} --out {out} adapt.layer_decay=2", "adapt.layer_decay must lie above 0"),
        ("adapt tiny_grocery --data {images} --out {out} adapt.lora_rank=2 {small}", "for ViTs"),
        ("adapt no_such_name --data {images} --out {out} {small}", "no_such_name"),
        ("adapt no_such_name --data {images} --out {out} optim.batch=8", "no_such_name"),  # before clusters are counted
        ("adapt tiny_grocery --data {images} --out {out} --monitor {out}/nowhere {small} --dry-run", "nowhere"),
        ("train adapt tiny_grocery --data {images} --out {out}", "write init=tiny_grocery for a network"),
        ("adapt {out}/nothing --data {images} --out {out} optim.batch=8 --dry-run", "no checkpoint"),
        ("adapt tiny_grocery --data {images} --out {out} optim.batch=8 --against no_such_name", "no_such_name"),
        ("adapt tiny_grocery --data {images} --out {out} --dry-run --against no_such_name", "no_such_name"),
        ("distil no_such_name --data {images} --out {out} optim.batch=1000", "no_such_name"),
        ("adapt tiny_grocery --data {images} --out {out} optim.batch=8", "lower method.clusters"),
    ],
)
def test_mistakes_are_one_line(
    words: str, said: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = words.format(images=images, out=tmp_path / "run", small="method.clusters=6 optim.batch=8").split()
    assert main([*line, "--quiet", "efficiency.device=cpu"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_another_probe_is_refused_once_the_start_is_measured(
    finished: Path, starts: dict[str, Path], images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = command(starts["conv"], images, finished, f"monitor.data={images}/train", f"monitor.source={images}/val")
    assert main(line) == 2
    assert "monitor.data names other images than the start of this run was measured on" in capsys.readouterr().err


def test_an_older_run_resumes(starts: dict[str, Path], images: Path, tmp_path: Path) -> None:
    """Its recipe has neither the section nor the probes, its checkpoint none of the new fields."""
    own = [word for word in command(starts["conv"], images, tmp_path / "run")[2:] if not word.startswith("adapt.")]
    line = [
        "quickstart",
        *own,
        "method.contrast=0",
        "views.global_size=32",
        "views.eval_resize=32",
        "views.eval_crop=32",
    ]
    with stopped_before(3):
        assert main(line) == 143
    record = json.loads((tmp_path / "run" / "recipe.json").read_text(encoding="utf-8"))
    old = checkpoint(tmp_path / "run", 4)
    for recipe in (record["recipe"], old["recipe"]):
        del recipe["adapt"], recipe["monitor"]["data"], recipe["monitor"]["source"]
    for name in ("start", "gauges", "hits", "measurements", "losing", "ended", "evaluated_step"):
        del old[name]
    old["statistics"]["sums"] = old["statistics"]["sums"][:6]
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(record), encoding="utf-8")
    run_checkpoint.write_run_checkpoint(
        {name: value for name, value in old.items() if name not in ("format", "version")},
        tmp_path / "run" / "checkpoints" / "step-4.pt",
    )
    assert main(line) == 0
    whole = [*line[:-1]]
    whole[whole.index(str(tmp_path / "run"))] = str(tmp_path / "whole")
    assert main([*whole, line[-1]]) == 0
    assert_same(checkpoint(tmp_path / "whole", 12), checkpoint(tmp_path / "run", 12))


# ---------------------------------------------------------------------------------------------------------------------
# Other protocols, in a process beside the run
# ---------------------------------------------------------------------------------------------------------------------


# Training in a forked program, whose `excb-eval watch` is forked from it.
WATCHED = """
import sys
from contextlib import nullcontext
from excb.pretrain.__main__ import main
from excb.pretrain.run import watch_process
from tests.pretrain.small_runs import stopped_before

processes, kept, stop = [], watch_process.WatchProcess.__init__, int(sys.argv[1])
images = watch_process._images
watch_process._images = lambda data: [*images(data), "--workers", "0"]  # no fork of a fork of a fork
watch_process.EVERY = "1s"
watch_process.WatchProcess.__init__ = lambda own, *rest: (kept(own, *rest), processes.append(own))[0]
with stopped_before(stop) if stop else nullcontext():
    code = main(sys.argv[2:])
print([each.running for each in processes])
sys.exit(code)
"""


def watched(words: list[str], *, stop: int = 0) -> subprocess.CompletedProcess[str]:
    """A run that is measured beside, asked to stop before a step; it says whether what measures is left running."""
    return forked.run([sys.executable, "-c", WATCHED, str(stop), *words], capture_output=True, text=True, check=False)


def test_other_protocols_are_measured_beside_the_run(starts: dict[str, Path], images: Path, tmp_path: Path) -> None:
    """The figures are those of the same protocol by hand, after the run."""
    run, protocol = tmp_path / "run", "linear --epochs 2 --lr 0.1"
    words = [word for word in command(starts["conv"], images, run, f"monitor.data={images}") if word != "--quiet"]
    ended = watched([*words, f"monitor.protocol={protocol}", "run.keep=9", "optim.epochs=2"])
    assert ended.returncode == 0, ended.stderr
    assert "excb-eval watch: linear_top1" in ended.stderr
    lines = [json.loads(line) for line in (run / "watch" / "watch.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["step"] for line in lines} == {0, 3, 6}
    best = json.loads((run / "watch" / "best.json").read_text(encoding="utf-8"))
    assert best["value"] == max(line["figures"]["linear_top1"] for line in lines)
    by_hand = ["linear", "--ckpt", str(run / "checkpoints/step-6.pt"), *protocol.split()[1:], "--no-cache", "--quiet"]
    by_hand += ["--train", f"{images}/train", "--test", f"{images}/val", "--device", "cpu", "--workers", "0"]
    assert evaluate([*by_hand, "--out", str(tmp_path / "linear.json")]) == 0
    figures = json.loads((tmp_path / "linear.json").read_text(encoding="utf-8"))["figures"]
    assert figures == next(line for line in lines if line["step"] == 6)["figures"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("monitor.protocol=linar", "monitor.data={images}"), "no such protocol; did you mean 'linear'?"),
        (("monitor.protocol=linar", "monitor.data={images}", "--dry-run"), "no such protocol; did you mean 'linear'?"),
        (("monitor.protocol=linear",), "monitor.protocol needs labelled images: name them with monitor.data"),
        (("monitor.protocol=linear --k 3", "monitor.data={images}"), "--k"),
    ],
)
def test_a_protocol_that_cannot_be_measured_is_refused_before_the_first_step(
    finished: Path, images: Path, overrides: tuple[str, ...], message: str
) -> None:
    values = [override.format(images=images) for override in overrides]
    out = finished.parent / "refused"
    ended = watched(command(finished, images, out, *values))
    assert ended.returncode == 2
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not out.exists()


def test_what_measures_beside_a_run_ends_when_the_run_is_stopped(
    starts: dict[str, Path], images: Path, tmp_path: Path
) -> None:
    line = command(starts["conv"], images, tmp_path / "run", f"monitor.data={images}", "monitor.protocol=knn --k 3")
    ended = watched(line, stop=5)
    assert ended.returncode == 143, ended.stderr
    assert ended.stdout.splitlines()[-1] == "[False]"
