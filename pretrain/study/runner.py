"""Runs the cells of a study one after another, then writes its table and figure."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from excb.console import Progressor, Reporter, duration, plural
from excb.errors import USER_ERROR, UserError
from excb.files.atomic import check_writable_folder, write_text
from excb.images.scanning import refuse_among
from excb.references.baselines import REFERENCES, UNTRAINED
from excb.results.pictures import STUDY_TABLE

from .. import overrides
from ..initialise import adopted
from ..recipe import Recipe
from ..run.run_folder import DIVERGED
from ..run.sets import ImageSets, find_sets, with_one_mapping
from ..training.start import check_run
from . import figures
from .cell import CellRun, run_cell
from .studies import BASE, Study, StudyCell
from .table import CellResults, StudyTable
from .tuning import CRITERIA, Tuning, best

# The base recipe at its own sizes on one x86 core, measuring included: a guess until a cell is timed.
IMAGES_PER_SECOND = 180


class CellReporter(Reporter):
    """Reports progress and warnings of a cell's run with its place in the study, and suppresses notes."""

    place = job = ""

    def note(self, text: str) -> None:
        """Print nothing: notes would repeat for every run of the study."""

    def warn(self, text: str) -> None:
        """Print a warning with the name of its cell."""
        super().warn(f"{self.job}: {text}")

    @contextmanager
    def progress(self, title: str, total: int, *, done: int = 0) -> Iterator[Progressor]:
        """Put the cell's place before the title."""
        with super().progress(f"{self.place}  {title}", total, done=done) as bar:
            yield bar


class StudyGrid:
    """A study on one set of images in one folder.

    Args:
        folder: the study's folder; a cell's run is in CELL/seed-N.
        values: overrides of the base recipe, for all cells; a cell's own value wins.
        tuning: values that every cell tries first, which win over both.

    Raises:
        UserError: an override is wrong.
    """

    def __init__(
        self, study: Study, sets: ImageSets, folder: Path, values: Sequence[str], tuning: Tuning | None = None
    ) -> None:
        self.study, self.sets, self.folder, self.values, self.tuning = study, sets, folder, list(values), tuning
        self._base = adopted(overrides.apply(overrides.find_recipe(BASE), self.values), lambda _line: None)
        self.references = [
            StudyCell(name=name, factors={study.factors[0]: title}, overrides=[]) for name, title in REFERENCES.items()
        ]

    def job(self, cell: StudyCell, seed: int) -> CellRun:
        """One cell at one seed.

        Raises:
            UserError: it cannot be trained on these images.
        """
        recipe: Recipe = overrides.apply(self._base, cell.overrides)
        recipe = replace(recipe.change(run={"seed": seed}), name=f"{self.study.name}/{cell.name}")
        recipe.steps_per_epoch(len(self.sets.train))
        folder = self.folder / cell.name / f"seed-{seed}"
        return CellRun(cell.name, tuple(self.values), tuple(cell.overrides), recipe, folder)

    def jobs(self, cells: Sequence[StudyCell], seeds: int) -> list[CellRun]:
        """Every cell at every seed, from the base recipe's seed on, seed by seed, so that rows fill evenly.

        Of the references only the untrained network depends on the seed.
        """
        first = self._base.run.seed
        return [
            self.job(cell, seed)
            for seed in range(first, first + seeds)
            for cell in (*self.references, *cells)
            if seed == first or cell.name not in REFERENCES or cell.name == UNTRAINED
        ]

    def trial_jobs(self, cells: Sequence[StudyCell]) -> list[CellRun]:
        """Every setting that is tried of every cell, at the first seed; none without tuning."""
        trials = [trial for cell in cells for trial in self._trials(cell)] if self.tuning else []
        return [self.job(trial, self._base.run.seed) for trial in trials]

    def tuned(self, cell: StudyCell) -> StudyCell | None:
        """The cell with its best setting; itself without tuning, and None while a trial is missing."""
        if self.tuning is None:
            return cell
        trials = self._trials(cell)
        index = best([self._criterion(trial) for trial in trials])
        return None if index is None else trials[index]

    def planned(self, cell: StudyCell) -> StudyCell:
        """The cell with its best setting; while a trial is missing, with its first one."""
        return self.tuned(cell) or self._trials(cell)[0]

    def tried(self, cell: StudyCell) -> dict[str, float]:
        """The scores of a cell's finished trials, by setting."""
        scores = {trial.factors["tuned"]: self._criterion(trial) for trial in self._trials(cell)}
        return {setting: score for setting, score in scores.items() if score is not None and score > -math.inf}

    def _trials(self, cell: StudyCell) -> list[StudyCell]:
        return self.tuning.trials(cell) if self.tuning else []

    def _criterion(self, trial: StudyCell) -> float | None:
        """The score of a trial; less than any other if it diverged, and None while it is missing."""
        job = self.job(trial, self._base.run.seed)
        contents = job.finished()
        if contents is None and (job.folder / DIVERGED).is_dir():
            return -math.inf
        figures = contents["figures"] if contents is not None else {}
        return next((float(figures[name]) for name in CRITERIA if name in figures), None)

    def unfinished(self, jobs: Sequence[CellRun]) -> list[CellRun]:
        """The jobs without a finished cell.

        Raises:
            UserError: a cell has another recipe or other images.
        """
        for job in jobs:
            if changed := job.changes(self.sets):
                raise UserError(
                    f"{job.folder} holds a cell that differs ({'; '.join(changed)}): repeat these values to resume, "
                    "choose another --out, or remove that folder to run it again"
                )
        return [job for job in jobs if job.finished() is None]

    def table(self) -> StudyTable:
        """All finished cells of the folder, at every seed, that have this recipe and these images."""
        rows = [self._tuned_row(cell) for cell in self.study.cells]
        tried = {cell.name: self.tried(cell) for cell in self.study.cells} if self.tuning else {}
        return StudyTable(self.study, rows, [self._row(cell) for cell in self.references], tried)

    def _tuned_row(self, cell: StudyCell) -> CellResults:
        """The row of a cell's best setting, under the cell's own name."""
        tuned = self.tuned(cell)
        return (
            CellResults(cell, []) if tuned is None else replace(self._row(tuned), cell=replace(tuned, name=cell.name))
        )

    def _row(self, cell: StudyCell) -> CellResults:
        finished = []
        names = [folder.name.removeprefix("seed-") for folder in (self.folder / cell.name).glob("seed-*")]
        for seed in sorted(int(name) for name in names if name.isdecimal()):
            job = self.job(cell, seed)
            if (contents := job.finished()) is not None and not job.changes(self.sets):
                finished.append(contents)
        return CellResults(cell, finished)


