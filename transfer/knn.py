"""k-NN protocol: DINO's weighted vote of cosine neighbours on frozen features, every image counted once."""

import math
import time
from collections.abc import Sequence
from typing import Literal

from excb.console import Reporter
from excb.errors import UserError, nearest_name
from excb.knn import accuracy, available_backend, nearest, vote
from excb.results import Result

from .task import Task

KS = (10, 20, 100, 200)


def evaluate(
    task: Task,
    reporter: Reporter,
    *,
    ks: Sequence[int] | None = None,
    temperature: float = 0.07,
    backend: Literal["auto", "faiss", "torch"] = "auto",
    table: bool = True,
) -> Result:
    """Classify the test images by the train images nearest to them.

    Args:
        task: backbone and images.
        reporter: where to talk.
        ks: numbers of neighbours; by default 10, 20, 100 and 200, as far as there are train images.
        temperature: T of the weight exp(similarity / T).
        backend: FAISS or torch; neighbours are exact and equal in both.
        table: print the table.

    Returns:
        Figures `knn_top1_k20`, `knn_top5_k20`, ... in percent.

    Raises:
        UserError: k or T out of range, FAISS wanted but not installed, or an image unreadable.
    """
    start = time.monotonic()
    if not 0 < temperature < math.inf:
        raise UserError("--temperature must be above 0, such as DINO's 0.07")
    chosen = check_ks(ks, len(task.train), reporter)
    search = available_backend(backend)
    for name, images in task.unknown.items():
        hint = nearest_name(name, task.train.classes or ())
        reporter.warn(
            f"no train image is of class {name}: its {images} test images count as wrong{hint} "
            f"(--rename {name}=TRAIN_CLASS)"
        )
    bank, labels = task.features(task.train, "train", reporter)
    queries, targets = task.features(task.test, "test", reporter)
    classes = len(task.train.classes or ())
    with reporter.progress(f"neighbours ({search})", len(queries)) as bar:
        neighbours = nearest(bank, queries, max(chosen), backend=search, device=task.device, progress=bar.advance)
    votes = vote(neighbours, labels, ks=chosen, temperature=temperature, classes=classes)
    figures: dict[str, float] = {}
    for k in chosen:
        top1, top5 = accuracy(votes[k], targets)
        figures[f"knn_top1_k{k}"], figures[f"knn_top5_k{k}"] = round(top1, 4), round(top5, 4)
    described = task.describe()
    result = Result(
        protocol="knn",
        figures=figures,
        settings={"k": list(chosen), "temperature": temperature, "backend": search, "similarity": "cosine"},
        checkpoint=described["checkpoint"],
        data=described["data"],
        seconds=round(time.monotonic() - start, 1),
    )
    if table:
        rows = [[str(k), f"{figures[f'knn_top1_k{k}']:.2f}", f"{figures[f'knn_top5_k{k}']:.2f}"] for k in chosen]
        title = f"k-NN, {len(bank):,} train and {len(queries):,} test images, {classes} classes, T = {temperature:g}"
        reporter.table(title, ["k", "top-1 %", "top-5 %"], rows)
    return result


def check_ks(ks: Sequence[int] | None, images: int, reporter: Reporter) -> list[int]:
    """The numbers of neighbours to use, ascending and without repeats.

    Raises:
        UserError: one that the user named is below 1 or above the number of train images.
    """
    if ks is None:
        kept = [k for k in KS if k <= images] or [images]
        if len(kept) < len(KS):
            reporter.warn(f"only {images} train images: k = {', '.join(map(str, kept))} instead of {KS}")
        return kept
    wrong = [k for k in ks if not 1 <= k <= images]
    if wrong:
        raise UserError(f"--k {wrong[0]} is out of range: there are {images} train images to vote")
    return sorted(set(ks))
