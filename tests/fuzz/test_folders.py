"""Folders and lists of images that somebody else made: links, pipes, sockets, devices, loops, depths, odd lists."""

import os
import socket
import subprocess
from functools import cache, partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from excb.features.extraction import files_hash
from excb.images.image_set import ImageSet
from excb.images.scanning import scan_folder
from excb.networks.features import Inputs
from excb.networks.preprocessing import Preprocessing
from excb.pretrain.__main__ import main
from excb.pretrain.data.batch import NO_IMAGE
from excb.pretrain.data.loader import TrainingViews
from excb.pretrain.data.sampler import SampleRef
from excb.sources.opening import read_list
from excb.transfer.data import splits
from excb.transfer.data.sources import train_and_test
from tests.fuzz import hostile
from tests.fuzz.guard import Guard
from tests.fuzz.lane import fuzz
from tests.fuzz.test_images import files
from tests.run_files import tiny_recipe

KIND = "folders and lists"
PATH_MAX = 4096  # bytes of a path, with the zero at its end, that Linux takes


@cache
def recipe() -> Any:
    return tiny_recipe()


def read_all(guard: Guard, images: ImageSet) -> None:
    """Read every image as training and as the protocols do; what is none is told, never waited for."""
    training = TrainingViews(images, recipe())
    inputs = Inputs(images, Preprocessing(36, 32))
    for index in range(min(len(images), 8)):
        item = guard.run(partial(training.__getitem__, SampleRef(0, 0, index)))
        assert item.used != NO_IMAGE or item.broken
        guard.run(partial(inputs.__getitem__, index))
    guard.run(lambda: files_hash(images))


# ---------------------------------------------------------------------------------------------------------------------
# Trees
# ---------------------------------------------------------------------------------------------------------------------

KINDS = (
    *(
        "image",
        "image",
        "image",
        "empty",
        "text",
        "folder",
        "link out",
        "link to text",
        "link to nothing",
        "link to itself",
    ),
    *(
        "link to parent",
        "link to root",
        "pipe",
        "socket",
        "zero",
        "null",
        "hard link",
        "unreadable",
        "locked",
        "link to locked",
        "deep",
        "device loop",
    ),
)


def make(place: Path, kind: str, outside: Path) -> None:  # noqa: C901, PLR0912 - one case for each kind
    """Put one thing into a tree."""
    match kind:
        case "image":
            place.write_bytes(files()["rgb.png"])
        case "empty":
            place.touch()
        case "text":
            place.write_text("no image")
        case "folder":
            (place / "inner").mkdir(parents=True)
            (place / "inner" / "1.png").write_bytes(files()["one.png"])
        case "link out":
            place.symlink_to(outside / "image.png")
        case "link to text":
            place.symlink_to(outside / "secret.txt")
        case "link to nothing":
            place.symlink_to(outside / "absent.jpg")
        case "link to itself":
            place.symlink_to(place.name)
        case "link to parent":
            place.symlink_to("..")
        case "link to root":
            place.symlink_to(outside.parent)
        case "pipe":
            os.mkfifo(place)
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                here = os.open(place.parent, os.O_RDONLY)  # a socket's path must be short
                try:
                    made.bind(f"/proc/self/fd/{here}/{place.name}")
                finally:
                    os.close(here)
        case "zero" | "null":
            place.symlink_to(f"/dev/{kind}")
        case "hard link":
            os.link(outside / "image.png", place)
        case "unreadable":
            place.write_bytes(files()["rgb.png"])
            place.chmod(0)
        case "locked":
            make(place, "folder", outside)
            place.chmod(0)
        case "link to locked":
            place.symlink_to(outside / "locked" / "inner")
        case "deep":
            (place.with_suffix("") / "/".join("d" * 300)).mkdir(parents=True)
        case "device loop":
            place.symlink_to("/proc/self/fd/0")


