"""Robustness: one head on frozen features, trained on clean images, and what is left of its accuracy elsewhere."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from excb.console import Reporter, plural
from excb.distributed.collectives import run_on_rank0
from excb.errors import UserError, require
from excb.inference import accuracy
from excb.inference.basis import JACKKNIFE, WILSON
from excb.references.guessing import MAJORITY
from excb.references.untrained import NETWORK
from excb.results.pictures import SEVERITY
from excb.results.result import ResultRecord

from ..data.folders import is_imagenet
from ..probes.failure import SameFeatures
from ..probes.penalty import fits_of
from ..probes.recipes import FOLDS
from ..protocol import Measurement
from ..reporting.predictions import ImageScores
from ..reporting.references import NEIGHBOURS, below, tell_notes
from ..reporting.report import ScoredFiles, make_result
from ..task import Task
from .chart import curves_of, draw_robustness
from .head import Head, fit_head
from .metrics import (
    Answers,
    Reference,
    calibration_error,
    corruption_error,
    drop_interval,
    relative_corruption_error,
    relative_drop,
)
from .names import ALEXNET, ALEXNET_CLEAN, ALEXNET_SIDE, COMMON, SEVERITIES
from .options import RobustnessOptions
from .ready import Ready

CLEAN, CORRUPTED = "robustness_clean_top1", "robustness_corrupted_top1"
MCE, RELATIVE_MCE = "robustness_mce", "robustness_relative_mce"
DROP = "robustness_relative_drop"
CALIBRATION = "robustness_{}_ece"
LABELS = "robustness_labels_top1"
ALEXNET_NAME = "AlexNet (published)"


@dataclass(frozen=True)
class RobustnessScores(ImageScores):
    """Scores of the test images, clean and corrupted, with a chart instead of confusions."""

    picture_name = SEVERITY

    @property
    def main(self) -> list[str]:
        """The corrupted and the clean accuracy."""
        return [name for name in (CORRUPTED, CLEAN) if name in self.values]

    def picture(self) -> bytes | None:
        """A PNG of accuracy against severity."""
        from excb.charts.style import figure_bytes

        means = {name: 100 * float(each.nanmean()) for name, each in self.values.items()}
        curves = curves_of(means)
        return figure_bytes(draw_robustness(curves)) if curves else None


@dataclass(frozen=True)
class RobustnessMeasurements:
    """The head's answers."""

    head: Head
    clean: Answers
    cells: dict[tuple[str, int], Answers]  # by corruption and severity
    logits: Tensor  # [Q, C], of the clean test images
    same: SameFeatures | None = None  # the vote on the clean features

    @property
    def corruptions(self) -> list[str]:
        """Those that were measured."""
        return [*dict.fromkeys(name for name, _ in self.cells)]

    @property
    def averaged(self) -> list[str]:
        """The corruptions that means are over: the paper's fifteen, as far as they were measured, else all."""
        return [name for name in self.corruptions if name in COMMON] or self.corruptions

    def hits(self, name: str | None = None, severity: int | None = None) -> Tensor:
        """The share of cells of a corruption or severity, or of all that means are over, in which an image is right."""
        cells = [
            answers.hits.double()
            for (corruption, strength), answers in self.cells.items()
            if (corruption in self.averaged if name is None else corruption == name) and severity in (None, strength)
        ]
        return torch.stack(cells).mean(0)

    def calibration(self, name: str | None = None) -> float:
        """The mean calibration error of a corruption's cells, or of all that means are over."""
        wanted = self.averaged if name is None else [name]
        errors = [calibration_error(each) for (corruption, _), each in self.cells.items() if corruption in wanted]
        return sum(errors) / len(errors)


def measure(task: Task, options: RobustnessOptions, reporter: Reporter) -> Measurement:
    """Train one head on the clean train images, and judge it on clean, corrupted and other test images.

    Args:
        task: backbone and images.
        options: what to measure.
        reporter: prints notes and progress.

    Returns:
        Figures in percent: `robustness_clean_top1`, `robustness_corrupted_top1` (the mean over corruptions and
        severities), `robustness_relative_drop`, `robustness_mce` and `robustness_relative_mce` where there is a
        reference, `robustness_top1_CORRUPTION`, `..._CORRUPTION_SEVERITY`, `robustness_top1_severity_SEVERITY`, ECE
        likewise, and of every other set NAME `robustness_on_NAME_top1`, `_clean_top1` (the clean test images of its
        classes) and `_ece`; and the scores of all test images.

    Raises:
        UserError: an option or a set cannot be used, or an image cannot be read.
    """
    start = time.monotonic()
    notes: list[str] = []
    ready = Ready.of(task, options, notes.append)
    reference = _reference(ready, reporter, notes)
    measured = head_answers(ready, reporter)
    scored = _scores(ready, measured, reference, notes)
    settings = ready.settings() | {
        "reference": None if reference is None else {"name": reference.name, "digest": reference.digest},
        "chosen": {"l2": measured.head.l2},
        "sweep": measured.head.sweep,
    }
    result = make_result(
        ready.task,
        protocol="robustness",
        settings=settings,
        scored=scored,
        seconds=time.monotonic() - start,
        notes=[*ready.task.unknown_notes(), *notes],
    )
    result = _with_other_sets(_with_means(result, measured), ready, measured, reporter)
    result = _beside_references(result, ready, measured)
    ledger = sum((other.ledger.of(other.name) for other in ready.others), result.ledger)
    result = replace(result, seconds=round(time.monotonic() - start, 1), ledger=ledger)
    return Measurement(result, scored, partial(_show, ready, result), ScoredFiles(scored))


