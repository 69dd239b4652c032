"""Every command that writes is killed at random moments and run again, and must write what it writes undisturbed."""

import csv
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from huggingface_hub import constants

from excb.pretrain.__main__ import main as pretrain
from excb.transfer.cli import main as evaluate
from excb.zoo.__main__ import main as zoo
from tests.attacks.forks import Ended, Signal, fork
from tests.attacks.sound import CPU, MACHINE, architecture
from tests.pretrain.small_runs import OVERRIDES

PATIENCE = 1200.0  # seconds for one command, on a machine that may be busy
LEAVES_IN = 60.0  # seconds after a signal
TRIES = 6  # for a moment at which the command still runs
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
PROGRAMS = {"eval": evaluate, "pretrain": pretrain, "zoo": zoo}
_TIMES = re.compile(r"second|minute|hour|date|time|created|speed|took|memory|rate_limit|_ms|cost|load", re.IGNORECASE)
_GROWS = re.compile(r"events\.out\.|detectron2\.log$")  # every start adds to these, with times
_SECONDS = re.compile(r"[\d.,]+ (s|ms|min|h|images/s|MiB)\b")

Words = tuple[str, ...]
DATA = ("--data", "{s}/data")
ONE = ("--ckpt", "{s}/one")


def on(command: str, *words: str, data: Words = DATA, out: str = "r.json") -> Words:
    return ("eval", command, *ONE, *data, *MACHINE, *words, "--out", "{o}/" + out)


def detection(engine: str) -> Words:
    """Four steps of training, each saved, so that every run keeps the same two checkpoints; and the evaluation."""
    small = ("min_sizes=96", "test_size=96", "max_size=160", "iterations=4", "steps=3", "warmup=1", "save_every=1")
    settings = (f"--set={each}" for each in small)
    on = ("--ckpt", "untrained:resnet50", "--data", "{s}/coco", *MACHINE[:2])
    return ("eval", "detection", *on, "--engine", engine, "--schedule", "smoke", *settings, "--run", "{o}/d")


