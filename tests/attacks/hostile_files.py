"""Files of every format replaced by hostile ones, and whole commands that read them, each in a fork that is watched."""

import hashlib
import io
import json
import os
import pickle
import random
import re
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

import excb
from excb.files import toml
from excb.files.foreign import VARIABLE
from excb.hub import catalogue
from excb.pretrain.__main__ import main as pretrain
from excb.transfer.cli import main as evaluate
from excb.transfer.coco.reading import open_coco
from excb.zoo.__main__ import main as zoo
from tests import png_files
from tests.attacks.forks import Ended, fork
from tests.attacks.sound import DATA, MACHINE, RUN, architecture
from tests.fuzz import guard as guards
from tests.fuzz import hostile, test_annotations, test_configs, test_images, test_results, test_shards

LIMIT = 0.05  # GB that a file may unpack to
TIMES = 10  # this many times the limit may be taken
HANGS = 120  # seconds of one command, on a machine that may be busy
PATIENCE = 2.0 * HANGS
PROGRAMS = {"eval": evaluate, "pretrain": pretrain, "zoo": zoo}
SPECIAL = ("pipe", "socket", "zero", "null", "folder", "dead link", "link to itself", "empty", "unreadable")

Words = tuple[str, ...]
KNN: Words = ("eval", "knn", "--ckpt", "{s}/" + RUN, "--data", "{s}/" + DATA, *MACHINE, "--quiet", "--k", "3")


class Attack(NamedTuple):
    """Hostile files of one kind.

    Attributes:
        target: the file below the sound folder that is replaced, or a pattern, one of whose files is.
        commands: what reads it, one of them for each input; `{s}` is the folder.
        drawn: the bytes; None for damage to what is there.
        checked: our writers keep checksums of it, so that a command that ends well says what it says without damage.
        warm: the command itself writes it: it runs once, what it wrote is damaged, and it runs again.
    """

    target: str
    commands: tuple[Words | Callable[[Path], str], ...]
    drawn: st.SearchStrategy[bytes] | None = None
    checked: bool = False
    warm: bool = False


def on(command: str, *words: str) -> Words:
    """An evaluation of the run on the images, without a warm cache."""
    return ("eval", command, "--ckpt", "{s}/" + RUN, *words, *MACHINE, "--quiet")


def loaded(name: str) -> Callable[[Path], str]:
    """Read embeddings and search them: their nearest neighbours as text."""

    def call(folder: Path) -> str:
        made = excb.Embeddings.load(folder / name)
        vectors = made.vectors
        return f"{made.paths} {made.labels} {hashlib.sha256(vectors.tobytes()).hexdigest()}"

    return call


def annotated(folder: Path) -> str:
    """Read a set in COCO's form, with all of its masks."""
    sets = open_coco(folder / "coco", check_all=True)
    for images in sets:
        for entry in images.images:
            for each in entry.annotations:
                if each.trainable:
                    each.mask_at(np.array((0.5, 0.5)), 40, 50, flip=False)
    return f"{[len(images.images) for images in sets]}"


def as_json(text: str) -> st.SearchStrategy[bytes]:
    return hostile.json_text(json.loads(text))


def tables(text: str) -> st.SearchStrategy[bytes]:
    """TOML: values changed, or the text damaged, nested deeply or with numbers and keys without end."""
    odd = (b"x=" + b"[" * 100_000, b"x=" + b"9" * 9000, b".".join([b"a"] * 50_000) + b"=1", b"x='''" + b"a" * 5_000_000)
    changed = hostile.changed(toml.parse_toml(text)).map(test_configs.as_toml)
    return st.one_of(changed, changed, hostile.damaged(text.encode()), st.sampled_from(odd))


def pickles(data: bytes) -> st.SearchStrategy[bytes]:
    values = hostile.changed(pickle.loads(data)).map(lambda value: pickle.dumps(value, protocol=2))
    bombs = st.sampled_from((pickle.dumps([[0] * 5000] * 200_000, protocol=2), b"cos\nsystem\n(S'true'\ntR."))
    return st.one_of(values, hostile.damaged(data), bombs)


