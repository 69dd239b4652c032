"""The protocol of instance retrieval: rankings, their scores, references, and a result."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb.console import Reporter, plural
from excb.distributed.collectives import all_succeed, gather_objects, rank, world_size
from excb.inference import statistics
from excb.inference.basis import JACKKNIFE, stated
from excb.neighbours.nearest import nearest
from excb.neighbours.unit_rows import Rows
from excb.results.result import ResultRecord, interval_text

from ..protocol import Measurement
from ..reporting.predictions import ImageScores
from ..reporting.references import tell_notes
from .files import InstanceFiles
from .layouts.instance_set import FamilyName, InstanceSet
from .options import InstanceOptions
from .ranking import in_memory, positions
from .scores import PRECISION, Candidates, InstanceMeasurements, precision_at, trapezoid_precision, without_junk
from .setup import InstanceTask

KS = (1, 5, 10)  # of mP@k, as ROxford reports it
_QUERY = "query"  # the unit of all intervals; the gallery is taken as given
_MOST_GROUPS = 24  # rows of the table in a terminal
MICRO, RECALL = "copies_muAP", f"copies_recall_at_p{round(100 * PRECISION)}"


def measure(task: InstanceTask, options: InstanceOptions, reporter: Reporter) -> Measurement:
    """Rank the gallery for every query, and score the rankings; all ranks call this.

    Args:
        task: backbone and set.
        options: what to measure.
        reporter: prints notes and progress.

    Returns:
        Figures in percent, by the family of the set: `revisited_mAP_medium`, `revisited_mP_at_10_medium`, the same for
        hard and easy; or `copies_mAP` (of Copydays `copies_mAP_strong`, ...), `copies_muAP` and `copies_recall_at_p90`.
        And the scores of every query.

    Raises:
        UserError: an image cannot be read.
    """
    start = time.monotonic()
    measured = _measure(task, options, reporter)
    result = _result(task, options, measured, seconds=time.monotonic() - start)
    return Measurement(result, measured.scored, partial(_show, result), InstanceFiles(task, measured))


def figures_of(task: InstanceTask, measured: InstanceMeasurements) -> dict[str, float]:
    """Figures in percent."""
    figures = {name: statistics.percent(scores) for name, scores in measured.scored.values.items()}
    if task.instances.family == "copies":
        candidates = measured.candidates
        figures[MICRO] = 100 * candidates.micro_average_precision()
        figures[RECALL] = 100 * candidates.recall_at_precision()
    return {name: round(value, 4) for name, value in figures.items()}


def _measure(task: InstanceTask, options: InstanceOptions, reporter: Reporter) -> InstanceMeasurements:
    rows, queries = task.descriptors(reporter)
    gallery = all_succeed(lambda: in_memory(rows))
    ranks = _ranks(task, gallery, queries, reporter)
    k = min(options.candidates, len(gallery))
    with reporter.progress("nearest images", len(queries)) as bar:
        neighbours = nearest(
            gallery,
            queries,
            k,
            backend=options.backend,
            share=world_size() > 1,
            device=task.device,
            progress=bar.advance,
        )
    truth = [task.instances.relevant(query) for query in range(len(queries))]
    images = neighbours.indices.numpy()
    right = np.stack([np.isin(own, each) for own, each in zip(images, truth, strict=True)])
    positives = np.array([len(each) for each in truth])
    return InstanceMeasurements(
        _scored(task.instances, ranks), Candidates(images, neighbours.similarities.numpy(), right, positives)
    )


def _ranks(task: InstanceTask, gallery: Tensor | Rows, queries: Tensor, reporter: Reporter) -> list[Mapping[int, int]]:
    """For every query, the ranks of its judged images by their indices."""
    judged = [task.instances.judged(query) for query in range(len(queries))]
    asked = np.array([query for query, images in enumerate(judged) if len(images)])  # others have no average precision
    mine = asked[len(asked) * rank() // world_size() : len(asked) * (rank() + 1) // world_size()]
    device = task.device if task.device.type != "mps" else torch.device("cpu")  # without float64
    with reporter.progress("ranking", len(mine)) as bar:
        ranks_here = all_succeed(
            lambda: positions(
                gallery,
                queries[torch.from_numpy(mine)],
                [judged[query] for query in mine.tolist()],
                device=device,
                progress=bar.advance,
            )
        )
    merged: list[Mapping[int, int]] = [{} for _ in judged]
    ordered = [ranks for part in gather_objects(ranks_here) for ranks in part]
    for query, ranks in zip(asked.tolist(), ordered, strict=True):
        merged[query] = dict(zip(judged[query].tolist(), ranks.tolist(), strict=True))
    return merged


def _scored(instances: InstanceSet, ranks: list[Mapping[int, int]]) -> ImageScores:
    """Average precision, and mP@k where the set has it, of every query; NaN where it has no relevant image."""
    values: dict[str, Tensor] = {}
    for protocol, truths in instances.truth.items():
        clean = [
            without_junk(
                *(np.array([own[image] for image in images.tolist()]) for images in (each.relevant, each.junk))
            )
            for own, each in zip(ranks, truths, strict=True)
        ]
        if any(map(len, clean)):
            values[_figure(instances.family, "mAP", protocol)] = _by_query(trapezoid_precision, clean)
            for k in KS if instances.family == "revisited" else ():
                values[_figure(instances.family, f"mP_at_{k}", protocol)] = _by_query(
                    lambda own, k=k: precision_at(own, k),
                    clean,
                )
    classes = tuple(dict.fromkeys(instances.groups))
    targets = torch.tensor([classes.index(group) for group in instances.groups])
    return ImageScores(targets, instances.queries.paths, classes, values)


def _by_query(score: Any, ranks: list[np.ndarray]) -> Tensor:
    return torch.tensor([score(own) if len(own) else float("nan") for own in ranks], dtype=torch.float64)


def _figure(family: FamilyName, measure: str, protocol: str) -> str:
    return f"{family}_{measure}" + (f"_{protocol}" if protocol else "")


def _result(
    task: InstanceTask, options: InstanceOptions, measured: InstanceMeasurements, *, seconds: float
) -> ResultRecord:
    scored, described = measured.scored, task.describe()
    copies, scores = task.instances.family == "copies", scored.scores()
    intervals = {name: statistics.interval(each) for name, each in scores.items()}
    bases = {name: statistics.basis(each)._replace(unit=_QUERY) for name, each in scores.items()}
    if copies:
        bases[MICRO] = JACKKNIFE._replace(unit=_QUERY)
        if (ends := measured.candidates.spread().interval()) is not None:
            intervals[MICRO] = ends
    inference = stated(bases, intervals)
    if copies:
        inference[RECALL] = {"unit": _QUERY, "method": "none", "none": "single queries move it by jumps"}
    grouped = [name for name in scores if "_mAP" in name] if copies else scored.main
    return ResultRecord(
        protocol="instances",
        figures=figures_of(task, measured),
        settings=settings_of(task, options),
        checkpoint=described["checkpoint"],
        data=described["data"],
        ledger=described["ledger"],
        seconds=round(seconds, 1),
        intervals=intervals,
        inference=inference,
        per_class={name: statistics.by_class(scores[name], scored.targets, scored.classes) for name in grouped},
        notes=_notes(task, measured),
    )


def settings_of(task: InstanceTask, options: InstanceOptions) -> dict[str, Any]:
    """Every setting that figures depend on."""
    revisited = task.instances.family == "revisited"
    own = {"mP": list(KS)} if revisited else {"candidates": options.candidates, "precision": PRECISION}
    return task.settings | {"average_precision": "trapezoids", "ranking": "whole gallery"} | own


def _notes(task: InstanceTask, measured: InstanceMeasurements) -> list[str]:
    instances = task.instances
    notes = ["random weights, with the BatchNorm statistics of gallery images"] if task.is_untrained else []
    alone = int((measured.candidates.positives == 0).sum())
    if alone:
        copies = instances.family == "copies"
        what = "counted only in muAP, where all that is found is wrong" if copies else "left out"
        notes.append(f"no relevant image for {alone} of {plural(len(instances.queries), 'query', 'queries')}: {what}")
    for name, scores in measured.scored.values.items():
        empty = int(scores.isnan().sum()) - alone
        if instances.family == "revisited" and empty and "_mAP_" in name:
            notes.append(
                f"{name}: no relevant image of this difficulty for {plural(empty + alone, 'query', 'queries')}: left "
                "out"
            )
    return notes


def _show(result: ResultRecord, reporter: Reporter) -> None:
    rows = [
        [name.partition("_")[2].replace("_", " "), f"{value:.2f}", interval_text(result.intervals.get(name))]
        for name, value in result.figures.items()
    ]
    tell_notes(result, reporter)
    data = result.data
    title = (
        f"Instances, {plural(data['test']['images'], 'query', 'queries')} in a gallery of "
        f"{plural(data['train']['images'], 'image')}"
    )
    reporter.table(title, ["figure", "%", "95 % interval"], rows)
    groups = {
        name: f"{value:.2f}"
        for values in result.per_class.values()
        for name, value in values.items()
        if value is not None
    }
    if 1 < len(groups) <= _MOST_GROUPS:
        reporter.table("mAP by group of queries", ["group", "%"], [[name, value] for name, value in groups.items()])
