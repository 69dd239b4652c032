"""Heads that judge features on one set: logistic regression, k-NN and n-shot episodes, with the set's own metric."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb.console import Reporter, plural
from excb.files import npy
from excb.inference.basis import OVER_EPISODES, stated
from excb.neighbours.knn import vote, vote_on_labels
from excb.neighbours.nearest import nearest

from ..data.multilabel import MultiLabelImages
from ..knn.record import KNN as PROTOCOL
from ..probes.failure import SameFeatures
from ..probes.logistic import SOLVER
from ..probes.penalty import FEW_SETTINGS, STRENGTHS, Rule, choose_penalty, cross_validated, log_likelihood
from ..probes.recipes import FEW_STRENGTHS, FOLDS
from ..probes.selection import HELD_OUT, HELD_OUT_SETS, has_few_labels
from .choosing import OpenSet
from .episodes import episode_interval, episodes

LOGREG, KNN = "logreg", PROTOCOL.name  # heads whose answers are kept, so that checkpoints are compared image by image
SHOTS, EPISODES, K, T = (1, 2, 5, 10), 100, 20, 0.07


@dataclass(frozen=True)
class Options:
    """The user's choices for the heads."""

    shots: tuple[int, ...] = SHOTS
    episodes: int = EPISODES
    k: int = K
    strengths: tuple[float, ...] = STRENGTHS  # values of C to choose from, inverse strengths of the penalty
    seed: int = 0  # names the train images that choose among them

    def few(self, labels: np.ndarray) -> bool:
        """Whether logistic regression takes its form for few labels: where the user chooses no penalties."""
        return has_few_labels(labels) and self.strengths == STRENGTHS

    def settings(self, opened: OpenSet) -> dict[str, Any]:
        """All that figures depend on beside features, as JSON holds it."""
        metric = opened.entry.metric
        how: dict[str, Any] = {"C": list(self.strengths), "held_out": HELD_OUT_SETS if metric.label_sets else HELD_OUT}
        if self.few(_targets(opened.train)):
            how = FEW_SETTINGS | {"C": list(FEW_STRENGTHS)}
        return {
            "metric": metric.name,
            LOGREG: SOLVER | how | {"seed": self.seed},
            KNN: {"k": self.k, "T": T},
            "shots": list(self.shots),
            "episodes": self.episodes,
        }


@dataclass(frozen=True)
class SetMeasurements:
    """Figures of one backbone on one set."""

    figures: dict[str, float]  # percent by head: "logreg", "knn", "shot1", ...
    intervals: dict[str, tuple[float, float]]  # over test images; of n-shot figures over episodes
    majority: dict[str, float]  # what answers without a look at an image give
    chosen: dict[str, Any]  # how the strength of the penalty was chosen
    targets: np.ndarray  # of the test images, as `metrics.Metric` takes them
    answers: Mapping[str, np.ndarray] = field(default_factory=dict)  # by head, likewise
    inference: Mapping[str, dict[str, str]] = field(default_factory=dict)  # the basis of the intervals, by head
    notes: Sequence[str] = ()  # on a head that failed, and on fewer images than were asked for

    def pack(self) -> bytes:
        """The bytes of an .npz file with targets and answers."""
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {"targets": self.targets} | dict(self.answers)
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()


