"""A run's records: `metrics.jsonl`, TensorBoard and the statistics of an epoch, all equal after a resume."""

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb.charts.tensorboard import TensorBoardWriter
from excb.distributed.collectives import gather_rows, mean_over_ranks, rank, world_size
from excb.errors import UserError
from excb.files.atomic import write_text
from excb.files.foreign import open_file
from excb.files.run_files import METRICS, read_metrics
from excb.images.image_set import Images
from excb.method import Step

from ..data.batch import ViewBatch
from ..distil.table import OBJECTIVES
from ..recipe import Recipe

# Sums over steps, in the order that checkpoints hold them; those of older versions hold the first three.
DISTILLED = tuple(f"distil_{name}" for name in OBJECTIVES)
SUMS = ("loss", "confidence", "agreement", "cluster_loss", "contrast", "regression", "anchor", *DISTILLED)
NOT_FINITE = "not finite"  # the alarm of a rejected step; all others are of an epoch


class EpochStatistics:
    """Sums over the steps of an epoch, kept on the device so that no step synchronizes with the CPU."""

    def __init__(self, images: Images, recipe: Recipe, *, samples: int, device: torch.device) -> None:
        self._labels, self._method, self._anchored = images.labels, recipe.method, recipe.adapt.anchored
        self._distilled = recipe.distil.weights
        count = len(SUMS) if recipe.distil.active else len(SUMS) - len(DISTILLED)
        self._sums = torch.zeros(count, dtype=torch.float64, device=device)
        self._winners = torch.zeros(recipe.views.global_views, samples, dtype=torch.int32, device=device)
        self._used = torch.zeros(samples, dtype=torch.int64)
        # Clusters that any view was nearest to, before balancing.
        self._chosen = torch.zeros(recipe.method.clusters, dtype=torch.bool, device=device)
        self._chosen_known = True  # an epoch that an older version began did not note them
        self._filled = self._steps = 0
        self._before = self._sums.clone(), self._chosen.clone(), 0, 0  # the newest step

    def add(self, output: Step, batch: ViewBatch) -> None:
        """Count one step."""
        self._before = self._sums.clone(), self._chosen.clone(), self._filled, self._steps
        stop = self._filled + len(batch.used)
        zero = torch.zeros_like(output.loss)
        terms = [zero if term is None else term for term in (output.contrast, output.regression, output.anchor)]
        if output.distilled is not None:
            terms += [output.distilled.terms.get(name, zero) for name in OBJECTIVES]
        figures = [output.loss.detach(), zero, zero, zero, *terms]
        if (clusters := output.clusters) is not None:
            figures[1:4] = clusters.confidence, clusters.agreement, clusters.loss
            self._winners[:, self._filled : stop] = clusters.winners
            self._chosen.index_fill_(0, clusters.raw_winners.flatten(), True)
        self._sums[: len(figures)] += torch.stack([figure.detach().double() for figure in figures])
        self._used[self._filled : stop] = batch.used
        self._filled, self._steps = stop, self._steps + 1

    def take_back(self) -> None:
        """Forget the newest step."""
        self._sums, self._chosen, self._filled, self._steps = self._before

    def summary(self, state: dict[str, Any] | None = None) -> dict[str, float]:
        """The epoch so far: means of loss, confidence (Eq. 11) and agreement (Eq. 12), clusters, purity with labels.

        Cluster sizes are counted over the epoch's assignments, after balancing, and relative to 1/K: 1 is balanced.
        `empty_clusters_unbalanced` counts those that no view was nearest to, before balancing. A run with the
        contrastive term or BYOL's has it and the loss of Eq. 7 as well; a run without clusters has nothing about them.
        `anchor` is the mean distance from the start's features, 0 in steps without an anchor; `distil_...` are the
        objectives of learning from teachers, each without its weight.
        Passing the result of `state` saves gathering it again.
        """
        state = state or self.state()
        means = dict(zip(SUMS, (state["sums"] / max(1, self._steps)).tolist(), strict=False))
        figures: dict[str, float] = {"loss": means["loss"]}
        terms = [name for name in ("contrast", "regression") if getattr(self._method, name)]
        figures |= {name: means[name] for name in terms}
        figures |= {"anchor": means["anchor"]} if self._anchored else {}
        figures |= {f"distil_{name}": means[f"distil_{name}"] for name in self._distilled}
        if (counts := self.counts(state)) is None:
            return figures
        if terms:
            figures["cluster_loss"] = means["cluster_loss"]
        winners, used = state["winners"].numpy(), state["used"].numpy()
        relative = counts.numpy() * self._method.clusters / max(1, winners.size)
        figures |= {
            "confidence": means["confidence"],
            "agreement": means["agreement"],
            "smallest_cluster": float(relative.min()),
            "largest_cluster": float(relative.max()),
            "empty_clusters_balanced": int((counts == 0).sum()),
        }
        if self._steps:
            batches = winners.reshape(len(winners), self._steps, -1).transpose(1, 0, 2)
            figures |= batch_statistics(batches, self._method.clusters)
            figures["same_winner_by_sizes"] = float((relative**2).mean())
        if "chosen" in state:
            figures["empty_clusters_unbalanced"] = int((~state["chosen"]).sum())
        if self._labels is not None:
            labels = np.broadcast_to(self._labels[used], winners.shape)
            figures["purity"] = purity(winners.ravel(), labels.ravel())
        return figures

    def counts(self, state: dict[str, Any]) -> torch.Tensor | None:
        """Assignments to every cluster in a `state`, over all ranks: [K] int64 on the CPU; None without clusters."""
        if not self._method.clustering:
            return None
        return torch.bincount(state["winners"].flatten(), minlength=self._method.clusters)

    @property
    def complete(self) -> bool:
        """Whether a whole epoch is counted and not summed up yet."""
        return self._filled == len(self._used)

    def reset(self) -> None:
        """Start the next epoch."""
        self._sums.zero_()
        self._chosen.zero_()
        self._chosen_known = True
        self._filled = self._steps = 0

    def state(self) -> dict[str, Any]:
        """Tensors and numbers of all ranks, step by step, which `restore` takes on any number of ranks."""
        winners = self._winners[:, : self._filled].T
        chosen = mean_over_ranks(self._chosen.double()).cpu() > 0
        return ({"chosen": chosen} if self._chosen_known else {}) | {
            "sums": mean_over_ranks(self._sums.clone()).cpu(),
            "winners": self._by_step(gather_rows(winners)).T.cpu(),
            "used": self._by_step(gather_rows(self._used[: self._filled].clone())),
            "steps": self._steps,
        }

    def _by_step(self, rows: Tensor) -> Tensor:
        """Rows of all ranks in order, [world_size * steps * B, ...] -> step by step, [steps * world_size * B, ...]."""
        if world_size() == 1 or not len(rows):
            return rows
        by_rank: Tensor = rows.unflatten(0, (world_size(), self._steps, -1))
        return by_rank.transpose(0, 1).flatten(0, 2)

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from `state`: each rank takes an equal part of every step's images."""
        sums = state["sums"][: len(self._sums)]
        self._sums.zero_()[: len(sums)] = sums.to(self._sums)
        self._filled, self._steps = len(state["used"]) // world_size(), state["steps"]
        self._chosen_known = "chosen" in state
        if self._chosen_known:
            self._chosen.copy_(state["chosen"])
        if not self._filled:
            return
        for mine, stored in ((self._winners.T, state["winners"].T), (self._used, state["used"])):
            parts = stored.unflatten(0, (self._steps, world_size(), -1))[:, rank()]
            mine[: self._filled] = parts.flatten(0, 1).to(mine.device)


