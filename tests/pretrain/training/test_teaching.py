"""Whole runs that learn from teachers: resuming, teachers that stay, sets of every kind, mistakes in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import excb
from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.errors import UserError
from excb.files.run_files import read_metrics
from excb.images.scanning import scan_folder
from excb.networks.backbone import weights_hash
from excb.pretrain import loop
from excb.pretrain.__main__ import main
from excb.pretrain.data.hub_stream import open_stream
from excb.pretrain.distil.kept import KeptTargets
from excb.pretrain.distil.teachers import Teacher, load_teachers
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.run.remote_mirror import RunLocation
from excb.pretrain.training import teaching
from excb.pretrain.training.rehearsal import rehearse
from excb.sources.opening import training_images
from tests.excb.images.shard_files import pack_folder
from tests.pretrain.distil import taught
from tests.pretrain.small_runs import OVERRIDES, assert_same, stopped_before, write_images
from tests.pretrain.stream_files import write_parquet

pytestmark = [
    pytest.mark.usefixtures("one_thread", "short_end"),
    # datasets 5.2, 2026-11: its writer leaves a file for the garbage collector to close
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

STEPS = 6  # 27 images, batches of 8, 2 epochs
ALL = (
    "distil.features=1",
    "distil.similarities=0.5",
    "distil.assignments=0.25",
    "distil.queue=11",
    "distil.statistics=whitened",
)
VIEWS = ("distil.teacher_sees=view", "distil.maps=0.5", "views.local_views=1", "views.global_views=2")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of labelled pictures."""
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two teachers with maps, of different widths and input sizes."""
    folder = tmp_path_factory.mktemp("teachers")
    return [
        str(taught.write_teacher(folder, taught.RESNET, name="resnet.pt")),
        str(taught.write_teacher(folder, taught.CONV, seed=2, crop=48, name="conv.pt")),
    ]


def run(images: Any, out: Path, files: list[str], *more: str, model: dict[str, Any] = taught.RESNET) -> int:
    """Train in this process, without a verdict."""
    named = [f"distil.teachers={','.join(files)}"] if files else []
    of = scan_folder(images) if isinstance(images, Path) else images
    made = taught.recipe(*named, *more, model=model)
    return loop.run_training(made, of, out, Reporter(quiet=True), table=False, verdict=False)


def newest(out: Path) -> dict[str, Any]:
    return run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(out)[0])


# ---------------------------------------------------------------------------------------------------------------------
# One run
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sees", ["image", "view"])
def test_a_stopped_run_ends_as_an_undisturbed_one(images: Path, files: list[str], tmp_path: Path, sees: str) -> None:
    more = (*ALL, *(VIEWS if sees == "view" else ()))
    assert run(images, tmp_path / "whole", files, *more) == 0
    for step in (2, 5):  # within the first and the second epoch
        with stopped_before(step):
            assert run(images, tmp_path / "stopped", files, *more) == 143
    assert newest(tmp_path / "stopped")["step"] == 6
    assert run(images, tmp_path / "stopped", files, *more) == 0
    assert_same(newest(tmp_path / "whole"), newest(tmp_path / "stopped"))
    lines = [line for line in read_metrics(tmp_path / "whole") if line["kind"] == "epoch"]
    names = ["features", "similarities", "assignments", *(["maps"] if sees == "view" else [])]
    weights = dict(zip(names, (1, 0.5, 0.25, 0.5), strict=False))
    for line in lines:
        assert line["loss"] == pytest.approx(sum(weights[name] * line[f"distil_{name}"] for name in names), rel=1e-5)


@pytest.mark.parametrize("more", [(), ("efficiency.precision=fp64", "distil.teacher_sees=view")])
def test_the_checkpoint_says_who_taught(images: Path, files: list[str], tmp_path: Path, more: tuple[str, ...]) -> None:
    run(images, tmp_path, files, "optim.epochs=1", *more)
    facts = newest(tmp_path)["teachers"]
    assert [fact["name"] for fact in facts] == files
    assert [fact["sha256"] for fact in facts] == [weights_hash(taught.load(Path(file)).network) for file in files]
    assert [fact["input"] for fact in facts] == [[48, 40], [56, 48]]
    assert excb.load(tmp_path).entry.teachers[1]["name"] == files[1]


@pytest.mark.parametrize("sees", ["image", "view"])
def test_teachers_stay_as_they_were(
    images: Path, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sees: str
) -> None:
    loaded: list[Teacher] = []
    usual = load_teachers

    def remember(*arguments: Any, **options: Any) -> list[Teacher]:
        loaded.extend(usual(*arguments, **options))
        return loaded[-2:]

    monkeypatch.setattr(teaching, "load_teachers", remember)
    run(images, tmp_path, files, *ALL, *(VIEWS if sees == "view" else ()), "optim.epochs=1")
    assert len(loaded) == 2
    for teacher, file in zip(loaded, files, strict=True):
        before = taught.load(Path(file)).network.state_dict()
        after = teacher.backbone.network.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)  # BatchNorm's statistics too
        assert not any(module.training for module in teacher.backbone.modules())


@pytest.mark.parametrize("sees", ["image", "view"])
def test_micro_batches_are_the_whole_batch(images: Path, files: list[str], tmp_path: Path, sees: str) -> None:
    """Of a student without BatchNorm, whose statistics would be those of micro-batches."""
    more = ["distil.features=1", "distil.assignments=0.5", "efficiency.precision=fp64", f"distil.teacher_sees={sees}"]
    assert run(images, tmp_path / "one", files, *more, model=taught.VIT) == 0
    assert run(images, tmp_path / "two", files, *more, "efficiency.accumulate=2", model=taught.VIT) == 0
    one, two = newest(tmp_path / "one")["model"], newest(tmp_path / "two")["model"]
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=1e-9, atol=1e-9, msg=f"{name} differs")
    assert one["student.distillation.heads.0.objectives.assignments.sizes"].std() > 0


def test_a_network_in_memory_teaches_and_stays_its_owners(images: Path, files: list[str], tmp_path: Path) -> None:
    sections: dict[str, Any] = {"model": taught.CONV, "views": taught.SIZES, "optim": {"epochs": 1, "batch": 8}}
    sections |= {"efficiency": {"device": "cpu", "workers": 0}, "monitor": {"k": 3}, "distil": {"features": 1.0}}
    owned, second = taught.Plain(), taught.load(Path(files[0]))
    before = {name: value.clone() for name, value in owned.state_dict().items()}
    done = excb.train("distill", data=images, out=tmp_path, teacher=[owned, second], quiet=True, **sections)
    assert done.finished
    assert owned.training
    assert all(one.requires_grad for one in owned.parameters())
    assert all(torch.equal(value, before[name]) for name, value in owned.state_dict().items())
    facts = newest(tmp_path)["teachers"]
    assert [fact["sha256"] for fact in facts] == [weights_hash(owned), weights_hash(second.network)]
    assert done.load().width == 12
    with torch.no_grad():  # another network is another run
        next(owned.parameters()).add_(1)
    with pytest.raises(UserError, match="teachers"):
        excb.train("distil", data=images, out=tmp_path, teacher=[owned, second], quiet=True, **sections)


# ---------------------------------------------------------------------------------------------------------------------
# Sets of every kind
# ---------------------------------------------------------------------------------------------------------------------


def test_shards_and_lists_are_the_run_on_files(images: Path, files: list[str], tmp_path: Path) -> None:
    run(images, tmp_path / "files", files, "optim.epochs=1")
    packed = pack_folder(images, tmp_path / "shards", count=3)
    run(training_images(str(packed), None), tmp_path / "run", files, "optim.epochs=1")
    assert_same(newest(tmp_path / "files")["model"], newest(tmp_path / "run")["model"])
    listed = tmp_path / "list.txt"
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.png"))
    listed.write_text("\n".join(names) + "\n", encoding="utf-8")
    run(training_images(str(images), listed), tmp_path / "listed", files, "optim.epochs=1")
    assert_same(newest(tmp_path / "files")["model"], newest(tmp_path / "listed")["model"])


def test_a_stream_has_no_features_to_keep_but_views(files: list[str], tmp_path: Path) -> None:
    stream = open_stream(f"hf-stream:{write_parquet(tmp_path / 'stream', (9, 11))},buffer=6")
    with pytest.raises(UserError, match=r"a stream .*set distil\.teacher_sees=view"):
        run(stream, tmp_path / "run", files)
    assert not (tmp_path / "run").exists()
    assert run(stream, tmp_path / "run", files, *ALL, *VIEWS) == 0
    with stopped_before(3):
        assert run(stream, tmp_path / "stopped", files, *ALL, *VIEWS) == 143
    assert run(stream, tmp_path / "stopped", files, *ALL, *VIEWS) == 0
    assert_same(newest(tmp_path / "run")["model"], newest(tmp_path / "stopped")["model"])


def test_a_broken_file_is_counted_and_the_image_in_its_place_is_what_is_taught(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, used = write_images(tmp_path / "images"), list[Tensor]()
    names = sorted(folder.rglob("*.png"))
    names[4].write_bytes(b"no image")
    usual = KeptTargets.__call__

    def remember(self: KeptTargets, numbers: Tensor, views: Any) -> Any:
        used.append(numbers)
        return usual(self, numbers, views)

    monkeypatch.setattr(KeptTargets, "__call__", remember)
    assert run(folder, tmp_path / "run", files, *ALL, "optim.epochs=3") == 0
    seen = torch.cat(used)
    assert len(seen) == 72
    assert 4 not in seen
    assert newest(tmp_path / "run")["broken"]["found"] >= 1
    assert all(value.isfinite().all() for value in newest(tmp_path / "run")["model"].values())


# ---------------------------------------------------------------------------------------------------------------------
# From and to other runs
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def student(images: Path, files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a student."""
    out = tmp_path_factory.mktemp("runs") / "student"
    assert run(images, out, files[:1], *ALL, "optim.epochs=1") == 0
    return out


