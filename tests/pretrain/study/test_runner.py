"""Studies: a stopped one repeats nothing, its table is what its cells say, and what cannot be compared is refused."""

import csv
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import excb
from excb.errors import UserError
from excb.images.scanning import scan_folder
from excb.pretrain import step
from excb.pretrain.__main__ import main
from excb.pretrain.overrides import apply, field_names, find_recipe
from excb.pretrain.run import sets
from excb.pretrain.study import cell as study_cell
from excb.pretrain.study import figures, runner
from excb.pretrain.study.cell import decisive
from excb.pretrain.study.studies import BASE, STUDIES
from excb.pretrain.study.table import CellResults, StudyTable
from excb.pretrain.study.tuning import FIXED, Tuning
from tests.excb.images.shard_files import pack_folder
from tests.pretrain.short_end import end_shortly
from tests.pretrain.small_runs import OVERRIDES, write_images

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")

CELLS, SEEDS = ("linear", "none"), (0, 1)
LEFT_OUT = "left out of the held-out images: 3 images of classes without training images"
REFERENCES = ("untrained", "pixels", "colour_histogram", "patches")  # of which one depends on the seed
ALL = [*((name, 0) for name in (*REFERENCES, *CELLS)), *((name, 1) for name in ("untrained", *CELLS))]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures to train on, and held-out ones with a class fewer and one that is not trained on."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder / "train", each=6)
    write_images(folder / "test", each=3)
    (folder / "test" / "class0").rename(folder / "test" / "another")
    return folder


def command(images: Path, out: Path, *more: str) -> list[str]:
    small = [*OVERRIDES, "optim.epochs=2", "optim.base_lr=0.1"]
    names = ["--cells", ",".join(CELLS), "--seeds", str(len(SEEDS))]
    return ["study", "form", "--data", str(images), "--out", str(out), "--quiet", *names, *small, *more]