def run_study(
    study: Study,
    data: str,
    out: Path,
    reporter: Reporter,
    *,
    seeds: int = 3,
    cells: Sequence[str] | None = None,
    values: Sequence[str] = (),
    tune: Sequence[str] = (),
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Run the unfinished cells of a study, then write and print its table and figure.

    `values` override the base recipe for all cells. Only `cells` are run, by default all; the table holds every
    finished one. Cells first try the values of `tune` (see `Tuning`). With `dry_run`, only print what would run.

    Returns:
        Exit code: 0; 2 if a cell failed; 128 + the signal that stopped the study.

    Raises:
        UserError: the study cannot be run with these arguments.
    """
    selected = study.select(cells)
    declared = overrides.apply(overrides.find_recipe(BASE), values).data.pixels
    sets = with_one_mapping(find_sets(data, reporter.note), declared, reporter.note)
    sets.ledger.tell(reporter)
    if len(sets.train) < 2:
        raise UserError(f"{sets.train.root} holds one image: a study needs at least a few hundred")
    refuse_among(sets.train, out)
    grid = StudyGrid(study, sets, out / study.name, values, Tuning(tuple(tune)) if tune else None)
    trials = grid.trial_jobs(selected)
    jobs = grid.jobs([grid.planned(cell) for cell in selected], seeds)
    jobs = list({job.folder: job for job in (*trials, *jobs)}.values())
    left = grid.unfinished(jobs)
    _refuse_cells([job for job in left if job.cell not in REFERENCES], sets)
    check_writable_folder(grid.folder, advice="choose another --out")
    if dry_run:
        _print_plan(grid, jobs, left, reporter, as_json=as_json)
        return 0
    try:
        grid.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write the study's folder {grid.folder}: {error}: choose another --out") from None
    code, failed = _run([job for job in left if job in trials], grid, reporter)
    if not code:
        tuned = [cell for cell in map(grid.tuned, selected) if cell is not None]
        code, also_failed = _run(grid.unfinished(grid.jobs(tuned, seeds)), grid, reporter)
        failed += also_failed
    if code:
        reporter.note("stopped: the same command resumes the study")
        return code
    table = grid.table()
    write_text(table.markdown(), grid.folder / f"{STUDY_TABLE}.md")
    write_text(table.csv(), grid.folder / f"{STUDY_TABLE}.csv")
    pictures = figures.draw_study(table, grid.folder)
    if as_json:
        reporter.answer(json.dumps(table.to_dict(), indent=2))
    else:
        for rows in table.all():
            reporter.table(study.asks, *rows)
        for note in table.footnotes():
            reporter.answer(note)
    reporter.note(
        f"{grid.folder}: table.md, table.csv, {', '.join(file.name for file in pictures)}; runs in CELL/seed-N"
    )
    if failed:
        reporter.warn(
            f"{len(failed)} of {plural(len(left), 'cell')} failed ({', '.join(failed)}): the same command retries them"
        )
    return USER_ERROR if failed else 0


def _refuse_cells(jobs: Sequence[CellRun], sets: ImageSets) -> None:
    """Refuse cells that their runs would refuse, before others take time."""
    refused: dict[str, str] = {}
    for job in jobs:
        try:
            check_run(job.recipe, sets.train)
        except UserError as error:
            refused[job.cell] = str(error)
    for cell, message in refused.items():
        all_alike = set(refused.values()) == {message} and refused.keys() == {job.cell for job in jobs}
        raise UserError(message if all_alike else f"cell {cell}: {message}; or leave it out with --cells")


def _run(left: Sequence[CellRun], grid: StudyGrid, reporter: Reporter) -> tuple[int, list[str]]:
    """Run the jobs one after another. Returns 0 or 128 + the signal that stopped them, and the failed ones."""
    cell_reporter, rate = CellReporter(quiet=reporter.quiet), _rate(grid)
    failed: list[str] = []
    done, spent = 0, 0.0  # passes over the images in this process, and their seconds
    for number, job in enumerate(left, start=1):
        ahead = sum(job.epochs for job in left[number - 1 :])
        if done:
            rate = done * len(grid.sets.train) / spent
        about = duration(ahead * len(grid.sets.train) / rate)
        cell_reporter.job = f"{job.cell}, seed {job.seed}"
        cell_reporter.place = f"cell {number} of {len(left)}, about {about} left"
        reporter.note(f"{cell_reporter.place}: {cell_reporter.job}")
        if job.finished() is not None:  # by another process of the same study
            continue
        start = time.monotonic()
        try:
            if code := run_cell(job, grid.sets, cell_reporter):
                return code, failed
        except UserError as error:  # a run that diverges, or is locked by another process, must not stop the study
            cell_reporter.warn(str(error))
            failed.append(f"{job.cell}/seed-{job.seed}")
            continue
        done, spent = done + job.epochs, spent + time.monotonic() - start
    return 0, failed


def _rate(grid: StudyGrid) -> float:
    """Training images per second of the finished cells, evaluation included; a guess if there are none."""
    table = grid.table()
    finished = [one for row in table.rows for one in row.runs]
    images = sum(one["recipe"]["optim"]["epochs"] * one["data"]["train"]["images"] for one in finished)
    seconds = sum(row.seconds for row in table.rows)
    return images / seconds if seconds else IMAGES_PER_SECOND


def _print_plan(
    grid: StudyGrid, jobs: Sequence[CellRun], left: Sequence[CellRun], reporter: Reporter, *, as_json: bool
) -> None:
    seconds = sum(job.epochs for job in left) * len(grid.sets.train) / _rate(grid)
    if as_json:
        cells = [
            {"cell": job.cell, "seed": job.seed, "overrides": [*job.shared, *job.own], "finished": job not in left}
            for job in jobs
        ]
        reporter.answer(json.dumps({"study": grid.study.name, "seconds": round(seconds), "cells": cells}, indent=2))
        return
    rows = []
    for name in dict.fromkeys(job.cell for job in jobs):
        mine = [job for job in jobs if job.cell == name]
        done = [str(job.seed) for job in mine if job not in left]
        to_run = [str(job.seed) for job in mine if job in left]
        rows.append([name, ", ".join(done) or "-", ", ".join(to_run) or "-", " ".join(mine[0].own)])
    title = f"{grid.study.name}: {grid.study.asks}; recipe {BASE} {' '.join(grid.values)}".rstrip()
    reporter.table(title, ["cell", "seeds finished", "seeds to run", "overrides"], rows)
    timed = any(row.runs for row in grid.table().rows)
    basis = "at the speed of its finished cells" if timed else "on one CPU core, at the sizes of the base recipe"
    reporter.answer(f"{len(left)} of {len(jobs)} to run: about {duration(seconds)} {basis}")
