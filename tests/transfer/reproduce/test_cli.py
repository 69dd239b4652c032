"""`excb-eval reproduce` end to end, offline: PASS, FAIL by the figure, CANNOT with the reason, lists and plans."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from excb.checkpoint import exported
from excb.hub.catalogue import bundled_folder
from excb.remote.home import home
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.published.registry import claims, select
from tests.clone import SHARED
from tests.forked import launch

pytestmark = pytest.mark.usefixtures("one_thread")

GROCERY = SHARED / "data" / "grocery128"
COLOURS = {"red": (200, 60, 60), "green": (60, 200, 60), "blue": (60, 60, 200), "grey": (128, 128, 128)}

# What was measured of the bundled network on the pictures of `data`: every nearest neighbour is of its own colour.
RECORDED = """\
[protocols.nearest]
metrics = ["knn_top1_k1"]
command = "knn"
options = { k = [1], temperature = [0.07] }
source = "this test"

[data.colours]
title = "four colours"
classes = 4
train = 12
test = 8

[recorded]
title = "Recorded here"
source = "this test"
method = "ExCB"
architecture = "timm:resnet10t"
data = "colours"
epochs = 80
batch = 64
columns = ["row", "checkpoint", "knn_top1_k1"]
rows = [["colours", "tiny_grocery", "100.0"]]
"""


def write_colours(folder: Path, *, each: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = np.array(colour) + random.normal(0, 20, (96, 96, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{number}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and the claim about them."""
    place = tmp_path_factory.mktemp("reproduce")
    write_colours(place / "data" / "train", each=3, seed=1)
    write_colours(place / "data" / "test", each=2, seed=2)
    (place / "claims.toml").write_text(RECORDED, encoding="utf-8")
    return place


@pytest.fixture(autouse=True)
def zoo_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zoo of its own for each test, so that no other test finds what it registers."""
    monkeypatch.setenv("EXCB_HOME", str(tmp_path / "zoo"))


@pytest.fixture
def reproduce(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        usual = ["--claims", str(place / "claims.toml"), "--device", "cpu", "--workers", "0", "--quiet", "--json"]
        code = main(["reproduce", *arguments, *usual])
        return code, json.loads(capsys.readouterr().out)

    return run


def register(name: str, *, damage: bool = False, **facts: object) -> str:
    """The bundled network in the zoo's folder under another name and hash, perhaps with a stem that sees nothing."""
    folder = bundled_folder("tiny_grocery")
    assert folder is not None
    found = exported.read(folder)
    tensors = dict(found.tensors)
    tensors["conv1.0.weight"] = tensors["conv1.0.weight"] * (0 if damage else 1)
    row = found.facts["checkpoint"] | {"name": name} | facts
    exported.write_exported(
        home() / name,
        tensors=tensors,
        architecture=found.architecture,
        preprocessing=found.preprocessing,
        width=256,
        facts={"network": "teacher", "checkpoint": row, "recipe": None},
    )
    return name


def test_the_bundled_checkpoint_passes(place: Path, tmp_path: Path, reproduce: Callable[..., Any]) -> None:
    code, told = reproduce("recorded", "--data", str(place / "data"), "--out", str(tmp_path / "out"))
    assert code == 0
    assert told["counts"] == {"PASS": 1, "FAIL": 0, "CANNOT": 0}
    assert told["claims"][0]["measured"] == 100
    file = tmp_path / "out" / "tiny_grocery-nearest.json"
    result = ResultRecord.from_json(file.read_text(encoding="utf-8"))
    assert result.protocol == "knn"
    assert result.claims["recorded/colours/knn_top1_k1"]["verdict"] == "PASS"
    assert result.claims["recorded/colours/knn_top1_k1"]["claimed"] == "100.0"
    assert file.with_name(result.predictions["file"]).is_file()


