"""Every option that a command offers is read when it runs: tiny runs of each, in which every read is recorded."""

import argparse
import dataclasses
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from excb.cli import Parser
from excb.option_parser import of_arguments
from excb.transfer.cli import COMMANDS, main
from tests.run_files import tiny_recipe, write_run
from tests.transfer.dense.masked_images import write_set
from tests.transfer.detection.test_command import Perfect, checkpoint
from tests.transfer.instances.sets import write_pairs
from tests.transfer.labelled_images import CLASSES, write_folder
from tests.transfer.tiny_coco import write_coco

pytestmark = pytest.mark.usefixtures("one_thread")

_RUN = "--ckpt {place}/run --workers 0 --device cpu --cache {place}/cache"
_TASK = f"{_RUN} --data {{place}}/data"
# Short runs of every command. An option may be read in one of them only: C by logistic regression, epochs by others.
RUNS: dict[str, tuple[str, ...]] = {
    "knn": (_TASK,),
    "retrieval": (_TASK,),
    "instances": (f"{_RUN} --data {{place}}/pairs --whiten {{place}}/data/train --pooling gem",),
    "linear": (f"{_TASK} --protocol logreg", f"{_TASK} --protocol resnet --epochs 1 --train-batch 8"),
    "layers": (f"{_TASK} --epochs 1 --lr 0.1 --wd 0 --attentive none",),
    "dense": (f"{_RUN} --data {{place}}/masks --heads knn linear --k 3",),
    "robustness": (f"{_TASK} --corruptions contrast --severities 1 --l2 0.02",),
    "semisup": (f"{_TASK} --percent 10 --epochs 1 --train-batch 7",),
    "finetune": (f"{_TASK} --epochs 1 --train-batch 21",),
    "detection": ("--ckpt mine --data {place}/coco --schedule smoke --device cpu",),
    "clusters": (f"{_TASK} --out {{out}}/clusters",),
    "all": (f"{_TASK} --only knn --out {{out}}/report", f"{_TASK} --ckpt {{place}}/other --only knn --dry-run"),
    "sets": (f"{_RUN} --set shapes={{place}}/data --data {{place}} --shots 1 --episodes 2 --k 3 --out {{out}}/sets",),
    "watch": ("{place}/run --data {place}/data --once --device cpu --workers 0 --out {out}/watch",),
    "embed": (f"{_TASK} --out {{out}}/a.npz",),
    "search": (f"{_TASK} --query {{place}}/data/test/ant/0.png --near-duplicates 0.9 --out {{out}}/page.html",),
    "map": (
        f"{_TASK} --method tsne --labels {{place}}/known.csv --colour-by kind --out {{out}}/map.html",
        "--embeddings {place}/vectors.npz --device cpu --dry-run",
    ),
    "photos": (
        "{place}/data/train --networks {place}/run --seed 1 --device cpu --cache {place}/cache --out {out}/photos",
        "{place}/data/train --networks {place}/run --labels {place}/kinds.csv --series day --next 2 --sure 0.5 "
        "--device cpu --cache {place}/cache --out {out}/photos",
    ),
    "features": (f"{_TASK} --out {{out}}/a.npz",),
    "compare": ("{place}/results/knn.json {place}/results/knn.json",),
    "overlap": (f"{_RUN} --train {{place}}/data/train --test {{place}}/data/test --bits 3 --cosine 0.9 --calibrate 0",),
    "reproduce": ("--list", "--list --ckpt {place}/run"),
    "leaderboard": ("{place}/results --out {out}/board", "{place}/results --check"),
    "cache": ("--cache {place}/cache --json",),
}
# Options that these runs do not reach, and why.
_MEASURES = "only a claim that is measured needs it, and with that its checkpoint: tests/transfer/reproduce has them"
UNREACHED: dict[str, dict[str, str]] = {
    "reproduce": dict.fromkeys(("batch_size", "cache", "data", "feature_precision", "no_cache", "workers"), _MEASURES),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("read")
    for name, step in (("run", 5), ("other", 6)):
        write_run(place / name, step, recipe=tiny_recipe(eval_resize=36, eval_crop=32))
    write_folder(place / "data" / "train", each=3, classes=CLASSES, seed=1)
    write_folder(place / "data" / "test", each=1, classes=CLASSES, seed=2)
    write_pairs(place / "pairs")
    write_set(place / "masks")
    write_coco(place / "coco")
    (place / "known.csv").write_text("path,kind\ntest/ant/0.png,small\n")
    rows = [f"{name}/{number}.png,{name},{number}\n" for name in ("bee", "cat") for number in range(2)]
    (place / "kinds.csv").write_text("path,label,day\n" + "".join(rows))
    embed = ["embed", *_TASK.format(place=place).split(), "--quiet", "--out", f"{place}/vectors.npz"]
    assert main(embed) == 0
    assert main(["knn", *_TASK.format(place=place).split(), "--quiet", "--out", f"{place}/results/knn.json"]) == 0
    return place


@pytest.fixture
def substitutes(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine of detection that need not be installed."""
    from excb.transfer.detection import engines, task

    monkeypatch.setattr(engines, "ENGINES", dict.fromkeys(engines.ENGINES, Perfect))
    monkeypatch.setattr(task, "load", lambda _name, network: checkpoint())
    monkeypatch.chdir(tmp_path)


# An option that is only refused is not read: these compare it with its default, or with other options.
_REFUSING = ("check", "given", "__post_init__", "__eq__", "__hash__", "__repr__")


# Commands that take no time that is worth a forecast.
WITHOUT_DRY_RUN = ("photos", "compare", "leaderboard", "cache")


def _counts(frame: FrameType | None) -> bool:
    """Whether a read from here uses the value: copies of all fields, and checks, do not."""
    if frame is None or frame.f_globals.get("__name__") in ("dataclasses", "argparse"):
        return False
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("excb.", "tests.")):
        if frame.f_code.co_name in _REFUSING:
            return False
        frame = frame.f_back
    return True


def recording(kind: type[Any], read: set[str]) -> type[Any]:
    """A class whose instances add the names of attributes to `read` when these are read."""

    def get(self: Any, name: str) -> Any:
        if not name.startswith("_") and _counts(sys._getframe(1)):
            read.add(name)
        return object.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": get})


class Recorder:
    """The options that a command offers, and those that it reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offered, self.read = set[str](), set[str]()
        usual = Parser.parse_args

        def parse_args(parser: Parser, *words: Any) -> argparse.Namespace:
            args: argparse.Namespace = usual(parser, *words)
            self.offered |= vars(args).keys() - {"command", "name_of_command"}
            args.__class__ = recording(argparse.Namespace, self.read)
            return args

        def of_recorded(kind: type[Any], args: argparse.Namespace) -> Any:
            return of_arguments(recording(kind, self.read), argparse.Namespace(**vars(args)))

        monkeypatch.setattr(Parser, "parse_args", parse_args)
        importlib.import_module("excb.transfer.reproduce.cli")  # which reads options itself
        for module in [name for name in sys.modules if name.startswith("excb.transfer.")]:
            if hasattr(sys.modules[module], "of_arguments"):
                monkeypatch.setattr(sys.modules[module], "of_arguments", of_recorded)


def test_every_command_has_a_run() -> None:
    assert RUNS.keys() == set(COMMANDS)


@pytest.mark.parametrize("command", RUNS)
@pytest.mark.usefixtures("substitutes")
def test_every_option_is_read(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    recorder = Recorder(monkeypatch)
    for number, words in enumerate(RUNS[command]):
        line = words.format(place=place, out=tmp_path / str(number)).split()
        assert main([command, *line]) in (0, None)
    unread = recorder.offered - recorder.read
    assert unread == set(UNREACHED.get(command, {})), "never read: " + " ".join(sorted(unread))


@pytest.mark.parametrize("command", [name for name in RUNS if name not in WITHOUT_DRY_RUN])
@pytest.mark.usefixtures("substitutes")
def test_a_dry_run_with_json_prints_json_alone(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for number, words in enumerate(RUNS[command]):
        line = words.format(place=place, out=tmp_path / str(number)).split()
        json_of = ("--json",) if "--json" not in line else ()
        assert main([command, *line, *(() if "--dry-run" in line else ("--dry-run",)), *json_of]) == 0
        assert isinstance(json.loads(capsys.readouterr().out), dict | list)
    assert not (tmp_path / "0").exists()


def test_what_is_only_refused_or_copied_is_not_read() -> None:
    """The recorder itself: without this, a test of reads could pass by copies."""

    @dataclasses.dataclass(frozen=True)
    class Two:
        used: int = 1
        refused: int = 2

        def check(self) -> bool:
            return self.refused > 1

    read = set[str]()
    two = recording(Two, read)()
    use: Callable[[Any], int] = lambda options: options.used  # noqa: E731
    dataclasses.replace(two, used=3)
    dataclasses.asdict(two)
    assert two == two  # noqa: PLR0124
    assert read == set()
    assert use(two) == 1
    assert read == {"used"}
