"""Retrieval: how well cosine similarity of frozen features ranks images of a query's class before all others."""

import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from excb.console import Reporter, plural
from excb.distributed.collectives import all_succeed, gather_objects, rank, world_size
from excb.errors import require
from excb.results.result import ResultRecord, interval_text

from ..protocol import Measurement
from ..reporting.predictions import ImageScores
from ..reporting.references import tell_notes
from ..reporting.report import ScoredFiles, make_result
from ..task import Task
from .effects import GalleryEffects, Terms, precision_terms, r_precision_terms, recall_terms, score_of
from .halves import HalfScores
from .options import RetrievalOptions
from .ranking import relevant_ranks

KS = (1, 5, 10)
# Each figure's score of a query, by what its relevant images add. The first figure is the main one.
SMOOTH: dict[str, Terms] = {"retrieval_mAP": precision_terms}
STEPPED: dict[str, Terms] = {"retrieval_R_precision": r_precision_terms} | {
    f"retrieval_recall_at_{k}": recall_terms(k) for k in KS
}
MEASURES = SMOOTH | STEPPED


def measure(task: Task, options: RetrievalOptions, reporter: Reporter) -> Measurement:
    """Rank the whole gallery for every test image, and score where the images of its class stand.

    A query without an image of its class in the gallery has no score, and a note says how many there are.

    Args:
        task: backbone and images.
        options: gallery "train" ranks the train images; "test" ranks the other test images, without the query itself.
        reporter: prints notes and progress.

    Returns:
        Figures `retrieval_mAP`, `retrieval_R_precision` and `retrieval_recall_at_1`, `_5` and `_10` in percent, and
        every query's scores.

    Raises:
        UserError: no query has an image of its class in the gallery, or an image cannot be read.
    """
    start = time.monotonic()
    gallery = options.gallery
    images = task.train if gallery == "train" else task.test
    queries, targets = task.features(task.test, "test", reporter)
    rows, labels = task.features(images, gallery, reporter)
    first, end = (len(queries) * number // world_size() for number in (rank(), rank() + 1))
    effects = GalleryEffects(len(rows), len(queries), list(SMOOTH.values()))
    halves = HalfScores(labels.numpy(), targets.numpy(), KS, shared=gallery == "test")
    with reporter.progress("ranking", end - first) as bar:
        ranks = all_succeed(
            lambda: relevant_ranks(
                rows,
                queries[first:end],
                labels.numpy(),
                targets[first:end].numpy(),
                range(first, end) if gallery == "test" else None,
                device=task.device if task.device.type != "mps" else torch.device("cpu"),  # which has no float64
                effects=effects,
                halves=halves,
                first=first,
                progress=bar.advance,
            )
        )
    scores = np.array([[score_of(terms, own) for own in ranks] for terms in MEASURES.values()])
    all_scores = torch.from_numpy(np.concatenate(gather_objects(scores), axis=1))
    without = int(all_scores[0].isnan().sum())
    require(
        without < len(queries),
        f"no test image has another of its class among the {gallery} images to retrieve",
    )
    on_mean = np.sum(gather_objects(effects.of_mean(all_scores[: len(SMOOTH)].nanmean(1).numpy())), axis=0)
    on_halves = np.concatenate(gather_objects(halves.packed()), axis=2)
    scored = replace(
        ImageScores.of(task, dict(zip(MEASURES, all_scores, strict=True))),
        gallery=dict(zip(SMOOTH, torch.from_numpy(on_mean.round(9)), strict=True)),  # sums round with the processes
        halves=dict(zip(STEPPED, torch.from_numpy(on_halves), strict=True)),
        shared_gallery=gallery == "test",
    )
    those = f"{without} of {plural(len(queries), 'test image')}"
    note = f"no image of the same class in the gallery for {those}: left out"
    result = make_result(
        task,
        protocol="retrieval",
        settings={"gallery": gallery, "similarity": "cosine", "ranking": "whole gallery", "recall_at": list(KS)},
        scored=scored,
        seconds=time.monotonic() - start,
        notes=[note] if without else [],
    )
    gallery_size = len(rows) - (gallery == "test")
    # Of a class that train lacks, the task has said so.
    said = [note] if gallery == "train" else []
    show = partial(_show, result, len(queries) - without, gallery_size, said)
    return Measurement(result, scored, show, ScoredFiles(scored))


def _show(result: ResultRecord, queries: int, gallery: int, said: list[str], reporter: Reporter) -> None:
    rows = [
        [name.removeprefix("retrieval_").replace("_", " "), f"{value:.2f}", interval_text(result.intervals.get(name))]
        for name, value in result.figures.items()
    ]
    tell_notes(result, reporter, said=said)
    reporter.table(
        f"Retrieval, {plural(queries, 'query', 'queries')} in a gallery of {plural(gallery, 'image')}",
        ["figure", "%", "95 % interval"],
        rows,
    )