def pictures() -> st.SearchStrategy[bytes]:
    """Damaged images of all formats, headers that claim other sides, and bombs."""
    whole = [data for name, data in test_images.files().items() if data]
    damaged = st.sampled_from(whole).flatmap(hostile.damaged)
    sides = st.tuples(st.sampled_from(sorted(test_images.MAKERS)), test_images.SIDES, test_images.SIDES)
    claimed = sides.map(lambda each: test_images.MAKERS[each[0]](each[1], each[2]))
    bombs = st.tuples(test_images.SIDES, test_images.SIDES, st.sampled_from((0, 2, 6))).map(
        lambda each: png_files.png(png_files.header(each[0], each[1], 8, each[2]), test_images.zeros(64))
    )
    return st.one_of(damaged, damaged, claimed, bombs)


def listed(text: str) -> st.SearchStrategy[bytes]:
    """A table of lines: damaged, or with odd names in it."""
    lines = text.splitlines()
    odd = st.tuples(st.sampled_from(range(len(lines) + 1)), hostile.names).map(
        lambda each: "\n".join([*lines[: each[0]], each[1], *lines[each[0] :]]).encode("utf-8", "surrogatepass")
    )
    return st.one_of(hostile.damaged(text.encode()), odd)


def attacks(sound: Path) -> dict[str, Attack]:
    """All kinds, by name, of what the sound folder holds."""

    def text(name: str) -> str:
        return (sound / name).read_text(encoding="utf-8")

    export: Words = ("zoo", "export", "{s}/one", "--out", "{s}/out")
    importing: Words = ("zoo", "import", "{s}/{target}", "--name", "another", *architecture())
    compare: Words = ("eval", "compare", "{s}/knn.json", "{s}/other.json")
    board: Words = ("eval", "leaderboard", "{s}/knn.json", "--out", "{s}/board")
    sets: Words = ("eval", "sets", "{s}/sets.toml", *KNN[2:4], *MACHINE, "--quiet", "--out", "{s}/setsout", "--shots")
    shrink: Words = ("pretrain", "shrink", "--data", "{s}/data", "--side", "16", "--out", "{s}/small")
    dense = on("dense", "--data", "{s}/dense", "--heads", "knn", "--k", "2")
    watch: Words = ("eval", "watch", "{s}/run", *KNN[4:-2], "--protocol", "knn --k 3", "--once", "--out", "{s}/w")
    clusters: Words = ("eval", "clusters", "--ckpt", "{s}/exported", *KNN[4:-2])
    image = "data/train/class1/2.png"
    transformers: Words = ("eval", "embed", "--ckpt", "{s}/transformers", *KNN[4:8], *MACHINE, "--out", "{s}/o.npz")
    row = tables(text(f"home/{catalogue.USERS}"))
    one = ("--ckpt", "{s}/one", *KNN[4:])
    return {
        "run checkpoints": Attack(
            "one/checkpoints/step-10.pt", (("eval", "knn", *one), ("zoo", "show", "{s}/one"), export), checked=True
        ),
        "foreign .pth": Attack("foreign.pth", (importing,)),
        "foreign .safetensors": Attack("foreign.safetensors", (importing,)),
        "exported weights": Attack(
            "exported/model.safetensors",
            (("eval", "knn", "--ckpt", "{s}/exported", *KNN[4:]),),
            checked=True,
        ),
        "exported heads": Attack("exported/excb_head.safetensors", (clusters,)),
        "exported config": Attack(
            "exported/config.json", (("zoo", "show", "{s}/exported"),), as_json(text("exported/config.json"))
        ),
        "transformers weights": Attack("transformers/model.safetensors", (transformers,)),
        "transformers config": Attack(
            "transformers/config.json", (transformers,), as_json(text("transformers/config.json"))
        ),
        "transformers processor": Attack(
            "transformers/preprocessor_config.json",
            (transformers,),
            as_json(text("transformers/preprocessor_config.json")),
        ),
        "recipes of runs": Attack(
            f"{RUN}/recipe.json",
            (
                ("zoo", "card", "{s}/" + RUN),
                watch,
            ),
            as_json(text(f"{RUN}/recipe.json")),
        ),
        "metrics of runs": Attack(
            f"{RUN}/metrics.jsonl",
            (("pretrain", "draw", "statistics", "{s}/" + RUN, "--out", "{s}/o.svg"),),
            test_results.metrics(),
        ),
        "embeddings .npz": Attack("e.npz", (loaded("e.npz"),), checked=True),
        "embeddings .safetensors": Attack("e.safetensors", (loaded("e.safetensors"),), checked=True),
        "embeddings .parquet": Attack("e.parquet", (loaded("e.parquet"),), checked=True),
        "embeddings for a map": Attack(
            "e.npz", (("eval", "map", "--embeddings", "{s}/e.npz", "--data", "{s}/data", "--out", "{s}/m.html"),)
        ),
        "results": Attack(
            "knn.json", (compare, board, ("zoo", "card", "mine", "--results", "{s}/knn.json")), test_results.results()
        ),
        "predictions": Attack("knn.npz", (compare,), checked=True),
        "images": Attack(image, (KNN, on("embed", "--data", "{s}/data", "--out", "{s}/o.npz"), shrink), pictures()),
        "images looked at twice": Attack(
            image, (on("search", "--data", "{s}/data", "--near-duplicates", "0.9", "--out", "{s}/o.html"),), pictures()
        ),
        "masks": Attack("dense/train/masks/1.png", (dense,), pictures()),
        "annotations": Attack(
            "coco/" + test_annotations.FILE.format("train"), (annotated,), test_annotations.annotations("train")
        ),
        "repaired annotations": Attack(
            "coco/" + test_annotations.FILE.format("val"),
            (("eval", "detection", "--repair", "{s}/clean", "--data", "{s}/coco"),),
            test_annotations.annotations("val"),
        ),
        "sets .toml": Attack("sets.toml", (sets,), tables(text("sets.toml"))),
        "catalogue .toml": Attack(
            f"home/{catalogue.USERS}", (("zoo", "list"), ("zoo", "show", "theirs"), ("zoo", "list", "--json")), row
        ),
        "claims .toml": Attack(
            "claims.toml",
            (("eval", "reproduce", "--list", "--claims", "{s}/claims.toml"),),
            tables(test_configs.as_toml(test_configs.CLAIMS).decode()),
        ),
        "records of hashes": Attack(
            "home/hashes.json", (("zoo", "show", "mine"),), as_json('{"a": {"sha256": "0", "size": 3}}')
        ),
        "ground truth .pkl": Attack(
            "revisited/gnd_roxford5k.pkl",
            (on("instances", "--data", "{s}/revisited"),),
            pickles((sound / "revisited/gnd_roxford5k.pkl").read_bytes()),
        ),
        "ground truth .csv": Attack(
            "pairs/ground_truth.csv", (on("instances", "--data", "{s}/pairs"),), listed(text("pairs/ground_truth.csv"))
        ),
        "labels .csv": Attack(
            "labels.csv",
            (("eval", "photos", "{s}/data", "--labels", "{s}/labels.csv", "--networks", "{s}/run", "--out", "{s}/o"),),
            listed(text("labels.csv")),
        ),
        "lists of images": Attack(
            "list.txt",
            (on("embed", "--data", "{s}/data", "--list", "{s}/list.txt", "--out", "{s}/o.npz"),),
            listed(text("list.txt")),
        ),
        "shards": Attack(
            "shards/000.tar",
            (on("embed", "--data", "{s}/shards", "--out", "{s}/o.npz"),),
            st.one_of(test_shards.tars(), hostile.damaged((sound / "shards/000.tar").read_bytes())),
        ),
        "indexes of shards": Attack(
            "cache/shards/*.npz", (on("embed", "--data", "{s}/shards", "--out", "{s}/o.npz"),), checked=True, warm=True
        ),
        "cached features": Attack("cache/features/*/*", (KNN,), checked=True, warm=True),
        "the table of digests": Attack("cache/digests.sqlite", (KNN,), warm=True),
        "results of sets": Attack("setsout/**/*.json", (sets,)),
        "predictions of sets": Attack("setsout/**/*.npz", (sets,)),
    }


