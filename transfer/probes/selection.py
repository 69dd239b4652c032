"""Which of several classifiers the figures are of: chosen on images that none of them saw, or on the test's."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from excb import seeding
from excb.console import plural
from excb.distributed.collectives import all_succeed
from excb.errors import UserError

from .attentive import AttentiveBank
from .failure import SameFeatures
from .heads import HeadBank
from .recipes import FEW_LABELS, FOLDS
from .rows import READ, Rows

HELD_OUT = 0.1  # share of every class's train images on which heads are chosen
HELD_OUT_SETS = 0.2  # share of train images with sets of labels

HeadSettings = dict[str, float]  # settings of one head, such as {"lr": 0.3, "wd": 0.0}
Bank = HeadBank | AttentiveBank


@dataclass(frozen=True)
class JudgedGuesses:
    """A trained classifier's guesses for the test images [Q, 5 or fewer], and what a reader must know of it."""

    top5: Tensor
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()
    same: SameFeatures | None = None  # the vote on the features that it saw


def held_out(labels: np.ndarray, seed: int) -> np.ndarray:
    """Which train images are kept for choosing: a tenth of every class, at least one, never a class's only image.

    Sets of labels cannot be drawn by class: of these it is a fifth of all images.

    Args:
        labels: class indices [N], or sets of labels [N, K].
        seed: names the choice.

    Returns:
        [N] bool.

    Raises:
        UserError: no class has two images.
    """
    held = np.zeros(len(labels), bool)
    if labels.ndim == 2:
        order = seeding.generator(seeding.Purpose.SPLIT, seed, 0, 1).permutation(len(labels))
        held[order[: min(len(labels) - 1, max(1, round(HELD_OUT_SETS * len(labels))))]] = True
    for label in np.unique(labels) if labels.ndim == 1 else ():
        members = np.flatnonzero(labels == label)
        count = min(len(members) - 1, max(1, round(HELD_OUT * len(members))))
        held[seeding.generator(seeding.Purpose.SPLIT, seed, int(label)).permutation(members)[:count]] = True
    if not held.any():
        raise UserError(
            "no class has two train images, so none can be held out to choose a setting by: give every option of the "
            "head that takes several values a single one, or add train images"
        )
    return held


def has_few_labels(labels: np.ndarray) -> bool:
    """Whether so few train images have a class each, [N], that heads are chosen by cross-validation."""
    return labels.ndim == 1 and len(labels) < FEW_LABELS


