"""`excb.train` and `excb.plan`: the run that the command makes, checked values, and interrupts as in a notebook."""

import json
import re
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from markupsafe import escape
from PIL import Image

import excb
from excb.checkpoint import run_checkpoint
from excb.errors import UserError
from excb.pretrain import loop
from excb.pretrain.__main__ import main
from excb.pretrain.data.batch import ViewBatch
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.train import changed_recipe
from tests.pretrain.small_runs import OVERRIDES, VALUES, assert_same

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")


@pytest.fixture(scope="module")
def images(finished_run: Path) -> Path:
    return finished_run.parent / "images"


@pytest.fixture(scope="module")
def by_command(finished_run: Path) -> Path:
    """The run that the command line makes."""
    return finished_run


def weights(folder: Path) -> dict[str, Any]:
    return {
        name: run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(folder)[0])[name]
        for name in ("model", "optimizer")
    }


def train(images: Path, out: Path, **changes: Any) -> excb.Run:
    return excb.train("quickstart", data=images, out=out, quiet=True, **VALUES | changes)


def interrupted_before(step: int, patch: pytest.MonkeyPatch, number: signal.Signals = signal.SIGINT) -> None:
    """Have a signal arrive before a step, once."""
    usual, due = loop.TrainingLoop._step, [True]

    def hit(run: loop.TrainingLoop, batch: ViewBatch) -> Any:
        if run.progress.step == step and due and due.pop():
            signal.raise_signal(number)
        return usual(run, batch)

    patch.setattr(loop.TrainingLoop, "_step", hit)


