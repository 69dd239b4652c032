"""Tests of `excb-zoo`: facts as a table or JSON, exports, and every mistake in one line with exit code 2."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import excb
from excb.zoo.__main__ import main
from tests.run_files import damage, features, pictures, tiny_recipe, write_run


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "tiny", 9, 10)


def test_show_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run), "--json"]) == 0
    out, err = capsys.readouterr()
    weights = excb.load(run).network.parameters()
    assert err == ""
    assert json.loads(out) == {
        "source": str(run / "checkpoints" / "step-10.pt"),
        "architecture": "timm:resnet10t",
        "options": {"channels": [8, 16, 24, 32], "stem_width": 8},
        "network": "teacher",
        "parameters": sum(weight.numel() for weight in weights),
        "width": 32,
        "preprocessing": tiny_recipe().views.preprocessing.to_dict(),
        "recipe": "quickstart",
        "step": 10,
        "epoch": 1.0,
    }


def test_show_as_a_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run / "checkpoints" / "step-9.pt"), "--network", "student"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[2:])
    assert rows["network"] == "student"
    assert rows["step"] == "9"
    assert rows["epoch"] == "0.9"
    assert rows["source"].endswith("step-9.pt")


def test_export_says_how_to_load_what_it_wrote(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "exported"
    assert main(["export", str(run), "--out", str(folder), "--network", "student"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f'wrote {folder}: load it with excb.load("{folder}", network="student")\n')
    expected = features(excb.load(run, network="student"), pictures())
    assert torch.equal(features(excb.load(folder, network="student"), pictures()), expected)
    assert main(["show", str(folder), "--network", "student", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == str(folder / "model.safetensors")
    assert main(["export", str(run), "--out", str(tmp_path / "teacher")]) == 0
    assert (
        capsys.readouterr().err == f'wrote {tmp_path / "teacher"}: load it with excb.load("{tmp_path / "teacher"}")\n'
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["shwo", "x"], "invalid choice: 'shwo'"),
        (["show"], "PATH"),
        (["show", "{here}/nothing"], "no checkpoint"),
        (["show", "{here}"], "no checkpoint in"),
        (["show", "{here}/notes.txt"], "not a checkpoint of excb"),
        (["show", "{here}/damaged.pt"], "is damaged"),
        (["show", "{run}", "--network", "both"], "invalid choice: 'both'"),
        (["show", "{run}", "--out", "x"], "unrecognized arguments: --out x"),
        (["export", "{run}"], "--out"),
        (["export", "{here}/nothing", "--out", "{here}/exported"], "no checkpoint"),
        (["export", "{run}", "--out", "{here}/notes.txt"], "cannot write"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (tmp_path / "notes.txt").write_text("words", encoding="utf-8")
    (tmp_path / "damaged.pt").write_bytes((run / "checkpoints" / "step-9.pt").read_bytes())
    damage(tmp_path / "damaged.pt")
    assert main([argument.format(here=tmp_path, run=run) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("excb-zoo: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"excb {excb.__version__}\n"