# ---------------------------------------------------------------------------------------------------------------------
# One input
# ---------------------------------------------------------------------------------------------------------------------


class Input(NamedTuple):
    """One file to try: bytes, or the special file that takes its place; and numbers that choose file and command."""

    data: bytes | None
    special: str
    number: int


def inputs(attack: Attack, sound: Path) -> st.SearchStrategy[Input]:
    """The inputs of a kind; one of ten is a special file."""
    files = targets(attack, sound)
    number = st.integers(0, 2**20)

    def with_data(at: int) -> st.SearchStrategy[Input]:
        if attack.warm:
            return st.just(Input(None, "damage", at))
        data = hostile.damaged(files[at % len(files)].read_bytes()) if attack.drawn is None else attack.drawn
        return data.map(lambda made: Input(made, "", at))

    ordinary = number.flatmap(with_data)
    special = st.tuples(st.sampled_from(SPECIAL), number).map(lambda each: Input(None, *each))
    return st.one_of(*[ordinary] * 9, special)


def targets(attack: Attack, folder: Path) -> list[Path]:
    """The files that may be replaced."""
    found = sorted(file for file in folder.glob(attack.target) if file.is_file() and file.suffix != ".lock")
    return found or [folder / attack.target]


def replace(file: Path, given: Input) -> None:
    """Put the input in the file's place."""
    data = damaged(file.read_bytes(), given.number) if given.special == "damage" else given.data
    file.unlink(missing_ok=True)
    if data is not None:
        file.write_bytes(data)
        return
    match given.special:
        case "pipe":
            os.mkfifo(file)
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                here = os.open(file.parent, os.O_RDONLY)  # a socket's path must be short
                made.bind(f"/proc/self/fd/{here}/{file.name}")
                os.close(here)
        case "zero" | "null":
            file.symlink_to(f"/dev/{given.special}")
        case "folder":
            file.mkdir()
        case "dead link":
            file.symlink_to("nowhere")
        case "link to itself":
            file.symlink_to(file.name)
        case _:
            file.touch(0o000 if given.special == "unreadable" else 0o644)


