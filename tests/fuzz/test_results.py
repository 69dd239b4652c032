"""Result files, leaderboard folders, predictions, metrics of runs and cached features that somebody else wrote."""

import hashlib
import io
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from excb.features.cache import FeatureStore
from excb.features.listing import FOLDER, META, entries, remove
from excb.inference.accuracy import accuracy_interval
from excb.pretrain.__main__ import main as pretrain
from excb.results.result import ResultRecord
from excb.transfer.cli import main as transfer
from excb.transfer.leaderboard.submission import check_result
from excb.transfer.reporting.predictions import Predictions
from excb.transfer.reporting.report import write_result as write_all
from excb.zoo.__main__ import main as zoo
from tests.fuzz import hostile
from tests.fuzz.guard import Guard
from tests.fuzz.lane import fuzz
from tests.transfer.result_files import linear, result

KIND = "results"


# ---------------------------------------------------------------------------------------------------------------------
# Results
# ---------------------------------------------------------------------------------------------------------------------


@cache
def sound() -> tuple[dict[str, Any], bytes]:
    """A sound result and the bytes of its predictions."""
    import tempfile

    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    top5 = torch.tensor([[0, 1], [0, 1], [2, 0], [0, 1], [0, 1], [0, 2]])
    ranked = {"knn_top1_k20": top5[:, :1], "knn_top5_k20": top5}
    intervals = {name: accuracy_interval((each == targets[:, None]).any(1)) for name, each in ranked.items()}
    predictions = Predictions(targets, [f"{n}.png" for n in range(6)], ("a", "b", "c"), {"knn_{}_k20": top5})
    with tempfile.TemporaryDirectory() as name:
        found = replace(result({"knn_top1_k20": 50.0, "knn_top5_k20": 100.0}), intervals=intervals)
        file = write_all(found, predictions, Path(name) / "mine.json")[0]
        return json.loads(file.read_text()), file.with_suffix(".npz").read_bytes()


@cache
def whole_results() -> tuple[dict[str, Any], ...]:
    others = (linear("rn50_400ep", 76.0), result({"bbox_AP": 40.0, "segm_AP": 36.0}, protocol="detection"))
    return (sound()[0], *(json.loads(each.to_json()) for each in others))


@st.composite
def results(draw: st.DrawFn) -> bytes:
    """A result with changes; in most the protocol's hash is made anew, so that more than the hash is read."""
    values = draw(hostile.changed(draw(st.sampled_from(whole_results()))))
    if draw(st.integers(0, 3)) and isinstance(values, dict):
        try:
            settings = json.loads(json.dumps(values.get("settings")))
            canonical = json.dumps([values.get("protocol"), settings], sort_keys=True, separators=(",", ":"))
        except (TypeError, ValueError):
            canonical = ""
        values["protocol_hash"] = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    if draw(st.integers(0, 7)) == 0:
        return draw(hostile.json_text(values))
    return json.dumps(values).encode()


@fuzz(KIND, inputs=40, text=results(), name=st.sampled_from(("mine.json", "\x1b[31m.json", "a b\udce9.json")))
def test_results(guard: Guard, text: bytes, name: str) -> None:
    folder = guard.folder / "results"
    folder.mkdir()
    file = folder / name
    file.write_bytes(text)
    (folder / "mine.npz").write_bytes(sound()[1])
    guard.run(lambda: ResultRecord.from_json(text.decode(errors="replace")))
    guard.run(lambda: check_result(file, ResultRecord.read(file)))
    board = str(guard.folder / "board")
    guard.command(transfer, "leaderboard", str(file), "--out", board)
    guard.command(transfer, "leaderboard", str(folder), "--json")
    guard.command(transfer, "leaderboard", str(file), "--check", "--json")
    guard.command(transfer, "leaderboard", str(file), "--submit", str(guard.folder / "board" / "results"))


