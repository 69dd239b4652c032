"""One backbone, or a reference, on many sets: what each figure depends on, and how it is measured and written."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from excb.console import Reporter, plural
from excb.distributed.collectives import all_succeed, run_on_rank0
from excb.errors import UserError
from excb.features.extraction import files_hash, refuse_broken
from excb.files import npy
from excb.files.atomic import write_bytes
from excb.files.foreign import read_bytes
from excb.images.image_set import Images, clipped_ledger, ledger_of, share_clipped
from excb.images.pixels import Pixels
from excb.images.survey import surveyed
from excb.ledger import Ledger
from excb.networks.architecture import RGB
from excb.networks.preprocessing import Preprocessing
from excb.references.baselines import PIXELS, features_without_network
from excb.references.guessing import MAJORITY
from excb.results.beside import arrays_beside
from excb.results.result import ResultRecord
from excb.version import __version__

from ..data.mapping import declared_pixels, on_one_mapping
from ..every.suite import PlannedStep, RunStep, common
from ..task import Task
from .choosing import OpenSet
from .heads import Options, SetMeasurements, measure_set, unpack_answers

COMMAND = "sets"
REFERENCES = "references"  # folder of what is not a checkpoint

_BESIDE = [arrays_beside("answers", "targets")]

Judged = tuple[SetMeasurements, dict[str, Any], Ledger]  # figures, what they are of, and doubts about its images


@dataclass(frozen=True)
class Candidate:
    """A checkpoint, its network untrained, or raw pixels."""

    name: str  # in tables
    folder: str  # of its results
    reference: bool  # whether it is there to be beaten
    steps: Sequence[PlannedStep]  # one a set
    run: RunStep  # measures a set and writes FILE.json and FILE.npz


@dataclass(frozen=True)
class Sets:
    """The sets of one call, and how they are judged."""

    opened: Sequence[OpenSet]
    skipped: Mapping[str, str]  # why sets cannot be evaluated, by name
    options: Options
    network: str  # teacher or student
    reporter: Reporter
    range: str | None = None  # of stored values, for sets of images of more than 8 bits
    channels: int | None = None  # of the images

    def mapped(self, opened: OpenSet, prepared: Preprocessing) -> tuple[Images, Images, Preprocessing]:
        """A set's images on one mapping of stored values: that of `--range` where it has more than 8 bits."""
        reporter, declared = self.reporter, declared_pixels(self.range_of(opened), self.channels, prepared.pixels)
        return on_one_mapping(opened.train, opened.test, prepared, declared, note=reporter.note, warn=reporter.warn)

    def range_of(self, opened: OpenSet) -> str | None:
        """The declared range where a set has images of more than 8 bits: others have theirs."""
        if self.range is None:
            return None
        return self.range if surveyed(opened.train, Pixels.declared(self.range, self.channels or RGB)).deep else None

    def on(self, task: Task, opened: OpenSet) -> Task:
        """The task of a network on a set."""
        own = replace(task.preprocessing, pixels=task.backbone.transform.pixels)
        train, test, prepared = all_succeed(lambda: self.mapped(opened, own))
        return replace(task, train=train, test=test, preprocessing=prepared)

    def steps(self, depends_on: Callable[[OpenSet], Mapping[str, Any]]) -> list[PlannedStep]:
        """A step for each set, those that are missing with the reason."""
        there = {each.entry.name: each for each in self.opened}
        shots = ["--shots", *map(str, self.options.shots)]
        given = {"range": self.range, "channels": self.channels}
        declared = {name: value for name, value in given.items() if value is not None}
        steps = []
        for name in [*there, *self.skipped]:
            words = [
                COMMAND,
                "--only",
                name,
                *shots,
                "--episodes",
                str(self.options.episodes),
                "--k",
                str(self.options.k),
            ]
            if name in there:
                settings = {"settings": self.options.settings(there[name])} | declared
                steps.append(
                    PlannedStep(name, name, words, depends_on={**depends_on(there[name]), **settings}, beside=_BESIDE)
                )
            else:
                steps.append(PlannedStep(name, name, words, skipped=self.skipped[name]))
        return steps

    def of_task(self, task: Task) -> list[PlannedStep]:
        """The steps of a checkpoint."""
        return self.steps(lambda each: common(replace(task, train=each.train, test=each.test), self.network))

    def checkpoint(self, name: str, folder: str, steps: Sequence[PlannedStep], load: Callable[[], Task]) -> Candidate:
        """A checkpoint, which is loaded when the first of its sets is measured."""
        return Candidate(name, folder, False, steps, partial(self._run, self._of_network, cache(load)))

    def untrained(self, task: Task) -> Candidate:
        """The network of a task with random weights, for each set with the BatchNorm statistics of its train images."""
        task.backbone.to("cpu")  # its weights are of no use here, and would fill a GPU
        architecture, prepared = task.backbone.entry.architecture.name, task.preprocessing.to_dict()
        own = {"untrained": architecture, "preprocessing": prepared}
        code = hashlib.sha256(repr(own).encode()).hexdigest()[:8]
        return Candidate(
            f"{architecture.removeprefix('timm:')}, untrained",
            f"{REFERENCES}/untrained-{code}",
            True,
            self.steps(lambda each: own | _images(each)),
            partial(self._run, self._of_untrained, lambda: task),
        )

    def pixels(self, device: torch.device, workers: int) -> Candidate:
        """Raw pixels at 32 x 32."""
        steps = self.steps(lambda each: {"preprocessing": PIXELS.to_dict()} | _images(each))
        made = partial(self._of_pixels, device, workers)
        return Candidate("raw pixels", f"{REFERENCES}/pixels", True, steps, partial(self._run, made, lambda: None))

    def _run(
        self,
        evaluate: Callable[[OpenSet, Any], Judged],
        load: Callable[[], Any],
        _step: PlannedStep,
        file: Path,
    ) -> list[Path]:
        """Measure the set that a file is named after, and write it; as `suite.RunStep`."""
        opened = next(each for each in self.opened if each.entry.name == file.stem)
        start = time.monotonic()
        made = evaluate(opened, load())
        return run_on_rank0(lambda: self._write(opened, made, file, time.monotonic() - start))

    def _of_network(self, opened: OpenSet, task: Task) -> Judged:
        own = self.on(task, opened).calibrated()
        return self._measured(opened, own)

    def _of_untrained(self, opened: OpenSet, task: Task) -> Judged:
        return self._measured(opened, self.on(task, opened).untrained())

    def _measured(self, opened: OpenSet, task: Task) -> Judged:
        """All ranks compute features, rank 0 judges them."""
        rows, queries = (
            task.stored(images, f"{opened.entry.name}, {part}", self.reporter).all()
            for part, images in (("train", task.train), ("test", task.test))
        )
        clipped = _clipped(task.train, task.test)
        described = task.describe_checkpoint()
        return run_on_rank0(
            lambda: (
                measure_set(opened, rows, queries, options=self.options, reporter=self.reporter, device=task.device),
                described,
                clipped,
            )
        )

    def _of_pixels(self, device: torch.device, workers: int, opened: OpenSet, _load: None) -> Judged:
        def judged() -> Judged:
            features = []
            train, test, _ = self.mapped(opened, PIXELS)
            for part, images in (("train", train), ("test", test)):
                self.reporter.note(f"pixels of {opened.entry.name}, {part}: {plural(len(images), 'image')}")
                made = features_without_network("pixels", images, workers=workers)
                refuse_broken(made.broken, images)
                features.append(made.rows)
            rows, queries = features
            described = {"name": "raw pixels", "preprocessing": PIXELS.to_dict()}
            measured = measure_set(opened, rows, queries, options=self.options, reporter=self.reporter, device=device)
            found = clipped_ledger(train, "train") + clipped_ledger(test, "test")
            return measured, described, found

        return run_on_rank0(judged)

    def _write(self, opened: OpenSet, made: Judged, file: Path, seconds: float) -> list[Path]:
        measured, checkpoint, clipped = made
        packed, arrays = measured.pack(), file.with_suffix(".npz")
        precision = {name: value for name, value in checkpoint.items() if name == "feature_precision"}
        result = ResultRecord(
            protocol=COMMAND,
            figures={name: round(value, 4) for name, value in measured.figures.items()},
            settings=self.options.settings(opened) | precision | {"chosen": measured.chosen},
            checkpoint=checkpoint,
            data={
                part: {"root": str(images.root), "images": len(images), "fingerprint": images.fingerprint}
                for part, images in (("train", opened.train), ("test", opened.test))
            }
            | {"classes": len(opened.train.classes or ())},
            ledger=ledger_of(opened.train).of("train") + ledger_of(opened.test).of("test") + clipped,
            seconds=round(seconds, 1),
            intervals={name: (round(low, 4), round(high, 4)) for name, (low, high) in measured.intervals.items()},
            inference=dict(measured.inference),
            notes=list(measured.notes),
            references={MAJORITY: {name: round(value, 4) for name, value in measured.majority.items()}},
            predictions={"file": arrays.name, "sha256": hashlib.sha256(packed).hexdigest()},
        )
        write_bytes(packed, arrays)
        result.write(file)  # last: the file that it names exists
        return [file, arrays]


def _clipped(train: Images, test: Images) -> Ledger:
    """The images with values outside the range that were read; all ranks call this."""
    for images in (train, test):
        share_clipped(images)
    return clipped_ledger(train, "train") + clipped_ledger(test, "test")


def _images(opened: OpenSet) -> dict[str, Any]:
    """The images that a reference depends on."""

    def of(images: Images) -> list[str]:
        return [images.fingerprint, files_hash(images)]

    return {"train": of(opened.train), "test": of(opened.test), "version": __version__}


def answers_of(result: ResultRecord, file: Path) -> tuple[Any, dict[str, Any]]:
    """Targets and answers of a result, from the file beside it.

    Raises:
        UserError: they are gone, or those of another result.
    """
    arrays = file.parent / result.predictions["file"]
    try:
        packed = read_bytes(arrays)
        if hashlib.sha256(packed).hexdigest() == result.predictions["sha256"]:
            return unpack_answers(packed)
    except npy.DAMAGE:
        pass  # reported below
    raise UserError(f"{arrays} does not hold the answers of {file}: remove {file} to measure it again")