def damaged(data: bytes, number: int) -> bytes:
    """Some bits flipped, a part zeroed or doubled, or the end cut off."""
    chance, changed = random.Random(number), bytearray(data)
    at, length = chance.randrange(len(data) or 1), chance.choice((1, 8, 64, 512))
    match chance.choice(("flip", "flip", "zero", "double", "cut")):
        case "flip":
            for place in (at, *(chance.randrange(len(data) or 1) for _ in range(chance.randrange(3)))):
                changed[place : place + 1] = bytes(
                    byte ^ 1 << chance.randrange(8) for byte in changed[place : place + 1]
                )
        case "zero":
            changed[at : at + length] = bytes(len(changed[at : at + length]))
        case "double":
            changed[at:at] = changed[at : at + length]
        case _:
            del changed[at:]
    return bytes(changed)


def call_of(attack: Attack, given: Input) -> Words | Callable[[Path], str]:
    """The command that reads this input."""
    return attack.commands[given.number % len(attack.commands)]


def answer(watch: guards.Guard, sound: Path, attack: Attack, given: Input | None, number: int) -> str | None:
    """The answer of a command on a copy of the sound folder, with the input in it; None if it refuses it."""
    folder = watch.folder / "s"
    shutil.copytree(sound, folder, symlinks=True)
    os.environ.update(EXCB_HOME=f"{folder}/home", EXCB_CACHE=f"{folder}/cache")
    call = attack.commands[number % len(attack.commands)]

    def called() -> str | None:
        if callable(call):
            return watch.run(partial(call, folder))
        program, *words = (word.replace("{s}", str(folder)).replace("{target}", attack.target) for word in call)
        if given is not None:
            return watch.command(PROGRAMS[program], *words)
        with redirect_stdout(io.StringIO()) as out:  # what is sound: an error goes to the log
            code = PROGRAMS[program](words)
        return out.getvalue() if code == 0 else None

    if attack.warm:
        called()
        watch.refused = False
    files = targets(attack, folder)
    if given is not None:
        replace(files[number % len(files)], given)
    text = called()
    return None if text is None else re.sub(r"\d+(\.\d+)? (s|ms|min)\b", "", text.replace(str(folder), "S"))