@pytest.fixture(scope="module")
def untaught(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the same backbone without teachers."""
    out = tmp_path_factory.mktemp("runs") / "untaught"
    own = ("method.hidden=8", "optim.epochs=1", 'model.options={"channels": [8, 8, 8, 16], "stem_width": 4}')
    recipe = apply(find_recipe("quickstart"), [*OVERRIDES, *own])
    recipe = recipe.change(model=taught.RESNET, method={"clusters": 6, "projector_output_norm": True})
    assert loop.run_training(recipe, scan_folder(images), out, Reporter(quiet=True), table=False, verdict=False) == 0
    return out


def first_weights(out: Path) -> Tensor:
    weights: Tensor = newest(out)["model"]["student.backbone.conv1.0.weight"]
    return weights


@pytest.mark.parametrize("start", ["student", "untaught"])
def test_a_run_with_teachers_or_without_starts_from_either(
    request: pytest.FixtureRequest, images: Path, files: list[str], tmp_path: Path, start: str
) -> None:
    init: Path = request.getfixturevalue(start)
    for goal in ("student", "untaught"):
        _start_from(init, images, files, tmp_path / goal, goal=goal)


def _start_from(init: Path, images: Path, files: list[str], out: Path, *, goal: str) -> None:
    few = (f"init={init}", "optim.epochs=1", "optim.base_lr=1e-9")
    if goal == "student":
        assert run(images, out, files[1:], *ALL, *few) == 0
        assert [fact["name"] for fact in newest(out)["teachers"]] == files[1:]
    else:
        own = ("method.hidden=8", "method.clusters=6", "method.projector_output_norm=true")
        recipe = apply(find_recipe("quickstart"), [*OVERRIDES, *own, *few]).change(model=taught.RESNET)
        assert (
            loop.run_training(recipe, scan_folder(images), out, Reporter(quiet=True), table=False, verdict=False) == 0
        )
        assert newest(out)["teachers"] == []
    torch.testing.assert_close(first_weights(out), first_weights(init), rtol=1e-5, atol=1e-6)


def test_a_student_and_its_export_load_and_give_the_same(student: Path, images: Path, tmp_path: Path) -> None:
    from excb.zoo.__main__ import main as zoo

    assert zoo(["export", str(student), "--out", str(tmp_path / "exported")]) == 0
    loaded, exported = excb.load(student), excb.load(tmp_path / "exported")
    pictures = [scan_folder(images).file(n) for n in range(5)]
    assert torch.equal(loaded.embed(pictures), exported.embed(pictures))
    assert exported.entry.teachers == loaded.entry.teachers
    assert not torch.equal(loaded.embed(pictures), excb.load(student, network="student").embed(pictures))


def test_a_student_of_teachers_alone_has_no_heads_and_says_so(student: Path, untaught: Path, tmp_path: Path) -> None:
    """Its projector and centroids are as random as at the start."""
    from excb.zoo.__main__ import main as zoo

    assert excb.load(untaught, heads=True).heads is not None
    zoo(["export", str(student), "--out", str(tmp_path / "exported")])
    for place in (student, tmp_path / "exported"):
        with pytest.raises(UserError, match=r"holds a backbone without heads \(projector and centroids\)") as caught:
            excb.load(place, heads=True)
        assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes
# ---------------------------------------------------------------------------------------------------------------------


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a command line is refused with."""
    assert main([*words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ((), "learn from which teacher? Name one"),
        (("nowhere.pt",), "nowhere.pt"),
        (("mobilenetv3",), "did you mean"),
        (("a,b",), "'a,b' is not one name: write several teachers with spaces between them"),
        (("VIT", "distil.maps=1"), "set distil.teacher_sees=view"),
        (("VIT", "distil.teacher_size=44"), "44 is not a multiple of the patches"),
        (("VIT", "distil.features=0"), "set distil.features=1"),
        (("VIT", "distil.assignments=1", "distil.clusters=28"), "distil.clusters to at most 27"),
        (("VIT", "VIT"), "distil.teachers names a teacher twice"),
    ],
)
def test_a_mistake_is_one_line(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], cause: str
) -> None:
    vit = str(taught.write_teacher(tmp_path, taught.VIT, crop=32))
    words = tuple(vit if word == "VIT" else word for word in words)
    assert cause in refusal(capsys, *taught.command(images, tmp_path / "run", *(words or ("optim.epochs=1",))))
    assert not run_checkpoint.in_run(tmp_path / "run")


