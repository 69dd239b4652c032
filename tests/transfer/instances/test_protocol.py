"""Tests of instance retrieval: figures against loops written from the papers, options, references, files, commands."""

import csv
import json
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import excb
from excb.console import Reporter
from excb.errors import UserError
from excb.features import precision
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.compare import compare_results
from excb.transfer.instances.descriptors import DescriptorOptions, Pooling
from excb.transfer.instances.files import InstanceFiles
from excb.transfer.instances.options import InstanceOptions
from excb.transfer.instances.record import INSTANCES
from excb.transfer.instances.scores import InstanceMeasurements
from excb.transfer.instances.setup import InstanceTask, _reader
from excb.transfer.leaderboard.submission import check_result
from excb.transfer.options import OwnSetOptions
from excb.transfer.protocols import headline, kind_of, title
from excb.transfer.runner import Evaluation
from tests.forked import launch
from tests.run_files import TINY_VIT, tiny_recipe, write_run
from tests.transfer.instances.sets import QUERY_BOX, picture, save, write_copydays, write_pairs, write_revisited

pytestmark = pytest.mark.usefixtures("one_thread")
QUIET = Reporter(quiet=True)
SIDE = 64  # of the runs' preprocessing
SCALES = (1, 0.5**0.5, 2**0.5)
ENTRIES: list[dict[str, Any]] = [
    {"bbx": list(QUERY_BOX), "easy": [0, 5], "hard": [10, 2], "junk": [3, 1]},
    {"bbx": list(QUERY_BOX), "easy": [6, 8], "hard": [], "junk": []},
    {"bbx": list(QUERY_BOX), "easy": [], "hard": [7, 9, 4], "junk": [0, 11, 2, 5]},
    {"bbx": list(QUERY_BOX), "easy": [], "hard": [], "junk": [1]},
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CNN, a ViT, and a set in each layout."""
    place = tmp_path_factory.mktemp("instances")
    write_run(place / "run", 5, recipe=tiny_recipe())
    write_run(place / "vit", 5, recipe=tiny_recipe(TINY_VIT))
    write_revisited(place / "revisited", ENTRIES)
    write_copydays(place / "copydays")
    write_pairs(place / "pairs")
    for index in range(9):
        save(picture(70 + index, noise=20, width=40 + index), place / "others" / f"{index}.jpg")
    return place


def evaluation(
    place: Path, data: str, run: str = "run", shared: dict[str, Any] | None = None, **own: Any
) -> Evaluation:
    usual: dict[str, Any] = {"ckpt": place / run, "device": "cpu", "workers": 0, "no_cache": True} | (shared or {})
    return Evaluation(INSTANCES, OwnSetOptions(**usual), InstanceOptions(data=place / data, **own))


def task(place: Path, data: str, run: str = "run", **own: Any) -> InstanceTask:
    opened = evaluation(place, data, run, **own).open(torch.device("cpu"), QUIET)
    assert isinstance(opened, InstanceTask)
    return opened


def measured(
    place: Path, data: str, run: str = "run", shared: dict[str, Any] | None = None, **own: Any
) -> tuple[ResultRecord, InstanceMeasurements]:
    asked = evaluation(place, data, run, shared, **own)
    made = asked.measure(asked.open(torch.device("cpu"), QUIET), QUIET)
    assert isinstance(made.write, InstanceFiles)
    return made.result, made.write.measured


# ---------------------------------------------------------------------------------------------------------------------
# Figures
# ---------------------------------------------------------------------------------------------------------------------

Embed = Callable[[Image.Image], np.ndarray]


def embedder(place: Path, *, longer: bool = False, gem: float | None = None, scales: Sequence[float] = (1,)) -> Embed:
    """One image at a time: resized by Pillow, and pooled as the papers say."""
    backbone = excb.load(place / "run", features="pool" if gem is None else "map")

    def embed(image: Image.Image) -> np.ndarray:
        size = (SIDE, SIDE)
        if longer and max(image.size) <= SIDE:
            size = image.size
        pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR)) / np.float32(255)
        normalised = (pixels - np.array(backbone.transform.mean, np.float32)) / np.array(
            backbone.transform.std, np.float32
        )
        whole = torch.from_numpy(normalised).permute(2, 0, 1)[None]
        total = 0.0
        for scale in scales:
            inputs = whole if scale == 1 else F.interpolate(whole, scale_factor=scale, mode="bilinear")
            with torch.no_grad():
                row = backbone(inputs)[0].double()
            if gem is not None:
                row = row.clamp(min=1e-6).pow(gem).mean((1, 2)).pow(1 / gem)
            total = total + row / row.norm()
        return np.asarray(total)

    return embed


def cosines(embed: Embed, queries: Sequence[Image.Image], gallery: Sequence[Image.Image]) -> np.ndarray:
    left, right = (np.stack([embed(image) for image in images]) for images in (queries, gallery))
    left, right = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (left, right))
    return np.asarray(left @ right.T)


def images_of(folder: Path, pattern: str) -> list[Image.Image]:
    return [Image.open(file).convert("RGB") for file in sorted(folder.glob(pattern))]


def revisited_by_loop(similarities: np.ndarray) -> dict[str, float]:
    """ROxford's evaluation: positions from 0, lowered by the junk before them; one image at a time."""
    wanted = {
        "medium": (["easy", "hard"], ["junk"]),
        "hard": (["hard"], ["junk", "easy"]),
        "easy": (["easy"], ["junk", "hard"]),
    }
    figures = {}
    for name, (right, ignored) in wanted.items():
        scores = []
        for entry, own in zip(ENTRIES, similarities, strict=True):
            answers = [image for part in right for image in entry[part]]
            junk = [image for part in ignored for image in entry[part]]
            if not answers:
                continue
            order = [image for image in np.argsort(-own, kind="stable").tolist() if image not in junk]
            places = sorted(order.index(image) for image in answers)
            precision = 0.0
            for number, position in enumerate(places):
                before = 1.0 if position == 0 else number / position
                precision += (before + (number + 1) / (position + 1)) / 2 / len(answers)
            at = []
            for k in (1, 5, 10):
                depth = min(max(places) + 1, k)
                at.append(sum(position < depth for position in places) / depth)
            scores.append([precision, *at])
        means = 100 * np.mean(scores, axis=0)
        figures[f"revisited_mAP_{name}"] = means[0]
        figures |= {f"revisited_mP_at_{k}_{name}": value for k, value in zip((1, 5, 10), means[1:], strict=True)}
    return figures


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        ({}, {}),
        ({"mode": "longer"}, {"longer": True}),
        ({"mode": "longer", "pooling": "gem", "scales": SCALES}, {"longer": True, "gem": 3, "scales": SCALES}),
        ({"pooling": "gem", "gem_power": 4.5}, {"gem": 4.5}),
    ],
    ids=["resize", "longer", "multi-scale GeM", "GeM"],
)
def test_figures_of_roxford_are_those_of_the_loop(place: Path, reading: dict[str, Any], words: dict[str, Any]) -> None:
    result, made = measured(place, "revisited", **reading)
    root = place / "revisited" / "jpg"
    queries = [image.crop(QUERY_BOX) for image in images_of(root, "gate_*.jpg")]
    expected = revisited_by_loop(cosines(embedder(place, **words), queries, images_of(root, "hall_*.jpg")))
    assert result.figures == pytest.approx(expected, abs=1e-3)
    assert list(result.figures) == list(expected)
    assert all(0 < value < 100 for name, value in result.figures.items() if "mAP" in name)
    assert made.scored.values["revisited_mAP_hard"].isnan().tolist() == [False, True, False, True]
    assert result.notes == [
        "no relevant image for 1 of 4 queries: left out",
        "revisited_mAP_hard: no relevant image of this difficulty for 2 queries: left out",
        "revisited_mAP_easy: no relevant image of this difficulty for 2 queries: left out",
    ]
    for name, (low, high) in result.intervals.items():
        assert low <= result.figures[name] <= high
    assert result.per_class == {"revisited_mAP_medium": {"gate": result.figures["revisited_mAP_medium"]}}
    assert headline(result.figures) == "revisited_mAP_medium"


