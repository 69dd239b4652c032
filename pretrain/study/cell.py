"""One cell of a study: an ordinary run, evaluated by k-NN and by its cluster sizes, recorded in one JSON file."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from excb import ledger
from excb.checkpoint import run_checkpoint
from excb.console import Reporter
from excb.distributed.machine import choose_device
from excb.distributed.workers import worker_count
from excb.errors import UserError
from excb.files import json_text
from excb.files.foreign import read_text
from excb.files.records import anything, count, line, number, record_of, table, table_of
from excb.files.run_files import RECIPE, REPORT
from excb.hub import loading
from excb.hub.trained_heads import NetworkHeads
from excb.images.image_set import Images
from excb.neighbours.knn import top_accuracies, vote
from excb.neighbours.nearest import nearest
from excb.networks.features import Features, Inputs, extract
from excb.references import patches
from excb.references.baselines import REFERENCES, UNTRAINED, features_without_network
from excb.references.untrained import estimate_batchnorm, evenly_spread
from excb.results.result import environment

from ..initialise import build_model
from ..loop import run_training
from ..recipe import Recipe
from ..run.monitor import KNN_TEMPERATURE, Monitor
from ..run.run_folder import MEASURING, RESUMABLE_CHANGES, recipe_differences
from ..run.sets import ImageSets

SCHEMA, FILE = 1, "cell.json"
K = 20  # neighbours of the k-NN figure
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the relative cluster sizes
ROWS = 4096  # features whose similarities to all centroids are in memory at once


# What is read of a cell; files of all versions hold it.
_FIELDS = {
    "schema": count,
    "seed": count,
    "figures": table_of(anything),
    "seconds": table_of(number),
    "recipe": record_of(
        {"init": anything, "optim": record_of({"epochs": number}, required=["epochs"], extra=True)},
        required=["init", "optim"],
        extra=True,
    ),
    "data": record_of(
        {
            "judged_on": line,
            "train": record_of({"images": count, "root": line}, required=["images", "root"], extra=True),
        },
        required=["judged_on", "train"],
        extra=True,
    ),
    "data_digest": line,
    "environment": table,
}
_RULE = record_of(_FIELDS | {"ledger": ledger.RULE}, required=_FIELDS, extra=True)


@dataclass(frozen=True)
class CellRun:
    """One cell at one seed: the base recipe with the overrides shared by all cells, then its own."""

    cell: str
    shared: tuple[str, ...]
    own: tuple[str, ...]
    recipe: Recipe
    folder: Path

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.recipe.run.seed

    @property
    def epochs(self) -> int:
        """Passes over the training images: the measure of the job's cost."""
        return 0 if self.cell in REFERENCES else self.recipe.optim.epochs

    def finished(self) -> dict[str, Any] | None:
        """The contents of `cell.json`, or None if it does not exist yet.

        Raises:
            UserError: the file is damaged, or of another schema.
        """
        file = self.folder / FILE
        if not file.is_file():
            return None
        try:
            contents: dict[str, Any] = json_text.parse(read_text(file))
            readable = _RULE(contents) is None and contents["schema"] == SCHEMA
        except ValueError:
            readable = False
        if not readable:
            raise UserError(f"{file} is not a cell of this version: move {self.folder} away to run it again")
        return contents

    def changes(self, sets: ImageSets) -> list[str]:
        """How the cell in the folder, finished or started, differs from this job: each as "section.field was A, now B".

        Raises:
            UserError: `cell.json` is damaged, or of another schema.
        """
        if (contents := self.finished()) is None:
            return self._changes_since_begun()
        usual = decisive(Recipe(name="").all_values())
        # A field that a file leaves out, or an earlier version did not have, counts as its default.
        old, new = usual | decisive(contents["recipe"]), decisive(self.recipe.all_values())
        names = [name for name in old | new if old.get(name) != new.get(name)]
        changed = [f"{name} was {old.get(name)}, now {new.get(name)}" for name in names]
        if contents["data_digest"] != sets.digest:
            before = contents["data"]["train"]
            changed.append(f"the images differ, they were {before['images']:,} from {before['root']}")
        return changed

    def _changes_since_begun(self) -> list[str]:
        """Changed fields of a started run. The run folder itself refuses other images and a damaged `recipe.json`."""
        try:
            begun = json_text.parse(read_text(self.folder / RECIPE))
            return recipe_differences(begun["recipe"], self.recipe.to_dict())
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return []


