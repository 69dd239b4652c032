"""Results at --out are replaced by those of the same checkpoint, protocol and images; others are refused at once."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import excb
from excb.errors import UserError
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.detection import engines
from excb.transfer.detection import task as detection_task
from tests.run_files import tiny_recipe, write_run
from tests.transfer.dense.masked_images import write_set
from tests.transfer.detection.test_command import Perfect, checkpoint
from tests.transfer.instances.sets import write_pairs
from tests.transfer.labelled_images import CLASSES, write_folder
from tests.transfer.tiny_coco import write_coco

pytestmark = pytest.mark.usefixtures("one_thread")

ON = "--ckpt {run} --workers 0 --device cpu --no-cache --quiet"
TASK = f"{ON} --data {{place}}/{{data}}"
# Short evaluations, and the files in --out that hold their results. Other protocols share the code of knn.
EVALUATIONS = {
    "knn": (f"{TASK} --k 1 --untrained", "a.json"),
    "instances": (f"{ON} --data {{place}}/pairs", "a.json"),
    "dense": (f"{ON} --data {{place}}/masks --heads knn --k 3", "a.json"),
    "clusters": (TASK, "a/clusters.json"),
    "overlap": (f"{ON} --train {{place}}/{{data}}/train --test {{place}}/{{data}}/test --bits 3 --cosine 0.9 "
                "--calibrate 0", "a.json"),
    "all": (f"{TASK} --only knn", "a/knn.json"),
    "sets": (f"{ON} --set shapes={{place}}/{{data}} --data {{place}} --shots 1 --episodes 2 --k 3",
             "a/run-step-5/shapes.json"),
}  # fmt: skip
OWN_IMAGES = ("instances", "dense")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("overwriting")
    for name, step in (("one", 5), ("two", 6)):
        write_run(place / name, step, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    for name in ("data", "others"):
        write_folder(place / name / "train", each=3 if name == "data" else 4, classes=CLASSES, seed=1)
        write_folder(place / name / "test", each=1, classes=CLASSES, seed=2)
    write_pairs(place / "pairs")
    write_set(place / "masks")
    write_coco(place / "coco")
    return place


@pytest.mark.parametrize("name", EVALUATIONS)
def test_a_result_of_something_else_is_kept(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words, file = EVALUATIONS[name][0], tmp_path / EVALUATIONS[name][1]
    named = tmp_path / "run"  # the same name for both checkpoints, as the folders of `sets` are named after it

    def evaluate(run: str, *more: str, data: str = "data") -> int:
        shutil.rmtree(named, ignore_errors=True)
        shutil.copytree(place / run / "checkpoints", named / "checkpoints")
        line = words.format(run=next(named.rglob("*.pt")) if name != "sets" else named, place=place, data=data)
        out = file if file.parent == tmp_path else tmp_path / "a"
        return main([name, *line.split(), "--out", str(out), *more])

    def refused(run: str, *more: str, data: str = "data") -> str:
        before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*") if named not in (each, *each.parents)}
        capsys.readouterr()
        assert evaluate(run, *more, data=data) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        assert "--overwrite" in shown.err
        assert before == {
            each: each.stat().st_mtime_ns for each in tmp_path.rglob("*") if named not in (each, *each.parents)
        }
        return shown.err

    assert evaluate("one") == 0
    assert evaluate("one") == 0
    if name == "sets":  # its folders are named after run and step
        file.parent.rename(file.parent.with_name("run-step-6"))
        file = file.parent.with_name("run-step-6") / file.name
    assert f"{file} has the result of other weights, " in refused("two")
    assert "the result of other weights" in refused("two", "--dry-run")
    first = ResultRecord.read(file)
    assert evaluate("two", "--overwrite") == 0
    assert ResultRecord.read(file).checkpoint != first.checkpoint
    if name not in OWN_IMAGES:
        assert f"{file} has a result of other" in refused("two", data="others")


def test_a_result_of_another_protocol_or_what_is_none_is_kept(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, line = tmp_path / "a.json", TASK.format(run=place / "one", place=place, data="data").split()
    assert main(["knn", *line, "--out", str(file)]) == 0
    text = file.read_text()
    assert main(["retrieval", *line, "--out", str(file)]) == 2
    assert f"{file} has a result of knn: name another file" in capsys.readouterr().err
    assert main(["knn", *line, "--k", "2", "--out", str(file)]) == 0  # other settings are the same evaluation
    for other in ("{}", "notes", text.replace('"schema": 2', '"schema": 1')):
        file.write_text(other)
        assert main(["knn", *line, "--out", str(file)]) == 2
        shown = capsys.readouterr().err
        assert "--overwrite" in shown
        assert shown.count("\n") == 1
        assert file.read_text() == other
    file.write_text("")
    assert main(["knn", *line, "--out", str(file)]) == 0
    assert main(["knn", *line, "--overwrite"]) == 2
    assert "--overwrite is of results in files: name a place with --out FILE.json" in capsys.readouterr().err


def test_detection_keeps_the_result_of_other_images(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "ENGINES", dict.fromkeys(engines.ENGINES, Perfect))
    monkeypatch.setattr(detection_task, "load", lambda _name, network: checkpoint())
    monkeypatch.chdir(tmp_path)
    line = ["detection", "--ckpt", "mine", "--schedule", "smoke", "--device", "cpu", "--quiet", "--out", "a.json"]
    for _ in range(2):
        assert main([*line, "--data", str(place / "coco")]) == 0
    text = Path("a.json").read_text()
    Path("a.json").write_text(text.replace('"fingerprint": "', '"fingerprint": "0'))
    capsys.readouterr()
    assert main([*line, "--data", str(place / "coco")]) == 2
    assert "a.json has a result of other images (train): name another file" in capsys.readouterr().err


def test_python_follows_the_same_rule(place: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": place / "data", "workers": 0, "no_cache": True, "quiet": True}
    file = tmp_path / "a.json"
    one, two = (excb.evaluate(place / run, "knn", k=[1], **options) for run in ("one", "two"))
    one.save(file)
    one.save(file)
    with pytest.raises(UserError, match=r"has the result of other weights, .*, or replace it with overwrite=True"):
        two.save(file)
    two.save(file, overwrite=True)
    clusters = excb.evaluate(place / "one", "clusters", **options)
    clusters.save(tmp_path / "c.json")
    clusters.save(tmp_path / "c.json")
    with pytest.raises(UserError, match=r"c/clusters\.json has the result of other weights"):
        excb.evaluate(place / "two", "clusters", **options).save(tmp_path / "c.json")


def test_one_step_of_all_with_images_of_its_own_keeps_its_result(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"{TASK} --only dense --masks {{masks}} --out {{out}}"
    words = {"run": place / "one", "place": place, "data": "data", "out": tmp_path / "out"}
    for masks, test, code in (("few", 4, 0), ("more", 5, 2)):
        write_set(tmp_path / masks, train=32, test=test)
        assert main(["all", *line.format(masks=tmp_path / masks, **words).split()]) == code
    assert "has a result of other images (test)" in capsys.readouterr().err


@pytest.mark.parametrize("name", EVALUATIONS)
def test_files_beside_a_result_that_are_of_something_else_are_kept(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Whatever a command writes, it does not replace another file of that name; its own it does."""
    words, file = EVALUATIONS[name][0], tmp_path / EVALUATIONS[name][1]
    out = file if file.parent == tmp_path else tmp_path / "a"
    line = words.format(run=place / "one", place=place, data="data").split()

    def evaluate() -> int:
        capsys.readouterr()
        return main([name, *line, "--out", str(out)])

    assert evaluate() == 0
    written = {each: each.read_bytes() for each in sorted(tmp_path.rglob("*")) if each.is_file()}
    assert len(written) > 1
    for each, content in written.items():
        each.write_text("path,label\na.jpg,ant\n", encoding="utf-8")
        if each.name != "all.json":  # which is refused when steps begin
            assert evaluate() == 2, each
            shown = capsys.readouterr().err
            assert (shown.count("\n"), f"{each} is there" in shown, "--overwrite" in shown) == (1, True, True), shown
            assert each.read_text(encoding="utf-8") == "path,label\na.jpg,ant\n"
        each.write_bytes(content)
    assert evaluate() == 0
    if name == "knn":  # as after a kill: a result is written last
        file.unlink()
        assert evaluate() == 0
        next(each for each in written if each.suffix == ".npz").write_bytes(b"")
        assert evaluate() == 0


