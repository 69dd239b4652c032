"""Several checkpoints through one suite: prepared alike, evaluated one after the other, then set side by side."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from excb.charts.style import FORMATS, figure_bytes
from excb.console import Reporter
from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError
from excb.files import json_text
from excb.files.atomic import write_bytes
from excb.files.foreign import read_bytes
from excb.networks.backbone import check_resolution, weights_hash
from excb.networks.preprocessing import Preprocessing
from excb.results.beside import FileBeside, drawn_beside, text_beside
from excb.results.pictures import COMPARISON

from ..protocols import answers_beside
from ..standings import forms
from ..standings.chart import draw_table
from ..task import Task
from . import cost, suite
from .comparison import COLUMNS, Comparison, EvaluatedCheckpoint, side_by_side
from .suite import PlannedStep, StepOutcome

NAME, COST = COMPARISON, "cost.json"  # of the files; the second lies with each checkpoint's results


@dataclass(frozen=True)
class PlannedCheckpoint:
    """A checkpoint before its evaluation."""

    checkpoint: str  # as it was named
    name: str  # in tables
    folder: str  # of its results
    steps: Sequence[PlannedStep]


class Preparation:
    """Opens checkpoints on the same images, by default prepared alike: as the first one has them.

    Args:
        open_task: what opens a checkpoint on the images; all ranks call it together.
        own: leave each checkpoint its own resize and crop.
    """

    def __init__(self, open_task: Callable[[str], Task], *, own: bool) -> None:
        self._open, self._own = open_task, own
        self._rule: Preprocessing | None = None
        self.changed: list[str] = []  # what other checkpoints would have had

    def task(self, checkpoint: str) -> Task:
        """The task of a checkpoint.

        Raises:
            UserError: it cannot be loaded, or takes no images of the first one's size.
        """
        task = self._open(checkpoint)
        if self._own:
            return task
        own, rule = task.preprocessing, self._rule or task.preprocessing
        self._rule = rule
        geometry = ("resize", "crop", "interpolation", "crop_mode", "corner")
        shared = replace(own, **{name: getattr(rule, name) for name in geometry})
        if shared == own:
            return task
        try:
            check_resolution(task.backbone, [shared.crop])
        except UserError as error:
            raise UserError.on_all_ranks(
                f"{checkpoint}: {error}; --resize and --crop choose a size for all, and --own-preprocessing leaves "
                "each checkpoint its own"
            ) from None
        if (line := f"{checkpoint} has {own.in_short} of its own") not in self.changed:
            self.changed.append(line)
        return replace(task, preprocessing=shared).calibrated()

    @property
    def note(self) -> str:
        """How images were prepared, if that is not each checkpoint's own way; else empty."""
        if self._rule is None or not self.changed:
            return ""
        return (
            f"all images are prepared alike, {self._rule.in_short}, as the first checkpoint has it; "
            f"{'; '.join(self.changed)} (--own-preprocessing)"
        )


def planned_checkpoints(
    checkpoints: Sequence[str], preparation: Preparation, plan: Callable[[Task], Sequence[PlannedStep]]
) -> list[PlannedCheckpoint]:
    """Load every checkpoint once, so that a wrong one is reported before any work.

    Raises:
        UserError: one is named twice or cannot be loaded.
    """
    if len(set(checkpoints)) < len(checkpoints):
        twice = next(each for each in checkpoints if checkpoints.count(each) > 1)
        raise UserError.on_all_ranks(f"--ckpt names {twice} twice")
    loaded = []
    for checkpoint in checkpoints:
        task = preparation.task(checkpoint)
        loaded.append((checkpoint, str(task.describe_checkpoint()["name"]), plan(task)))
    names = [name for _, name, _ in loaded]
    planned, folders = [], set[str]()
    for checkpoint, name, steps in loaded:
        label = name if names.count(name) == 1 else checkpoint
        folder = stem = re.sub(r"[^\w.-]+", "-", label).strip("-.") or "checkpoint"
        number = 1
        while folder.casefold() in folders:
            number += 1
            folder = f"{stem}-{number}"
        folders.add(folder.casefold())
        planned.append(PlannedCheckpoint(checkpoint, label, folder, steps))
    return planned


def evaluated(
    planned: PlannedCheckpoint, task: Task, outcomes: Sequence[StepOutcome], folder: Path
) -> EvaluatedCheckpoint:
    """A checkpoint after its evaluation, on rank 0; its cost is measured unless its folder holds it.

    Args:
        planned: the checkpoint.
        task: its backbone and images.
        outcomes: its protocols.
        folder: of its results.
    """
    results = {one.step.name: one.result for one in outcomes if one.result is not None}
    answers = {
        one.step.name: answers_beside(one.result, one.file)
        for one in outcomes
        if one.file is not None and one.result is not None
    }
    paired = {step: each for step, each in answers.items() if each is not None}
    architecture = task.backbone.entry.architecture.name
    prepared = task.preprocessing.to_dict()
    return EvaluatedCheckpoint(
        planned.name, planned.folder, architecture, prepared, _cost(task, folder), results, paired
    )