def batch_statistics(winners: np.ndarray, clusters: int) -> dict[str, float]:
    """How freely the images of a batch choose their clusters, means over batches; ours.

    `same_winner` is K times the share of pairs of different images, in two different views, that have the same winner:
    1 where winners are independent and even, K where all images of a batch share one. `distinct_winners` is the number
    of clusters that a batch fills, relative to what independent draws would fill.

    Args:
        winners: of every batch, [batches, G, B].
        clusters: K.
    """
    _, views, images = winners.shape
    shares, distinct = [], []
    for batch in winners:
        # Only clusters that occur, since K may be much larger than the batch.
        _, columns = np.unique(batch, return_inverse=True)
        columns = columns.reshape(batch.shape)
        counts = np.stack([np.bincount(view, minlength=columns.max() + 1) for view in columns]).astype(np.float64)
        pairs = counts.sum(0) ** 2 - (counts**2).sum(0)  # over ordered pairs of different views, and all images
        agreeing = sum((columns == columns[view]).sum() - images for view in range(views))
        shares.append((pairs.sum() - agreeing) / max(1, views * (views - 1) * images * (images - 1)))
        distinct.append(counts.shape[1])
    expected = clusters * -math.expm1(views * images * math.log1p(-1 / clusters))
    figures = {"distinct_winners": float(np.mean(distinct)) / expected}
    if views > 1 and images > 1:
        figures["same_winner"] = clusters * float(np.mean(shares))
    return figures