def test_a_vit_takes_images_of_any_proportions(place: Path) -> None:
    reading: dict[str, Any] = {"mode": "longer", "pooling": "gem", "scales": (1, 0.5)}
    whole = task(place, "revisited", "vit", **reading)
    image = whole.instances.gallery.open(0)  # 48 x 36 pixels, in patches of 16
    assert list(whole.preprocessing(image).shape) == [3, 32, 48]
    result, _ = measured(place, "revisited", "vit", **reading)
    assert 0 < result.figures["revisited_mAP_medium"] < 100


def test_both_poolings_stand_side_by_side(place: Path) -> None:
    whole = task(place, "pairs", pooling="both")
    poolings: tuple[Pooling, ...] = ("own", "gem", "both")
    rows = {each: task(place, "pairs", pooling=each).descriptors(QUIET)[1] for each in poolings}
    assert torch.equal(rows["both"], torch.cat([rows["own"], rows["gem"]], 1))
    assert whole.extraction(whole.instances.queries).width == rows["both"].shape[1]


def test_figures_of_copies_are_those_of_the_loop(place: Path) -> None:
    result, _ = measured(place, "pairs", candidates=12)
    images = [images_of(place / "pairs" / folder, "*.jpg") for folder in ("queries", "references")]
    similarities = cosines(embedder(place), *images)
    pairs = sorted(((-value, q == r and q < 6) for q, own in enumerate(similarities) for r, value in enumerate(own)))
    right, area, best = 0, 0.0, 0.0
    for seen, (_, good) in enumerate(pairs, 1):
        right += good
        area += good * right / seen / 6
        best = max(best, right / 6 if right / seen >= 0.9 else 0)
    assert result.figures["copies_muAP"] == pytest.approx(100 * area, abs=1e-3)
    assert result.figures["copies_recall_at_p90"] == pytest.approx(100 * best, abs=1e-3)
    ranks = [1 + int((own > own[q]).sum()) for q, own in enumerate(similarities[:6])]
    single = [1.0 if rank == 1 else 1 / rank / 2 for rank in ranks]  # precision before the image is 0
    assert result.figures["copies_mAP"] == pytest.approx(100 * np.mean(single), abs=1e-3)
    assert list(result.figures) == ["copies_mAP", "copies_muAP", "copies_recall_at_p90"]
    assert all(0 < value < 100 for value in result.figures.values())
    alone = "counted only in muAP, where all that is found is wrong"
    assert result.notes == [f"no relevant image for 3 of 9 queries: {alone}"]