def test_the_python_door_makes_the_run_of_the_command(
    images: Path, by_command: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(images, tmp_path / "a")
    assert_same(weights(run.folder), weights(by_command))
    assert run.finished
    assert run.report == json.loads((tmp_path / "a" / "report.json").read_text())
    assert capsys.readouterr() == ("", "")
    assert run.load()(torch.zeros(1, 3, 32, 32)).shape == (1, run.load().width)
    assert run.load(network="student").entry.network == "student"


def test_a_finished_run_is_opened_again(by_command: Path) -> None:
    run = excb.Run(by_command)
    assert (run.finished, run.folder, str(run)) == (True, by_command, str(by_command))
    assert excb.load(run).entry.step == 9  # a run is a path, wherever a path is taken
    report = dict(run.report or {})
    assert run.verdict is not None
    assert run.verdict.to_dict() == report["verdict"]
    shown = run._repr_html_()
    for text in (str(run), run.verdict.summary, *run.verdict.advice):
        assert escape(text) in shown
    assert ('<img src="data:image/png;base64,' in shown) == (by_command / "curves.png").is_file()


@pytest.mark.parametrize("handler", [signal.default_int_handler, lambda *_: None])
def test_an_interrupt_saves_gives_the_handlers_back_and_the_same_call_continues(
    images: Path, by_command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: Any
) -> None:
    interrupted_before(4, monkeypatch)
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(images, tmp_path / "a")
        assert signal.getsignal(signal.SIGINT) is handler
        stopped = excb.Run(tmp_path / "a")
        assert (stopped.finished, stopped.report, stopped.load().entry.step) == (False, None, 5)
        assert_same(weights(train(images, tmp_path / "a").folder), weights(by_command))
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_reaches_the_programs_own_handler_after_the_run_is_saved(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_before(4, monkeypatch, signal.SIGTERM)
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    try:
        run = train(images, tmp_path / "a")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (heard, run.finished, run.load().entry.step) == ([signal.SIGTERM], False, 5)


def test_a_run_in_a_thread_leaves_signals_alone(images: Path, by_command: Path, tmp_path: Path) -> None:
    runs: list[excb.Run] = []
    thread = threading.Thread(target=lambda: runs.append(train(images, tmp_path / "a")))
    thread.start()
    thread.join()
    assert_same(weights(runs[0].folder), weights(by_command))


def test_init_takes_a_run(images: Path, by_command: Path, tmp_path: Path) -> None:
    run = train(images, tmp_path / "a", init=excb.Run(by_command), optim={"epochs": 1, "batch": 8})
    assert json.loads((run.folder / "recipe.json").read_text())["recipe"]["init"] == str(by_command)


def test_values_are_those_of_the_command_line() -> None:
    assert changed_recipe("quickstart", **VALUES) == apply(find_recipe("quickstart"), OVERRIDES)
    odd = changed_recipe("quickstart", views={"global_scale": (0.3, 1)}, optim={"clip": None}, run={"seed": 3})
    assert (odd.views.global_scale, odd.optim.clip, odd.run.seed) == ((0.3, 1.0), None, 3)
    assert changed_recipe(odd, run={"seed": 4}).views.global_scale == (0.3, 1.0)


@pytest.mark.parametrize(
    ("name", "given", "held"),
    [
        ("monitor.data", Path("none"), "none"),
        ("monitor.data", Path("true"), "true"),
        ("monitor.data", "none", "none"),
        ("monitor.data", None, None),
        ("monitor.wandb", "1e3", "1e3"),
        ("monitor.wandb", "a=b,c", "a=b,c"),
        ("distil.teachers", ["a,b", "c=d", " none "], ("a,b", "c=d", " none ")),
        ("distil.teachers", [], ()),
        ("optim.clip", None, None),
        ("optim.base_lr", 1, 1.0),
        ("optim.base_lr", np.float64(0.5), 0.5),
        ("optim.epochs", np.int64(7), 7),
        ("views.mean", [0, 0.5, 1], (0.0, 0.5, 1.0)),
        ("model.options", {"widths": (8, 16)}, {"widths": [8, 16]}),
    ],
)
def test_a_value_from_python_keeps_its_meaning(name: str, given: Any, held: Any) -> None:
    section, field = name.split(".")
    sections: dict[str, Any] = {section: {field: given}}
    value = getattr(
        getattr(changed_recipe("distil" if section == "distil" else "quickstart", **sections), section),
        field,
    )
    assert (value, type(value)) == (held, type(held))


def test_names_of_start_and_teachers_are_no_words_of_a_command_line() -> None:
    assert changed_recipe("adapt", init=Path("none")).init == "none"
    assert changed_recipe("distil", teachers=["a,b", "none"]).distil.teachers == ("a,b", "none")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optim": {"epochs": 2.5}}, "optim.epochs takes a whole number, not 2.5"),
        ({"optim": {"epochs": True}}, "optim.epochs takes a whole number, not True"),
        ({"optim": {"epochs": None}}, "optim.epochs takes a whole number, not None"),
        ({"optim": {"base_lr": "1e3"}}, "optim.base_lr takes a number, not '1e3'"),
        ({"optim": {"base_lr": float("nan")}}, "optim.base_lr takes a finite number, not nan"),
        ({"optim": {"base_lr": 10**400}}, "optim.base_lr takes a finite number, not 1"),
        ({"method": {"predictor": "no"}}, "method.predictor is true or false, not 'no'"),
        ({"monitor": {"data": 3}}, "monitor.data takes text, not 3"),
        ({"monitor": {"data": ""}}, "monitor.data is empty"),
        ({"views": {"blur": (0.5,)}}, "views.blur takes 2 values, not (0.5,)"),
        ({"model": {"options": {"a": Path("b")}}}, "model.options takes a JSON object such as "),
        ({"init": ""}, "init= is empty"),
        ({"optim": {"epoch": 3}}, "no field is called 'optim.epoch'; did you mean 'optim.epochs'"),
        ({"optim": {"epochs": "many"}}, "optim.epochs takes a whole number, not 'many'"),
        (
            {"epochs": 3},
            "epochs=3 is not a section of a recipe: values stand in their section, such as optim={'epochs': 3}",
        ),
        ({"optimm": {"epochs": 3}}, "no field is called 'optimm.epochs'; did you mean 'optim.epochs'"),
    ],
)
def test_a_wrong_value_is_one_clear_error(images: Path, tmp_path: Path, values: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        excb.train("quickstart", data=images, out=tmp_path / "a", **values)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_what_cannot_be_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name the folder of images with data="):
        excb.train("quickstart", out=tmp_path / "a")
    with pytest.raises(UserError, match="no recipe is called 'quickstrat'; did you mean 'quickstart'"):
        excb.train("quickstrat", data=tmp_path)
    with pytest.raises(UserError, match=r"is not a run: it has no recipe\.json"):
        excb.Run(tmp_path)
    Image.new("RGB", (4, 4)).save(tmp_path / "one.png")
    with pytest.raises(UserError, match="holds one image"):
        excb.train("quickstart", data=tmp_path, out=tmp_path.parent / "other", quiet=True)


def test_a_checkpoint_to_compare_with_is_one_name(images: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint runs/none:"):  # and not one for each of its letters
        train(images, tmp_path / "run", against="runs/none")


def test_the_plan_is_what_the_command_prints(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "quickstart", "--data", str(images), "--gpus", "2", "--json", *OVERRIDES]
    main([*words, "efficiency.device=cpu"])
    assert excb.plan("quickstart", data=images, gpus=2, **VALUES) == json.loads(capsys.readouterr().out)