def unpack_answers(packed: bytes) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Targets and answers that `SetMeasurements.pack` packed.

    Raises:
        npy.DAMAGE: these bytes are no such file.
    """
    arrays = npy.read_npz(packed)
    return arrays.pop("targets"), arrays


def measure_set(
    opened: OpenSet, rows: Tensor, queries: Tensor, *, options: Options, reporter: Reporter, device: torch.device
) -> SetMeasurements:
    """Judge features of the train images [N, D] and of the test images [Q, D]; one process does it.

    Raises:
        UserError: no train image can be held out.
    """
    metric = opened.entry.metric
    train, test = _targets(opened.train), _targets(opened.test)
    classes = len(opened.train.classes or ())
    few = options.few(train)
    strengths = FEW_STRENGTHS if few else options.strengths
    how = f", chosen by {FOLDS} folds of {plural(len(train), 'image')}" if few else ""
    reporter.note(
        f"logistic regression of {plural(classes, 'class', 'classes')}, {plural(len(strengths), 'strength')} "
        f"of the penalty{how}"
    )

    def judge(scores: Tensor, answers: Tensor) -> tuple[float, ...]:
        figure = metric.score(scores.numpy(), answers.numpy())
        return (figure,) if metric.label_sets else (figure, log_likelihood(scores, answers))

    targets = torch.from_numpy(train)
    if few:
        fitted = cross_validated(rows, targets, strengths, judge, classes=classes, seed=options.seed, device=device)
    else:
        rule = Rule.held_out(options.seed, judge)
        fitted = choose_penalty(rows, targets, strengths, rule, classes=classes, device=device)
    scores = fitted.scores(queries).numpy()
    answers = {LOGREG: scores if metric.label_sets else scores.argmax(1) == test}
    k = min(options.k, len(rows))
    neighbours = nearest(rows, queries, k, device=device)
    if metric.label_sets:
        answers[KNN] = vote_on_labels(neighbours, targets, k=k, temperature=T).numpy()
    else:
        voted = vote(neighbours, targets, ks=[k], temperatures=[T], classes=classes)
        answers[KNN] = voted[k, T].top1.numpy() == test
    figures = {head: metric.percent(each, test) for head, each in answers.items()}
    intervals = {head: ends for head, each in answers.items() if (ends := metric.interval(each, test)) is not None}
    if not metric.label_sets and options.shots:
        with reporter.progress("episodes", options.episodes) as bar:
            by_shots = episodes(
                rows,
                train,
                queries,
                shots=options.shots,
                count=options.episodes,
                score=lambda guesses: metric.percent(guesses == test, test),
                device=device,
                progress=bar.advance,
            )
        accuracies = {f"shot{n}": each for n, each in by_shots.items()}
        figures |= {name: float(each.mean()) for name, each in accuracies.items()}
        intervals |= {name: ends for name, each in accuracies.items() if (ends := episode_interval(each)) is not None}
    bases = {head: metric.basis if head in answers else OVER_EPISODES for head in figures}
    majority = dict.fromkeys(figures, metric.majority(train, test))
    sweep = {"C": fitted.C, "held_out": {f"{C:g}": judged[0] for C, judged in fitted.sweep.items()}}
    notes = _fewer(train, options) + ([] if metric.label_sets else _failed(answers, majority[LOGREG]))
    return SetMeasurements(figures, intervals, majority, sweep, test, answers, stated(bases, intervals), notes)


def _fewer(train: np.ndarray, options: Options) -> list[str]:
    """A sentence for each number of images that was asked for and that the train set does not have."""
    notes = [f"k-NN: {plural(len(train), 'train image')} vote, not {options.k}"] if options.k > len(train) else []
    sizes = np.bincount(train) if train.ndim == 1 else np.zeros(0, int)
    sizes = sizes[sizes > 0]
    for n in options.shots:
        if few := int((sizes < n).sum()):
            those = f"{few} of {plural(len(sizes), 'class', 'classes')}"
            notes.append(f"{n}-shot: all train images of {those}, which have fewer")
    return notes


def _failed(answers: Mapping[str, np.ndarray], guessing: float) -> list[str]:
    """A sentence that blames logistic regression, where it does worse than k-NN by more than chance."""
    same = SameFeatures(torch.from_numpy(answers[KNN]))
    advice = "go by k-NN of this set"
    return same.blame(torch.from_numpy(answers[LOGREG]), guessing=guessing, advice=advice)


def _targets(images: Any) -> np.ndarray:
    """Class indices [N], or sets of labels [N, C]."""
    targets: np.ndarray = images.targets if isinstance(images, MultiLabelImages) else images.labels
    return targets