@fuzz(
    KIND,
    inputs=30,
    kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(("a", "b", "a/c", "."))), min_size=1, max_size=10),
    endings=st.lists(st.sampled_from((".jpg", ".png", ".TIF", ".gif")), min_size=10, max_size=10),
)
def test_trees(guard: Guard, kinds: list[tuple[str, str]], endings: list[str]) -> None:
    outside, root = guard.folder / "outside", guard.folder / "images"
    outside.mkdir()
    (outside / "image.png").write_bytes(files()["rgb.png"])
    (outside / "secret.txt").write_text("secret")
    (outside / "locked").mkdir(mode=0)
    for number, (kind, folder) in enumerate(kinds):
        (root / folder).mkdir(parents=True, exist_ok=True)
        make(root / folder / f"{number}{endings[number]}", kind, outside)
    images = guard.run(lambda: scan_folder(root))
    if images is not None:
        read_all(guard, images)
    guard.run(lambda: train_and_test(None, root, root))
    guard.command(doctor, "doctor", "--data", str(root), "--out", str(guard.folder / "run"), "--gpus", "0", "--quiet")


def doctor(words: list[str]) -> int:
    """The doctor ends with 1 where it found what is in the way, and tells it in a table."""
    code = main(words)
    return 0 if code == 1 else code


@fuzz(KIND, inputs=6, levels=st.integers(1, 2000), name=st.sampled_from(("d", "dd")))
def test_depths(guard: Guard, levels: int, name: str) -> None:
    root = guard.folder / "images"
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for _ in range(levels):  # step by step: no path of so many parts can be named
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    with os.fdopen(os.open("1.png", os.O_WRONLY | os.O_CREAT, dir_fd=here), "wb") as stream:
        stream.write(files()["one.png"])
    os.close(here)
    (root / "0.png").write_bytes(files()["one.png"])
    try:
        images = guard.run(lambda: scan_folder(root))
        if images is not None:
            read_all(guard, images)
        else:  # nothing below such a path can be opened by its name
            assert len(f"{root}/{name}") + (levels - 1) * (len(name) + 1) >= PATH_MAX
    finally:  # Python's own `rmtree` calls itself for every level
        subprocess.run(["rm", "-rf", str(root)], check=True, timeout=60)


# ---------------------------------------------------------------------------------------------------------------------
# Lists
# ---------------------------------------------------------------------------------------------------------------------

PATHS = (
    "a/1.png",
    "b/2.png",
    "./a/1.png",
    "a//1.png",
    "a/../b/2.png",
    "2.png",
    "/dev/zero",
    "../outside.png",
    "a",
    "pipe.png",
)
lines = st.one_of(st.sampled_from(PATHS), st.sampled_from(PATHS), hostile.names)


@fuzz(
    KIND,
    inputs=100,
    listed=st.lists(lines, max_size=6).map("\n".join),
    damage=st.one_of(st.just(b""), st.just(b""), st.binary(max_size=8)),
    percent=st.sampled_from((1, 10, 0, 2**70)),
    name=st.sampled_from(("list.txt", "1percent.txt", "10percent.txt")),
)
def test_lists(guard: Guard, listed: str, damage: bytes, percent: int, name: str) -> None:
    root, file = guard.folder / "images", guard.folder / name
    for folder in ("a", "b"):
        (root / folder).mkdir(parents=True)
    (root / "a" / "1.png").write_bytes(files()["one.png"])
    (root / "b" / "2.png").write_bytes(files()["rgb.png"])
    os.mkfifo(root / "pipe.png")
    file.write_bytes(listed.encode("utf-8", "surrogatepass") + damage)
    images = guard.run(lambda: read_list(file, root))
    if images is not None:
        read_all(guard, images)
        guard.run(lambda: images.fingerprint)
    whole = scan_folder(root / "a")
    guard.run(lambda: splits.simclr_split(percent, whole, file=file, cache=guard.folder / "cache"))


@fuzz(KIND, inputs=60, listed=st.lists(st.tuples(lines, hostile.names), max_size=5), damage=st.binary(max_size=4))
def test_lists_of_classes(guard: Guard, listed: list[tuple[str, str]], damage: bytes) -> None:
    """A flat folder of test images, and the list beside it that gives their classes."""
    for place in ("train/x/1.png", "train/y/2.png", "test/1.png", "test/2.png"):
        (guard.folder / place).parent.mkdir(parents=True, exist_ok=True)
        (guard.folder / place).write_bytes(files()["one.png"])
    text = "\n".join(f"{name} {label}" for name, label in [("1.png", "x"), *listed])
    (guard.folder / "test.txt").write_bytes(text.encode("utf-8", "surrogatepass") + damage)
    guard.run(lambda: train_and_test(None, guard.folder / "train", guard.folder / "test"))