def head_answers(ready: Ready, reporter: Reporter) -> RobustnessMeasurements:
    """Fit the head, and let it answer for all test images; all ranks call this."""
    task, options, severities = ready.task, ready.options, ready.options.ascending_severities
    rows, labels = task.features(task.train, "train", reporter)
    classes = len(task.train.classes or ())
    masks = FOLDS if ready.few else 1
    with reporter.progress("head", fits_of(options.l2, masks)) as bar:
        head = run_on_rank0(
            lambda: fit_head(
                rows,
                labels,
                classes,
                options.l2,
                seed=options.seed,
                few=ready.few,
                device=task.device,
                progress=bar.advance,
            )
        )
    queries, targets = task.features(task.test, "test", reporter)
    same = SameFeatures.of((rows, labels), (queries, targets), classes=classes, device=task.device)
    logits = head.logits(queries)
    clean = Answers.of(logits, ready.right)
    cells = {}
    for number, (name, images) in enumerate(ready.corrupted.items(), 1):
        words = f"{name} ({number} of {len(ready.corrupted)})"
        corrupted, _ = ready.on_squares.features(images, words, reporter)
        for turn, severity in enumerate(severities):
            answers = head.logits(corrupted[turn :: len(severities)])
            cells[name, severity] = Answers.of(answers, ready.right)
    return RobustnessMeasurements(head, clean, cells, logits, same)


def _scores(
    ready: Ready, measured: RobustnessMeasurements, reference: Reference | None, notes: list[str]
) -> RobustnessScores:
    """Every figure that is a mean over the test images."""
    clean, scores = measured.clean.hits.double(), dict[str, Tensor]()
    if measured.cells:
        scores[CORRUPTED] = measured.hits()
    scores[CLEAN] = clean
    if measured.cells and reference is not None:
        scores |= _relative_to(reference, measured, clean, notes)
    for name in measured.corruptions:
        scores[f"robustness_top1_{name}"] = measured.hits(name)
    for severity in dict.fromkeys(severity for _, severity in measured.cells):
        scores[f"robustness_top1_severity_{severity}"] = measured.hits(severity=severity)
    for (name, severity), answers in measured.cells.items():
        scores[f"robustness_top1_{name}_{severity}"] = answers.hits.double()
    if ready.labels is not None:
        scores[LABELS] = Answers.of(measured.logits, ready.labels).hits.double()
        scores[LABELS][~ready.labels.any(1)] = torch.nan
    return RobustnessScores.of(ready.task, scores)


def _relative_to(
    reference: Reference, measured: RobustnessMeasurements, clean: Tensor, notes: list[str]
) -> dict[str, Tensor]:
    hits = {name: measured.hits(name) for name in measured.averaged}
    if lacking := [name for name in hits if reference.corrupted.get(name, 0.0) <= 0]:
        notes.append(f"no mCE: {reference.name} has no error under {', '.join(lacking)} to compare with")
        return {}
    scores = {MCE: corruption_error(hits, reference)}
    if still := [name for name in hits if reference.corrupted[name] <= reference.clean]:
        notes.append(f"no relative mCE: the error of {reference.name} does not rise under {', '.join(still)}")
        return scores
    return scores | {RELATIVE_MCE: relative_corruption_error(hits, clean, reference)}


def _with_means(result: ResultRecord, measured: RobustnessMeasurements) -> ResultRecord:
    """The result with figures that are not means over images: calibration errors and the relative drop."""
    figures = {CALIBRATION.format("clean"): calibration_error(measured.clean)}
    intervals, inference = dict(result.intervals), dict(result.inference)
    if measured.cells:
        figures[CALIBRATION.format("corrupted")] = measured.calibration()
        figures |= {f"robustness_ece_{name}": measured.calibration(name) for name in measured.corruptions}
        clean, corrupted = measured.clean.hits.double(), measured.hits()
        if clean.any():
            figures[DROP] = relative_drop(clean, corrupted)
            if (spread := drop_interval(clean, corrupted)) is not None:
                intervals[DROP] = spread
                inference[DROP] = JACKKNIFE.to_dict()
    rounded = {name: round(value, 4) for name, value in figures.items()}
    return replace(result, figures=result.figures | rounded, intervals=intervals, inference=inference)