def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_measured(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*TASK.format(run=place / "one", place=place, data="data").split(), "--out", str(tmp_path / "a.json")]
    for name in ("a.npz", "a.json"):
        (tmp_path / name).mkdir()
        for more in ([], ["--overwrite"]):
            assert main(["knn", *line, *more]) == 2
            shown = capsys.readouterr().err
            assert shown.count("\n") == 1
            assert f"{tmp_path / name} is a folder" in shown
        (tmp_path / name).rmdir()


def test_the_tables_of_several_checkpoints_are_kept_as_well(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"all {TASK} --only knn --out {{out}}".replace("{run}", "{run} {two}")
    words = line.format(run=place / "one", two=place / "two", place=place, data="data", out=tmp_path / "out").split()
    assert main(words) == 0
    for name in ("comparison.md", "comparison.svg", "comparison.csv", "one-step-5/cost.json", "one-step-5/report.html"):
        file = tmp_path / "out" / name
        content = file.read_bytes()
        file.write_text("mine", encoding="utf-8")
        capsys.readouterr()
        assert main(words) == 2
        assert f"{file} is there, and holds no " in capsys.readouterr().err
        file.write_bytes(content)
    assert main(words) == 0


def test_leaderboard_keeps_other_files(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "board"
    for _ in range(2):
        assert main(["leaderboard", "--out", str(out), "--quiet"]) == 0
    for file in sorted(out.iterdir()):
        content = file.read_bytes()
        file.write_text("mine", encoding="utf-8")
        capsys.readouterr()
        assert main(["leaderboard", "--out", str(out), "--quiet"]) == 2
        assert f"{file} is there, and holds no leaderboard of this version: name another" in capsys.readouterr().err
        with pytest.raises(UserError, match="overwrite=True"):
            excb.leaderboard([], out=out)
        assert file.read_text(encoding="utf-8") == "mine"
        assert main(["leaderboard", "--out", str(out), "--quiet", "--overwrite"]) == 0
        assert file.read_bytes() == content


@pytest.mark.parametrize(
    "line",
    [
        f"embed {ON} --data {{place}}/data --out {{free}}/a.npz --index {{taken}}/a.faiss",
        f"embed {ON} --data {{place}}/data --out {{taken}}/a.npz",
        f"search {ON} --data {{place}}/data --near-duplicates 0.9 --out {{taken}}/a.html",
        f"map {ON} --data {{place}}/data --method tsne --out {{taken}}/a.html",
        f"knn {TASK} --out {{taken}}/a.json",
        f"finetune {TASK} --epochs 1 --state {{taken}}/state",
        f"linear {TASK} --protocol resnet --epochs 1 --state {{taken}}/state",
        f"overlap {ON} --train {{place}}/data --test {{place}}/data --out {{taken}}/a.json",
        f"all {TASK} --only knn --out {{taken}}/a",
        "leaderboard --out {taken}/a",
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_computed(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    def compute(*_: object, **__: object) -> None:
        raise AssertionError("it computes")

    monkeypatch.setattr("excb.networks.features.Inputs.prepare", compute)
    monkeypatch.setattr("excb.transfer.leaderboard.making.make", compute)
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    words = {"run": place / "one", "place": place, "data": "data", "taken": tmp_path / "taken", "free": tmp_path}
    assert main(line.format(**words).split()) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1), shown.err
    assert f"cannot write in {tmp_path / 'taken'}" in shown.err
    assert {each.name for each in tmp_path.iterdir()} == {"taken"}
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"
