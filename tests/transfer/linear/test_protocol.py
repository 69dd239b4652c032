"""Tests of the linear protocols: heads against torch's SGD by a loop, the choice among them, stops and processes."""

import json
import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.errors import UserError
from excb.results.result import ResultRecord
from excb.transfer.data.batches import Augmentation, TrainingBatches
from excb.transfer.linear.options import LinearOptions
from excb.transfer.linear.protocol import measure
from excb.transfer.probes.heads import HeadBank
from excb.transfer.probes.logistic import Standard
from excb.transfer.probes.recipes import PROTOCOLS, protocol_of_name
from excb.transfer.probes.selection import held_out
from excb.transfer.probes.training import linear_bank, scaled, train_heads
from excb.transfer.reporting.predictions import Predictions
from excb.transfer.task import Task
from tests import forked
from tests.clone import ROOT
from tests.run_files import damage, tiny_recipe, write_run
from tests.transfer.labelled_images import CLASSES, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {"epochs": 3, "train_batch": 10}
SWEEP: dict[str, Any] = SMALL | {"lr": (0.3, 3.0, 30.0), "wd": (0, 0.01)}
VIT: dict[str, Any] = {"backbone": "vit_tiny", "options": {"embed_dim": 12, "depth": 4, "num_heads": 2}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, 31 train images of seven classes and 21 test images; and two classes with a third in test alone."""
    place = tmp_path_factory.mktemp("linear")
    write_run(place / "run", 5, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_run(place / "vit", 5, recipe=tiny_recipe(VIT, eval_resize=36, eval_crop=32))
    write_folder(place / "train", each=4, seed=1, classes=[name for name in CLASSES if name != "bee"])
    write_folder(place / "train", each=7, seed=1, classes=("bee",))
    write_folder(place / "test", each=3, seed=2)
    write_folder(place / "two" / "train", each=6, seed=3, classes=("ant", "bee"))
    write_folder(place / "two" / "test", each=3, seed=4, classes=("ant", "bee", "yak"))
    return place


def task(place: Path, run: str = "run", data: str = ".", *, exact: bool = True) -> Task:
    """The task, by default with a backbone in float64."""
    folder = place / data
    prepared = Task.prepare(str(place / run), folder / "train", folder / "test", device="cpu", batch=8, workers=0)
    if exact:
        prepared.backbone.double()
    return prepared


def quiet(task: Task, protocol: str = "resnet", **options: Any) -> tuple[ResultRecord, Predictions]:
    measured = measure(task, LinearOptions(protocol=protocol, **options), Reporter(quiet=True))
    return measured.result, measured.scored


def top5(result: tuple[ResultRecord, Predictions]) -> list[list[int]]:
    return result[1].values["linear_{}"].tolist()


# ---------------------------------------------------------------------------------------------------------------------
# By a loop
# ---------------------------------------------------------------------------------------------------------------------


def head_by_loop(
    steps: Sequence[tuple[int, Tensor, Tensor]], classes: int, *, epochs: int, lr: float, wd: float
) -> nn.Linear:
    """torch's SGD on (epoch, features, labels), its rate from torch's own cosine schedule."""
    head = nn.Linear(steps[0][1].shape[1], classes, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(HeadBank(classes, head.in_features, lr=[0], weight_decay=[0], dtype=torch.float64).weight[0])
        head.bias.zero_()
    optimizer = torch.optim.SGD(head.parameters(), lr=lr, momentum=0.9, weight_decay=wd)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    last = 0
    for epoch, features, labels in steps:
        if epoch > last:
            schedule.step()
            last = epoch
        optimizer.zero_grad()
        F.cross_entropy(head(features), labels).backward()
        optimizer.step()
    return head.requires_grad_(False)


def seen(
    task: Task, *, epochs: int, train_batch: int, left_out: np.ndarray | None = None
) -> list[tuple[int, Tensor, Tensor]]:
    """(epoch, features, labels) of every batch through the backbone, without some of the images."""
    augmentation = Augmentation.like(task.preprocessing)
    batches = TrainingBatches(task.train, augmentation, batch=train_batch, seed=0, workers=0)
    steps = []
    for number, found in enumerate(batches.run(first=0, last=epochs)):
        keep = [left_out is None or not left_out[int(sample)] for sample in found.samples]
        with torch.no_grad():
            rows = task.backbone(found.images.double())
        steps.append((number // batches.steps, rows[keep], found.labels[keep]))
    return steps


def right_by_loop(head: nn.Linear, rows: Tensor, labels: Tensor) -> float:
    hits = [int(head(row.double()).argmax()) == int(label) for row, label in zip(rows, labels, strict=True)]
    return 100 * sum(hits) / len(hits)


def test_one_head_is_sgd_on_augmented_batches(place: Path) -> None:
    prepared = task(place)
    found = quiet(prepared, protocol="resnet", lr=(5.0,), wd=(0.01,), **SMALL)
    head = head_by_loop(seen(prepared, **SMALL), 7, epochs=3, lr=5.0 * 10 / 256, wd=0.01)
    rows, labels = prepared.features(prepared.test, "test", Reporter(quiet=True))
    assert top5(found) == head(rows.double()).topk(5).indices.tolist()
    assert found[0].figures["linear_top1"] == pytest.approx(right_by_loop(head, rows, labels), abs=1e-4)
    assert found[0].settings["chosen"] == {"lr": 5.0, "wd": 0.01}
    assert "sweep" not in found[0].settings
    assert not prepared.backbone.training


def test_sweep_chooses_by_images_that_its_heads_never_saw(place: Path) -> None:
    prepared = task(place)
    result, predictions = quiet(prepared, protocol="resnet", **SWEEP)
    train, labels = prepared.features(prepared.train, "train", Reporter(quiet=True))
    held = held_out(labels.numpy(), 0)
    without, everything = seen(prepared, **SMALL, left_out=held), seen(prepared, **SMALL)
    for one in result.settings["sweep"]:
        head = head_by_loop(without, 7, epochs=3, lr=one["lr"] * 10 / 256, wd=one["wd"])
        expected = right_by_loop(head, train[held], labels[held])
        assert one["holdout_top1"] == pytest.approx(expected, abs=1e-4)
    chosen = result.settings["chosen"]
    best = max(one["holdout_top1"] for one in result.settings["sweep"])
    assert {**chosen, "holdout_top1": best} in result.settings["sweep"]
    test, _ = prepared.features(prepared.test, "test", Reporter(quiet=True))
    final = head_by_loop(everything, 7, epochs=3, lr=chosen["lr"] * 10 / 256, wd=chosen["wd"])
    assert predictions.values["linear_{}"].tolist() == final(test.double()).topk(5).indices.tolist()
    assert result.notes == []


@pytest.mark.parametrize("protocol", ["resnet", "fast"])
def test_choice_on_the_test_set_only_by_name_and_marked(place: Path, protocol: str) -> None:
    prepared = task(place)
    result, _ = quiet(prepared, protocol=protocol, select="test", **SWEEP)
    sweep = [one["test_top1"] for one in result.settings["sweep"]]
    assert result.settings["select"] == "test"
    assert "test images themselves" in result.notes[0]
    assert result.figures["linear_top1"] == pytest.approx(max(sweep), abs=1e-4)
    for one in result.settings["sweep"][1::3]:
        alone = quiet(prepared, protocol=protocol, **SMALL | {"lr": (one["lr"],), "wd": (one["wd"],)})
        assert alone[0].figures["linear_top1"] == pytest.approx(one["test_top1"], abs=1e-4)


def test_fast_trains_the_chosen_settings_again_on_all_images(place: Path) -> None:
    prepared = task(place)
    found = quiet(prepared, protocol="fast", **SWEEP)
    chosen = found[0].settings["chosen"]
    alone = quiet(prepared, protocol="fast", **SMALL | {"lr": (chosen["lr"],), "wd": (chosen["wd"],)})
    assert top5(found) == top5(alone)
    assert len(found[0].settings["sweep"]) == 6


def test_vit_sees_the_last_four_class_tokens(place: Path) -> None:
    result, _ = quiet(task(place, "vit"), protocol="vit", epochs=2)
    rates = [one["lr"] for one in result.settings["sweep"]]
    np.testing.assert_allclose(rates, [0.0005 * number for number in range(1, 59)], rtol=1e-9)
    assert result.settings["features"] == "last4_cls"
    with pytest.raises(UserError, match="only ViTs"):
        quiet(task(place), protocol="vit", epochs=1)


def test_logistic_regression_is_scikit_learns(place: Path) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    prepared = task(place)
    train, labels = prepared.features(prepared.train, "train", Reporter(quiet=True))
    test, targets = prepared.features(prepared.test, "test", Reporter(quiet=True))
    expected = make_pipeline(StandardScaler(), LogisticRegression(C=1, max_iter=1000)).fit(train.double(), labels)
    found = quiet(prepared, protocol="logreg")
    assert [row[0] for row in top5(found)] == expected.predict(test.double()).tolist()
    assert found[0].figures["linear_top1"] == pytest.approx(100 * expected.score(test.double(), targets), abs=1e-4)
    swept, _ = quiet(prepared, protocol="logreg", C=(1e-4, 1))
    assert [one["C"] for one in swept.settings["sweep"]] == [1e-4, 1]


@pytest.mark.parametrize("protocol", ["logreg", "fast", "resnet"])
def test_two_classes_and_a_class_that_train_has_not(place: Path, protocol: str) -> None:
    options = {} if protocol == "logreg" else {"epochs": 5}
    result, predictions = quiet(task(place, data="two"), protocol=protocol, **options)
    assert predictions.values["linear_{}"].shape == (9, 2)
    assert result.figures["linear_top5"] == pytest.approx(100 * 6 / 9, abs=1e-4)  # the third class is always wrong
    if protocol == "logreg":
        from sklearn.linear_model import LogisticRegression

        prepared = task(place, data="two")
        train, labels = prepared.features(prepared.train, "train", Reporter(quiet=True))
        test, _ = prepared.features(prepared.test, "test", Reporter(quiet=True))
        standard = Standard.of(train)
        rows, other = standard(train), standard(test)
        model = LogisticRegression(C=1, max_iter=1000).fit(rows, labels)
        assert predictions.values["linear_{}"][:, 0].tolist() == model.predict(other).tolist()


# ---------------------------------------------------------------------------------------------------------------------
# Parts
# ---------------------------------------------------------------------------------------------------------------------


def test_schedules_are_torchs() -> None:
    for name in ("resnet", "moco"):
        plan = protocol_of_name(name)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.epochs)
        if name == "moco":
            schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [60, 80])
        for epoch in range(plan.epochs):
            assert plan.schedule_factor(epoch) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
            optimizer.step()
            schedule.step()


def test_protocols_have_the_authors_rates() -> None:
    rates = {name: [lr * plan.lr_factor for lr in plan.lr] for name, plan in PROTOCOLS.items()}
    assert rates["resnet"] == [0.3]
    assert rates["moco"] == [30]
    assert rates["simsiam"] == [pytest.approx(1.6)]
    assert (len(rates["vit"]), rates["vit"][0], rates["vit"][-1]) == (58, 0.0005, 0.029)
    assert len(PROTOCOLS["fast"].lr) * len(PROTOCOLS["fast"].weight_decay) == 50
    ours = ("fast", "attentive", "attentive-bn")
    assert all(plan.weight_decay == (0.0,) for name, plan in PROTOCOLS.items() if name not in ours)


def test_tenth_of_every_class_is_held_out() -> None:
    labels = np.repeat([0, 1, 2, 3], [100, 26, 2, 1])
    held = held_out(labels, 0)
    assert [int(held[labels == label].sum()) for label in range(4)] == [10, 3, 1, 0]
    assert np.array_equal(held, held_out(labels, 0))
    assert int(held_out(np.zeros((50, 3), np.int8), 0).sum()) == 10  # of sets of labels a fifth of all
    assert not np.array_equal(held, held_out(labels, 1))
    with pytest.raises(UserError, match="no class has two train images"):
        held_out(np.arange(3), 0)


def test_scaled_features() -> None:
    train, test = torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(0)).mul(7).add(3)
    train[:, 1] = test[:, 1] = 0.1  # a dead dimension
    rows, other = scaled(train, test)
    assert float(rows.square().mean()) == pytest.approx(1, rel=1e-5)
    torch.testing.assert_close(other / rows, test / train)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "resent"}, "did you mean 'resnet'"),
        ({"epochs": 0}, "--epochs"),
        ({"train_batch": 0}, "at least 1"),
        ({"lr": (0.0,)}, "--lr must be above 0"),
        ({"lr": (math.nan,)}, "--lr must be above 0"),
        ({"lr": ()}, "at least one value"),
        ({"wd": (-1.0,)}, "--wd"),
        ({"C": (1.0,)}, "--C is of logreg"),
        ({"protocol": "logreg", "C": (0.0,)}, "--C must be above 0"),
        ({"protocol": "logreg", "epochs": 3}, "logreg has no --epochs"),
        ({"protocol": "logreg", "train_batch": 3}, "logreg has no --train-batch"),
        ({"select": "test"}, "--select test chooses among several heads, and this trains one by resnet: leave it out"),
        ({"protocol": "fast", "state": Path("state.pt")}, "fast makes features once: leave it out"),
        ({"protocol": "fast", "lr": (1e300,), "epochs": 9}, "diverged"),
    ],
)
def test_mistakes_end_in_one_line(place: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        quiet(task(place, exact=False), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("protocol", "options", "once"),
    [
        ("fast", {"lr": (3.0, 0.3, 3.0), "wd": (0.0, 0.0), "epochs": 3}, {"lr": (3.0, 0.3), "wd": (0.0,)}),
        ("logreg", {"C": (1.0, 1.0)}, {"C": (1.0,)}),
    ],
)
def test_a_repeated_setting_is_tried_once(
    place: Path, protocol: str, options: dict[str, Any], once: dict[str, Any]
) -> None:
    result, _ = quiet(task(place), protocol=protocol, **options)
    expected, _ = quiet(task(place), protocol=protocol, **(options | once))
    assert result.settings == expected.settings
    assert result.figures == expected.figures


def test_table_shows_figures_and_sweep(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = measure(task(place), LinearOptions(protocol="fast", **SWEEP), Reporter(quiet=True))
    measured.show(Reporter(quiet=True))
    result = measured.result
    lines = capsys.readouterr().out.splitlines()
    assert f"{result.figures['linear_top1']:.2f}" in lines[2]
    assert lines[3] == "Sweep: top-1 % on 7 held-out images, to choose by: the best of many is optimistic"
    assert [line.split()[0] for line in lines[5:]] == ["0.3", "3", "30"]
    assert [float(cell) for line in lines[5:] for cell in line.split()[1:]] == [
        round(one["holdout_top1"], 2) for one in result.settings["sweep"]
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Stops
# ---------------------------------------------------------------------------------------------------------------------


def test_stopped_run_goes_on_to_the_bit(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = task(place, exact=False)
    through = quiet(prepared, protocol="resnet", **SWEEP, state=tmp_path / "through.pt")
    calls, step = [], HeadBank.step

    def interrupted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(1)
        if len(calls) == 14:  # two banks, four batches: in the middle of the second epoch
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(HeadBank, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quiet(prepared, protocol="resnet", **SWEEP, state=tmp_path / "state.pt")
    assert run_checkpoint.read_run_checkpoint(tmp_path / "state.pt")["epochs"] == 1
    resumed = quiet(prepared, protocol="resnet", **SWEEP, state=tmp_path / "state.pt")
    assert len(calls) == 14 + 2 * 2 * 4
    assert top5(resumed) == top5(through)
    assert resumed[0].settings == through[0].settings
    stored = [run_checkpoint.read_run_checkpoint(tmp_path / f"{name}.pt")["banks"] for name in ("through", "state")]
    for one, other in zip(*stored, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    monkeypatch.setattr(TrainingBatches, "steps", property(lambda _self: 4))
    again = quiet(prepared, protocol="resnet", **SWEEP, state=tmp_path / "state.pt")
    assert len(calls) == 14 + 2 * 2 * 4  # all epochs are done
    assert top5(again) == top5(through)


def test_state_of_another_evaluation_or_damaged_is_refused(place: Path, tmp_path: Path) -> None:
    prepared = task(place)
    state = tmp_path / "state.pt"
    quiet(prepared, epochs=1, state=state)
    for options in ({"epochs": 2}, {"seed": 1, "epochs": 1}, {"lr": (1.0,), "epochs": 1}):
        with pytest.raises(UserError, match=r"another run \(other settings, images or weights\)"):
            quiet(prepared, state=state, **options)
    damage(state)
    with pytest.raises(UserError, match="remove it to start anew"):
        quiet(prepared, epochs=1, state=state)


def test_state_of_other_files_or_precision_is_refused_and_one_of_a_copy_resumes(place: Path, tmp_path: Path) -> None:
    state, copied = tmp_path / "state.pt", tmp_path / "data"
    first = quiet(task(place), epochs=1, state=state)
    shutil.copytree(place / "train", copied / "train", copy_function=shutil.copyfile)  # with other times
    shutil.copytree(place / "test", copied / "test")
    prepared = Task.prepare(str(place / "run"), copied / "train", copied / "test", device="cpu", batch=8, workers=0)
    prepared.backbone.double()
    assert top5(quiet(prepared, epochs=1, state=state)) == top5(first)
    with pytest.raises(UserError, match=r"another run \(precision was fp32, now bf16\)"):
        quiet(replace(prepared, precision="bf16"), epochs=1, state=state)
    file = copied / "train" / prepared.train.paths[-1]
    Image.new("RGB", (100, 90)).save(file)
    with pytest.raises(UserError, match=r"another run \(other files\): name another file, or remove it"):
        quiet(prepared, epochs=1, state=state)
    contents = run_checkpoint.read_run_checkpoint(state)
    run_checkpoint.write_run_checkpoint({name: contents[name] for name in ("identity", "epochs", "banks")}, state)
    quiet(prepared, epochs=1, state=state)  # as earlier versions wrote it


# ---------------------------------------------------------------------------------------------------------------------
# Processes
# ---------------------------------------------------------------------------------------------------------------------

SCRIPT = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
place, store, rank, processes = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(processes))
from tests.transfer.linear.test_protocol import by_all_processes
found = by_all_processes(Path(place), Path(store).with_suffix(".pt"))
Path(f"{store}.{rank}.json").write_text(json.dumps(found))
dist.destroy_process_group()
"""


def by_all_processes(place: Path, state: Path) -> dict[str, Any]:
    """Figures and predictions of a sweep through the backbone, on features and of logistic regression."""
    found = {}
    for protocol, options in (("resnet", SWEEP | {"state": state}), ("fast", SWEEP), ("logreg", {"C": (0.1, 1)})):
        result = quiet(task(place), protocol=protocol, **options)
        found[protocol] = [result[0].figures, result[0].settings["chosen"], result[0].settings["sweep"], top5(result)]
    return found


@pytest.fixture(scope="module")
def alone(place: Path) -> dict[str, Any]:
    """One process's answers; 31 images in batches of 10: the last holds one."""
    return by_all_processes(place, place / "alone.pt")


@pytest.mark.parametrize("processes", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_many_processes_train_the_same_heads(
    place: Path, tmp_path: Path, alone: dict[str, Any], processes: int
) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(place), str(tmp_path / "store")]
    running = [
        forked.Popen([*command, str(number), str(processes)], env=environment, cwd=ROOT) for number in range(processes)
    ]
    assert [process.wait(timeout=120) for process in running] == [0] * processes
    for number in range(processes):
        assert json.loads((tmp_path / f"store.{number}.json").read_text()) == json.loads(json.dumps(alone))
    banks = [run_checkpoint.read_run_checkpoint(file)["banks"] for file in (place / "alone.pt", tmp_path / "store.pt")]
    for one, other in zip(*banks, strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-9, atol=1e-11)


def test_learns(place: Path) -> None:
    """Features of an untrained network: far above chance on the images that the head saw."""
    prepared = task(place)
    rows, labels = prepared.features(prepared.train, "train", Reporter(quiet=True))
    rows, _ = scaled(rows, rows)
    plan = protocol_of_name("fast", epochs=200)
    bank = linear_bank(prepared, plan, [{"lr": 1.0, "wd": 0.0}], rows.shape[1], seed=0)
    train_heads(bank, rows, labels, torch.arange(len(labels)), plan, seed=0)
    right, loss = bank.score(rows, labels)
    assert int(right[0]) > len(labels) / 2
    assert float(loss[0]) < math.log(7) / 1.5