def _with_other_sets(
    result: ResultRecord, ready: Ready, measured: RobustnessMeasurements, reporter: Reporter
) -> ResultRecord:
    """The result with the figures of other sets beside those of the clean test images of the same classes."""
    figures, intervals, data = dict(result.figures), dict(result.intervals), dict(result.data)
    notes, inference = list(result.notes), dict(result.inference)
    for other in ready.others:
        rows, _ = ready.task.features(other.images, other.name, reporter)
        named = other.candidates if ready.options.candidates == "common" else None
        answers = {"": Answers.of(measured.head.logits(rows), other.targets, named)}
        beside = ready.beside(other)
        if beside.any():
            answers["clean_"] = Answers.of(measured.logits[beside], ready.right_among(other), named)
        else:
            notes.append(f"no clean test image is of a class of {other.name}")
        for prefix, each in answers.items():
            figure = f"robustness_on_{other.name}_{prefix}top1"
            figures[figure] = round(accuracy.accuracy(each.hits), 4)
            intervals[figure] = accuracy.accuracy_interval(each.hits)
            inference[figure] = WILSON.to_dict()
        figures[f"robustness_on_{other.name}_ece"] = round(calibration_error(answers[""]), 4)
        images = other.images
        data[other.name] = {"root": str(images.root), "images": len(images), "fingerprint": images.fingerprint}
    return replace(result, figures=figures, intervals=intervals, inference=inference, data=data, notes=notes)


def _beside_references(result: ResultRecord, ready: Ready, measured: RobustnessMeasurements) -> ResultRecord:
    """The result with the accuracy of always naming the most frequent class, and of votes.

    No corruption changes the first. The votes of k-NN on the clean features say whether the head failed.
    """
    train, clean, votes = ready.task.train.labels, measured.clean.hits, measured.same
    assert train is not None
    counts = torch.bincount(torch.from_numpy(train), minlength=ready.right.shape[1])
    value = _guessed(counts, ready.right)
    guesses = {name: value for name in (CORRUPTED, CLEAN) if name in result.figures}
    if ready.labels is not None:
        guesses[LABELS] = _guessed(counts, ready.labels[ready.labels.any(1)])
    for other in ready.others:
        named = counts * other.candidates if ready.options.candidates == "common" else counts
        for prefix, right in {"": other.targets, "clean_": ready.right_among(other)}.items():
            if len(right):
                guesses[f"robustness_on_{other.name}_{prefix}top1"] = _guessed(named, right)
    result = replace(result, references={MAJORITY: guesses})
    failed: list[str] = []
    if votes is not None:
        result = replace(result, references=result.references | {NEIGHBOURS: {CLEAN: votes.percent}})
        failed = votes.blame(clean, guessing=value, advice="other values of --l2 may do better")
    return replace(result, notes=[*result.notes, *below(result), *failed])


def _guessed(counts: Tensor, right: Tensor) -> float:
    """Accuracy in percent of always naming the most frequent class; of equally frequent ones the mean.

    Args:
        counts: [C], train images of each class, of which 0 is never named.
        right: [Q, C] bool, the classes that are right for each image.
    """
    return round(100 * float(right[:, counts == counts.max()].double().mean()), 4)


def check_reference(ready: Ready) -> None:
    """Raise UserError where the reference that mCE is relative to cannot be one; nothing is measured."""
    if ready.options.reference != NETWORK:
        _reference(ready, Reporter(quiet=True), [])


def _reference(ready: Ready, reporter: Reporter, notes: list[str]) -> Reference | None:
    """The reference that mCE is relative to; None where there is none, and a note says why."""
    options, imagenet = ready.options, is_imagenet(ready.task.train.classes or ())
    name = options.reference or ("alexnet" if imagenet else None)
    if not options.corruption_names:
        return None
    if name is None:
        notes.append("no mCE: it needs --reference, errors to compare with")
        return None
    if name == "alexnet":
        return _alexnet(ready, notes, imagenet=imagenet)
    if name != NETWORK:
        return run_on_rank0(lambda: _of_result(Path(name), ready))
    if ready.task.is_untrained:  # which is its own reference
        notes.append("no mCE: the network is untrained itself")
        return None
    reporter.note("reference of mCE: the same network untrained")
    twin = head_answers(ready.untrained(), reporter)
    corrupted = {each: 1 - float(twin.hits(each).mean()) for each in twin.corruptions}
    clean = 1 - float(twin.clean.hits.double().mean())
    return Reference("the same network untrained", clean, corrupted, _digest(clean, corrupted))