SHORT = (*OVERRIDES, "run.save_steps=1")
COMMANDS: dict[str, Words] = {
    "knn": on("knn", "--k", "3"),
    "retrieval": on("retrieval"),
    "instances": on("instances", data=("--data", "{s}/revisited")),
    "linear": on("linear", "--protocol", "fast", "--epochs", "3"),
    "layers": on("layers"),
    "dense": on("dense", "--heads", "knn", "logreg", "--k", "2", data=("--data", "{s}/dense")),
    "robustness": on("robustness", "--corruptions", "gaussian_noise", "brightness", "--severities", "1"),
    "clusters": on("clusters", out="c"),
    "semisup": on("semisup", "--percent", "10", "--epochs", "2"),
    "finetune": on("finetune", "--epochs", "2"),
    "detection": detection("detectron2"),
    "detection --engine torchvision": detection("torchvision"),
    "detection --repair": ("eval", "detection", "--data", "{s}/coco", "--repair", "{o}/clean"),
    "all": on("all", "--only", "knn", "retrieval", out="a"),
    "sets": ("eval", "sets", "{s}/sets.toml", *ONE, *MACHINE, "--shots", "1", "--episodes", "2", "--out", "{o}/s"),
    "watch": ("eval", "watch", "{s}/run", *DATA, *MACHINE, "--protocol", "knn --k 3", "--once", "--out", "{o}/w"),
    "overlap": (
        "eval",
        "overlap",
        *ONE,
        "--train",
        "{s}/data/train",
        "--test",
        "{s}/data/test",
        "--cosine",
        "0.9",
        "--bits",
        "2",
        "--calibrate",
        "0",
        *MACHINE,
        "--out",
        "{o}/r.json",
    ),
    "leaderboard": ("eval", "leaderboard", "{s}/knn.json", "--out", "{o}/b"),
    "embed .npz": on("embed", out="e.npz"),
    "embed .parquet": on("embed", out="e.parquet"),
    "embed .safetensors": on("embed", out="e.safetensors"),
    "embed shards": on("embed", data=("--data", "{s}/shards"), out="e.npz"),
    "search": on("search", "--index", "{o}/i.faiss", "--query", "{s}/data/test/class0/0.png", out="p.html"),
    "near-duplicates": on("search", "--near-duplicates", "0.9", out="p.html"),
    "map": on("map", "--method", "tsne", out="m.html"),
    "photos": (
        "eval",
        "photos",
        "{s}/data",
        "--labels",
        "{s}/labels.csv",
        "--networks",
        "{s}/one",
        "--device",
        "cpu",
        "--out",
        "{o}/p",
    ),
    "features": on("features", out="f.npz"),
    "train": ("pretrain", "train", "quickstart", "--data", "{s}/data/train", "--out", "{o}/run", *SHORT),
    "adapt": (
        "pretrain",
        "adapt",
        "tiny_grocery",
        "--data",
        "{s}/data/train",
        "--out",
        "{o}/run",
        "optim.epochs=1",
        "optim.batch=8",
        "method.clusters=4",
        "run.save_steps=1",
        *CPU,
    ),
    "distil": (
        "pretrain",
        "distil",
        "conv4_photos",
        "--data",
        "{s}/data/train",
        "--out",
        "{o}/run",
        "optim.epochs=2",
        "optim.batch=8",
        "run.save_steps=1",
        *CPU,
    ),
    "study": (
        "pretrain",
        "study",
        "balancers",
        "--data",
        "{s}/data",
        "--out",
        "{o}/study",
        "--seeds",
        "1",
        "--cells",
        "none",
        *OVERRIDES[:11],
        "optim.epochs=1",
        "optim.batch=8",
    ),
    "choose": ("pretrain", "choose", "--no-pilots", "--data", "{s}/more", "--gpus", "0", "--out", "{o}/c"),
    "shrink": ("pretrain", "shrink", "--data", "{s}/data", "--side", "16", "--out", "{o}/small"),
    "draw": ("pretrain", "draw", "statistics", "{s}/run", "--out", "{o}/s.png"),
    "import": ("zoo", "import", "{s}/foreign.pth", "--name", "another", *architecture()),
    "export": ("zoo", "export", "{s}/one", "--out", "{o}/x"),
    "export --format timm": ("zoo", "export", "{s}/one", "--format", "timm", "--out", "{o}/x.safetensors"),
    "package": ("zoo", "package", "{s}/one", "--out", "{o}/tiny", "--licence", "mit", "--untested", "random weights"),
    "push": ("zoo", "push", "{s}/one", "--repo", "tester/{o.name}", "--licence", "mit", "--untested", "random weights"),
}
NEEDS = {"detection": "detectron2"}


class Count(NamedTuple):
    """The figures of one command."""

    tried: int  # kills
    faults: list[str]
    volatile: int  # values that differ between undisturbed runs, and are not compared
    compared: int
    seconds: float


def call(words: Words, sound: Path, place: Path) -> int:
    """In a fork: the command, with a home and a cache of its own."""
    torch.set_num_threads(1)
    os.environ.update(EXCB_HOME=str(place / "home"), EXCB_CACHE=str(place / "cache"), HF_HUB_OFFLINE="0")
    constants.HF_HUB_OFFLINE = False  # read when it was imported; the hub is one on the loopback
    os.chdir(place)
    program, *rest = (
        word.replace("{s}", str(sound)).replace("{o.name}", place.name).replace("{o}", str(place / "out"))
        for word in words
    )
    return int(PROGRAMS[program](rest))