def decisive(recipe: dict[str, Any]) -> dict[str, Any]:
    """The values of a recipe that its figures depend on, as section.field."""
    values = {"init": recipe["init"]} | {
        f"{section}.{field}": value
        for section, fields in recipe.items()
        if isinstance(fields, dict)
        for field, value in fields.items()
    }
    return {
        name: value
        for name, value in values.items()
        if name in MEASURING or not {name, name.partition(".")[0]} & set(RESUMABLE_CHANGES)
    }


def recipe_digest(recipe: Recipe) -> str:
    """16 hexadecimal digits, equal for recipes that give equal figures on equal images."""
    return hashlib.sha256(json.dumps(decisive(recipe.to_dict()), sort_keys=True).encode()).hexdigest()[:16]


def run_cell(job: CellRun, sets: ImageSets, reporter: Reporter) -> int:
    """Train or resume one cell, evaluate it and write its `cell.json`.

    Returns:
        Exit code: 0, or 128 + the signal that stopped the run.

    Raises:
        UserError: the run cannot be made, or its loss is no longer finite.
    """
    device, recipe = choose_device(job.recipe.efficiency.device), job.recipe
    training: dict[str, Any] = {}
    if job.cell not in REFERENCES:
        if code := run_training(
            job.recipe, sets.train, job.folder, reporter, device=device, table=False, verdict=False
        ):
            return code
        training = json_text.parse(read_text(job.folder / REPORT))
        begun = json_text.parse(read_text(job.folder / RECIPE))["recipe"]
        recipe = recipe.change(efficiency={"precision": begun["efficiency"]["precision"]})  # what `auto` was there
    found = sets.ledger + ledger.Ledger.from_dict(training.get("ledger", {})).of("train")
    start = time.monotonic()
    if job.cell in REFERENCES:
        job.folder.mkdir(parents=True, exist_ok=True)
    if job.cell == UNTRAINED:
        measured = _measure_untrained(job, sets, device)
    elif job.cell == patches.NAME:
        measured = _measure_patches(recipe, sets, device)
    elif job.cell in REFERENCES:
        measured = {"figures": _knn(lambda images: features_without_network(job.cell, images), sets)}
    else:
        measured = _measure(job, sets, device, training)
    contents = {
        "schema": SCHEMA,
        "cell": job.cell,
        "seed": job.seed,
        "overrides": [*job.shared, *job.own],
        **measured,
        "seconds": {"training": training.get("seconds", 0.0), "measuring": round(time.monotonic() - start, 1)},
        "images_per_second": training.get("images_per_second"),
        "recipe_digest": recipe_digest(job.recipe),
        "data_digest": sets.digest,
        "data": sets.to_dict(),
        "environment": environment() | {"threads": torch.get_num_threads(), "trained_on": device.type},
        "recipe": recipe.to_dict(),
    } | ({"ledger": found.to_dict()} if found else {})
    json_text.write_json(contents, job.folder / FILE)
    return 0


def _measure(job: CellRun, sets: ImageSets, device: torch.device, report: dict[str, Any]) -> dict[str, Any]:
    """Figures of a trained cell: the last epoch's, k-NN, and the teacher's assignments of the plain images."""
    last = report["last"]
    names = ("loss", "confidence", "agreement", "purity", "smallest_cluster", "largest_cluster", "same_winner")
    figures = {name: last[name] for name in names if name in last}
    figures |= _of_features(last)
    backbone = loading.load(job.folder, heads=True).to(device)
    figures |= _knn(partial(_features, backbone, recipe=job.recipe, device=device), sets)
    if not job.recipe.method.clustering:
        return {"figures": figures}
    bank = _features(backbone, sets.train, recipe=job.recipe, device=device)
    if "empty_clusters" in last:  # as versions before wrote it
        last["empty_clusters_balanced"] = last.pop("empty_clusters")
    figures["empty_share"] = 100 * last["empty_clusters_balanced"] / job.recipe.method.clusters
    assert backbone.heads is not None
    assert backbone.heads.teacher is not None
    clusters = job.recipe.method.clusters
    counts = run_checkpoint.read_run_checkpoint(job.folder / report["checkpoint"])["counts"].numpy()
    assigned = np.bincount(nearest_clusters(backbone.heads.teacher, bank.rows, device), minlength=clusters)
    sizes = {name: relative(counted) for name, counted in (("training", counts), ("by_z", assigned))}
    figures |= {
        "smallest_size": float(sizes["by_z"].min()),
        "largest_size": float(sizes["by_z"].max()),
        "unused_share": 100 * float((assigned == 0).mean()),
    }
    return {
        "figures": figures,
        "size_quantiles": {
            name: {f"{share:g}": float(np.quantile(values, share)) for share in QUANTILES}
            for name, values in sizes.items()
        },
        "sizes": {name: sorted(values.tolist(), reverse=True) for name, values in sizes.items()},
    }