def _alexnet(ready: Ready, notes: list[str], *, imagenet: bool) -> Reference | None:
    why = _unlike_imagenet_c(ready, imagenet=imagenet)
    if why is None:
        return Reference(ALEXNET_NAME, ALEXNET_CLEAN, ALEXNET)
    require(ready.options.reference is None, f"--reference alexnet: its published errors {why}")
    notes.append(f"no mCE: AlexNet's published errors {why}")
    return None


def _unlike_imagenet_c(ready: Ready, *, imagenet: bool) -> str | None:
    """Why AlexNet's errors on ImageNet-C are no reference here; None where they are."""
    if not imagenet:
        return "are of ImageNet"
    if ready.options.ascending_severities != SEVERITIES:
        return "are means over severities 1 to 5"
    side = ready.task.preprocessing.crop
    if side != ALEXNET_SIDE:
        return f"are of images of {ALEXNET_SIDE} pixels, and these have {side}"
    return None if ready.options.stored == "jpeg" else "are of images that were stored as JPEGs (--stored jpeg)"


def _of_result(file: Path, ready: Ready) -> Reference:
    """The errors of another robustness result on the same images."""
    if not file.is_file():
        raise UserError(f"--reference {file}: it is alexnet, untrained, or the file of a robustness result")
    result, own = ResultRecord.read(file), ready.settings()
    require(result.protocol == "robustness", f"--reference {file} is of protocol {result.protocol}, not robustness")
    require(
        result.data["test"].get("fingerprint") == ready.task.test.fingerprint,
        f"--reference {file} is of other test images: measure it on the same ones",
    )
    for name in ("severities", "library", "stored", "seed"):
        require(
            result.settings.get(name) == own[name],
            f"--reference {file} has {name} {result.settings.get(name)}, not {own[name]}: measure it alike",
        )
    accuracies = {each: result.figures.get(f"robustness_top1_{each}") for each in ready.options.corruption_names}
    lacking = [each for each, value in accuracies.items() if value is None]
    require(not lacking, f"--reference {file} lacks {', '.join(lacking)}: measure it with the same --corruptions")
    corrupted = {each: 1 - value / 100 for each, value in accuracies.items() if value is not None}
    clean = 1 - result.figures[CLEAN] / 100
    name = str(result.checkpoint.get("name") or file.name)
    return Reference(name, clean, corrupted, _digest(clean, corrupted))


def _digest(clean: float, corrupted: Mapping[str, float]) -> str:
    text = " ".join(f"{name} {value:.6f}" for name, value in {"clean": clean, **corrupted}.items())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _show(ready: Ready, result: ResultRecord, reporter: Reporter) -> None:
    figures, severities = result.figures, ready.options.ascending_severities
    tell_notes(result, reporter)

    def row(title: str, figure: str) -> list[str]:
        low, high = result.intervals.get(figure, (None, None))
        return [title, f"{figures[figure]:.2f}", "" if low is None else f"{low:.1f} to {high:.1f}"]

    reference: Any = result.settings["reference"]
    beside = "" if reference is None else f", relative to {reference['name']}"
    titles = {
        CLEAN: "clean top-1",
        CORRUPTED: "corrupted top-1",
        DROP: "relative drop",
        MCE: f"mCE{beside}",
        RELATIVE_MCE: f"relative mCE{beside}",
        CALIBRATION.format("clean"): "clean ECE",
        CALIBRATION.format("corrupted"): "corrupted ECE",
        LABELS: "top-1, several labels",
    }
    for other in ready.others:
        on = f"robustness_on_{other.name}"
        titles |= {
            f"{on}_top1": f"{other.name} top-1",
            f"{on}_clean_top1": "  clean, its classes",
            f"{on}_ece": "  ECE",
        }
    shown = [row(title, name) for name, title in titles.items() if name in figures]
    train, test = len(ready.task.train), len(ready.task.test)
    title = (
        f"Robustness, {train:,} train and {plural(test, 'test image')}, head with l2 = "
        f"{result.settings['chosen']['l2']:g}"
    )
    reporter.table(title, ["figure", "%", "95 % interval"], shown)
    if ready.options.corruption_names:
        header = ["corruption", *map(str, severities), "mean", "ECE"]
        lines = [
            [name]
            + [f"{figures[f'robustness_top1_{name}_{severity}']:.1f}" for severity in severities]
            + [f"{figures[f'robustness_top1_{name}']:.1f}", f"{figures[f'robustness_ece_{name}']:.1f}"]
            for name in ready.options.corruption_names
        ]
        means = [f"{figures[f'robustness_top1_severity_{severity}']:.1f}" for severity in severities]
        ends = [f"{figures[name]:.1f}" for name in (CORRUPTED, CALIBRATION.format("corrupted"))]
        reporter.table("Top-1 % by severity", header, [*lines, ["mean", *means, *ends]])