def test_pairs_that_are_no_candidates_are_not_found(place: Path) -> None:
    """With one candidate for each query, muAP is that of the nearest references alone."""
    result, made = measured(place, "pairs", candidates=1)
    assert made.candidates.images.shape == (9, 1)
    whole, _ = measured(place, "pairs", candidates=12)
    assert result.figures["copies_muAP"] < whole.figures["copies_muAP"]
    assert result.figures["copies_mAP"] == whole.figures["copies_mAP"]


def test_copydays_has_a_figure_for_each_kind_of_copies(place: Path) -> None:
    result, made = measured(place, "copydays")
    kinds = ["copies_mAP_strong", "copies_mAP_crops", "copies_mAP_jpeg"]
    assert list(result.figures) == [*kinds, "copies_muAP", "copies_recall_at_p90"]
    assert [int((~made.scored.values[kind].isnan()).sum()) for kind in kinds] == [2, 5, 5]
    assert result.figures["copies_mAP_jpeg"] > result.figures["copies_mAP_crops"]
    assert result.per_class["copies_mAP_crops"] == {
        "strong": None,
        "crops/30": result.figures["copies_mAP_crops"],
        "jpeg/10": None,
    }
    assert made.candidates.positives.tolist() == [1] * 12


def test_distractors_are_images_of_the_gallery_that_answer_nothing(place: Path, tmp_path: Path) -> None:
    result, _ = measured(place, "revisited", distractors=str(place / "others"))
    joined = write_revisited(tmp_path / "joined", ENTRIES)
    truth = pickle.loads((joined / "gnd_roxford5k.pkl").read_bytes())
    for index, file in enumerate(sorted((place / "others").glob("*.jpg"))):
        (joined / "jpg" / f"more_{index}.jpg").write_bytes(file.read_bytes())
        truth["imlist"].append(f"more_{index}")
    (joined / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(truth))
    whole, _ = measured(tmp_path, "joined", shared={"ckpt": place / "run"})
    assert result.figures == whole.figures
    without, _ = measured(place, "revisited")
    assert result.figures["revisited_mAP_medium"] < without.figures["revisited_mAP_medium"]
    assert result.data["train"]["images"] == without.data["train"]["images"] + 9
    assert result.data["train"]["fingerprint"] != without.data["train"]["fingerprint"]
    assert (result.protocol_hash, result.data["test"]) == (without.protocol_hash, without.data["test"])


