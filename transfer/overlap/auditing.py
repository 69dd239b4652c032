"""The audit: pairs of train and test images that are almost the same, and the k-NN figure with and without them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from excb.console import Reporter, plural
from excb.distributed.collectives import world_size
from excb.files.csv_text import path_cell, plain_table
from excb.images.image_set import Images, ledger_of
from excb.inference import statistics
from excb.neighbours.knn import vote
from excb.neighbours.nearest import nearest
from excb.results.result import ResultRecord

from ..task import Task
from . import calibration
from .altered import KINDS, QUALITY, SIDES, mirrored
from .calibration import Calibration
from .descriptors import FLOOR, Descriptor, PerceptualHashes, WhitenedFeatures, Whitening, most_directions
from .hashing import bits_of
from .matching import DescriptorRows, Pair, pairs

NEIGHBOURS, TEMPERATURE = 20, 0.07  # of the k-NN figure: DINO's
SHARE, ALL, WITHOUT, ONLY = "overlap_images", "overlap_knn_all", "overlap_knn_without", "overlap_knn_only"

PAIRS = ("test", "train", "cosine", "bits", "by", "mirrored")  # columns


@dataclass(frozen=True)
class Audit:
    """The findings of an audit.

    Attributes:
        train: the train images that could be read.
        test: the test images that could be read.
        pairs: the most similar first.
        calibration: the thresholds, and what they find.
        result: figures with intervals.
    """

    train: Images
    test: Images
    pairs: list[Pair]
    calibration: Calibration
    result: ResultRecord

    def to_csv(self) -> str:
        """One line per pair, the most similar first."""
        described = (self.describe(pair).values() for pair in self.pairs)
        rows = [[path_cell(cell) if isinstance(cell, str) else cell for cell in cells] for cells in described]
        return plain_table(PAIRS, rows)

    def describe(self, pair: Pair) -> dict[str, Any]:
        """A pair with the names of its images, for JSON; the cosine is None without a checkpoint."""
        cosine = pair.similarities.get("features")
        return {
            "test": self.test.paths[pair.test],
            "train": self.train.paths[pair.train],
            "cosine": None if cosine is None else round(cosine, 4),
            "bits": bits_of(pair.similarities["hash"]),
            "by": "+".join(pair.by),
            "mirrored": pair.mirrored,
        }


def audit(
    task: Task | None,
    hashing: Task,
    reporter: Reporter,
    *,
    thresholds: Mapping[str, float],
    k: int = 3,
    planted: int = calibration.PLANTED,
    by_class: bool = False,
) -> Audit:
    """Find the test images that are almost the same as a train image; all ranks call this together.

    Args:
        task: backbone, train and test images; None compares hashes only.
        hashing: the same with a `PerceptualHash` as the backbone. If both sets have labels, they are of the same
            classes, and `task` gives the k-NN figure.
        reporter: prints notes and progress.
        thresholds: cosines that the user chose, by descriptor; the others are calibrated.
        k: train images that are compared with each test image, by each descriptor.
        planted: see `calibrate`.
        by_class: likewise.

    Raises:
        UserError: no image of a set can be read, or as `calibrate`.
    """
    start = time.monotonic()
    hashes = PerceptualHashes(hashing)
    train, (own, _) = hashes.readable(hashing.train, "train", reporter)
    test, sides = hashes.readable(hashing.test, "test", reporter)
    descriptors: dict[str, Descriptor] = {"hash": hashes}
    rows = {"hash": DescriptorRows(own, *sides)}
    if task is not None:
        task = replace(task, train=train, test=test)
        bank, queries = task.stored(train, "train", reporter), task.stored(test, "test", reporter)
        features = WhitenedFeatures(task, Whitening.fit(bank))
        flipped = features.rows(mirrored(test), "test, mirrored", reporter)
        descriptors = {"features": features, **descriptors}
        rows = {"features": DescriptorRows(features.whitening(bank), features.whitening(queries), flipped), **rows}
    banks = {name: each.train for name, each in rows.items()}
    limits = {name: each for name, each in thresholds.items() if name in descriptors}
    calibrated = calibration.calibrate(train, banks, descriptors, limits, reporter, planted=planted, by_class=by_class)
    near = {}
    for name, each in rows.items():
        reporter.note(f"{name}: {each.plan(k)}")
        with reporter.progress(f"neighbours by {name}", 2 * len(test)) as bar:
            near[name] = each.near(calibrated.thresholds[name], k, (task or hashing).device, bar.advance)
    matches = pairs(rows, calibrated.thresholds, near)
    calibrated = calibrated.with_either()
    overlapping = torch.zeros(len(test), dtype=torch.bool)
    overlapping[torch.tensor([pair.test for pair in matches], dtype=torch.int64)] = True
    scores = {SHARE: overlapping}
    if task is not None and train.labels is not None and test.labels is not None:
        hits = _hits(task, bank.all(), queries.all(), reporter)
        parts = {ALL: hits, WITHOUT: hits[~overlapping], ONLY: hits[overlapping]}
        scores |= {name: part for name, part in parts.items() if len(part)}
    compared = task or replace(hashing, train=train, test=test)
    result = _result(compared, scores, calibrated, k=k, planted=planted)
    return Audit(train, test, matches, calibrated, replace(result, seconds=round(time.monotonic() - start, 1)))


def _hits(task: Task, bank: Tensor, queries: Tensor, reporter: Reporter) -> Tensor:
    """Whether k-NN classifies each test image rightly, [Q] bool."""
    assert task.train.labels is not None
    assert task.test.labels is not None
    k = min(NEIGHBOURS, len(bank))
    with reporter.progress("neighbours that vote", len(queries)) as bar:
        neighbours = nearest(bank, queries, k, share=world_size() > 1, device=task.device, progress=bar.advance)
    labels, targets = torch.from_numpy(task.train.labels), torch.from_numpy(task.test.labels)
    votes = vote(neighbours, labels, ks=[k], temperatures=[TEMPERATURE], classes=len(task.train.classes or ()))
    return votes[k, TEMPERATURE].top1 == targets


def _result(task: Task, scores: dict[str, Tensor], calibration: Calibration, *, k: int, planted: int) -> ResultRecord:
    notes = []
    if calibration.planted < planted:
        few = f"{plural(calibration.planted, 'train image')} planted, half of {len(task.train):,}"
        notes.append(f"{few}, not {planted}: the other half chose the thresholds")
    for name, by_kind in calibration.found.items():
        scores |= {f"planted_{name}_{kind}": each for kind, each in by_kind.items()}
        scores[f"planted_{name}_false"] = calibration.alarms[name]
    return ResultRecord(
        protocol="overlap",
        figures={name: round(statistics.percent(each), 4) for name, each in scores.items()},
        intervals={name: statistics.interval(each) for name, each in scores.items()},
        inference={name: statistics.basis(each).to_dict() for name, each in scores.items()},
        settings={
            "cosine": calibration.thresholds.get("features"),
            "bits": bits_of(calibration.thresholds["hash"]),
            "k": k,
            "whitened": {"width": most_directions(len(task.train)), "floor": FLOOR},
            "planted": {"images": planted, "sides": SIDES, "quality": QUALITY, "kinds": list(KINDS)},
            "false_alarms": f"among {'other classes' if calibration.by_class else 'all other train images'}",
            "vote": {"k": NEIGHBOURS, "temperature": TEMPERATURE},
        },
        checkpoint=task.describe_checkpoint(),
        data={
            name: {"root": str(images.root), "images": len(images), "fingerprint": images.fingerprint}
            for name, images in (("train", task.train), ("test", task.test))
        },
        ledger=ledger_of(task.train).of("train") + ledger_of(task.test).of("test"),
        seconds=0.0,
        notes=notes,
    )
