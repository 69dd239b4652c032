"""k-NN of images with a set of labels each: every neighbour votes for each class on its own."""

import time
from functools import partial

import torch

from excb.console import Reporter, plural
from excb.distributed.collectives import world_size
from excb.neighbours.knn import vote_on_labels
from excb.neighbours.nearest import nearest
from excb.results.result import ResultRecord, interval_text

from ..data.multilabel import MultiLabelImages
from ..protocol import Measurement
from ..reporting.label_scores import LabelScores, report_label_scores
from ..reporting.report import ScoredFiles
from ..task import Task
from .options import KnnOptions
from .protocol import checked


def measure(task: Task, options: KnnOptions, reporter: Reporter) -> Measurement:
    """Score every class of the test images by the train images nearest to them; arguments as `protocol.measure`.

    Returns:
        Figures `knn_mAP_k20`, `knn_mAP11_k20`, ... in percent, and the scores.

    Raises:
        UserError: as `protocol.measure`.
    """
    start = time.monotonic()
    train, test = task.train, task.test
    assert isinstance(train, MultiLabelImages)
    assert isinstance(test, MultiLabelImages)
    counts, search = checked(task, options, reporter)
    temperatures = options.temperature
    bank, queries = (task.stored(images, name, reporter).all() for images, name in ((train, "train"), (test, "test")))
    with reporter.progress(f"neighbours ({search})", len(queries)) as bar:
        neighbours = nearest(
            bank,
            queries,
            max(counts),
            backend=search,
            share=world_size() > 1,
            device=task.device,
            progress=bar.advance,
        )
    labels = torch.from_numpy(train.targets)
    values = {
        f"knn_{{}}_k{k}" + (f"_T{T:g}" if len(temperatures) > 1 else ""): vote_on_labels(
            neighbours, labels, k=k, temperature=T
        ).numpy()
        for k in counts
        for T in temperatures
    }
    scored = LabelScores(test.targets, test.paths, test.classes or (), values)
    result = report_label_scores(
        task,
        protocol="knn",
        settings={"k": counts, "temperature": list(temperatures), "similarity": "cosine", "vote": "exp(s / T)"},
        scored=scored,
        seconds=time.monotonic() - start,
        notes=[f"neighbours by {search}; other searches give the same"],
    )
    return Measurement(result, scored, partial(_show, result, len(bank), len(queries)), ScoredFiles(scored))


def _show(result: ResultRecord, train: int, test: int, reporter: Reporter) -> None:
    rows = [[name, f"{value:.2f}", interval_text(result.intervals.get(name))] for name, value in result.figures.items()]
    title = f"k-NN, {train:,} train and {plural(test, 'test image')}, sets of {plural(result.data['classes'], 'label')}"
    reporter.table(title, ["figure", "%", "95 % interval"], rows)