@fuzz(KIND, inputs=40, text=results())
def test_results_compared_and_shown(guard: Guard, text: bytes) -> None:
    file, other = guard.folder / "mine.json", guard.folder / "other.json"
    file.write_bytes(text)
    other.write_text(json.dumps(sound()[0]))
    (guard.folder / "mine.npz").write_bytes(sound()[1])
    guard.command(transfer, "compare", str(file), str(other))
    guard.command(transfer, "compare", str(other), str(file), "--json")
    guard.command(zoo, "card", "tiny_grocery", "--results", str(file))


ARRAYS = st.sampled_from(
    (
        *(
            np.zeros(0, np.int64),
            np.array(3),
            np.full(6, 9),
            np.full(6, -1),
            np.zeros((6, 2)),
            np.zeros((6, 2, 2), np.int64),
        ),
        *(np.array(["x"] * 6), np.array([float("nan")] * 6), np.zeros((6, 7), np.int64), np.array([2**62] * 6)),
        *(
            np.array([["a", "b"]] * 6),
            np.array(["\x1b[31m", "b", "\ud800"]),
            np.zeros((1, 2), np.int64),
            np.ones(6, bool),
        ),
    )
)


@st.composite
def predictions(draw: st.DrawFn) -> bytes:
    """The bytes of an .npz file: arrays replaced, left out or added, or bytes changed."""
    packed = sound()[1]
    if draw(st.booleans()):
        return draw(hostile.damaged(packed))
    with np.load(io.BytesIO(packed)) as stored:
        arrays = {name: stored[name] for name in stored.files}
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(("targets", "names", "classes", "knn_{}_k20", "knn_{}", "{}_{}", "plain")))
        if draw(st.integers(0, 3)) == 0:
            arrays.pop(name, None)
        else:
            arrays[name] = draw(ARRAYS)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


@fuzz(KIND, inputs=80, packed=predictions(), name=st.one_of(st.just("mine.npz"), hostile.names))
def test_predictions(guard: Guard, packed: bytes, name: str) -> None:
    """Predictions whose hash is the one that the result states, and of a name that leads anywhere."""
    values = sound()[0] | {"predictions": {"file": name, "sha256": hashlib.sha256(packed).hexdigest()}}
    file, other = guard.folder / "mine.json", guard.folder / "other.json"
    file.write_text(json.dumps(values))
    (guard.folder / "mine.npz").write_bytes(packed)
    other.write_text(json.dumps(values | {"predictions": values["predictions"] | {"file": "mine.npz"}}))
    guard.run(lambda: check_result(file, ResultRecord.read(file)))
    guard.command(transfer, "compare", str(file), str(other))


# ---------------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------------

LINES: list[dict[str, Any]] = [
    {"kind": "step", "step": 10, "epoch": 0.5, "loss": 3.1, "rate": 0.1},
    {"kind": "epoch", "step": 20, "epoch": 1, "loss": 2.9, "confidence": 0.4, "agreement": 0.3, "smallest_cluster": 0.2,
     "largest_cluster": 3.0, "empty_clusters": 1, "purity": 0.3, "knn_top1": 40.0, "coincident_centroids": 0.1},
    {"kind": "alarm", "step": 20, "epoch": 1, "name": "chance", "message": "words"},
    {"kind": "epoch", "step": 40, "epoch": 2, "loss": 2.5, "confidence": 0.5, "agreement": 0.4, "smallest_cluster": 0.1,
     "largest_cluster": 2.0, "empty_clusters": 0},
]  # fmt: skip


@st.composite
def metrics(draw: st.DrawFn) -> bytes:
    """The lines of a run's journal with changes, and damage to the text now and then."""
    found = draw(hostile.changed(LINES, new=st.one_of(hostile.scalars, hostile.values)))
    lines = [json.dumps(line) for line in found] if isinstance(found, list) else [json.dumps(found)]
    text = "\n".join(lines).encode()
    return draw(hostile.damaged(text)) if draw(st.integers(0, 4)) == 0 else text