def purity(clusters: np.ndarray, labels: np.ndarray) -> float:
    """Purity (1/N) sum_k max_j n_kj of N assignments (Zhao and Karypis, 2001), from 0 to 1."""
    pairs, counts = np.unique(np.stack([clusters, labels]), axis=1, return_counts=True)
    largest = np.zeros(int(pairs[0].max(initial=0)) + 1, np.int64)
    np.maximum.at(largest, pairs[0], counts)
    return float(largest.sum() / max(1, len(clusters)))


class Journal:
    """Appends lines to `metrics.jsonl` and scalars to TensorBoard and, if wanted, Weights & Biases.

    Args:
        folder: the run folder; None on ranks that write nothing.
        step: the step the run resumes from; what an interrupted process wrote after it is dropped.
        pending: this step ends an epoch that is yet to be summed up; what was written of it before is dropped too.
        wandb: arguments of `wandb.init`, or None.

    Raises:
        UserError: Weights & Biases is wanted but not installed, or the folder cannot be written.
    """

    def __init__(
        self, folder: Path | None, *, step: int, pending: bool = False, wandb: dict[str, Any] | None = None
    ) -> None:
        self._file: Path | None = None
        self._tensorboard: TensorBoardWriter | None = None
        self._wandb: Any = None
        if folder is None:
            return
        if wandb is not None:
            try:
                import wandb as weights_and_biases
            except ImportError:
                raise UserError(
                    "monitor.wandb needs Weights & Biases: run `pip install wandb`", rank_local=True
                ) from None
            # The id depends on the run folder alone, so that a resumed run is the same run there.
            name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
            self._wandb = weights_and_biases.init(id=name, resume="allow", dir=str(folder), **wandb)
        self._file = folder / METRICS
        kept = [line for line in read_metrics(folder) if line["step"] <= step] if step else []
        if pending:
            kept = [line for line in kept if line["step"] < step or not _of_epoch(line)]
        with _write_errors(self._file):
            # Atomic: a kill leaves the old file or the new one.
            write_text("".join(json.dumps(line) + "\n" for line in kept), self._file)
            self._tensorboard = TensorBoardWriter(folder / "tensorboard", purge_step=step + 1)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Write one line: kind `step`, `epoch` or `alarm`, the number of steps done, and the figures.

        Raises:
            UserError: the disk is full or the folder cannot be written.
        """
        if self._file is None or self._tensorboard is None:
            return
        numbers = {f"{kind}/{name}": value for name, value in figures.items() if not isinstance(value, str)}
        with _write_errors(self._file):
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"kind": kind, "step": step} | figures) + "\n")
            if kind != "alarm":
                self._tensorboard.add_scalars(numbers, step)
        if self._wandb is not None:
            if kind == "alarm":
                self._wandb.alert(title=figures["name"], text=figures["message"])
            else:
                self._wandb.log(numbers, step=step)

    def flush(self) -> None:
        """Sync all lines to disk, so that a checkpoint written next never holds steps that they lack.

        Raises:
            UserError: the disk is full or the folder cannot be written.
        """
        if self._file is not None:
            with _write_errors(self._file), open_file(self._file) as stream:
                os.fsync(stream.fileno())

    def close(self) -> None:
        """Close TensorBoard and Weights & Biases."""
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def _of_epoch(line: dict[str, Any]) -> bool:
    """Whether a line is written when an epoch is summed up."""
    return line["kind"] == "epoch" or (line["kind"] == "alarm" and line.get("name") != NOT_FINITE)


@contextmanager
def _write_errors(file: Path) -> Iterator[None]:
    """Turn a failure to write into a UserError, which only rank 0 knows of."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {file} ({error}): make room, or make it writable, then repeat the command to resume "
            "from the newest checkpoint",
            rank_local=True,
        ) from None
    except UserError as error:
        error.rank_local = True
        raise
