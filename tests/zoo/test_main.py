"""Tests of `excb-zoo`: facts as a table or JSON, exports, and every mistake in one line with exit code 2."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import excb
from excb.cli import Parser
from excb.hub.catalogue import Figure, add, measured_on
from excb.networks.architecture import Architecture
from excb.networks.backbone import weights_hash
from excb.zoo.__main__ import COMMANDS, main
from tests.clone import ROOT
from tests.run_files import damage, features, pictures, tiny_recipe, write_run
from tests.zoo.test_card import result

pytestmark = pytest.mark.usefixtures("one_thread")


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
        "layout": None,
        "method": "ExCB + contrast",
        "recipe": "quickstart",
        "step": 10,
        "epoch": 1.0,
        "figures": [],
    }


def test_show_as_a_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run / "checkpoints" / "step-9.pt"), "--network", "student"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[2:]]
    rows = dict(line for line in lines if len(line) == 2)
    assert rows["network"] == "student"
    assert rows["step"] == "9"
    assert rows["epoch"] == "0.9"
    assert rows["source"].endswith("step-9.pt")


def test_export_says_how_to_load_what_it_wrote(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "exported"
    assert main(["export", str(run), "--out", str(folder), "--network", "student"]) == 0
    out, err = capsys.readouterr()
    assert err == f"wrote {folder} and {folder}.load.py, which loads it:\n"
    loaded: dict[str, Any] = {}
    exec(out, loaded)
    assert loaded["backbone"].entry.network == "student"
    expected = features(excb.load(run, network="student"), pictures())
    assert torch.equal(features(excb.load(folder, network="student"), pictures()), expected)
    assert main(["show", str(folder), "--network", "student", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == str(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shwo", "x"], "invalid choice: 'shwo'"),
        (["show", "{here}/nothing"], "no checkpoint"),
        (["show", "{here}"], "no checkpoint in"),
        (["show", "{here}/notes.txt"], "is not a checkpoint"),
        (["show", "{here}/damaged.pt"], "is damaged"),
        (["show", "{run}", "--network", "both"], "invalid choice: 'both'"),
        (["show", "{run}", "--out", "x"], "unrecognized arguments: --out x"),
        (["export", "{run}"], "--out"),
        (["export", "{here}/nothing", "--out", "{here}/exported"], "no checkpoint"),
        (["export", "{run}", "--out", "{here}/notes.txt"], "cannot write"),
        (["export", "{run}", "--out", "{here}/card"], "it holds README.md, and `excb-zoo export` did not write it"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (tmp_path / "notes.txt").write_text("words", encoding="utf-8")
    (tmp_path / "damaged.pt").write_bytes((run / "checkpoints" / "step-9.pt").read_bytes())
    damage(tmp_path / "damaged.pt")
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "README.md").write_text("years of work", encoding="utf-8")
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


# ---------------------------------------------------------------------------------------------------------------------
# The zoo's other commands
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_list_names_every_checkpoint(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == [row.name for row in excb.checkpoints()]
    assert main(["list", "--method", "swav", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in found} == {"SwAV"}
    assert len(found) > 5
    assert main(["list", "--method", "swave"]) == 2
    assert "known: AIMv2, BEiT v2, BYOL," in capsys.readouterr().err


def test_a_figure_stands_beside_the_images_that_it_is_of(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = (
        Figure("linear_top1", 61.23456, measured_on("cats", "linear_fast " + 16 * "a")),
        Figure("knn_top1", 70.0, "A"),
    )
    row = replace(next(row for row in excb.checkpoints() if row.name == "swav_rn50"), name="mine", figures=figures)
    add(row, home / "catalogue.toml")
    add(
        replace(row, name="older", figures=(Figure("knn_top1_k20", 5.0, "measured, knn " + 16 * "a"),)),
        home / "catalogue.toml",
    )
    assert main(["list", "--markdown"]) == 0
    cells = {line.split("`")[1]: line.split(" | ")[5:8] for line in capsys.readouterr().out.splitlines()[2:]}
    assert cells["mine"] == ["61.23", "", "cats"]  # 70.0 is of other images
    assert cells["older"] == ["", "5", "not stated"]
    assert cells["swav_rn50"] == ["75.3", "65.7", "ImageNet-1k"]
    assert cells["tiny_grocery"] == ["42.33", "40.56", "grocery128"]


def test_the_names_in_the_documentation_are_those_of_the_catalogue(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--markdown"]) == 0
    text = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")
    written = text.partition("<!-- names -->\n")[2].partition("\n<!-- end of names -->")[0]
    assert written == capsys.readouterr().out.strip(), "replace it by what `excb-zoo list --markdown` prints"


def test_names_in_the_readme_can_be_loaded() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = text.partition("**The zoo.**")[2].partition("##")[0].split("`")[1::2]
    names = re.findall(r"\b[a-z0-9]+_[a-z0-9]+\b", " ".join(quoted))
    known = {name: row for row in excb.checkpoints() for name in (row.name, *row.aliases)}
    assert len(names) >= 5
    assert [name for name in names if not (known[name].locations or known[name].source == "bundled")] == []


def test_show_a_name_that_was_not_fetched(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "swav_rn50"]) == 0
    out = capsys.readouterr().out
    assert "CC-BY-NC-4.0" in out
    assert "75.3" in out
    assert main(["show", "swav_rn50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["epochs"], found["batch"], found["preprocessing"]["std"]) == (800, 4096, [0.228, 0.224, 0.225])
    assert {"name": "linear_top1", "value": 75.3} in [
        {name: figure[name] for name in ("name", "value")} for figure in found["figures"]
    ]


def test_import_load_and_list(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = Architecture("resnet18").build().eval()
    torch.save(
        {
            "state_dict": {f"module.encoder_q.{n}": v for n, v in network.state_dict().items()}
            | {"module.queue": torch.zeros(2)}
        },
        tmp_path / "net.pth.tar",
    )
    assert main(["import", str(tmp_path / "net.pth.tar"), "--name", "mine"]) == 0
    err = capsys.readouterr().err
    assert "layout moco" in err
    assert 'excb.load("mine")' in err
    assert torch.equal(features(excb.load("mine"), pictures()), features(network, pictures()))
    assert main(["list", "--method", "unknown", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["mine"]
    assert main(["pull", "mine"]) == 0
    assert str(home / "mine") in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_import_keeps_other_weights_of_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (Architecture("resnet18").build().eval() for _ in range(2))
    for name, network in (("first", first), ("second", second)):
        torch.save(network.state_dict(), tmp_path / f"{name}.pth")
    assert main(["import", str(tmp_path / "first.pth"), "--name", "mine"]) == 0
    assert main(["import", str(tmp_path / "first.pth"), "--name", "mine", "--crop", "64"]) == 0
    capsys.readouterr()
    assert main(["import", str(tmp_path / "second.pth"), "--name", "mine"]) == 2
    assert "has other weights: choose another --name, or replace them with --overwrite\n" in capsys.readouterr().err
    assert torch.equal(features(excb.load("mine"), pictures()), features(first, pictures()))
    assert main(["import", str(tmp_path / "second.pth"), "--name", "mine", "--overwrite"]) == 0
    assert torch.equal(features(excb.load("mine"), pictures()), features(second, pictures()))


def test_import_takes_timms_preprocessing_unless_told_otherwise(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(
        Architecture("timm:resnet18").build().state_dict() | {"probe.weight": torch.ones(2)}, tmp_path / "net.pth"
    )
    usual = ["import", str(tmp_path / "net.pth"), "--name", "mine", "--arch", "timm:resnet18"]
    assert main(usual) == 2
    assert main([*usual, "--drop", "probe"]) == 0
    err = capsys.readouterr().err
    assert "resize 235, crop 224, bicubic, mean 0.485 0.456 0.406" in err
    assert "as timm's configuration of resnet18 says" in err
    assert "1 tensor dropped" in err
    options = [
        "--mean",
        "0.5",
        "0.5",
        "0.5",
        "--std",
        "0.5",
        "0.5",
        "0.25",
        "--interpolation",
        "bilinear",
        "--crop",
        "96",
    ]
    assert main([*usual, "--drop", "probe", *options]) == 0
    assert "mean, std, interpolation as asked for" in capsys.readouterr().err.replace("crop, ", "")
    expected = {"resize": 100, "crop": 96, "mean": [0.5] * 3, "std": [0.5, 0.5, 0.25], "interpolation": "bilinear"}
    backbone = excb.load("mine")
    assert (backbone.transform.to_dict(), backbone.entry.dropped) == (expected, ("probe.weight",))
    assert main(["show", "mine", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["preprocessing"], shown["dropped"]) == (expected, ["probe.weight"])
    assert main(["list", "--method", "unknown"]) == 0
    assert "100>96 bilinear, mean 0.5 0.5 0.5, std 0.5 0.5 0.25" in capsys.readouterr().out
    assert main([*usual, "--drop", "probe", "--resize", "100"]) == 2
    assert "needs --resize 224 at least" in capsys.readouterr().err
    assert main([*usual, "--drop", "probe", "--std", "0", "1", "1"]) == 2
    assert "numbers above 0" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_json_is_alone_on_stdout_and_says_what_was_made(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(*words: str, code: int = 0) -> Any:
        assert main([*words, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    out, file = tmp_path / "out.safetensors", tmp_path / "net.pth"
    torch.save(Architecture("resnet18").build().state_dict() | {"probe.weight": torch.ones(2)}, file)
    made = answer("export", str(run), "--format", "timm", "--out", str(out))
    python = Path(made.pop("python"))
    assert python.read_text(encoding="utf-8").strip() == made.pop("code").strip()
    assert made == {"written": str(out), "format": "timm"}
    words = ("import", str(file), "--name", "mine", "--arch", "resnet18")
    assert [row["name"] for row in answer(*words, code=2)["mismatches"]] == ["probe.weight"]
    imported = answer(*words, "--drop", "probe")
    assert answer("pull", "mine", "tiny_grocery")[0] == imported
    assert (Path(imported["folder"]) / "model.safetensors").is_file()
    packed = answer("package", str(run), "--out", str(tmp_path / "tiny"), "--licence", "mit", "--untested", "a test")
    assert packed["folder"] == str(tmp_path / "tiny")
    assert (packed["checkpoint"]["name"], packed["checkpoint"]["licence"]) == ("tiny", "mit")


def test_every_command_answers_in_json_but_the_card_which_is_markdown() -> None:
    for command in COMMANDS:
        parser = Parser()
        command.add_options(parser)
        flags = {flag for action in parser._actions for flag in action.option_strings}
        assert ("--json" in flags) == (command.name != "card"), command.name


def test_import_that_does_not_cover_shows_the_table(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = Architecture("resnet18").build().state_dict()
    del tensors["layer2.0.conv1.weight"]
    tensors["layer9.weight"] = torch.zeros(2)
    torch.save(tensors, tmp_path / "net.pth")
    assert main(["import", str(tmp_path / "net.pth"), "--name", "mine", "--arch", "resnet18"]) == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [
        ["missing", "layer2.0.conv1.weight"],
        ["unexpected", "layer9.weight"],
    ]
    assert not (home / "mine").exists()


def test_the_card_of_a_run_is_that_of_its_export(
    run: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / run.stem), "--format", "excb"]) == 0
    capsys.readouterr()
    assert main(["card", str(tmp_path / run.stem)]) == 0
    exported = capsys.readouterr().out
    assert main(["card", str(run)]) == 0
    of_run = capsys.readouterr().out
    assert of_run.replace(str(run), str(tmp_path / run.stem)) == exported


@pytest.mark.parametrize("network", ["teacher", "student"])
def test_the_card_of_what_is_unpublished_shows_a_call_that_works(
    run: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], network: Any
) -> None:
    place = tmp_path / "tiny_grocery"  # a name of the catalogue, which another network has
    assert main(["export", str(run), "--out", str(place), "--network", network]) == 0
    capsys.readouterr()
    assert main(["card", str(place)]) == 0
    call = re.search(r"```python\n(.*)\n```", capsys.readouterr().out)
    assert call is not None
    loaded = eval(call[1], {"excb": excb})
    expected = excb.load(run, network=network).network.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.network.state_dict().items())


def test_a_card_has_results_of_its_own_weights_only(
    run: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = {"own": weights_hash(excb.load(run).network.state_dict()), "other": "0" * 64}
    for name, weights in hashes.items():
        made = result(figures={"knn_top1_k20": 57.345}, checkpoint={"weights_sha256": weights})
        made.write(tmp_path / f"{name}.json")
    assert main(["card", str(run), "--results", str(tmp_path / "own.json")]) == 0
    assert "57.345" in capsys.readouterr().out
    assert main(["card", str(run), "--results", str(tmp_path / "own.json"), str(tmp_path / "other.json")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "other.json was measured on other weights (0000000000000000, not " in shown.err
    assert main(["card", "rn50_400ep", "--results", str(tmp_path / "own.json")]) == 2
    assert "these are not here: fetch them first: excb-zoo pull rn50_400ep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["import", "x.pth", "--name", "swav_rn50"], "choose another --name"),
        (["import", "x.pth", "--name", "../up"], "is not a name"),
        (["import", "x.pth", "--name", "mine", "--arch", "vit_small", "--arch-option", "depth"], "write NAME=VALUE"),
        (["import", "x.pth", "--name", "mine"], "cannot read x.pth"),
        (["pull"], "name a checkpoint"),
        (["pull", "nnclr_rn50"], "no weights to load"),
        (["verify"], "name a checkpoint to verify"),
        (["card", "nothing/here"], "nothing/here"),
        (["push", "nothing/here", "--repo", "a/b", "--licence", "mit"], "publishing needs the network"),
        (["package", "nothing/here", "--out", "x", "--licence", "mit"], "nothing/here"),
        (["export", "nothing/here", "--out", "x", "--format", "tensorflow"], "no format is called 'tensorflow'"),
    ],
)
def test_mistakes_of_the_zoo(home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
