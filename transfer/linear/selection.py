"""Which of several linear classifiers the figures are of: chosen on images that none of them saw, or on the test's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from excb import seeding
from excb.console import Reporter
from excb.distributed.collectives import all_succeed
from excb.errors import UserError

from ..task import Task
from .heads import HeadBank

HELD_OUT = 0.1  # share of every class's train images on which heads are chosen

HeadSettings = dict[str, float]  # settings of one head, such as {"lr": 0.3, "wd": 0.0}


@dataclass(frozen=True)
class Outcome:
    """A trained classifier's guesses for the test images [Q, 5 or fewer], and what a reader must know of it."""

    top5: Tensor
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()


def held_out(labels: np.ndarray, seed: int) -> np.ndarray:
    """Which train images are kept for choosing: a tenth of every class, at least one, never a class's only image.

    Args:
        labels: [N] class indices.
        seed: names the choice.

    Returns:
        [N] bool.

    Raises:
        UserError: no class has two images.
    """
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(len(members) - 1, max(1, round(HELD_OUT * len(members))))
        held[seeding.generator(seeding.Purpose.SPLIT, seed, int(label)).permutation(members)[:count]] = True
    if not held.any():
        raise UserError(
            "no class has two train images, so none can be held out: try one setting only (one --lr and one --wd, or "
            "one --C), or choose on the test images with --select test"
        )
    return held


@dataclass(frozen=True)
class Choice:
    """Which of several heads the figures are of, and why."""

    head: int
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()

    @classmethod
    def on_test(cls, tried: Sequence[HeadSettings], bank: HeadBank, test: Tensor, targets: Tensor) -> "Choice":
        """The only head, or the one that is best on the test images."""
        if len(tried) == 1:
            return cls(0, {"chosen": tried[0]})
        return cls.among(tried, *bank.score(test, targets), images=len(targets), select="test")

    @classmethod
    def among(cls, tried: Sequence[HeadSettings], right: Tensor, loss: Tensor, *, images: int, select: str) -> "Choice":
        """The head with most right answers [H]; among equals the one of least loss [H], then the first."""
        head = max(range(len(tried)), key=lambda one: (int(right[one]), -float(loss[one])))
        percent = [round(100 * int(count) / images, 4) for count in right]
        sweep = [settings | {f"{select}_top1": value} for settings, value in zip(tried, percent, strict=True)]
        how = {"select": select, "select_images": images, "chosen": tried[head], "sweep": sweep}
        if select == "holdout":
            return cls(head, how)
        best = f"the best of {len(tried)} heads on the test images themselves"
        return cls(head, how, (f"{best}, as authors report it: an optimistic figure",))


def outcome_of(bank: HeadBank, head: int, test: Tensor, choice: Choice, settings: dict[str, Any]) -> Outcome:
    """The guesses of one head for the test images' features [Q, D].

    Raises:
        UserError: its weights are not finite.
    """
    if not bool(bank.weight[head].isfinite().all()):
        raise UserError.on_all_ranks(
            f"the head trained with {as_text(choice.settings['chosen'])} diverged: name a lower --lr",
        )
    return Outcome(bank.top(test, head), settings | choice.settings, choice.notes)


def as_text(tried: HeadSettings) -> str:
    """Settings of a head as a reader takes them: "lr 0.3, wd 0"."""
    return ", ".join(f"{name} {value:g}" for name, value in tried.items())


def choose_on_features(
    task: Task,
    reporter: Reporter,
    tried: Sequence[HeadSettings],
    prepare: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    fit: Callable[[Tensor, Tensor, Sequence[HeadSettings]], HeadBank],
    *,
    settings: dict[str, Any],
    kind: Literal["pooled", "last4_cls"],
    select: str,
    seed: int,
) -> Outcome:
    """Fit heads on prepared features; what is chosen on held-out images is fitted again on all train images.

    Args:
        task: backbone and images.
        reporter: prints notes, progress and tables.
        tried: settings of the heads.
        prepare: train and test features [N, D], [Q, D] -> the same as heads take them.
        fit: features [N, D], labels [N] and settings -> heads.
        settings: of the protocol, for the result.
        kind: of features.
        select: "holdout" or "test".
        seed: names the held-out images.

    Raises:
        UserError: no image can be held out, or the chosen head is not finite.
    """
    rows, labels = task.features(task.train, "train", reporter, kind=kind)
    test, targets = task.features(task.test, "test", reporter, kind=kind)
    rows, test = prepare(rows, test)
    if len(tried) == 1 or select == "test":
        bank = fit(rows, labels, tried)
        choice = Choice.on_test(tried, bank, test, targets)
        return outcome_of(bank, choice.head, test, choice, settings)
    held = torch.from_numpy(all_succeed(lambda: held_out(labels.numpy(), seed)))
    scores = fit(rows[~held], labels[~held], tried).score(rows[held], labels[held])
    choice = Choice.among(tried, *scores, images=int(held.sum()), select="holdout")
    return outcome_of(fit(rows, labels, [tried[choice.head]]), 0, test, choice, settings)
