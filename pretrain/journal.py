"""What a run writes down: `metrics.jsonl`, TensorBoard, and the statistics of an epoch, all equal after a resume."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from excb import json_text
from excb.collectives import gather_rows, mean_over_ranks, processes, rank
from excb.errors import UserError
from excb.images import Images
from excb.method import Step

from .data import Batch

METRICS = "metrics.jsonl"


class EpochStatistics:
    """Sums over the steps of an epoch, kept on the device so that no step waits for them.

    Args:
        images: the training images.
        globals_: G, the global views.
        clusters: K.
        slots: images of a whole epoch that this process sees.
        device: where the steps run.
    """

    def __init__(self, images: Images, *, globals_: int, clusters: int, slots: int, device: torch.device) -> None:
        self._labels, self._clusters = images.labels, clusters
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, confidence, agreement
        self._winners = torch.zeros(globals_, slots, dtype=torch.int32, device=device)
        self._used = torch.zeros(slots, dtype=torch.int64)
        self._filled = self._steps = 0

    def add(self, output: Step, batch: Batch) -> None:
        """Count one step."""
        stop = self._filled + len(batch.used)
        self._sums += torch.stack([output.loss.detach(), output.confidence, output.agreement]).double()
        self._winners[:, self._filled : stop] = output.winners
        self._used[self._filled : stop] = batch.used
        self._filled, self._steps = stop, self._steps + 1

    def summary(self, state: dict[str, Any] | None = None) -> dict[str, float]:
        """The epoch so far: means of loss, confidence (Eq. 11) and agreement (Eq. 12), clusters, purity with labels.

        Cluster sizes are counted over the epoch's assignments and relative to 1/K: 1 is balanced.

        Args:
            state: of `state`, where it is at hand: all processes gather for it.
        """
        state = state or self.state()
        loss, confidence, agreement = (state["sums"] / max(1, self._steps)).tolist()
        winners, used = state["winners"].numpy(), state["used"].numpy()
        counts = self.counts(state).numpy()
        relative = counts * self._clusters / max(1, winners.size)
        figures = {
            "loss": loss,
            "confidence": confidence,
            "agreement": agreement,
            "smallest_cluster": float(relative.min()),
            "largest_cluster": float(relative.max()),
            "empty_clusters": int((counts == 0).sum()),
        }
        if self._labels is not None:
            labels = np.broadcast_to(self._labels[used], winners.shape)
            figures["purity"] = purity(winners.ravel(), labels.ravel())
        return figures

    def counts(self, state: dict[str, Any]) -> torch.Tensor:
        """Assignments to every cluster in a `state`, all processes together: [K] int64 on the CPU."""
        return torch.bincount(state["winners"].flatten(), minlength=self._clusters)

    def reset(self) -> None:
        """Start the next epoch."""
        self._sums.zero_()
        self._filled = self._steps = 0

    def state(self) -> dict[str, Any]:
        """Tensors and numbers of all processes, from which any number of them goes on by `restore`."""
        return {
            "sums": mean_over_ranks(self._sums.clone()).cpu(),
            "winners": gather_rows(self._winners[:, : self._filled].T).T.cpu(),
            "used": gather_rows(self._used[: self._filled].clone()),
            "steps": self._steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`: each process takes an equal part of the images."""
        self._sums.copy_(state["sums"])
        self._filled, self._steps = len(state["used"]) // processes(), state["steps"]
        mine = slice(rank() * self._filled, (rank() + 1) * self._filled)
        self._winners[:, : self._filled] = state["winners"][:, mine].to(self._winners.device)
        self._used[: self._filled] = state["used"][mine]


def purity(clusters: np.ndarray, labels: np.ndarray) -> float:
    """Purity (1/N) sum_k max_j n_kj of N assignments (Zhao and Karypis, 2001), from 0 to 1."""
    pairs, counts = np.unique(np.stack([clusters, labels]), axis=1, return_counts=True)
    largest = np.zeros(int(pairs[0].max(initial=0)) + 1, np.int64)
    np.maximum.at(largest, pairs[0], counts)
    return float(largest.sum() / max(1, len(clusters)))


class Journal:
    """Appends lines to `metrics.jsonl` and scalars to TensorBoard and, if wanted, Weights & Biases.

    Args:
        folder: the run folder; None in processes that write nothing.
        step: the step the run goes on from; what an interrupted process wrote beyond it is dropped.
        wandb: arguments of `wandb.init`, or None.

    Raises:
        UserError: Weights & Biases is wanted but not installed.
    """

    def __init__(self, folder: Path | None, *, step: int, wandb: dict[str, Any] | None = None) -> None:
        self._file, self._board, self._wandb = folder and folder / METRICS, None, None
        if folder is None or self._file is None:
            return
        if wandb is not None:
            try:
                import wandb as weights_and_biases
            except ImportError:
                raise UserError("monitor.wandb needs Weights & Biases: run `pip install wandb`") from None
            # One run folder is one run there, however often it is started.
            name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
            self._wandb = weights_and_biases.init(id=name, resume="allow", dir=str(folder), **wandb)
        from torch.utils.tensorboard import SummaryWriter

        kept = [line for line in read_metrics(folder) if line["step"] <= step] if step else []
        self._file.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Write one line: kind `step`, `epoch` or `alarm`, the number of steps done, and the figures."""
        if self._file is None:
            return
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, "step": step} | figures) + "\n")
        numbers = {f"{kind}/{name}": value for name, value in figures.items() if not isinstance(value, str)}
        if self._board is not None and kind != "alarm":
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            if kind == "alarm":
                self._wandb.alert(title=figures["name"], text=figures["message"])
            else:
                self._wandb.log(numbers, step=step)

    def close(self) -> None:
        """Flush what is written to."""
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`; one cut short by a kill, or that no run writes, is passed over."""
    file = folder / METRICS
    lines = []
    if file.is_file():
        for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json_text.parse(text)
            except ValueError:
                continue
            if isinstance(line, dict) and isinstance(line.get("kind"), str) and type(line.get("step")) is int:
                lines.append(line)
    return lines