def test_claims_about_clusters_are_measured_by_the_command_of_clusters(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, machine = str(place / "data"), ["--device", "cpu", "--workers", "0", "--no-cache", "--quiet"]
    assert main(["clusters", "--ckpt", "tiny_grocery", "--data", data, "--json", *machine]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    columns = ["empty_clusters", "empty_share", "largest_images"]
    right = [
        f"{figures[name]:g}" for name in ("empty_clusters_unbalanced", "empty_percent_unbalanced", "largest_images")
    ]
    lines = [["right", "tiny_grocery", *right], ["wrong", "tiny_grocery", "3", *right[1:]]]
    head = RECORDED.replace("[recorded]", "[assigned]").partition("columns = ")[0]
    mine = tmp_path / "clusters.toml"
    columns_of_file = json.dumps(["row", "checkpoint", *columns])
    mine.write_text(f"{head}columns = {columns_of_file}\nrows = {json.dumps(lines)}\n", encoding="utf-8")
    words = ["reproduce", "assigned", "--claims", str(mine), "--json", *machine]
    out = tmp_path / "out"
    assert main([*words, "--data", data, "--out", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)["claims"]
    passed = {claim["id"].partition("/")[2]: claim["verdict"] for claim in told}
    assert passed.pop("wrong/empty_clusters") == "CANNOT"  # nobody states the precision of the paper's inference
    assert set(passed.values()) == {"PASS"}
    assert len(passed) == 5
    result = ResultRecord.read(out / "tiny_grocery-clusters" / "clusters.json")
    assert result.claims["assigned/right/empty_clusters"]["verdict"] == "PASS"
    assert main([*words, "--data", str(place / "data" / "test")]) == 3
    assert "8 train images, not 12" in capsys.readouterr().out


def test_images_without_the_classes_that_a_claim_renames_cannot_be_evidence(
    place: Path, reproduce: Callable[..., Any]
) -> None:
    code, told = reproduce("tiny_grocery/knn", "--data", str(place / "data"))
    assert code == 3
    assert {claim["why"] for claim in told["claims"]} == {"these images are not grocery128: their classes are others"}


def test_results_among_the_images_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = place / "data"
    usual = ["--claims", str(place / "claims.toml"), "--device", "cpu", "--workers", "0", "--quiet"]
    assert main(["reproduce", "recorded", "--data", str(data), "--out", str(data / "test" / "out"), *usual]) == 2
    err = capsys.readouterr().err
    assert "name a place outside that folder" in err
    assert err.count("\n") == 1
    assert not (data / "test" / "out").exists()


def test_perturbed_weights_under_their_own_hash_fail_by_the_figure(place: Path, reproduce: Callable[..., Any]) -> None:
    name = register("perturbed", damage=True)
    code, told = reproduce("recorded", "--ckpt", name, "--data", str(place / "data"))
    (claim,) = told["claims"]
    assert code == 1
    assert claim["verdict"] == "FAIL"
    assert claim["measured"] == 25  # one colour for all
    assert "knn_top1_k1 is 25.00, -75.00 from 100.0" in claim["why"]


def test_a_result_of_other_weights_is_kept(
    place: Path, tmp_path: Path, reproduce: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--data", str(place / "data"), "--out", str(tmp_path / "out"))
    reproduce("recorded", *words)
    name, file = register("perturbed", damage=True), tmp_path / "out" / "perturbed-nearest.json"
    file.with_name("tiny_grocery-nearest.json").rename(file)
    usual = ["--claims", str(place / "claims.toml"), "--device", "cpu", "--workers", "0", "--quiet"]
    assert main(["reproduce", "recorded", "--ckpt", name, *words, *usual]) == 2
    assert f"{file} has the result of other weights" in capsys.readouterr().err
    assert reproduce("recorded", "--ckpt", name, *words, "--overwrite")[0] == 1


def test_two_processes_answer_as_one(place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An exit code of 1 is their answer, not the failure of a process."""
    register("perturbed", damage=True)
    usual = ["--claims", str(place / "claims.toml"), "--data", str(place / "data"), "--device", "cpu", "--workers", "0"]
    arguments = ["reproduce", "recorded", "--ckpt", "perturbed", *usual, "--out", str(tmp_path / "out")]
    assert launch("excb.transfer.cli", arguments, 2, answers=(1, 3)) == 1
    told = capfd.readouterr()
    assert told.out.count("0 PASS, 1 FAIL, 0 CANNOT") == 1
    assert "ended with exit code" not in told.err
    assert '"verdict": "FAIL"' in (tmp_path / "out" / "perturbed-nearest.json").read_text(encoding="utf-8")


def test_the_same_weights_under_another_name_pass(place: Path, reproduce: Callable[..., Any]) -> None:
    code, _ = reproduce("recorded", "--ckpt", register("same"), "--data", str(place / "data"))
    assert code == 0


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"epochs": 40}, "was trained with epochs 40, the claim is about epochs 80"),
        ({"batch": 128}, "was trained with batch 128, the claim is about batch 64"),
        ({"batch": None}, "with what batch other was trained is not stated"),
        ({"method": "SwAV"}, "was trained by SwAV, the claim is about ExCB"),
    ],
)
def test_other_training_cannot_be_evidence(
    place: Path, reproduce: Callable[..., Any], facts: dict[str, object], said: str
) -> None:
    """Never FAIL, though these weights are damaged."""
    name = register("other", damage=True, **facts)
    code, told = reproduce("recorded", "--ckpt", name, "--data", str(place / "data"))
    assert code == 3
    assert told["claims"][0]["verdict"] == "CANNOT"
    assert said in told["claims"][0]["why"]


def test_other_images_cannot_be_evidence(place: Path, tmp_path: Path, reproduce: Callable[..., Any]) -> None:
    write_colours(tmp_path / "data" / "train", each=4, seed=1)
    write_colours(tmp_path / "data" / "test", each=2, seed=2)
    code, told = reproduce("recorded", "--data", str(tmp_path / "data"))
    assert code == 3
    assert told["claims"][0]["why"] == "these images are not four colours: 16 train images, not 12"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("table1/nnclr", "no weights of nnclr_rn50 are public. NNCLR has no public weights"),
        ("table9/squared", "no weights of rn50_100ep_squared are public"),
        ("table2/dino_800ep", "with what batch dino_vits16 was trained is not stated"),
        ("table1/dino", "dino_rn50 was trained with batch 4080, the claim is about batch 4096"),
        ("efficient_probing/radio_v25_vitb16", "the weights of radio_v25_vitb16 cannot be fetched. RADIOv2.5"),
        ("repositories_detection", "Mask R-CNN C4"),
        ("text", "measured during pretraining"),
    ],
)
def test_claims_that_nobody_could_check_say_why(reproduce: Callable[..., Any], what: str, said: str) -> None:
    code, told = reproduce(what)
    assert code == 3
    assert {claim["verdict"] for claim in told["claims"]} == {"CANNOT"}
    assert all(said in claim["why"] for claim in told["claims"])


def test_claims_about_pretraining_print_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table6/batch_256"]) == 3
    assert "train it: excb-pretrain rn50_100ep_2x224 --data DIR optim.batch=256; then" in capsys.readouterr().out


def test_what_cannot_be_fetched_cannot_be_checked(place: Path, reproduce: Callable[..., Any]) -> None:
    """No network in tests: the hub is offline, and the address is of no host."""
    home().mkdir()
    (home() / "catalogue.toml").write_text(
        '[nowhere]\nmethod = "ExCB"\narchitecture = { name = "timm:resnet10t" }\nlayout = "timm"\n'
        'locations = ["https://nowhere.invalid/weights.pth"]\nepochs = 80\nbatch = 64\nsource = "nowhere"\n'
    )
    code, told = reproduce("recorded", "--ckpt", "nowhere", "--data", str(place / "data"))
    assert code == 3
    assert "nowhere.invalid" in told["claims"][0]["why"]


# ---------------------------------------------------------------------------------------------------------------------
# Lists, plans and mistakes
# ---------------------------------------------------------------------------------------------------------------------


def test_every_command_that_would_run_is_one_that_can(capsys: pytest.CaptureFixture[str]) -> None:
    """The parser takes each, and so do the protocols: what a plan prints may be copied."""
    from excb.option_parser import of_arguments
    from excb.transfer.cli import program
    from excb.transfer.protocols import protocol_named
    from excb.transfer.reproduce.runs import EvaluationRun
    from excb.transfer.runner import Evaluation

    assert main(["reproduce", "--list", "--json", "--status", "runnable"]) == 0
    listed = json.loads(capsys.readouterr().out)["claims"]
    assert len(listed) > 100
    by_id = {claim.id: claim for claim in claims()}
    for entry in listed:
        run = EvaluationRun("x", [by_id[entry["id"]]])
        evaluation, words = run.evaluation("DIR"), run.words("DIR")
        evaluation.check()
        typed, protocol = program(words[:1]).parse_args(words), protocol_named(words[0])
        options = (of_arguments(kind, typed) for kind in (protocol.shared, protocol.options))
        assert Evaluation(protocol, *options) == evaluation


def test_filters(capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*arguments: str) -> list[dict[str, Any]]:
        assert main(["reproduce", "--list", "--json", *arguments]) == 0
        return list(json.loads(capsys.readouterr().out)["claims"])

    assert [claim["id"] for claim in listed()] == [claim.id for claim in claims()]
    assert {claim["method"] for claim in listed("--method", "swav")} == {"SwAV"}
    assert {claim["settings"]["command"] for claim in listed("--protocol", "knn")} == {"knn"}
    both = listed("--table", "table3", "--status", "runnable")
    assert {claim["id"].split("/")[0] for claim in both} == {"table3"}
    assert len(both) + len(listed("--table", "table3", "--status", "cannot")) == 35


def test_dry_run_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table1/excb", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "excb-eval knn --ckpt rn50_400ep --data DIR --k 20 --temperature 0.07" in out
    assert "from https://drive.google.com/" in out
    assert "1,281,167 train images, 50,000 test images" in out
    # ResNet-50 has 4.1 G multiply-adds at 224 pixels, twice as many operations: 1,331,167 images are 10.9 PFLOP.
    assert "as 1,331,167 forward passes of 8.17 GFLOP, 10,881.3 TFLOP" in out
    assert main(["reproduce", "tiny_grocery/knn", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "download: nothing" in out
    assert " 0.0 " not in out  # of the smallest network, too
    folder = bundled_folder("tiny_grocery")
    assert main(["reproduce", "tiny_grocery/knn", "--ckpt", str(folder), "--dry-run"]) == 0
    assert f"download: nothing, {folder} is your own" in capsys.readouterr().out


def test_dry_run_names_what_differs_from_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "efficient_probing/clip_vitb16", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "excb-eval knn --ckpt clip_vitb16 --data DIR --k 15 --temperature 0.1" in out
    assert "excb-eval linear --ckpt clip_vitb16 --data DIR --protocol simsiam" in out
    assert "excb-eval linear --ckpt clip_vitb16 --data DIR --protocol attentive" in out
    assert out.count("differs from the source: the features of the authors' code are projected onto the text's") == 3
    assert "differs from the source: k and T are those that did best on the test images" in out
    assert main(["reproduce", "efficient_probing/clip_vitb16", "--dry-run", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [len(run["differs"]) for run in runs] == [3, 3, 2]
    assert main(["reproduce", "table1/excb", "--dry-run"]) == 0
    assert "differs" not in capsys.readouterr().out


def test_what_others_measured_by_another_protocol_says_in_what_it_differs() -> None:
    for claim in select("efficient_probing", claims()):
        assert claim.protocol.cannot or claim.differences, claim.id


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table1/exbc"], "did you mean 'table1/excb'?"),
        ([], "name a claim, a table or a checkpoint"),
        (["tiny_grocery"], "name the images of grocery128 with --data DIR"),
        (["tiny_grocery", "--data", "nowhere"], "nowhere"),
        (["table1", "--method", "SwaV2"], "no claim of these is of --method SwaV2; did you mean 'SwAV'?"),
        (["table1", "--claims", "nowhere.toml"], "nowhere.toml cannot be read as claims"),
        (["table1", "--ckpt", "rn50_4000ep"], "no checkpoint is called 'rn50_4000ep'"),
        (["quickstart_rn18"], "no claim, table or checkpoint is called"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["reproduce", *arguments, "--quiet"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("excb-eval: error: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.slow
@pytest.mark.skipif(not GROCERY.is_dir(), reason="grocery128 is not beside the repository")
def test_the_bundled_checkpoint_passes_on_its_own_photographs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "tiny_grocery", "--data", str(GROCERY), "--device", "cpu", "--quiet", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == {"PASS": len(select("tiny_grocery", claims())), "FAIL": 0, "CANNOT": 0}
