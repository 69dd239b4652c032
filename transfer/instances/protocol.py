"""The protocol of instance retrieval: rankings, their scores, references, and a result."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from excb.console import Reporter
from excb.distributed.collectives import all_succeed, gather_objects, rank, world_size
from excb.errors import require
from excb.images.image_set import Images
from excb.neighbours.nearest import nearest
from excb.neighbours.unit_rows import Rows
from excb.networks.backbone import weights_hash
from excb.references.untrained import NETWORK
from excb.results.result import Result, interval_text

from ..inference import statistics
from ..reporting.predictions import ImageScores
from ..reporting.references import PIXELS
from .instance_set import FamilyName
from .ranking import in_memory, positions
from .scores import PRECISION, Candidates, average_precision, precision_at, without_junk
from .setup import InstanceTask

KS = (1, 5, 10)  # of mP@k, as ROxford reports it
_MOST_GROUPS = 24  # rows of the table in a terminal
MICRO, RECALL = "copies_muAP", f"copies_recall_at_p{round(100 * PRECISION)}"


@dataclass(frozen=True)
class Request:
    """What is measured beside mAP."""

    candidates: int = 10  # nearest images of each query: the pairs of muAP, and what the page shows
    backend: Literal["auto", "faiss", "torch"] = "auto"

    def check(self) -> None:
        """Raise UserError unless it can be measured."""
        require(self.candidates >= 1, "--candidates is a number of images for each query, at least 1")


@dataclass(frozen=True)
class Measured:
    """What was measured, beside the result: scores of every query, and the nearest images of each."""

    scored: ImageScores
    candidates: Candidates


def evaluate(
    instances: InstanceTask,
    request: Request,
    reporter: Reporter,
    *,
    untrained: bool = False,
    pixels: bool = False,
    table: bool = True,
) -> tuple[Result, Measured]:
    """Rank the gallery for every query, and score the rankings; all ranks call this.

    Args:
        instances: backbone and set.
        request: what to measure.
        reporter: prints notes, progress and tables.
        untrained: also measure the same network untrained.
        pixels: also measure raw pixels.
        table: print the table.

    Returns:
        Figures in percent, by the family of the set: `revisited_mAP_medium`, `revisited_mP_at_10_medium`, the same for
        hard and easy; or `copies_mAP` (of Copydays `copies_mAP_strong`, ...), `copies_muAP` and `copies_recall_at_p90`.
        And what they were made of.

    Raises:
        UserError: an image cannot be read, or a setting is out of range.
    """
    start = time.monotonic()
    request.check()
    measured = _measure(instances, request, reporter)
    references: dict[str, dict[str, float]] = {}
    others = {NETWORK: instances.untrained} if untrained and not instances.task.is_untrained else {}
    for name, other in (others | ({PIXELS: instances.of_pixels} if pixels else {})).items():
        reporter.note(f"reference: {name}")
        references[name] = figures_of(instances, _measure(other(), request, reporter))
    result = _result(instances, request, measured, references, seconds=time.monotonic() - start)
    if table and rank() == 0:
        _print(result, reporter)
    return result, measured


def figures_of(instances: InstanceTask, measured: Measured) -> dict[str, float]:
    """Figures in percent."""
    figures = {name: statistics.percent(scores) for name, scores in measured.scored.values.items()}
    if instances.instances.family == "copies":
        candidates = measured.candidates
        figures[MICRO] = 100 * candidates.micro_average_precision()
        figures[RECALL] = 100 * candidates.recall_at_precision()
    return {name: round(value, 4) for name, value in figures.items()}


def _measure(instances: InstanceTask, request: Request, reporter: Reporter) -> Measured:
    rows, queries = instances.descriptors(reporter)
    gallery = all_succeed(lambda: in_memory(rows))
    ranks = _ranks(instances, gallery, queries, reporter)
    k = min(request.candidates, len(gallery))
    with reporter.progress("nearest images", len(queries)) as bar:
        found = nearest(
            gallery,
            queries,
            k,
            backend=request.backend,
            share=world_size() > 1,
            device=instances.task.device,
            progress=bar.advance,
        )
    truth = [instances.instances.relevant(query) for query in range(len(queries))]
    images = found.indices.numpy()
    right = np.stack([np.isin(own, each) for own, each in zip(images, truth, strict=True)])
    positives = np.array([len(each) for each in truth])
    return Measured(_scored(instances, ranks), Candidates(images, found.similarities.numpy(), right, positives))


def _ranks(
    instances: InstanceTask, gallery: Tensor | Rows, queries: Tensor, reporter: Reporter
) -> list[Mapping[int, int]]:
    """For every query, the ranks of its judged images by their indices."""
    judged = [instances.instances.judged(query) for query in range(len(queries))]
    asked = np.array([query for query, images in enumerate(judged) if len(images)])  # others have no average precision
    mine = asked[len(asked) * rank() // world_size() : len(asked) * (rank() + 1) // world_size()]
    device = instances.task.device if instances.task.device.type != "mps" else torch.device("cpu")  # without float64
    with reporter.progress("ranking", len(mine)) as bar:
        found = all_succeed(
            lambda: positions(
                gallery,
                queries[torch.from_numpy(mine)],
                [judged[query] for query in mine.tolist()],
                device=device,
                progress=bar.advance,
            )
        )
    whole: list[Mapping[int, int]] = [{} for _ in judged]
    ordered = [ranks for part in gather_objects(found) for ranks in part]
    for query, ranks in zip(asked.tolist(), ordered, strict=True):
        whole[query] = dict(zip(judged[query].tolist(), ranks.tolist(), strict=True))
    return whole


def _scored(instances: InstanceTask, ranks: list[Mapping[int, int]]) -> ImageScores:
    """Average precision, and mP@k where the set has it, of every query; NaN where it has no relevant image."""
    whole = instances.instances
    values: dict[str, Tensor] = {}
    for protocol, truths in whole.truth.items():
        clean = [
            without_junk(
                *(np.array([own[image] for image in images.tolist()]) for images in (each.relevant, each.junk))
            )
            for own, each in zip(ranks, truths, strict=True)
        ]
        if any(map(len, clean)):
            values[_figure(whole.family, "mAP", protocol)] = _by_query(average_precision, clean)
            for k in KS if whole.family == "revisited" else ():
                values[_figure(whole.family, f"mP_at_{k}", protocol)] = _by_query(
                    lambda own, k=k: precision_at(own, k),
                    clean,
                )
    classes = tuple(dict.fromkeys(whole.groups))
    targets = torch.tensor([classes.index(group) for group in whole.groups])
    return ImageScores(targets, whole.queries.paths, classes, values)


def _by_query(score: Any, ranks: list[np.ndarray]) -> Tensor:
    return torch.tensor([score(own) if len(own) else float("nan") for own in ranks], dtype=torch.float64)


def _figure(family: FamilyName, measure: str, protocol: str) -> str:
    return f"{family}_{measure}" + (f"_{protocol}" if protocol else "")


def _result(
    instances: InstanceTask,
    request: Request,
    measured: Measured,
    references: dict[str, dict[str, float]],
    *,
    seconds: float,
) -> Result:
    task, whole, scored = instances.task, instances.instances, measured.scored
    scores = scored.scores()
    intervals = {name: statistics.interval(each) for name, each in scores.items()}
    if whole.family == "copies":
        intervals |= dict(zip((MICRO, RECALL), measured.candidates.intervals(), strict=True))
    grouped = [name for name in scores if "_mAP" in name] if whole.family == "copies" else scored.main
    sets = {
        "train": _joined(whole.gallery, instances.distractors),
        "test": _described(whole.queries, whole.fingerprint),
    }
    return Result(
        protocol="instances",
        figures=figures_of(instances, measured),
        settings=settings_of(instances, request),
        checkpoint=task.describe_checkpoint() | {"weights_sha256": weights_hash(task.backbone.network)},
        data=sets | {"classes": len(scored.classes), "distractors": len(instances.distractors or ())},
        seconds=round(seconds, 1),
        intervals=intervals,
        per_class={name: statistics.by_class(scores[name], scored.targets, scored.classes) for name in grouped},
        notes=_notes(instances, measured),
        references=references,
    )


def settings_of(instances: InstanceTask, request: Request) -> dict[str, Any]:
    """Every setting that figures depend on."""
    family = instances.instances.family
    own = {"mP": list(KS)} if family == "revisited" else {"candidates": request.candidates, "precision": PRECISION}
    return instances.settings() | {"average_precision": "trapezoids", "ranking": "whole gallery"} | own


def _described(images: Images, *others: str) -> dict[str, Any]:
    """A set in a result; its fingerprint is one of all that these texts say, too."""
    text = " ".join([images.fingerprint, *others])
    digest = hashlib.sha256(text.encode()).hexdigest() if others else images.fingerprint
    return {"root": str(images.root), "images": len(images), "fingerprint": digest}


def _joined(gallery: Images, distractors: Images | None) -> dict[str, Any]:
    if distractors is None:
        return _described(gallery)
    return _described(gallery, distractors.fingerprint) | {"images": len(gallery) + len(distractors)}


def _notes(instances: InstanceTask, measured: Measured) -> list[str]:
    task, whole = instances.task, instances.instances
    notes = ["random weights, with the BatchNorm statistics of gallery images"] if task.is_untrained else []
    alone = int((measured.candidates.positives == 0).sum())
    if alone:
        what = (
            "count only in muAP, where all that is found for them is wrong"
            if whole.family == "copies"
            else "are left out"
        )
        notes.append(f"{alone} of {len(whole.queries)} queries have no relevant image: they {what}")
    for name, scores in measured.scored.values.items():
        empty = int(scores.isnan().sum()) - alone
        if whole.family == "revisited" and empty and "_mAP_" in name:
            notes.append(f"{name}: {empty + alone} queries have no relevant image of this difficulty and do not count")
    return notes


def _print(result: Result, reporter: Reporter) -> None:
    titles = {NETWORK: "untrained", PIXELS: "pixels"}
    shown = [name for name in titles if name in result.references]
    rows = [
        [name.partition("_")[2].replace("_", " "), f"{value:.2f}", interval_text(result.intervals[name])]
        + [f"{result.references[reference][name]:.2f}" for reference in shown]
        for name, value in result.figures.items()
    ]
    for note in result.notes:
        reporter.note(note)
    data = result.data
    title = f"Instances, {data['test']['images']:,} queries in a gallery of {data['train']['images']:,} images"
    reporter.table(title, ["figure", "%", "95 % interval", *(titles[name] for name in shown)], rows)
    groups = {
        name: f"{value:.2f}"
        for values in result.per_class.values()
        for name, value in values.items()
        if value is not None
    }
    if 1 < len(groups) <= _MOST_GROUPS:
        reporter.table("mAP by group of queries", ["group", "%"], [[name, value] for name, value in groups.items()])