def folds(labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """`FOLDS` parts of the train images for cross-validation: each image is in one, and each class in all equally.

    Args:
        labels: class indices [N].
        seed: names the parts.

    Returns:
        Masks [N] bool of images to hold out, none of them empty.

    Raises:
        UserError: no class has two images.
    """
    held_out(labels, seed)  # which refuses what nothing can be chosen on
    order = seeding.generator(seeding.Purpose.SPLIT, seed, len(labels), 5).permutation(len(labels))
    part = np.empty(len(labels), np.int64)
    part[order[np.argsort(labels[order], kind="stable")]] = np.arange(len(labels)) % FOLDS
    return [part == number for number in range(min(FOLDS, len(labels)))]


@dataclass(frozen=True)
class Choice:
    """Which of several heads the figures are of, and why."""

    head: int
    settings: dict[str, Any]
    notes: tuple[str, ...] = ()

    @classmethod
    def on_test(cls, tried: Sequence[HeadSettings], bank: Bank, test: Rows, targets: Tensor) -> "Choice":
        """The only head, or the one that is best on the test images."""
        if len(tried) == 1:
            return cls(0, {"chosen": tried[0]})
        return cls.among(tried, *scores_of(bank, test, targets), images=len(targets), select="test")

    @classmethod
    def among(cls, tried: Sequence[HeadSettings], right: Tensor, loss: Tensor, *, images: int, select: str) -> "Choice":
        """The head with most right answers [H]; among equals the one of least loss [H], then the first."""
        head = max(range(len(tried)), key=lambda one: (int(right[one]), -float(loss[one])))
        return cls.of(head, tried, [int(count) / images for count in right], images=images, select=select)

    @classmethod
    def of(
        cls, head: int, tried: Sequence[HeadSettings], shares: Sequence[float], *, images: int, select: str
    ) -> "Choice":
        """One head, with the shares of right answers of all, on so many "holdout", "folds" or "test" images."""
        sweep = [
            settings | {f"{select}_top1": round(100 * share, 4)} for settings, share in zip(tried, shares, strict=True)
        ]
        how = {"select": select, "select_images": images, "chosen": tried[head], "sweep": sweep}
        if select != "test":
            return cls(head, how)
        best = f"the best of {plural(len(tried), 'head')} on the test images themselves"
        return cls(head, how, (f"{best}, as authors report it: an optimistic figure",))


def outcome_of(bank: Bank, head: int, test: Rows, choice: Choice, settings: dict[str, Any]) -> JudgedGuesses:
    """The guesses of one head for the test images' features [Q, D].

    Raises:
        UserError: its weights are not finite.
    """
    if not bank.finite(head):
        raise UserError.on_all_ranks(
            f"the head trained with {as_text(choice.settings['chosen'])} diverged: name a lower --lr",
        )
    top5 = torch.cat([bank.top(part, head) for part, _ in _parts(test)])
    return JudgedGuesses(top5, settings | choice.settings, choice.notes)


def scores_of(bank: Bank, rows: Rows, labels: Tensor, among: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The output of `HeadBank.score` for the images with the numbers `among` [n], by default for all.

    Rows that are read when they are needed are never all in memory.
    """
    if isinstance(rows, Tensor):
        return bank.score(rows, labels) if among is None else bank.score(rows[among], labels[among])
    right, loss = torch.zeros(len(bank), dtype=torch.int64), torch.zeros(len(bank), dtype=torch.float64)
    known = 0
    for part, numbers in _parts(rows, among):
        each, own = bank.score(part, labels[numbers]), int((labels[numbers] < bank.classes).sum())
        right, loss, known = right + each[0], loss + each[1] * own, known + own
    return right, loss / max(1, known)


def _parts(rows: Rows, among: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and their numbers, a piece at a time; rows in memory are one piece."""
    numbers = torch.arange(len(rows)) if among is None else among
    for part in numbers.split(len(rows) if isinstance(rows, Tensor) else READ):
        yield rows[part], part


def as_text(tried: HeadSettings) -> str:
    """Settings of a head as a reader takes them: "lr 0.3, wd 0"."""
    return ", ".join(f"{name} {value:g}" for name, value in tried.items())


# Features [N, D], labels [N], numbers of the images to train on [n], and settings -> trained heads.
Fit = Callable[[Rows, Tensor, Tensor, Sequence[HeadSettings]], Bank]


def choose_among(
    tried: Sequence[HeadSettings],
    train: tuple[Rows, Tensor],
    test: tuple[Rows, Tensor],
    fit: Fit,
    *,
    settings: dict[str, Any],
    select: str,
    seed: int,
    folded: bool = False,
) -> JudgedGuesses:
    """Fit heads on prepared features; what is chosen on held-out images is fitted again on all train images.

    Args:
        tried: settings of the heads.
        train: features [N, D] and labels [N] int64 of the train images.
        test: features [Q, D] and labels [Q] int64 of the test images.
        fit: see `Fit`.
        settings: of the protocol, for the result.
        select: "holdout" or "test".
        seed: names the held-out images.
        folded: choose by cross-validation, where there are few labels.

    Raises:
        UserError: no image can be held out, or the chosen head is not finite.
    """
    everything = torch.arange(len(train[1]))
    if len(tried) == 1 or select == "test":
        bank = fit(*train, everything, tried)
        choice = Choice.on_test(tried, bank, *test)
        return outcome_of(bank, choice.head, test[0], choice, settings)
    folded = folded and has_few_labels(train[1].numpy())
    choice, _ = choose_held_out(tried, *train, fit, seed=seed, folded=folded)
    settings = settings | ({"folds": FOLDS} if folded else {})
    return outcome_of(fit(*train, everything, [tried[choice.head]]), 0, test[0], choice, settings)


def choose_held_out(
    tried: Sequence[HeadSettings], rows: Rows, labels: Tensor, fit: Fit, *, seed: int, folded: bool = False
) -> tuple[Choice, tuple[int, float]]:
    """Fit heads without the held-out images, and choose one on these; arguments as of `choose_among`.

    By cross-validation each image is held out once.

    Returns:
        The choice, and right answers and mean loss of the chosen head on the held-out images.

    Raises:
        UserError: no image can be held out.
    """
    masks = all_succeed(lambda: folds(labels.numpy(), seed) if folded else [held_out(labels.numpy(), seed)])
    right, loss, images = torch.zeros(len(tried), dtype=torch.int64), torch.zeros(len(tried), dtype=torch.float64), 0
    for held in map(torch.from_numpy, masks):
        bank = fit(rows, labels, (~held).nonzero()[:, 0], tried)
        hits, mean = scores_of(bank, rows, labels, held.nonzero()[:, 0])
        right, loss, images = right + hits.cpu(), loss + mean.cpu() * int(held.sum()), images + int(held.sum())
    loss /= images
    choice = Choice.among(tried, right, loss, images=images, select="folds" if folded else "holdout")
    return choice, (int(right[choice.head]), float(loss[choice.head]))