def test_images_that_are_cropped_are_found_among_the_distractors(place: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    instances = task(place, "revisited").instances
    for name, images in {"query": instances.queries, "answer": instances.gallery}.items():
        shutil.copy(Path(images.root) / images.paths[0], tmp_path / "more" / f"{name}.jpg")
    entries = task(place, "revisited", distractors=str(tmp_path / "more")).ledger.entries
    said = [(entry.reason, entry.names[0].rpartition(" = ")[2]) for entry in entries if "distractors" in entry.reason]
    reason = "of the {} are among the distractors too"
    assert said == [(reason.format("queries"), "query.jpg"), (reason.format("gallery images"), "answer.jpg")]


def test_queries_and_answers_among_the_distractors_are_named_before_time_is_spent(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more").mkdir()
    references, queries = (
        {file.read_bytes() for file in (place / "pairs" / name).rglob("*.jpg")} for name in ("references", "queries")
    )
    (tmp_path / "more" / "a.jpg").write_bytes(min(queries - references))
    (tmp_path / "more" / "b.jpg").write_bytes(min(references - queries))
    shutil.copy(place / "others" / "0.jpg", tmp_path / "more" / "c.jpg")
    entries = task(place, "pairs", distractors=str(tmp_path / "more")).ledger.entries
    said = [entry for entry in entries if "distractors" in entry.reason]
    assert [(entry.count, entry.left_out) for entry in said] == [(1, False), (1, False)]
    assert [entry.names[0].rpartition(" = ")[2] for entry in said] == ["a.jpg", "b.jpg"]
    usual = command(place, "pairs", "--distractors", str(tmp_path / "more"), "--dry-run")
    assert main(usual) == 0
    assert capsys.readouterr().err.count("among the distractors too") == 2
    assert not any(
        "distractors" in entry.reason
        for entry in task(place, "pairs", distractors=str(place / "others")).ledger.entries
    )


def test_whitening_is_learned_on_other_images(place: Path) -> None:
    result, made = measured(place, "pairs", whiten_width=4, whiten=str(place / "others"))
    rows = {
        folder: np.stack([embedder(place)(image) for image in images_of(place / folder, "*.jpg")])
        for folder in ("others", "pairs/queries", "pairs/references")
    }
    mean = rows["others"].mean(0)
    _, deviations, axes = np.linalg.svd((rows["others"] - mean) / 3, full_matrices=False)  # 9 images
    left, right = ((rows[f"pairs/{name}"] - mean) @ axes[:4].T / deviations[:4] for name in ("queries", "references"))
    left, right = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (left, right))
    expected = -np.sort(-(left @ right.T), axis=1)[:, :10]
    assert made.candidates.similarities == pytest.approx(expected, abs=1e-4)
    assert result.settings["whitening"]["width"] == 4


def test_references_stand_beside_the_figures(place: Path) -> None:
    result, _ = measured(place, "copydays", shared={"untrained": True, "pixels": True})
    assert set(result.references) == {"untrained", "pixels"}
    assert all(values.keys() == result.figures.keys() for values in result.references.values())
    alone = INSTANCES.measure(
        task(place, "copydays").untrained(), InstanceOptions(data=place / "copydays"), QUIET
    ).result
    assert result.references["untrained"] == alone.figures
    assert alone.notes[0].startswith("random weights")
    pixels = result.references["pixels"]
    assert pixels["copies_mAP_jpeg"] == 100 > pixels["copies_mAP_crops"]


def test_all_settings_are_in_the_hash(place: Path) -> None:
    others = str(place / "others")
    changes: list[dict[str, Any]] = [
        {},
        {"mode": "longer"},
        {"mode": "crop"},
        {"size": 48},
        {"scales": (1, 2)},
        {"pooling": "gem"},
        {"pooling": "gem", "gem_power": 4.0},
        {"candidates": 3},
        {"whiten": others},
        {"whiten": others, "whiten_width": 2},
    ]
    hashes = [measured(place, "pairs", **given)[0].protocol_hash for given in changes]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("mode", ["resize", "longer"])
def test_half_precision_is_taken_and_checked(place: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    halved: dict[str, Any] = {"feature_precision": "bf16"}
    tasks: list[Any] = [
        evaluation(place, "pairs", "run", shared, mode=mode).open(torch.device("cpu"), QUIET) for shared in ({}, halved)
    ]
    rows = [each.descriptors(QUIET)[1] for each in tasks]
    assert not torch.equal(*rows)
    assert F.cosine_similarity(*rows).min() > 0.999
    result, _ = measured(place, "pairs", "run", halved, mode=mode)
    full, _ = measured(place, "pairs", mode=mode)
    assert result.settings == full.settings | {"feature_precision": "bf16"}
    monkeypatch.setattr(precision, "BOUND", 1e-12)
    with pytest.raises(UserError, match=r"bf16 changes the features .* use --feature-precision fp32"):
        measured(place, "pairs", "run", halved, mode=mode)


# ---------------------------------------------------------------------------------------------------------------------
# As a command
# ---------------------------------------------------------------------------------------------------------------------


def command(place: Path, data: str, *words: str) -> list[str]:
    usual = ["--ckpt", str(place / "run"), "--data", str(place / data), "--workers", "0", "--device", "cpu"]
    return ["instances", *usual, "--no-cache", *words]


def test_files_are_written_and_checked(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teacher, student = tmp_path / "teacher.json", tmp_path / "student.json"
    assert main(command(place, "pairs", "--out", str(teacher), "--pixels")) == 0
    printed = capsys.readouterr().out
    assert "Instances, 9 queries in a gallery of 12 images" in printed
    assert "pixels" in printed
    assert main(command(place, "pairs", "--out", str(student), "--network", "student", "--quiet")) == 0
    names = [f"teacher{ending}" for ending in (".html", ".json", ".npz", ".pairs.csv")]
    assert sorted(file.name for file in tmp_path.glob("teacher*")) == names
    assert check_result(teacher, ResultRecord.read(teacher))[-1] == "1 figure recounted from 9 predictions"
    with (tmp_path / "teacher.pairs.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 9 * 10
    assert rows[0].keys() == {"query_id", "reference_id", "score"}
    assert {row["query_id"] for row in rows} == {f"Q{index:03}" for index in range(9)}
    page = (tmp_path / "teacher.html").read_text(encoding="utf-8")
    assert page.count("<section") == 9
    assert 0 < page.count("<b>right") <= 6
    assert compare_results(teacher, student, QUIET, table=False)["figures"].keys() == {"copies_mAP"}
    values = json.loads(teacher.read_text(encoding="utf-8"))
    values["figures"]["copies_mAP"] -= 0.01
    values["intervals"]["copies_mAP"][0] -= 1
    teacher.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=r"copies_mAP is .*, and its predictions give"):
        check_result(teacher, ResultRecord.read(teacher))


def test_junk_is_marked_on_the_page_and_the_leaderboard_has_a_table(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "results" / "mine.json"
    assert main(command(place, "revisited", "--out", str(file), "--quiet", "--distractors", str(place / "others"))) == 0
    page = file.with_suffix(".html").read_text(encoding="utf-8")
    assert page.count("<b>junk") > 0
    assert not list(file.parent.glob("*.csv"))
    assert check_result(file, ResultRecord.read(file))[-1] == "12 figures recounted from 4 predictions"
    assert main(["leaderboard", str(file.parent), "--out", str(tmp_path / "board"), "--quiet"]) == 0
    text = (tmp_path / "board" / "leaderboard.md").read_text(encoding="utf-8")
    table = text.partition("## Retrieval of landmarks: ROxford and RParis")[2].partition("\n## ")[0]
    assert "| mAP medium |" in table


def test_two_processes_give_the_answer_of_one(place: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    words = ("--whiten", str(place / "others"), "--quiet", "--out")
    assert main(command(place, "copydays", *words, str(one))) == 0
    assert launch("excb.transfer.cli", command(place, "copydays", *words, str(two)), 2) == 0
    first, second = (ResultRecord.read(file) for file in (one, two))
    assert (first.figures, first.intervals) == (second.figures, second.intervals)
    assert first.predictions["sha256"] == second.predictions["sha256"]
    pairs = [file.with_suffix(".pairs.csv").read_bytes() for file in (one, two)]
    assert pairs[0] == pairs[1]


def test_cached_descriptors_are_used_again(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in command(place, "revisited", "--cache", str(tmp_path)) if word != "--no-cache"]
    assert main([*words, "--json"]) == 0
    first = capsys.readouterr()
    assert main([*words, "--json"]) == 0
    second = capsys.readouterr()
    assert "features of queries: 4 rows from" in second.err
    assert json.loads(first.out)["figures"] == json.loads(second.out)["figures"]


def test_a_dry_run_says_what_it_takes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(place, "revisited", "--dry-run", "--untrained")) == 0
    printed = capsys.readouterr().out
    assert "gallery: 12 images, none cached" in printed
    assert "layout revisited" in printed


@pytest.mark.parametrize(
    ("data", "words", "told"),
    [
        ("none", [], "no folder"),
        ("others", [], "has none of the layouts"),
        ("pairs", ["--layout", "revisted"], "did you mean 'revisited'"),
        ("pairs", ["--candidates", "0"], "--candidates is a number of images"),
        ("pairs", ["--scales", "0"], "--scales lie between 0 and 4"),
        ("pairs", ["--gem-power", "0"], "--gem-power must be above 0"),
        ("pairs", ["--size", "0"], "--size 0 is a side in pixels"),
        ("pairs", ["--whiten-width", "4"], "needs the images to learn it on: --whiten"),
        ("pairs", ["--batch-size", "0"], "--batch-size must be at least 1"),
        ("pairs", ["--batch-size", "8", "--mode", "longer"], "--batch-size has no use with --mode longer"),
        ("pairs", ["--gem-power", "4"], "--gem-power has no use with --pooling own"),
        ("copydays", ["--out", "{place}/copydays/strong/a.json"], "is among the images"),
        ("pairs", ["--whiten", "{place}/others", "--whiten-width", "99"], "9 images of 32 features whiten to 1 to 8"),
        ("pairs", ["--ckpt", "untrained:timm:mixer_s32_224", "--mode", "longer"], "choose --mode resize"),
        ("pairs", ["--out", "{place}/pairs/references/a.json"], "is among the images"),
    ],
)
def test_mistakes_are_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], data: str, words: list[str], told: str
) -> None:
    assert main(command(place, data, *(word.format(place=place) for word in words))) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("error:") == 1
    assert "Traceback" not in error


def test_a_malicious_ground_truth_is_one_line(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_revisited(tmp_path / "set", ENTRIES)
    file = tmp_path / "set" / "gnd_roxford5k.pkl"
    file.write_bytes(b"cposix\nsystem\n(Vtouch " + str(tmp_path / "witness").encode() + b"\ntR.")
    assert main([*command(place, "pairs")[:3], "--data", str(tmp_path / "set"), "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "names posix.system" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "witness").exists()


def test_python_evaluates_it_too(place: Path) -> None:
    usual: dict[str, Any] = {"device": "cpu", "workers": 0, "no_cache": True, "quiet": True}
    named = excb.evaluate(place / "run", "instances", data=place / "pairs", **usual)
    held = excb.evaluate(excb.load(place / "run"), "instances", data=place / "pairs", **usual)
    assert named.figures == held.figures
    assert len(named.predictions()["path"]) == 9
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 2))
    network.transform = lambda image: torch.zeros(3, 1, 1)  # type: ignore[assignment]
    with pytest.raises(UserError, match="instance retrieval resizes images by itself"):
        excb.evaluate(network, "instances", data=place / "pairs", **usual)


def test_candidates_are_of_copies_alone(place: Path) -> None:
    with pytest.raises(UserError, match=r"--candidates is of muAP, which only copies have: leave it out"):
        measured(place, "revisited", candidates=5)


def test_kinds_of_figures() -> None:
    for figure, family, metric in (
        ("revisited_mAP_medium", "revisited", "mAP medium"),
        ("revisited_mP_at_10_hard", "revisited", "mP@10 hard"),
        ("copies_muAP", "copies", "muAP"),
        ("copies_recall_at_p90", "copies", "recall at 90 % precision"),
        ("copies_mAP_strong", "copies", "mAP strong"),
        ("copies_mAP", "copies", "mAP"),
    ):
        kind = kind_of(figure)
        assert kind is not None
        assert (kind.family, kind.metric) == (family, metric)
    assert kind_of("revisited_mAP_harder") is None
    assert title("copies_muAP") == "copies muAP"


def test_gem_needs_a_map() -> None:
    backbone: Any = SimpleNamespace(network=nn.Flatten())
    with pytest.raises(UserError, match=r"choose --pooling own .this Flatten gives no maps"):
        _reader(backbone, DescriptorOptions(pooling="gem"))
