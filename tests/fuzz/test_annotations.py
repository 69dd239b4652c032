"""COCO's annotations of anybody: other values, boxes and polygons of nonsense, run-length codes that lead nowhere."""

import json
from functools import cache, partial
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from excb.transfer.cli import main
from excb.transfer.coco.reading import open_coco
from excb.transfer.coco.scoring import score
from tests.fuzz import hostile
from tests.fuzz.guard import Guard
from tests.fuzz.lane import fuzz
from tests.transfer.tiny_coco import write_coco

FILE = "annotations/instances_{}2017.json"
CODES = (
    "",
    "0",
    "o",
    "oooooooooooo",
    "1" * 5000,
    "PPPPPPPP",
    "\x7f",
    "\ud800",
    "é",
    "0" * 100_000,
    "zzzz0",
    "_" * 64,
    "5\0o",
)
codes = st.one_of(
    st.sampled_from(CODES), st.text(st.characters(min_codepoint=48, max_codepoint=111), max_size=40), hostile.names
)
far = st.one_of(hostile.numbers, st.integers(-300, 300), st.floats(-300, 300), st.sampled_from((1e6, 1e9, -1e9, 4e9)))
segments = st.one_of(
    st.lists(st.lists(far, max_size=9), max_size=3),
    st.lists(st.lists(st.integers(-90, 190), min_size=6, max_size=6), min_size=1, max_size=2),
    st.fixed_dictionaries({"size": st.just([64, 96]), "counts": codes}),
    st.fixed_dictionaries(
        {"size": st.just([64, 96]), "counts": st.lists(st.one_of(far, st.just(64 * 96)), max_size=5)}
    ),
    st.just({"size": [64, 96], "counts": [64 * 96 + 5, -5]}),
    hostile.values,
)
boxes = st.lists(far, min_size=3, max_size=5)


@cache
def tree() -> dict[str, bytes]:
    """A small set's files."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        root = write_coco(Path(name) / "set", train=3, val=2)
        return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@st.composite
def annotations(draw: st.DrawFn, split: str) -> bytes:
    """An annotation file with changes, most of them of its objects."""
    whole = json.loads(tree()[FILE.format(split)])
    match draw(st.integers(0, 5)):
        case 0:
            return draw(hostile.json_text(whole))
        case 1:
            whole = draw(hostile.changed(whole))
        case _:
            for entry in draw(st.lists(st.sampled_from(whole["annotations"]), min_size=1, max_size=3)):
                field, new = draw(
                    st.sampled_from(
                        (("segmentation", segments), ("segmentation", segments), ("bbox", boxes), ("area", far))
                    )
                )
                entry[field] = draw(new)
    return json.dumps(whole).encode()


@fuzz(
    "annotations",
    inputs=65,
    train=annotations("train"),
    val=annotations("val"),
    both=st.integers(0, 2),
    seed=st.integers(0, 9),
)
def test_annotations(guard: Guard, train: bytes, val: bytes, both: int, seed: int) -> None:
    root = guard.folder / "set"
    for name, data in tree().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    if both != 1:
        (root / FILE.format("train")).write_bytes(train)
    if both != 0:
        (root / FILE.format("val")).write_bytes(val)
    sets = guard.run(lambda: open_coco(root, check_all=bool(seed % 2)))
    for images in sets or ():
        for index, entry in enumerate(images.images):
            guard.run(partial(images.open, index))
            for each in entry.annotations:
                if each.trainable:
                    masks = guard.run(partial(each.mask_at, np.array((0.5, 0.5)), 40, 50, flip=bool(seed % 3)))
                    assert masks.shape == (40, 50)
    if sets is not None:
        guard.run(lambda: score(sets[1], []))


@fuzz("annotations", inputs=10, train=annotations("train"))
def test_the_command(guard: Guard, train: bytes) -> None:
    root = guard.folder / "set"
    for name, data in tree().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / FILE.format("train")).write_bytes(train)
    words = (
        "--ckpt",
        "nowhere.pt",
        "--data",
        str(root),
        "--schedule",
        "smoke",
        "--out",
        str(guard.folder / "out.json"),
    )
    guard.command(main, "detection", *words)