def place_for(place: Path, sound: Path) -> Path:
    """A new folder with a copy of the zoo's, and none of the cache."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sound / "home", place / "home")
    (place / "out").mkdir()
    return place


def count(name: str, sound: Path, kills: int, work: Path, seed: int) -> Count:
    """End one command so many times, each time in a new folder."""
    words, chance, faults = COMMANDS[name], random.Random(f"{seed} {name}"), list[str]()
    slug = re.sub(r"[^a-z0-9]+", "-", name)

    def run(place: Path, killing: Signal | None = None) -> Ended:
        patience = PATIENCE if killing is None else LEAVES_IN + (killing.after if killing else 0)
        return fork(partial(call, words, sound, place), work / f"{slug}.log", patience=patience, killing=killing)

    found, seconds = list[dict[str, str]](), 0.0
    for turn in range(2):
        ended = run(place := place_for(work / f"{slug}-undisturbed{turn}", sound))
        if ended.code != 0:
            return Count(0, [f"undisturbed: {ended}"], 0, 0, 0)
        found.append(leaves(place))
        seconds = ended.seconds
    names = set.union(*map(set, found))
    fixed = {leaf: found[0][leaf] for leaf in names if len({each.get(leaf) for each in found}) == 1}
    tried = 0
    for number in range(kills):
        place = work / f"{slug}-{number}"
        for _ in range(TRIES):
            killing = Signal(chance.choice(SIGNALS), chance.uniform(0, 0.95 * seconds), chance.random() < 0.5)
            ended = run(place_for(place, sound), killing)
            if ended.signalled:
                break
        else:
            continue
        tried += 1
        wrong = fault(ended, run(place), place, fixed, names)
        if wrong:
            faults.append(f"{killing.number.name} after {killing.after:.2f} s in {place}: {wrong}")
        else:
            shutil.rmtree(place)
    for turn in range(0 if faults else 2):
        shutil.rmtree(work / f"{slug}-undisturbed{turn}")
    return Count(tried, faults, len(names) - len(fixed), len(fixed), seconds)


def fault(killed: Ended, again: Ended, place: Path, fixed: dict[str, str], names: set[str]) -> str:
    """ "" where a command that was ended, and the same command after it, did what they should."""
    if killed.code is None:
        return f"hang: still there {LEAVES_IN:g} s after the signal"
    for which, ended in (("killed", killed), ("again", again)):
        if "Traceback" in ended.log or ended.code == 99:
            return f"traceback ({which}): {ended.log[-600:]}"
    if again.code is None:
        return "hang of the second run"
    if again.code != 0:
        return f"refused the second time: {again.log[-400:]}"
    now = leaves(place)
    unlike = [leaf for leaf, value in fixed.items() if now.get(leaf) != value]
    more = [leaf for leaf in now if leaf not in names]
    return f"differs: {unlike[:4]}, new: {more[:4]}" if unlike or more else ""


# ---------------------------------------------------------------------------------------------------------------------
# What was written, value by value
# ---------------------------------------------------------------------------------------------------------------------


def leaves(place: Path) -> dict[str, str]:
    """Every value of every file, under a name that says where it is; values with names of times are left out."""
    found = dict[str, str]()
    for part in ("out", "home"):
        for file in sorted((place / part).rglob("*")):
            if file.is_file() and file.suffix != ".lock" and not _GROWS.match(file.name):
                for leaf, value in flattened(contents(file)):
                    if not _TIMES.search(leaf):
                        found[f"{file.relative_to(place)}:{leaf}"] = _SECONDS.sub(
                            "", value.replace(str(place), "PLACE")
                        )
    return found


def contents(file: Path) -> Any:
    """A file's values: of JSON, arrays and checkpoints one by one, of text line by line."""
    match file.suffix:
        case ".json":
            return json.loads(file.read_text(encoding="utf-8"))
        case ".jsonl":
            return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        case ".npz":
            with np.load(file) as arrays:
                return {name: arrays[name] for name in arrays.files}
        case ".pt" | ".pth":  # bytes differ: strings that a loaded state repeats are stored twice
            return torch.load(file, weights_only=False)
        case _:
            data = file.read_bytes()
            try:
                lines = data.decode().splitlines()
                return list(csv.DictReader(lines)) if file.suffix == ".csv" else lines
            except UnicodeDecodeError:
                return data


def flattened(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Values below a value, as text."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from flattened(item, f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from flattened(item, f"{where}[{number}]")
    elif isinstance(value, torch.Tensor | np.ndarray | bytes):
        data = value if isinstance(value, bytes) else np.asarray(value).tobytes()
        yield where, hashlib.sha256(data).hexdigest()
    else:
        yield where, str(value)


def run(sound: Path, kills: int, work: Path, only: str, seed: int) -> Iterator[tuple[str, Count]]:
    """End commands so many times in all, each as often as the others."""
    names = [
        name
        for name in COMMANDS
        if re.search(only, name) and (name not in NEEDS or importlib.util.find_spec(NEEDS[name]))
    ]
    for place, name in enumerate(names):
        yield name, count(name, sound, (kills + place) // len(names), work, seed)