def try_one(sound: Path, attack: Attack, given: Input | None, number: int, note: Path) -> int:
    """In a fork: write a note of the answer, or of what went wrong."""
    guards.SECONDS = HANGS
    with guards.guard() as watch:
        os.environ[VARIABLE] = str(LIMIT)
        before = guards._resident()
        text = answer(watch, sound, attack, given, number)
        note.write_text(json.dumps({"answer": text, "taken": guards._peak() - before}))
    return 0


def verdict(ended: Ended, said: dict[str, Any], sound: str | None, attack: Attack) -> str:
    """ "" for an input that held, or the kind of what went wrong."""
    if ended.code is None or "HangError" in ended.log:
        return "hang"
    if ended.code != 0:
        return "forbidden" if "ForbiddenError" in ended.log else "traceback"
    if said["taken"] > TIMES * LIMIT * 1e9:
        return "amplified"
    if attack.checked and said["answer"] not in (None, sound):
        return "damage used"
    return ""


class Count(NamedTuple):
    """The figures of one kind of input."""

    tried: int
    refused: int
    faults: Counter[str]
    most: int  # bytes
    slowest: float
    examples: list[str]


def count(name: str, attack: Attack, sound: Path, number: int, work: Path) -> Count:
    """Try so many inputs of a kind."""
    answers, refused, faults, most, slowest, examples, tried = (
        dict[int, str | None](),
        0,
        Counter[str](),
        0,
        0.0,
        list[str](),
        0,
    )
    ways = len(attack.commands) * len(targets(attack, sound))
    note, log = work / "note.json", work / "log.txt"
    for way in range(ways if attack.checked else len(attack.commands)):
        note.unlink(missing_ok=True)
        fork(partial(try_one, sound, attack, None, way, note), log, patience=PATIENCE)
        answers[way] = json.loads(note.read_text())["answer"] if note.exists() else None
        if answers[way] is None and (sound / attack.target).exists():
            return Count(0, 0, Counter(), 0, 0.0, [f"what is sound is refused: {log.read_text()}"])

    def one(given: Input) -> None:
        nonlocal refused, most, slowest, tried
        way = given.number % ways
        note.unlink(missing_ok=True)
        ended = fork(partial(try_one, sound, attack, given, given.number, note), log, patience=PATIENCE)
        said: dict[str, Any] = json.loads(note.read_text()) if note.exists() else {"answer": None, "taken": 0}
        wrong = verdict(ended, said, answers.get(way), attack)
        tried, refused = tried + 1, refused + (said["answer"] is None)
        most, slowest = max(most, said["taken"]), max(slowest, ended.seconds)
        if wrong:
            faults[wrong] += 1
            kept = work / f"{re.sub(r'[^a-z]+', '-', name)}-{tried}"
            kept.with_suffix(".bin").write_bytes(given.data or b"")
            kept.with_suffix(".log").write_text(
                f"{given.special} {call_of(attack, given)}\n{ended}\n{ended.log}\n{said}\n{answers.get(way)}",
                errors="surrogateescape",
            )
            examples.append(str(kept))

    made: Any = hypothesis.given(inputs(attack, sound))(one)
    hypothesis.settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )(made)()
    return Count(tried, refused, faults, most, slowest, examples)


def run(sound: Path, number: int, work: Path, only: str) -> Iterator[tuple[str, Count]]:
    """Try so many inputs in all, the same of every kind."""
    kinds = {name: attack for name, attack in attacks(sound).items() if re.search(only, name)}
    for name, attack in kinds.items():
        yield name, count(name, attack, sound, -(-number // len(kinds)), work)
