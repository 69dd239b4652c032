"""`excb-eval photos` on sets whose labels are known: guesses from few labels, what to label next, and flipped labels.

Run: python -m benchmarks.photos {guesses,next,errors} TRAIN.npz TEST.npz [TRAIN.npz TEST.npz ...] [--seeds 5]
     python -m benchmarks.photos references FOLDER [FOLDER ...] [--seeds 3]
The files are embeddings of class folders (`excb-eval embed`): pairs of train and test images by one network each.

guesses: five labels of each class (--each); accuracy, calibration error and certainty on the rest of the train images,
which are what `excb-eval photos` guesses, and on the test images, which may have been taken elsewhere.
next: from no label to 100, 200 and 400 (--budgets) by each rule; accuracy of logistic regression on the test images.
errors: 5 % of the train labels flipped to another class (--flipped); precision and recall of what is doubted, beside
cleanlab's on the same probabilities (pip install cleanlab).
references: class folders; accuracy of raw pixels and of the colour histogram with as many steps of the solver as
`photos` allows them and with as many as it allows networks, and the CPU seconds of both.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from excb.images.scanning import scan_folder
from excb.inference.estimate import Estimate
from excb.references.baselines import WITHOUT_NETWORK, features_without_network
from excb.transfer.embeddings.embeddings import Embeddings
from excb.transfer.photos.label_errors import suspicious
from excb.transfer.photos.label_kinds import ONE
from excb.transfer.photos.labelling import next_to_label
from excb.transfer.photos.photos import REFERENCE_STEPS
from excb.transfer.photos.prediction import adaptive_calibration_error, certainty_of
from excb.transfer.photos.validation import Classifier, cross_validate, fit_classifier, validation_parts
from excb.transfer.probes.logistic import STEPS, Standard, fit_regression

PENALTY = 0.1  # C of every model of `next`, so that rules differ in images alone
RULES = ("random", "coverage", "uncertainty", "k-center", "both")


class Labelled(NamedTuple):
    """Vectors of class folders."""

    rows: Tensor  # [N, D]
    labels: np.ndarray  # int64 [N]
    classes: list[str]

    @classmethod
    def read(cls, file: Path, classes: Sequence[str] = ()) -> "Labelled":
        """Of a file; classes as of other images, or its own."""
        found = Embeddings.load(file)
        names = [path.split("/", 1)[0] for path in found.paths]
        classes = list(classes) or sorted(set(names))
        kept = [index for index, name in enumerate(names) if name in classes]
        labels = np.array([classes.index(names[index]) for index in kept])
        return cls(torch.from_numpy(found.vectors[kept]), labels, list(classes))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("guesses", "next", "errors", "references"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--each", type=int, default=5)
    parser.add_argument("--budgets", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--flipped", type=float, default=0.05)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "references":
        for folder in args.files:
            references(folder, args.seeds)
        return
    for train_file, test_file in zip(args.files[::2], args.files[1::2], strict=True):
        train = Labelled.read(train_file)
        test = Labelled.read(test_file, train.classes)
        print(f"{train_file.stem}: {len(train.rows):,} and {len(test.rows):,} images, {len(train.classes)} classes")
        {"guesses": guesses, "next": label_next, "errors": errors}[args.what](train, test, args)


def guesses(train: Labelled, test: Labelled, args: argparse.Namespace) -> None:
    """Five labels a class."""
    found = dict[str, list[float]]()
    for seed in range(args.seeds):
        random = np.random.default_rng(seed)
        known = np.concatenate(
            [_drawn(random, np.flatnonzero(train.labels == label), args.each) for label in range(len(train.classes))]
        )
        rows, labels = train.rows[known], torch.from_numpy(train.labels[known])
        validated = cross_validate(
            rows, labels, validation_parts(labels.numpy(), np.arange(len(known)), seed), classes=len(train.classes)
        )
        certainty = certainty_of(validated, 0.9)
        model = fit_classifier(rows, labels, validated, classes=len(train.classes))
        values = {"cross-validated": 100 * float(validated.hits.double().mean())}
        rest = np.setdiff1d(np.arange(len(train.rows)), known)
        for place, asked in {
            "rest": Labelled(train.rows[rest], train.labels[rest], train.classes),
            "test": test,
        }.items():
            confidence, guess = model.probabilities(asked.rows).max(1)
            hits, sure = guess == torch.from_numpy(asked.labels), confidence >= certainty.threshold
            values |= {
                f"{place}: accuracy": 100 * float(hits.double().mean()),
                f"{place}: ECE": 100 * adaptive_calibration_error(confidence, hits),
                f"{place}: ECE, T = 1": 100 * _uncalibrated(rows, labels, validated.C, asked),
                f"{place}: sure": 100 * float(sure.double().mean()),
            }
            if bool(sure.any()):
                values[f"{place}: right if sure"] = 100 * float(hits[sure].double().mean())
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    for name, some in found.items():
        print(f"  {name:20s} {_said(some)}")


def label_next(train: Labelled, test: Labelled, args: argparse.Namespace) -> None:
    """Labels chosen by each rule, in rounds."""
    curves = dict[tuple[str, int], list[float]]()
    for rule in RULES:
        for seed in range(args.seeds):
            known, before = np.full(len(train.rows), -1), 0
            for budget in args.budgets:
                chosen = _chosen(rule, train, known, budget - before, seed)
                known[chosen], before = train.labels[chosen], budget
                hits = _model(train, known).probabilities(test.rows).argmax(1) == torch.from_numpy(test.labels)
                curves.setdefault((rule, budget), []).append(100 * float(hits.double().mean()))
    for rule in RULES:
        print(f"  {rule:12s}", "  ".join(f"{budget}: {_said(curves[rule, budget])}" for budget in args.budgets))
        if rule != "random":
            gains = {b: np.subtract(curves[rule, b], curves["random", b]).tolist() for b in args.budgets}
            print("    - random   ", "  ".join(f"{budget}: {_said(gains[budget])}" for budget in args.budgets))


def errors(train: Labelled, _test: Labelled, args: argparse.Namespace) -> None:
    """Flipped labels."""
    found = dict[str, list[float]]()
    for seed in range(args.seeds):
        random = np.random.default_rng(seed)
        flipped = random.random(len(train.labels)) < args.flipped
        given = train.labels.copy()
        given[flipped] = (given[flipped] + random.integers(1, len(train.classes), int(flipped.sum()))) % len(
            train.classes
        )
        labels = torch.from_numpy(given)
        parts = validation_parts(given, np.arange(len(given)), seed)
        chances = cross_validate(train.rows, labels, parts, classes=len(train.classes)).probabilities
        ours = np.zeros(len(given), bool)
        ours[[index for index, _ in suspicious(chances, labels)]] = True
        for name, doubted in {"ours": ours, "cleanlab": _cleanlab(given, chances.numpy())}.items():
            right = int((doubted & flipped).sum())
            found.setdefault(f"{name}: precision", []).append(100 * right / max(1, int(doubted.sum())))
            found.setdefault(f"{name}: recall", []).append(100 * right / int(flipped.sum()))
    for name, values in found.items():
        print(f"  {name:20s} {_said(values)}")


def _chosen(rule: str, train: Labelled, known: np.ndarray, count: int, seed: int) -> list[int]:
    if rule == "random" or (rule == "uncertainty" and not (known >= 0).any()):
        random = np.random.default_rng([seed, int((known >= 0).sum())])
        return [int(index) for index in _drawn(random, np.flatnonzero(known < 0), count)]
    margins = ONE.margins(_model(train, known).probabilities(train.rows)) if (known >= 0).any() else None
    wanted: Any = None if rule == "both" else rule
    chosen: list[int] = next_to_label(train.rows, known, count, margins=margins, seed=seed, rule=wanted)[0]
    return chosen


def _model(train: Labelled, known: np.ndarray) -> Classifier:
    some = torch.from_numpy(known >= 0)
    standard = Standard.by_size(train.rows[some])
    labels = torch.from_numpy(known[known >= 0])
    model = fit_regression(standard(train.rows[some]), labels, PENALTY, classes=len(train.classes))
    return Classifier(ONE, standard, model.weight, model.bias, 1.0, PENALTY)


def _uncalibrated(rows: Tensor, labels: Tensor, C: float, test: Labelled) -> float:
    standard = Standard.by_size(rows)
    model = fit_regression(standard(rows), labels, C, classes=len(test.classes))
    confidence, guess = model.scores(standard(test.rows)).softmax(1).max(1)
    return float(adaptive_calibration_error(confidence, guess == torch.from_numpy(test.labels)))


def _cleanlab(labels: np.ndarray, chances: np.ndarray) -> np.ndarray:
    from cleanlab.filter import find_label_issues

    doubted: np.ndarray = find_label_issues(labels, chances, n_jobs=1)
    return doubted


def references(folder: Path, seeds: int) -> None:
    """Few and many steps of the solver."""
    images = scan_folder(folder)
    labels = torch.from_numpy(np.asarray(images.labels))
    classes = int(labels.max()) + 1
    print(f"{folder}: {len(images):,} images, {classes} classes")
    for name, (title, _) in WITHOUT_NETWORK.items():
        rows = features_without_network(name, images).rows
        found, cost = dict[int, list[float]](), dict[int, float]()
        for steps in (REFERENCE_STEPS, STEPS):
            before = time.process_time()
            for seed in range(seeds):
                parts = validation_parts(labels.numpy(), np.arange(len(labels)), seed)
                hits = cross_validate(rows, labels, parts, classes=classes, steps=steps).hits
                found.setdefault(steps, []).append(100 * float(hits.double().mean()))
            cost[steps] = (time.process_time() - before) / seeds
            print(f"  {title:20s} {steps:5,} steps: {_said(found[steps])}  {cost[steps]:.0f} CPU seconds", flush=True)
        print(f"  {title:20s} difference: {_said(np.subtract(found[STEPS], found[REFERENCE_STEPS]).tolist())}")


def _drawn(random: np.random.Generator, among: np.ndarray, count: int) -> np.ndarray:
    return random.permutation(among)[:count]


def _said(values: Sequence[float]) -> str:
    mean = Estimate.of_mean(values)
    return f"{mean.value:.1f} ± {mean.margin():.1f}"


if __name__ == "__main__":
    main()