def test_no_teacher_is_refused_in_python_too(images: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this recipe learns from a teacher: name one"):
        excb.train("distil", data=images, out=tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match="has no transform"):
        excb.train("distil", data=images, out=tmp_path / "run", teacher=nn.Linear(2, 2), quiet=True)
    with pytest.raises(UserError, match="cannot teach maps"):
        excb.train(
            "distil",
            data=images,
            out=tmp_path / "run",
            teacher=taught.Plain(),
            quiet=True,
            distil={"maps": 1, "teacher_sees": "view"},
            model=taught.CONV,
            views=taught.SIZES,
            optim={"batch": 8},
        )


def test_a_teacher_that_changed_is_refused_when_a_run_resumes(images: Path, tmp_path: Path) -> None:
    file = taught.write_teacher(tmp_path, taught.CONV)
    with stopped_before(2):
        assert run(images, tmp_path / "run", [str(file)]) == 143
    taught.write_teacher(tmp_path, taught.CONV, seed=8)
    with pytest.raises(UserError, match=r"another network than the one that this run learned from") as caught:
        run(images, tmp_path / "run", [str(file)])
    assert "\n" not in str(caught.value)
    recipe, place = taught.recipe(f"distil.teachers={file}", model=taught.RESNET), RunLocation(tmp_path / "run")
    with pytest.raises(UserError, match=r"another network than the one that this run learned from"):
        rehearse(recipe, scan_folder(images), place, Reporter(quiet=True))  # a dry run
    taught.write_teacher(tmp_path, taught.CONV)
    assert run(images, tmp_path / "run", [str(file)]) == 0


def test_a_run_resumes_from_another_folder_with_its_teacher_named_from_there(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    taught.write_teacher(tmp_path, taught.CONV)
    taught.write_teacher(other, taught.CONV, seed=8)
    monkeypatch.chdir(tmp_path)
    with stopped_before(2):
        assert run(images, tmp_path / "run", ["teacher.pt"]) == 143
    monkeypatch.chdir(other)
    with pytest.raises(UserError, match="another network than the one that this run learned from"):
        run(images, tmp_path / "run", ["teacher.pt"])  # of that name, but the other one's
    with stopped_before(4):
        assert run(images, tmp_path / "run", ["../teacher.pt"]) == 143
    monkeypatch.chdir(tmp_path)
    assert run(images, tmp_path / "run", ["teacher.pt"]) == 0


def test_damaged_and_hostile_teachers_are_one_line(
    images: Path, tmp_path: Path, student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pickle

    from safetensors.torch import load_file, save_file

    from excb.zoo.__main__ import main as zoo

    class Evil:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "touched").touch, ())

    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"state_dict": Evil()}))
    zoo(["export", str(student), "--out", str(tmp_path / "cut")])
    zoo(["export", str(student), "--out", str(tmp_path / "wrong")])
    capsys.readouterr()
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    tensors = load_file(tmp_path / "wrong" / "model.safetensors")
    name = next(name for name, value in tensors.items() if value.ndim == 4)
    tensors[name] = torch.zeros(np.add(tensors[name].shape, 1).tolist())
    save_file(tensors, tmp_path / "wrong" / "model.safetensors")
    for teacher in ("evil.pt", "cut", "wrong"):
        said = refusal(capsys, *taught.command(images, tmp_path / "run", str(tmp_path / teacher)))
        assert teacher in said, said
    assert not (tmp_path / "touched").exists()
    assert not run_checkpoint.in_run(tmp_path / "run")


def test_the_command_line_takes_teachers_and_values_in_any_order(
    images: Path, files: list[str], tmp_path: Path
) -> None:
    words = taught.command(images, tmp_path / "run", files[0], "optim.epochs=1", files[1])
    assert main(words) == 0
    stored = json.loads((tmp_path / "run" / "recipe.json").read_text(encoding="utf-8"))["recipe"]
    assert stored["distil"]["teachers"] == files
    assert stored["optim"]["epochs"] == 1
    by_recipe = ["train", *(word for word in words if word not in files), f"distil.teachers={','.join(files)}"]
    assert main([*by_recipe, "--quiet"]) == 0  # the same run, which is finished