@fuzz(
    "runs",
    inputs=10,
    text=metrics(),
    recipe=hostile.json_text({"recipe": {"method": {"clusters": 8}}}),
    name=st.sampled_from(("run", "$x$ {y} \\frac", "a\x1b[31m", "\u202egnp")),
    labels=st.lists(hostile.names.map(lambda name: name.replace("\0", "0")), max_size=2),
    svg=st.booleans(),
)
def test_metrics(  # noqa: PLR0917 - named by the strategies
    guard: Guard, text: bytes, recipe: bytes, name: str, labels: list[str], svg: bool
) -> None:
    run, other = guard.folder / name, guard.folder / "other"
    for folder, content in ((run, text), (other, "\n".join(map(json.dumps, LINES)).encode())):
        folder.mkdir()
        (folder / "metrics.jsonl").write_bytes(content)
        (folder / "recipe.json").write_bytes(recipe)
    out = str(guard.folder / f"picture.{'svg' if svg else 'png'}")
    runs = [str(run), str(other)][: 1 + (len(labels) == 2)]
    given = (
        ["--labels", *labels] if len(labels) == len(runs) and not any(label.startswith("-") for label in labels) else []
    )
    guard.command(pretrain, "draw", "statistics", *runs, "--out", out, *given)


@fuzz(
    "runs",
    inputs=30,
    text=st.sampled_from((b"method,epochs,batch,accuracy\nExCB,100,1024,74.5\nSwAV,200,4096,73.9\n",)).flatmap(
        hostile.damaged
    ),
)
def test_points(guard: Guard, text: bytes) -> None:
    (guard.folder / "points.csv").write_bytes(text)
    guard.command(pretrain, "draw", "accuracy", str(guard.folder / "points.csv"), "--out", str(guard.folder / "x.png"))


# ---------------------------------------------------------------------------------------------------------------------
# Cached features
# ---------------------------------------------------------------------------------------------------------------------

META_VALUES = {
    "images": 6,
    "width": 3,
    "crc32": [1, 2],
    "made_from": {"architecture": {"name": "resnet50"}, "kind": "pooled"},
}


@cache
def shard() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.arange(9, dtype=np.float32).reshape(3, 3))
    return stream.getvalue()


@fuzz(
    "feature caches",
    inputs=100,
    text=hostile.json_text(META_VALUES),
    rows=st.one_of(
        st.deferred(lambda: hostile.damaged(shard())), st.deferred(lambda: hostile.damaged(shard(), until=128))
    ),
    extra=st.sampled_from(("", "00002.npy", "sub/x", "meta.json.tmp", "checksums.json", "00000.part.npz")),
)
def test_feature_caches(guard: Guard, text: bytes, rows: bytes, extra: str) -> None:
    folder = guard.folder / FOLDER / "key"
    folder.mkdir(parents=True)
    (folder / META).write_bytes(text)
    (folder / "00000.npy").write_bytes(rows)
    (folder / "00001.npy").write_bytes(shard())
    if extra:
        (folder / extra).parent.mkdir(exist_ok=True)
        (folder / extra).write_bytes({"checksums.json": text, "00000.part.npz": rows}.get(extra, b"x"))
    if extra == "checksums.json":
        (folder / META).unlink()
    store = FeatureStore(folder, [range(3), range(3, 6)], 3)
    told: list[str] = []
    missing = guard.run(lambda: store.missing(told.append))
    assert set(missing) <= {0, 1}
    guard.run(lambda: store.kept(missing, told.append))
    if not missing:
        assert guard.run(lambda: store.open().all()).shape == (6, 3)
    guard.run(lambda: entries(guard.folder))
    guard.command(transfer, "cache", "--cache", str(guard.folder))
    guard.run(lambda: remove(guard.folder))
    assert not (guard.folder / FOLDER).exists()