def _cost(task: Task, folder: Path) -> cost.Cost:
    file = folder / COST
    identity = {"weights": weights_hash(task.backbone.network), "where": cost.where(task)}
    try:
        stored = json_text.parse(read_bytes(file))
        if stored["identity"] == identity:
            return cost.Cost(**stored["cost"])
    except (OSError, ValueError, LookupError, TypeError):
        pass  # measured anew
    measured = cost.cost_of(task)
    json_text.write_json({"identity": identity, "cost": measured.to_dict()}, file)
    return measured


def write_comparison(comparison: Comparison, folder: Path, *, report: str) -> list[Path]:
    """Write a comparison as a page, Markdown, CSV, LaTeX, JSON and pictures.

    Args:
        comparison: what to write.
        folder: for the files.
        report: name of the page in every checkpoint's folder.

    Raises:
        UserError: a file cannot be written.
    """
    sheet, figure = comparison.sheet(report), draw_table(comparison.table)
    picture = figure_bytes(figure)
    contents: dict[str, bytes] = {
        "html": forms.sheet_as_page(sheet, picture=picture).encode(),
        "md": forms.sheet_as_markdown(sheet, picture=f"{NAME}.png").encode(),
        "csv": comparison.to_csv().encode(),
        "tex": forms.sheet_as_latex(sheet).encode(),
        "json": (json.dumps(comparison.to_dict(), indent=2, ensure_ascii=False) + "\n").encode(),
        "png": picture,
        "svg": figure_bytes(figure, ".svg"),
    }
    for suffix, content in contents.items():
        write_bytes(content, folder / f"{NAME}.{suffix}")
    return [folder / f"{NAME}.{suffix}" for suffix in contents]


def files_of_comparison() -> list[FileBeside]:
    """The files that `write_comparison` writes."""
    return [
        *forms.sheet_files(NAME, "all", COLUMNS),
        text_beside(f"{NAME}.json", "comparison", '"columns": [', '"checkpoints": ['),
        *(drawn_beside(NAME, suffix, named=False) for suffix in FORMATS),
    ]


def files_of_one() -> list[FileBeside]:
    """The files in a checkpoint's folder beside its results and their page."""
    return [text_beside(COST, "cost of a network", '"identity": {', '"cost": {')]


def show_comparison(comparison: Comparison, reporter: Reporter) -> None:
    """Print the table, and how to read it."""
    reporter.table(f"Side by side: {comparison.data}", comparison.table.headings, comparison.table.lines)
    reporter.answer(comparison.explanation)
    for note in comparison.notes:
        reporter.answer(f"note: {note}")


def evaluate_checkpoints(
    entered: Sequence[PlannedCheckpoint],
    preparation: Preparation,
    run: Callable[[PlannedCheckpoint, Task], suite.RunStep],
    finish: Callable[[Sequence[StepOutcome], Path], None],
    *,
    folder: Path,
    reporter: Reporter,
) -> tuple[Comparison | None, dict[str, list[StepOutcome]]]:
    """Evaluate checkpoints one after the other, each in its own folder below `folder`, and set them side by side.

    Args:
        entered: the checkpoints.
        preparation: opens them.
        run: makes what runs a step of one.
        finish: called on rank 0 with the outcomes of each and its folder, to write its report.
        folder: for all results.
        reporter: prints notes, progress and tables.

    Returns:
        The comparison, on rank 0 and if anything was measured; and the outcomes by name.
    """
    checkpoints, outcomes = list[EvaluatedCheckpoint](), dict[str, list[StepOutcome]]()
    for planned in entered:
        reporter.note(f"{planned.name}:")
        own, task = folder / planned.folder, preparation.task(planned.checkpoint)
        made = outcomes[planned.name] = suite.run_suite(planned.steps, own, run(planned, task), reporter)

        def keep(
            planned: PlannedCheckpoint = planned, task: Task = task, made: list[StepOutcome] = made, own: Path = own
        ) -> None:
            finish(made, own)
            checkpoints.append(evaluated(planned, task, made, own))

        run_on_rank0(keep)
    if not any(one.results for one in checkpoints):
        return None, outcomes
    return side_by_side(checkpoints, notes=[preparation.note] if preparation.note else []), outcomes


def comparison_values(comparison: Comparison | None, outcomes: dict[str, list[StepOutcome]]) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "checkpoints": {name: suite.to_dict(each) for name, each in outcomes.items()},
        "comparison": None if comparison is None else comparison.to_dict(),
    }
