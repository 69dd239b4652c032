"""`excb.evaluate`: any protocol from Python, by the functions that `excb-eval` calls; a `Result` is what it found."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.console import Reporter
from excb.errors import UserError, is_rank0, path_text
from excb.results.replacing import PYTHON_ADVICE, fingerprints, refuse_other_result, result_at
from excb.results.result import interval_text

from . import protocols
from .runner import of_python, refuse_other_files
from .shell import FROM_SHELL

if TYPE_CHECKING:
    from torch import nn

    from excb.inference.paired import Paired, PerImage
    from excb.results.result import ResultRecord


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a protocol. In a notebook it shows itself as a table.

    Attributes:
        record: all of it, as the file holds it: settings, checkpoint, images, versions.
        scored: what the protocol said of every test image; None where it says nothing of single images.
    """

    record: "ResultRecord"
    scored: "Paired | PerImage | None" = None
    write: "Callable[[ResultRecord, Path], list[Path]] | None" = field(default=None, compare=False)

    @property
    def figures(self) -> dict[str, float]:
        """Figures by name, such as `result.figures["knn_top1_k20"]`; accuracies are in percent."""
        return self.record.figures

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % intervals of figures, in percent."""
        return self.record.intervals

    @property
    def per_class(self) -> dict[str, dict[str, float | None]]:
        """Percent by class, for every main figure."""
        return self.record.per_class

    @property
    def notes(self) -> list[str]:
        """Notes that a reader of the figures must know."""
        return self.record.remarks

    def predictions(self, figure: str | None = None) -> dict[str, list[Any]]:
        """The predictions for every test image, as columns: `pandas.DataFrame(result.predictions())`.

        Args:
            figure: whose guesses or scores; by default the main figure.

        Returns:
            "path", "class" (the true one), and "predicted" and "correct" where classes are guessed, else "score". Of
            images with several labels "path", "classes" (the true ones), and every class's score under its name. Of
            `clusters` the columns of its assignments.csv: "path", "cluster", "similarity" and more.

        Raises:
            UserError: the protocol says nothing of single images, or there is no such figure.
        """
        from excb.inference.paired import PerImage

        if not isinstance(self.scored, PerImage):
            raise UserError(f"{self.record.protocol} makes no prediction for each image")
        return self.scored.columns(self.main if figure is None else figure)

    @property
    def main(self) -> str:
        """The figure that pages show first."""
        return protocols.headline(self.figures)

    def save(self, file: str | Path, *, overwrite: bool = False) -> list[Path]:
        """Write FILE.json, which `excb-eval compare` and `leaderboard` read, with predictions and picture beside it.

        Args:
            file: it may hold an earlier result of the same checkpoint, protocol and images, which is replaced.
            overwrite: replace a result of something else as well.

        Returns:
            The files, JSON first.

        Raises:
            UserError: one cannot be written, or the file holds a result of something else.
        """
        place = Path(file)
        if place.suffix != ".json":
            raise UserError(f"{place}: a result is saved to a file that ends in .json; its other files stand beside it")
        if not overwrite:
            self._refuse_others(place)
        if self.write is None:
            self.record.write(place)
            return [place]
        return self.write(self.record, place)

    def _refuse_others(self, place: Path) -> None:
        from .reporting.label_scores import LabelScores

        record, protocol = self.record, protocols.protocol_of_result(self.record.protocol)
        weights = record.checkpoint.get("weights_sha256")
        if protocol is not None:
            refuse_other_files(
                protocol,
                protocol.result_file(place),
                weights=weights,
                data=record.data,
                label_sets=isinstance(self.scored, LabelScores),
                advice=PYTHON_ADVICE,
            )
        elif (before := result_at(place, advice=PYTHON_ADVICE)) is not None:
            refuse_other_result(
                before,
                place,
                is_protocol=lambda name: name == record.protocol,
                weights=weights,
                images=fingerprints(record.data),
                advice=PYTHON_ADVICE,
            )

    @property
    def name(self) -> str:
        """Its name beside other results, made of its checkpoint and its protocol."""
        return f"{self.record.checkpoint.get('name')}, {self.record.protocol}"

    def _rows(self) -> list[tuple[str, str, str]]:
        return [(name, f"{value:.2f}", interval_text(self.intervals.get(name))) for name, value in self.figures.items()]

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{name:<{widths[0]}}  {value:>{widths[1]}}  {interval}".rstrip() for name, value, interval in rows]
        return "\n".join([f"Result of {self.name}", *(f"  {line}" for line in [*lines, *self.notes])])

    def _repr_html_(self) -> str:
        from excb.pages.frame import render_fragment

        return render_fragment("result", name=self.name, rows=self._rows(), notes=self.notes)


def evaluate(
    ckpt: "str | Path | os.PathLike[str] | nn.Module",
    protocol: str,
    /,
    *,
    data: str | Path | None = None,
    train: str | Path | None = None,
    test: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> Result:
    """Evaluate a checkpoint or a network by a protocol, as `excb-eval PROTOCOL` does, in this process.

    ::

        excb.evaluate("runs/a", "knn", data="photos", k=[20]).figures["knn_top1_k20"]

    Args:
        ckpt: anything that `excb.load` takes; or a Backbone, or an `nn.Module` [B, 3, H, W] -> [B, D] with the
            attribute `transform` (PIL image -> [3, H, W]), which is evaluated as it is: with the weights that it has
            now, on the device that it is on.
        protocol: a command of `excb-eval` that measures, such as knn, linear, semisup, finetune or retrieval.
        data: a folder with train/ and test/ (or val/), "torchvision:NAME" or "hf:ID".
        train: labelled images, instead of those in `data`.
        test: the same classes, other images.
        quiet: no notes and no progress.
        options: of the protocol, named as on the command line with _ for -: `percent=10`, `batch_size=32`,
            `rename={"feline": "cat"}`, `no_cache=True`.

    Raises:
        UserError: checkpoint, images or options cannot be used, or an image cannot be read.
    """
    from torch import nn

    from excb.distributed.parallel import joined

    entry = protocols.protocol_named(protocol)
    if not isinstance(ckpt, nn.Module):
        ckpt = path_text(ckpt, "a network is a name, a path, a Backbone or an nn.Module")
    elif entry.labels == "boxes":
        raise UserError(f"{protocol} builds a detector on a checkpoint: save the network, and name its file or folder")
    else:
        options.setdefault("device", device_of(ckpt))
    values = {"ckpt": ckpt, "data": data, "train": train, "test": test, **options}
    evaluation = of_python(entry, values, refused=FROM_SHELL)
    reporter = Reporter(quiet=quiet or not is_rank0())
    with joined(evaluation.shared.device, stay=True) as device:
        made = evaluation.measure(evaluation.open(device, reporter), reporter)
    return Result(made.result, made.scored, made.write)


def device_of(network: "nn.Module") -> str:
    """The device that a network is on; "auto" where it has no weights."""
    parameter = next(network.parameters(), None)
    return "auto" if parameter is None else str(parameter.device)