def _measure_untrained(job: CellRun, sets: ImageSets, device: torch.device) -> dict[str, Any]:
    """Figures of the network that this seed's cells start from, with BatchNorm statistics of the images."""
    recipe, images = job.recipe, sets.train
    backbone = build_model(recipe).teacher.backbone.to(device)
    estimate_batchnorm(backbone, evenly_spread(images), recipe.views.preprocessing)
    monitor = Monitor(images, recipe, device=device, workers=worker_count(recipe.efficiency.workers))
    figures = _of_features(monitor.measure(backbone))
    return {"figures": figures | _knn(partial(_features, backbone, recipe=recipe, device=device), sets)}


def _measure_patches(recipe: Recipe, sets: ImageSets, device: torch.device) -> dict[str, Any]:
    """Figures of whitened patches of the inputs that cells are measured on, fitted on the training images."""
    workers = worker_count(recipe.efficiency.workers)
    layer = patches.fitted(sets.train, recipe.views.preprocessing, workers=workers).to(device)
    return {"figures": _knn(partial(_features, layer, recipe=recipe, device=device), sets)}


def _of_features(measured: dict[str, float]) -> dict[str, float]:
    """The monitor's figures; its k-NN is leave-one-out on the training images."""
    figures = {name: measured[name] for name in ("neighbour_agreement", "effective_rank")}
    return figures | ({"knn_leave_one_out": measured["knn_top1"]} if "knn_top1" in measured else {})


def _features(network: nn.Module, images: Images, *, recipe: Recipe, device: torch.device) -> Features:
    inputs, workers = Inputs(images, recipe.views.preprocessing), worker_count(recipe.efficiency.workers)
    return extract(network, inputs, device=device, workers=workers)


def _knn(features: Callable[[Images], Features], sets: ImageSets) -> dict[str, float]:
    """Top-1 accuracy of the weighted vote of K neighbours, in percent: on held-out images, or leave-one-out."""
    if sets.train.labels is None or sets.train.classes is None:
        return {}
    bank = features(sets.train)
    labels = torch.from_numpy(sets.train.labels)[bank.samples]
    queries, targets, leave_one_out = bank.rows, labels, True
    if sets.held_out is not None and sets.held_out.labels is not None:
        test = features(sets.held_out)
        queries, targets, leave_one_out = test.rows, torch.from_numpy(sets.held_out.labels)[test.samples], False
    k = min(K, len(labels) - leave_one_out)
    neighbours = nearest(bank.rows, queries, k, exclude_self=leave_one_out)
    votes = vote(neighbours, labels, ks=[k], temperatures=[KNN_TEMPERATURE], classes=len(sets.train.classes))
    return {"knn_top1": top_accuracies(votes[k, KNN_TEMPERATURE], targets)[0]}


@torch.no_grad()
def nearest_clusters(heads: NetworkHeads, rows: Tensor, device: torch.device) -> np.ndarray:
    """The cluster of every image, argmax of z without B: features [N, width] -> [N]."""
    heads = heads.to(device)
    return np.concatenate([heads(part.to(device)).argmax(1).cpu().numpy() for part in rows.split(ROWS)])


def relative(counts: np.ndarray) -> np.ndarray:
    """Sizes of clusters relative to balanced ones, [K] -> [K]; 1 is balanced."""
    sizes: np.ndarray = counts * len(counts) / max(1, counts.sum())
    return sizes
