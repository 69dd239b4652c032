"""Which linear head suits how many labels: SGD with 50 heads, logistic regression and k-NN on the same features.

Run: python -m benchmarks.few_labels OUT.json NAME=SET ... [--ckpt mobilenetv2] [--labels 200 400 ...] [--splits 4]
SET has train/ and test/ with one folder per class. Of the train images, so many are drawn for each split. A repeated
call measures what OUT.json lacks, and prints a table: top-1 of each head in percent, the mean over splits, and
processor seconds of a fit.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb.console import Reporter
from excb.files.markdown import markdown_table
from excb.images.subset import Subset
from excb.neighbours.knn import vote
from excb.neighbours.nearest import nearest
from excb.sources.label_files import scan_labelled
from excb.transfer.data.classes import labelled_folder, with_classes_of
from excb.transfer.probes.heads import HeadBank
from excb.transfer.probes.penalty import Rule, choose_penalty, cross_validated, log_likelihood, right_share
from excb.transfer.probes.recipes import FEW_STRENGTHS, PROTOCOLS
from excb.transfer.probes.selection import HeadSettings, choose_among
from excb.transfer.probes.training import fitting, scaled, tried
from excb.transfer.task import Task

K, T = 20, 0.07
LABELS = (200, 400, 800, 1600, 3200, 6400)
POOL, TEST = 10_000, 2000  # images that splits are drawn from, and that judge, at most
Guess = Callable[["Split"], Tensor]


class Split:
    """Features of some train images and of the test images, with their classes."""

    def __init__(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: int, seed: int) -> None:
        (self.rows, self.labels), (self.queries, self.targets) = train, test
        self.classes, self.seed = classes, seed


def by_sgd(split: Split) -> Tensor:
    """`linear --protocol fast`."""
    plan = PROTOCOLS["fast"]
    rows, queries = scaled(split.rows, split.queries)

    def bank(heads: list[HeadSettings]) -> HeadBank:
        factor = min(len(rows), plan.batch) / plan.lr_batch
        rates, decays = [one["lr"] * factor for one in heads], [one["wd"] for one in heads]
        return HeadBank(split.classes, rows.shape[1], lr=rates, weight_decay=decays, seed=split.seed)

    fit = fitting(bank, plan, Reporter(quiet=True), what="heads", seed=split.seed)  # type: ignore[arg-type, unused-ignore]
    chosen = choose_among(
        tried(plan),
        (rows, split.labels),
        (queries, split.targets),
        fit,
        settings={},
        select="holdout",
        seed=split.seed,
    )
    guesses: Tensor = chosen.top5[:, 0]
    return guesses


def by_regression(strengths: tuple[float, ...], split: Split) -> Tensor:
    """`linear --protocol logreg` with one strength of the penalty, or logreg-cv with several."""
    rows, labels, classes = split.rows, split.labels, split.classes

    def judge(scores: Tensor, true: Tensor) -> tuple[float, float]:
        return right_share(scores, true), log_likelihood(scores, true)

    if len(strengths) == 1:
        fitted = choose_penalty(rows, labels, strengths, Rule.held_out(split.seed, judge), classes=classes)
    else:
        fitted = cross_validated(rows, labels, strengths, judge, classes=classes, seed=split.seed)
    guesses: Tensor = fitted.top(split.queries)[:, 0]
    return guesses


def by_vote(split: Split) -> Tensor:
    """`knn --k 20`."""
    k = min(K, len(split.rows))
    neighbours = nearest(split.rows, split.queries, k)
    return vote(neighbours, split.labels, ks=[k], temperatures=[T], classes=split.classes)[k, T].top1


HEADS: dict[str, Guess] = {
    "fast": by_sgd,
    "logreg, C = 1": lambda split: by_regression((1.0,), split),
    "logreg-cv": lambda split: by_regression(FEW_STRENGTHS, split),
    "k-NN": by_vote,
}


def features(ckpt: str, folder: Path, resize: int, crop: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Features and classes of at most `POOL` train and `TEST` test images."""
    train = labelled_folder(folder / "train")
    test = with_classes_of(scan_labelled(folder / "test", "test"), train)
    random, sets = np.random.default_rng(0), []
    for images, most in ((train, POOL), (test, TEST)):
        known = np.flatnonzero(np.asarray(images.labels) < len(train.classes or ()))
        sets.append(Subset(images, np.sort(random.permutation(known)[:most])))
    task = Task.prepare(ckpt, *sets, resize=resize, crop=crop, workers=0, cache=None)
    return tuple(
        task.features(images, name, Reporter(quiet=True)) for images, name in zip(sets, ("train", "test"), strict=True)
    )


def measure(places: dict[str, Path], options: argparse.Namespace, done: dict[str, Any]) -> None:
    """Measure what is missing, and keep it."""
    for name, folder in places.items():
        wanted = {
            f"{options.ckpt} {name} {labels} {seed}" for labels in options.labels for seed in range(options.splits)
        }
        if wanted <= done.keys():
            continue
        train, test = features(options.ckpt, folder, options.resize, options.crop)
        classes = int(train[1].max()) + 1
        for labels in options.labels:
            for seed in range(options.splits):
                key = f"{options.ckpt} {name} {labels} {seed}"
                if key in done or labels > len(train[1]):
                    continue
                drawn = torch.from_numpy(np.random.default_rng(seed).permutation(len(train[1]))[:labels])
                split = Split((train[0][drawn], train[1][drawn]), test, classes, seed)
                done[key] = {"classes": len(split.labels.unique()), "test": len(test[1])}
                for head, guess in HEADS.items():
                    start = time.process_time()
                    right = float((guess(split) == split.targets).double().mean())
                    done[key][head] = {"top1": round(100 * right, 2), "seconds": round(time.process_time() - start, 2)}
                options.out.write_text(json.dumps(done, indent=1) + "\n")
                print(key, done[key], flush=True)


def rows(done: dict[str, Any]) -> list[list[str]]:
    """One line per checkpoint, set and number of labels."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for key, one in done.items():
        groups.setdefault(key.rpartition(" ")[0], []).append(one)
    table = []
    for key, splits in groups.items():
        ckpt, name, labels = key.split(" ")
        cells = []
        for head in HEADS:
            top1, seconds = (np.mean([one[head][figure] for one in splits]) for figure in ("top1", "seconds"))
            cells.append(f"{top1:.1f} ({seconds:.1f} s)")
        table.append([ckpt, name, labels, str(splits[0]["classes"]), str(len(splits)), *cells])
    return table


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("sets", nargs="*", metavar="NAME=SET")
    parser.add_argument("--ckpt", default="mobilenetv2")
    parser.add_argument("--labels", type=int, nargs="+", default=LABELS)
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--resize", type=int, default=128)
    parser.add_argument("--crop", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = json.loads(options.out.read_text()) if options.out.exists() else {}
    measure({name: Path(folder) for name, _, folder in (each.partition("=") for each in options.sets)}, options, done)
    print(markdown_table(["checkpoint", "set", "labels", "classes", "splits", *HEADS], rows(done)))


if __name__ == "__main__":
    main()
