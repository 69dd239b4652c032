"""k-NN protocol: DINO's weighted vote of cosine neighbours on frozen features, every image counted once."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from excb.console import Reporter, plural
from excb.distributed.collectives import run_on_rank0, world_size
from excb.distributed.machine import available_memory
from excb.errors import UserError
from excb.neighbours.backends import available_backend
from excb.neighbours.knn import vote
from excb.neighbours.memory import search_memory
from excb.neighbours.nearest import nearest
from excb.results.result import ResultRecord, interval_text

from ..protocol import Measurement
from ..reporting.predictions import Predictions
from ..reporting.report import ScoredFiles, make_result
from ..task import Task
from .options import KnnOptions

KS = (10, 20, 100, 200)
HEADLINE_K = 20  # of the figure that pages show first: the confusion matrix is of this one, too
# Settings that no option changes. Results without "top5" also counted classes without a vote, in the classes' order.
FIXED = {"similarity": "cosine", "vote": "exp(s / T)", "top5": "classes with a vote"}


def measure(task: Task, options: KnnOptions, reporter: Reporter) -> Measurement:
    """Classify the test images by the train images nearest to them.

    Args:
        task: backbone and images.
        options: numbers of neighbours (by default 10, 20, 100 and 200, as far as there are train images),
            temperatures T of the weight exp(similarity / T), and the search. One search serves all k and T.
        reporter: prints notes and progress.

    Returns:
        Figures `knn_top1_k20`, `knn_top5_k20`, ... in percent (`knn_top1_k20_T0.1` with several temperatures), and the
        predictions.

    Raises:
        UserError: k or T out of range, FAISS wanted but not installed, or an image unreadable.
    """
    start = time.monotonic()
    assert task.train.labels is not None
    neighbour_counts, search = checked(task, options, reporter)
    temperatures = options.temperature
    width = task.extraction(task.train).width
    sizes = len(task.train), width, len(task.test), max(neighbour_counts)
    memory = partial(search_memory, *sizes, processes=world_size())
    held = memory()
    # A bank that would fill the memory is read from the cache's files instead, tile by tile.
    streamed = task.cache is not None and run_on_rank0(lambda: held.total * world_size() > available_memory() / 2)
    if streamed:
        held = memory(streamed=True)
    reporter.note(held.text)
    stored, labels = task.stored(task.train, "train", reporter), torch.from_numpy(task.train.labels)
    bank = stored if streamed else stored.all()
    queries, _ = task.features(task.test, "test", reporter)
    with reporter.progress(f"neighbours ({search})", len(queries)) as bar:
        neighbours = nearest(
            bank,
            queries,
            max(neighbour_counts),
            backend=search,
            share=world_size() > 1,
            device=task.device,
            progress=bar.advance,
        )
    classes = len(task.train.classes or ())
    votes = vote(neighbours, labels, ks=neighbour_counts, temperatures=temperatures, classes=classes)
    top5 = {
        f"knn_{{}}_k{k}" + (f"_T{T:g}" if len(temperatures) > 1 else ""): each.top5 for (k, T), each in votes.items()
    }
    predictions = Predictions.of(task, top5)
    if (pictured := f"knn_{{}}_k{HEADLINE_K}") in top5:
        predictions = replace(predictions, pictured=pictured)
    result = make_result(
        task,
        protocol="knn",
        settings={"k": neighbour_counts, "temperature": list(temperatures)} | FIXED,
        scored=predictions,
        seconds=time.monotonic() - start,
        notes=[f"neighbours by {search}; other searches give the same"],
    )
    return Measurement(result, predictions, partial(_show, result, predictions), ScoredFiles(predictions))


def _show(result: ResultRecord, predictions: Predictions, reporter: Reporter) -> None:
    rows = []
    for template in predictions.values:
        top1, top5 = template.format("top1"), template.format("top5")
        name = template.removeprefix("knn_{}_k").replace("_T", ", T = ")
        interval = interval_text(result.intervals.get(top1))
        rows.append([name, f"{result.figures[top1]:.2f}", interval, f"{result.figures[top5]:.2f}"])
    temperatures, data = result.settings["temperature"], result.data
    train, test = (data[part]["images"] for part in ("train", "test"))
    title = f"k-NN, {train:,} train and {plural(test, 'test image')}, {plural(data['classes'], 'class', 'classes')}"
    if len(temperatures) == 1:
        title += f", T = {temperatures[0]:g}"
    reporter.table(title, ["k", "top-1 %", "95 % interval", "top-5 %"], rows)


def checked(task: Task, options: KnnOptions, reporter: Reporter) -> tuple[list[int], Literal["faiss", "torch"]]:
    """The numbers of neighbours and the search for these images. Raises UserError as `measure` does."""
    options.check(None)
    counts = check_ks(options.k, len(task.train), reporter)
    return counts, available_backend(options.backend, task.device, task.extraction(task.train).width)


def check_ks(ks: Sequence[int] | None, images: int, reporter: Reporter) -> list[int]:
    """The numbers of neighbours to use, ascending and without repeats.

    Raises:
        UserError: one that the user named is below 1 or above the number of train images.
    """
    if ks is None:
        kept = [k for k in KS if k <= images] or [images]
        if len(kept) < len(KS):
            reporter.warn(f"only {plural(images, 'train image')}: k = {', '.join(map(str, kept))} instead of {KS}")
        return kept
    if wrong := [k for k in ks if not 1 <= k <= images]:
        raise UserError(f"--k {wrong[0]} is out of range: there are {plural(images, 'train image')} to vote")
    return sorted(set(ks))