@pytest.fixture(scope="module")
def finished(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that nothing disturbed."""
    out = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        end_shortly(patch)
        assert main(command(images, out)) == 0
    return out / "form"


def cell(folder: Path, name: str, seed: int) -> dict[str, Any]:
    """The contents of one cell's file."""
    contents: dict[str, Any] = json.loads((folder / name / f"seed-{seed}" / "cell.json").read_text())
    return contents


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The jobs that are run, as they are begun."""
    names: list[tuple[str, int]] = []
    real = study_cell.run_cell

    def noted(job: study_cell.CellRun, *rest: Any) -> int:
        names.append((job.cell, job.seed))
        return real(job, *rest)

    monkeypatch.setattr(runner, "run_cell", noted)
    return names


def test_a_study_stopped_between_and_inside_cells_repeats_nothing(
    images: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[tuple[str, int]]
) -> None:
    real = step.Trainer.step
    steps: list[int] = []

    def stopping(self: step.Trainer, batch: Any, number: int) -> Any:
        steps.append(number)
        if len(steps) == 3:  # of 4, two an epoch, in the second cell
            os.kill(os.getpid(), signal.SIGTERM)
        if len(steps) == 5:  # at the start of the third
            raise KeyboardInterrupt
        return real(self, batch, number)

    monkeypatch.setattr(step.Trainer, "step", stopping)
    assert main(command(images, tmp_path)) == 128 + signal.SIGTERM
    assert trained == ALL[:5]
    assert main(command(images, tmp_path)) == 130
    assert trained == [*ALL[:5], *ALL[4:6]]
    assert steps == [0, 1, 2, 3, 0]  # the second cell went on where it was
    assert main(command(images, tmp_path)) == 0
    assert trained == [*ALL[:5], *ALL[4:6], *ALL[5:]]
    for name, seed in ALL:
        again, undisturbed = cell(tmp_path / "form", name, seed), cell(finished, name, seed)
        for part in ("figures", "sizes", "recipe_digest", "data_digest"):
            assert again.get(part) == undisturbed.get(part), (name, seed, part)

    trained.clear()
    assert main(command(images, tmp_path)) == 0
    assert trained == []


def test_shards_are_studied_as_their_files_are(images: Path, finished: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        pack_folder(images / part, tmp_path / "shards" / part, count=2)
    assert main([*command(tmp_path / "shards", tmp_path), "--cells", "linear", "--seeds", "1"]) == 0
    for name in ("untrained", "linear"):
        packed, plain = cell(tmp_path / "form", name, 0), cell(finished, name, 0)
        assert packed["figures"] == plain["figures"]
        assert packed["data"]["judged_on"] == plain["data"]["judged_on"] == "6 held-out images"


def test_table_is_what_the_cells_say(
    images: Path, finished: Path, capsys: pytest.CaptureFixture[str], trained: list[tuple[str, int]]
) -> None:
    assert main(command(images, finished.parent, "--json")) == 0
    assert trained == []
    reported = {entry["cell"]: entry for entry in json.loads(capsys.readouterr().out)["cells"]}
    with (finished / "table.csv").open(newline="") as stream:
        lines = {line["cell"]: line for line in csv.DictReader(stream)}
    markdown = (finished / "table.md").read_text()
    assert reported.keys() == lines.keys() == {*REFERENCES, *CELLS}
    for name in REFERENCES[1:]:
        assert reported[name]["seeds"] == [0]
        assert reported[name]["figures"].keys() == {"knn_top1"}
        assert lines.pop(name)["knn_top1_mean"] == str(cell(finished, name, 0)["figures"]["knn_top1"])
    for name, line in lines.items():
        found = [cell(finished, name, seed)["figures"] for seed in SEEDS]
        assert reported[name]["seeds"] == list(SEEDS)
        assert line["seeds"] == str(len(SEEDS))
        assert {"knn_top1", "knn_leave_one_out", "neighbour_agreement"} <= found[0].keys()
        for figure in found[0]:
            values = np.array([one[figure] for one in found])
            mean, deviation = values.mean(), np.sqrt(((values - values.mean()) ** 2).sum() / (len(values) - 1))
            assert float(line[f"{figure}_mean"]) == pytest.approx(mean), figure
            assert float(line[f"{figure}_sd"]) == pytest.approx(deviation), figure
            assert reported[name]["figures"][figure]["values"] == values.tolist()
        score = np.array([one["knn_top1"] for one in found])
        row = next(row for row in markdown.splitlines() if row.startswith(f"| {name} |"))
        assert f"| {score.mean():.2f} ± {score.std(ddof=1):.2f} |" in row


def test_tables_say_what_was_left_out_and_by_which_runs(images: Path, finished: Path, tmp_path: Path) -> None:
    """The held-out class that is not trained on by all; a broken image and values outside the range by one run."""
    markdown = (finished / "table.md").read_text()
    assert f"- {LEFT_OUT}\n" in markdown
    shutil.copytree(finished, tmp_path / "form")
    contents = cell(finished, "none", 1)
    assert contents["ledger"]["entries"][0]["count"] == 3
    contents["ledger"]["entries"].append(
        {"reason": "readings of images that cannot be read", "count": 2, "of": "train"}
    )
    (tmp_path / "form" / "none" / "seed-1" / "cell.json").write_text(json.dumps(contents))
    assert main(command(images, tmp_path)) == 0
    line = f"left out of train: 2 readings of images that cannot be read (1 of {len(ALL)} runs, such as none, seed 1)"
    assert f"- {line}" in (tmp_path / "form" / "table.md").read_text().splitlines()


def test_cells_figures_are_those_of_the_run(images: Path, finished: Path) -> None:
    run = finished / "linear" / "seed-1"
    found = cell(finished, "linear", 1)
    recipe = apply(find_recipe(BASE), [*found["overrides"], "run.seed=1"])
    assert "method.balancing=linear" in found["overrides"]
    assert study_cell.recipe_digest(recipe) == found["recipe_digest"]
    last = json.loads((run / "report.json").read_text())["last"]
    assert found["figures"]["loss"] == last["loss"]
    assert found["figures"]["knn_leave_one_out"] == last["knn_top1"]

    train, held_out = scan_folder(images / "train"), scan_folder(images / "test")
    backbone = excb.load(run, heads=True)
    assert backbone.heads is not None
    teacher = backbone.heads.teacher
    assert teacher is not None

    def features(files: list[Path]) -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([backbone(backbone.transform(Image.open(file))[None]) for file in files])

    bank = features([train.file(index) for index in range(len(train))])
    with torch.no_grad():
        projected = torch.nn.functional.normalize(teacher.projector(bank))
        winners = (projected @ torch.nn.functional.normalize(teacher.centroids.weight).T).argmax(1)
    sizes = np.array([(winners == number).sum() for number in range(12)]) * 12 / len(train)
    assert found["sizes"]["by_z"] == pytest.approx(sorted(sizes, reverse=True))
    assert found["figures"]["largest_size"] == pytest.approx(sizes.max())
    assert found["figures"]["unused_share"] == pytest.approx(100 * (sizes == 0).mean())
    assert found["size_quantiles"]["by_z"]["0.5"] == pytest.approx(np.median(sizes))
    training = found["sizes"]["training"]
    assert (len(training), sum(training)) == (12, pytest.approx(12))
    assert (training[0], training[-1]) == pytest.approx((last["largest_cluster"], last["smallest_cluster"]))

    # The 18 training images are fewer than k = 20 neighbours: all but one or none of them vote.
    known = [path for path in held_out.paths if not path.startswith("another/")]
    similarities = torch.nn.functional.normalize(features([images / "test" / path for path in known])) @ (
        torch.nn.functional.normalize(bank).T
    )
    votes = torch.zeros(len(known), 3).index_add_(1, torch.tensor(train.labels), (similarities / 0.07).exp())
    right = [vote == int(path[5]) for vote, path in zip(votes.argmax(1).tolist(), known, strict=True)]
    assert found["data"]["judged_on"] == f"{len(known)} held-out images"
    assert found["figures"]["knn_top1"] == pytest.approx(100 * np.mean(right))


def test_pictures_show_something(finished: Path) -> None:
    picture = np.asarray(Image.open(finished / "picture.png").convert("L"))
    assert picture.std() > 5
    drawn = ElementTree.parse(finished / "picture.svg").getroot()
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}path")) > 10


@pytest.mark.parametrize("name", ["balancers", "batch-size", "clusters", "components"])
def test_every_kind_of_picture_and_table(images: Path, finished: Path, tmp_path: Path, name: str) -> None:
    """Cells of made-up figures, which no run is needed for."""
    chosen = STUDIES[name]
    model = cell(finished, "linear", 0)
    grid = runner.StudyGrid(chosen, sets.find_sets(images), tmp_path, ["optim.batch=8", *OVERRIDES[:11]])
    made_up = {"training": [1.5, 1.0, 1.0, 0.5], "by_z": [2.0, 1.0, 1.0, 0.0]}
    rows = []
    for place, one in enumerate(chosen.cells):
        found = [
            model | {"seed": seed, "sizes": made_up, "figures": {"knn_top1": 10.0 * place + seed}} for seed in SEEDS
        ]
        rows.append(CellResults(one, found))
    table = StudyTable(chosen, rows, [CellResults(one, []) for one in grid.references])
    for weights in chosen.contrasts.values():
        places = [[one.name for one in chosen.cells].index(name) for name in weights]
        pairs = list(zip(weights.values(), places, strict=True))
        differences = [sum(weight * (10.0 * place + seed) for weight, place in pairs) for seed in SEEDS]
        assert table.paired(weights) == pytest.approx(differences)
    files = figures.draw_study(table, tmp_path)
    assert [file.name for file in files] == ["picture.png", "picture.svg"]
    assert all(file.stat().st_size > 5000 for file in files)
    if chosen.across is None:
        assert table.paper_form() is None
        assert [row[0] for row in table.cells()[1]] == [one.name for one in chosen.cells]
    else:
        header, lines = table.paper_form() or ([], [])
        levels = [one.factors[chosen.across] for one in chosen.cells]
        assert header[1:] == list(dict.fromkeys(levels))
        assert lines[0][1:3] == ["0.50 ± 0.71", "10.50 ± 0.71"]


@pytest.mark.parametrize("name", STUDIES)
def test_every_cell_is_a_recipe_of_its_own(name: str) -> None:
    cells = STUDIES[name].cells
    digests = {study_cell.recipe_digest(apply(find_recipe(BASE), one.overrides)) for one in cells}
    assert len(digests) == len(cells) > 1
    assert len({one.name for one in cells}) == len(cells)


def test_the_study_of_balancers_has_those_of_the_table_that_have_titles() -> None:
    cells = [(one.name, one.factors["balancing"], list(one.overrides)) for one in STUDIES["balancers"].cells]
    assert cells == [
        ("excb", "ExCB", ["method.balancing=linear"]),
        ("none", "none", ["method.balancing=none"]),
        ("centering", "centering (DINO)", ["method.balancing=centering"]),
        ("sinkhorn", "Sinkhorn-Knopp (SwAV)", ["method.balancing=sinkhorn"]),
        ("mira", "fixed point (MIRA)", ["method.balancing=mira", "method.teacher_temperature=0.12"]),
    ]


def test_a_field_that_an_earlier_version_did_not_have_counts_as_its_default(
    images: Path, finished: Path, tmp_path: Path, trained: list[tuple[str, int]]
) -> None:
    shutil.copytree(finished, tmp_path / "form")
    for name, seed in ALL:
        contents = cell(finished, name, seed)
        del contents["recipe"]["method"]["loss"]
        (tmp_path / "form" / name / f"seed-{seed}" / "cell.json").write_text(json.dumps(contents))
    assert main(command(images, tmp_path)) == 0
    assert trained == []


@pytest.mark.parametrize(
    "broken", [b"null", b"[]", b"{}", b"\xff", b'{"schema": 1}', {"recipe": {}}, {"data": {}}, {"seconds": None}]
)
def test_a_cell_of_wrong_shape_is_one_line(
    images: Path, finished: Path, tmp_path: Path, broken: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "form")
    name, seed = ALL[0]
    contents = broken if isinstance(broken, bytes) else json.dumps(cell(finished, name, seed) | broken).encode()
    (tmp_path / "form" / name / f"seed-{seed}" / "cell.json").write_bytes(contents)
    assert main(command(images, tmp_path)) == 2
    assert "cell.json is not a cell of this version: move" in capsys.readouterr().err


def test_a_dry_run_runs_nothing(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], trained: list[tuple[str, int]]
) -> None:
    assert main(command(images, tmp_path / "studies", "--dry-run")) == 0
    said = capsys.readouterr().out
    assert re.search(r"9 of 9 to run: about \d", said)
    assert re.search(r"none\s+-\s+0, 1\s+method.balancing=none", said)
    assert trained == []
    assert not (tmp_path / "studies").exists()


@pytest.mark.parametrize(
    ("more", "reported"),
    [
        (["optim.epochs=3"], "optim.epochs was 2, now 3"),
        (["monitor.k=2"], "monitor.k was 3, now 2"),
        (["--cells", "linear,cubic"], "study form has no cell 'cubic'"),
        (["--seeds", "0"], "--seeds takes 1 to 1,000"),
        (["--seeds", "10000000"], "--seeds takes 1 to 1,000"),
        (["--data", ""], "name the folder of images with --data DIR"),
        (["optim.batch=64"], "the batch of 64 is larger than the set of 18 images"),
        (["optim.bach=64"], "no field is called 'optim.bach'"),
    ],
)
def test_mistakes_are_one_line(
    images: Path, finished: Path, capsys: pytest.CaptureFixture[str], more: list[str], reported: str
) -> None:
    before = cell(finished, "linear", 0)
    assert main(command(images, finished.parent, *more)) == 2
    error = capsys.readouterr().err
    assert reported in error
    assert error.count("\n") == 1
    assert cell(finished, "linear", 0) == before


def test_folders_that_cannot_do(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(command(images, tmp_path / "file")) == 2
    assert "Not a directory; choose another --out" in capsys.readouterr().err
    assert main(command(images, images / "train" / "studies")) == 2
    assert "name a place outside that folder" in capsys.readouterr().err
    one = tmp_path / "one"
    one.mkdir()
    shutil.copy(next(images.rglob("*.png")), one)
    assert main([*command(one, tmp_path / "out"), "optim.batch=1"]) == 2
    assert "holds one image" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_other_images_and_unknown_studies_are_refused(
    images: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(images / "train", finished.parent)) == 2  # without the held-out images
    assert "the images differ, they were 18 from" in capsys.readouterr().err
    assert main(["study", "balancer", "--data", str(images), "--out", str(tmp_path)]) == 2
    assert "did you mean 'balancers'?" in capsys.readouterr().err
    assert main(["study", "form"]) == 2
    assert "--data DIR" in capsys.readouterr().err


def test_what_moves_no_figure_may_change(images: Path, finished: Path, trained: list[tuple[str, int]]) -> None:
    assert main(command(images, finished.parent, "run.log_steps=5", "efficiency.prefetch=3")) == 0
    assert trained == []


def test_without_labels_the_agreement_of_neighbours_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "one", classes=1, each=10)
    real = study_cell.run_cell
    failing = {"linear"}

    def failing_once(job: study_cell.CellRun, *rest: Any) -> int:
        if job.cell in failing:
            failing.clear()
            raise UserError("diverged")
        return real(job, *rest)

    monkeypatch.setattr(runner, "run_cell", failing_once)
    arguments = command(tmp_path / "one", tmp_path, "--seeds", "1", "--cells", "linear", "optim.epochs=1", "--json")
    assert main(arguments) == 2  # one cell failed, the table has the other
    assert [entry["cell"] for entry in json.loads(capsys.readouterr().out)["cells"]] == list(REFERENCES)
    assert main(arguments) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["score"] == "neighbour_agreement"
    assert all("knn_top1" not in entry["figures"] for entry in table["cells"])
    assert table["cells"][0]["figures"]["neighbour_agreement"]["sd"] is None  # one seed has no spread
    assert table["cells"][2]["figures"] == {}  # pixels: there is nothing to vote for


def test_listing_names_every_study_and_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "--list", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert {name: list(entry["cells"]) for name, entry in listing.items()} == {
        name: [one.name for one in chosen.cells] for name, chosen in STUDIES.items()
    }
    assert main(["study"]) == 0
    assert "excb-256" in capsys.readouterr().out


TUNE = ("--tune", "optim.base_lr=0.05,0.1", "--tune", "optim.momentum=0,0.9")


def test_cells_try_the_same_values_and_their_best_goes_on(
    images: Path, tmp_path: Path, trained: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {("linear", "0.1", "0.9"): 40.0, ("linear", "0.05", "0"): 30.0, ("none", "0.05", "0.9"): 12.0}
    real = study_cell._measure

    def scored(job: study_cell.CellRun, *rest: Any) -> dict[str, Any]:
        optim = job.recipe.optim
        known = {
            "knn_leave_one_out": scores.get(
                (job.own[0].split("=")[1], f"{optim.base_lr:g}", f"{optim.momentum:g}"), 1.0
            )
        }
        measured = real(job, *rest)
        return measured | {"figures": measured["figures"] | known}

    monkeypatch.setattr(study_cell, "_measure", scored)
    assert main(command(images, tmp_path, *TUNE)) == 0
    settings = [f"optim.base_lr={rate},optim.momentum={value}" for rate in ("0.05", "0.1") for value in ("0", "0.9")]
    assert trained[:8] == [(f"{name}/{setting}", 0) for name in CELLS for setting in settings]
    best = {"linear": settings[3], "none": settings[1]}
    also = [(f"{name}/{best[name]}", 1) for name in CELLS]
    assert trained[8:] == [*((name, 0) for name in REFERENCES), ("untrained", 1), *also]
    table = (tmp_path / "form" / "table.md").read_text()
    assert "each cell tried 4 settings with one seed, 8 runs in all" in table
    assert re.search(r"\| linear \| [^|]+ \| optim.base_lr=0.1 optim.momentum=0.9 \| 2 \|", table)
    assert re.search(r"\| none \| 1.00 \| 12.00 \| 1.00 \| 1.00 \|", table)
    before = list(trained)
    assert main(command(images, tmp_path, *TUNE)) == 0
    assert trained == before


def test_a_plan_with_tuning_counts_what_runs(
    images: Path, tmp_path: Path, trained: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(images, tmp_path, *TUNE, "--dry-run", "--json")) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert len(cells) == 2 * (4 + 1) + 5  # trials, their second seed, references
    assert not trained
    assert main(command(images, tmp_path, "--tune", "optim.base_lr=0.05,0.1")) == 0
    assert len(trained) == 2 * (2 + 1) + 5


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ("optim.base_lr", "such as optim.base_lr=0.3,0.6,1.2"),
        ("optim.base_lr=0.3", "such as optim.base_lr=0.3,0.6,1.2"),
        ("optim.base_lr=0.3,0.3", "such as optim.base_lr=0.3,0.6,1.2"),
        ("optim.base_lr=0.3,", "such as optim.base_lr=0.3,0.6,1.2"),
        ("optim.base_rl=0.3,0.6", "base_lr"),
        ("optim.base_lr=0.3,high", "optim.base_lr"),
        # fields in which trials cannot differ
        ("run.seed=1,2", "--seeds N"),
        ("run.keep=1,2", "run.keep"),
        ("init=tiny_grocery,mobilenetv2", "init=NAME without --tune"),
        ("data.channels=1,3", "data.channels"),
        ("monitor.k=3,5", "monitor.k"),
        ("efficiency.workers=0,1", "efficiency.workers"),
        ("method.balancing=linear,none", "what study form compares"),
        ("optim.base_lr=0.3,0.30", "optim.base_lr=0.3 is optim.base_lr=0.30"),
    ],
)
def test_values_that_cannot_be_tried_are_one_line(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tune: str, message: str
) -> None:
    assert main(command(images, tmp_path, "--tune", tune)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "form").exists()


def test_a_tuned_field_is_named_once(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(images, tmp_path, "--tune", "optim.momentum=0,1", "--tune", "optim.momentum=0.5,0.9")) == 2
    assert "--tune optim.momentum is there twice" in capsys.readouterr().err


def test_every_field_can_be_tuned_or_says_why_not() -> None:
    """A tuned value either distinguishes the recipes that `cell.json` compares, or is refused."""
    base = find_recipe(BASE)
    for name in field_names(base):
        if name in FIXED or name.partition(".")[0] in FIXED:
            with pytest.raises(UserError, match=f"--tune cannot try {name}: "):
                Tuning((f"{name}=1,2",))
        else:
            assert Tuning((f"{name}=1,2",)).fields == [name]
            assert name in decisive(base.all_values()), name


def test_what_a_cell_would_refuse_is_said_before_others_train(
    images: Path, tmp_path: Path, trained: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["study", "clusters", "--data", str(images), "--out", str(tmp_path), "--quiet", *OVERRIDES]
    words = [word for word in words if not word.startswith("method.clusters=")]
    assert main([*words, "method.centroid_init=kmeans", "--dry-run"]) == 2
    assert "cell k32: k-means needs at least as many samples as clusters" in capsys.readouterr().err
    assert main([*words, "init=no_such_name"]) == 2
    assert "no checkpoint is called 'no_such_name'" in capsys.readouterr().err
    assert main([*words, "distil.teachers=no_such_name", "distil.features=1"]) == 2
    assert capsys.readouterr().err.startswith("excb-pretrain: error: no checkpoint is called 'no_such_name'")
    assert not trained


def test_a_value_that_every_cell_sets_itself_is_refused(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(images, tmp_path, "method.balancing=none")) == 2
    assert "method.balancing=none would change no cell" in capsys.readouterr().err
    assert main(command(images, tmp_path, "--dry-run")) == 0


def test_a_value_that_diverges_loses_and_holds_nothing_back(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = step.Trainer.step

    def poisoned(self: step.Trainer, batch: Any, number: int) -> Any:
        output = real(self, batch, number)
        if self.recipe.optim.base_lr > 1 and number == 1:
            self.model.student.centroids.weight.data[0, 0] = torch.nan
        return output

    monkeypatch.setattr(step.Trainer, "step", poisoned)
    line = command(images, tmp_path, "--tune", "optim.base_lr=0.1,2")
    line.remove("--quiet")
    for _ in range(2):  # it is tried again, and loses again
        assert main(line) == 2
        assert "cells failed (linear/optim.base_lr=2/seed-0" in capsys.readouterr().err
        table = (tmp_path / "form" / "table.md").read_text()
        assert re.search(r"\| linear \| [^|]+ \| optim.base_lr=0.1 \| 2 \|", table)
        assert "each cell tried 1 settings" in table
    assert main(command(images, tmp_path / "all", "--tune", "optim.base_lr=2,3")) == 2
    assert "linear" not in (tmp_path / "all" / "form" / "table.md").read_text().split("## ")[0].split("Figures:")[0]
