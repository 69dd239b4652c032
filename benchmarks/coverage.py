"""Coverage: whether 95 % intervals hold the truth in 95 % of simulated evaluations, and tests err in 5 %.

Run: python -m benchmarks.coverage [--trials 2000] [--only "leave-one-out"]
Prints a table: for each kind of figure and number of images, the share of trials whose interval holds the truth, of
paired tests the share that calls equals different, and of tables of equal checkpoints the share with one tier.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
import torch

from excb.inference import accuracy, means, statistics
from excb.inference.estimate import Estimate, mean_of
from excb.inference.tiers import LEVEL, pairwise, tiers
from excb.transfer.dense.patches.metrics import Areas, area_difference, area_spread
from excb.transfer.reporting import average_precision
from excb.transfer.reporting.average_precision import area
from excb.transfer.robustness.metrics import drop_interval
from excb.transfer.sets.metrics import MEAN_PER_CLASS, TOP1
from excb.transfer.sets.standings import SetAnswers

from .cases import ERRS, Case, Trial, held, inside
from .coverage_neighbours import cases as neighbour_cases
from .coverage_shares import BAND, SHARES, around, at, wilson

TIERS = (2, 5, 10)  # equal checkpoints
TOP1_IMAGES = (30, 100, 400, 2000)
_CLASSES = 8  # of masks


def pair(random: np.random.Generator, images: int, share: float, alike: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Hits of two equally good networks that agree by design on a share `alike` of the images."""
    first, other = (random.random(images) < share for _ in range(2))
    second = np.where(random.random(images) < alike, first, other)
    return torch.from_numpy(first), torch.from_numpy(second)


def scores(images: int, draw: Callable[[np.random.Generator, int], np.ndarray], truth: float) -> Trial:
    """A mean of scores between 0 and 1, such as average precision."""
    return lambda random: inside(means.mean_interval(torch.from_numpy(draw(random, images))), 100 * truth)


def precisions(random: np.random.Generator, images: int) -> torch.Tensor:
    """Differences of the average precisions of two equally good networks."""
    hardness = random.beta(0.5, 1, images)
    first, second = (np.clip(hardness + 0.1 * random.standard_normal(images), 0, 1) for _ in range(2))
    return torch.from_numpy(second - first)


def nearly_all_right(random: np.random.Generator, images: int) -> np.ndarray:
    """Scores of which nine in ten are 1."""
    return np.where(random.random(images) < 0.9, 1.0, random.beta(0.5, 1, images))


def masks(random: np.random.Generator, images: int, skill: float = 2.0) -> Areas:
    """Areas of images that show one to three of `_CLASSES`, the first of which is in most of them."""
    right, predicted, true = (np.zeros((images, _CLASSES), np.int64) for _ in range(3))
    often = np.r_[0.3, np.full(_CLASSES - 1, 0.7 / (_CLASSES - 1))]
    for image in range(images):
        own = random.choice(_CLASSES, random.integers(1, 4), replace=False, p=often)
        for label, pixels in zip(own, random.multinomial(4096, random.dirichlet(np.ones(len(own)))), strict=True):
            found = random.binomial(pixels, random.beta(skill, 2))
            right[image, label] += found
            true[image, label] += pixels
            predicted[image, label] += found
            wrong = random.choice(_CLASSES, 2, replace=False)
            predicted[image, wrong] += random.multinomial(pixels - found, [0.5, 0.5])
    return Areas(right, predicted, true)


def labels(random: np.random.Generator, images: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of two equally good networks for ten classes, and the targets."""
    targets = (random.random((images, 10)) < 0.1).astype(np.int8)
    shared = 1.2 * targets + 0.7 * random.standard_normal(targets.shape)
    first, second = (shared + 0.7 * random.standard_normal(targets.shape) for _ in range(2))
    return first, second, targets


@cache
def expected_miou(images: int) -> float:
    """The mean IoU of test sets of this size, in percent, on average."""
    random = np.random.default_rng(9)
    return float(np.mean([masks(random, images).miou() for _ in range(400)]))


@cache
def expected_precision(images: int) -> float:
    """The mAP of test sets of this size, in percent, on average."""
    random, each = np.random.default_rng(9), []
    for _ in range(400):
        first, _, targets = labels(random, images)
        each.append(average_precision.mean(first, targets, area)[0])
    return 100 * float(np.mean(each))


def segmented(images: int) -> Trial:
    """Mean IoU over classes."""
    return lambda random: inside(area_spread([masks(random, images)], "miou").interval(), expected_miou(images))


def segmented_pair(images: int) -> Trial:
    """The difference of two equally good segmentations of unlike images: no pairing helps."""
    return lambda random: inside(
        area_difference([masks(random, images)], [masks(random, images)], "miou").interval(lowest=-1.0), 0.0
    )


def labelled(images: int) -> Trial:
    """mAP of images with several labels."""

    def trial(random: np.random.Generator) -> bool:
        first, _, targets = labels(random, images)
        return inside(average_precision.precision_spread(first, targets, area).interval(), expected_precision(images))

    return trial


def labelled_pair(images: int) -> Trial:
    """Whether two networks of equal mAP are called different."""
    return lambda random: average_precision.precision_difference(*labels(random, images), area).p_value() < LEVEL


def top1_pair(images: int) -> Trial:
    """The difference of two equally accurate networks."""
    return lambda random: inside(accuracy.difference_interval(*pair(random, images, 0.6, 0.5)), 0)


def mean_pair(images: int) -> Trial:
    """The difference of two equally good mean average precisions."""
    return lambda random: inside(means.mean_difference_interval(precisions(random, images)), 0)


def mcnemar(images: int) -> Trial:
    """Whether two equally accurate networks are called different."""
    return lambda random: accuracy.mcnemar(*pair(random, images, 0.6, 0.5)) < LEVEL


def randomised(images: int) -> Trial:
    """The same of mean average precision."""
    return lambda random: means.randomisation_test(precisions(random, images)) < LEVEL


def _cases() -> Iterator[Case]:
    for images in (50, 100, 1000):
        yield Case(f"difference of two top-1, {images:,} images", top1_pair(images), quick=200 if images == 100 else 0)
        yield Case(
            f"test: McNemar, mid-P, {images:,} images", mcnemar(images), *ERRS, quick=200 if images == 100 else 0
        )
    for images in (20, 30, 100, 400):
        trial = scores(images, lambda random, n: random.beta(0.5, 1, n), 1 / 3)
        yield Case(f"mean of skewed scores, {images:,} images", trial, quick=200 if images == 30 else 0)
    for images in (30, 100, 400):
        trial = scores(images, nearly_all_right, 0.9 + 0.1 / 3)
        yield Case(f"mean of scores, nine in ten of them 1, {images:,} images", trial)
    for images in (20, 100, 1000):
        yield Case(f"difference of mean scores, {images:,} images", mean_pair(images), quick=200 if images == 20 else 0)
        yield Case(
            f"test: randomisation, {images:,} images", randomised(images), *ERRS, quick=200 if images == 20 else 0
        )
    for images in (40, 100, 400):
        yield Case(f"mean IoU, {images:,} images", segmented(images), quick=200 if images == 40 else 0)
    for images in (40, 100):
        yield Case(f"difference of two mean IoU, {images:,} images", segmented_pair(images))
    for images in (100, 400):
        yield Case(f"mAP of several labels, {images:,} images", labelled(images))
        yield Case(f"test: mAP of several labels, {images:,} images", labelled_pair(images), *ERRS)


def classes_judged(images: int) -> Trial:
    """The mean of the accuracies of twenty classes, of unlike sizes and difficulty."""
    accuracies = np.random.default_rng(1).beta(3, 1.5, 20)
    sizes = np.random.default_rng(2).dirichlet(np.full(20, 5.0))

    def trial(random: np.random.Generator) -> bool:
        targets = random.choice(20, images, p=sizes)
        return inside(
            MEAN_PER_CLASS.interval(random.random(images) < accuracies[targets], targets), 100 * accuracies.mean()
        )

    return trial


def drop(images: int) -> Trial:
    """The relative drop of accuracy under corruption, of 80 % by a quarter; hard images are hard in all versions."""

    def trial(random: np.random.Generator) -> bool:
        hardness = random.random(images)
        clean = (0.5 * hardness + 0.5 * random.random(images) < 0.684).astype(np.float64)
        versions = (0.5 * hardness[:, None] + 0.5 * random.random((images, 5)) < 0.553).mean(1)
        ends = drop_interval(torch.from_numpy(clean), torch.from_numpy(versions))
        return inside(ends, _expected_drop())

    return trial


@cache
def _expected_drop() -> float:
    random = np.random.default_rng(9)
    hardness, other = random.random(4_000_000), random.random(4_000_000)
    score = 0.5 * hardness + 0.5 * other
    return 100 * (1 - float((score < 0.553).mean()) / float((score < 0.684).mean()))


def sets_mean(images: int) -> Trial:
    """The mean of top-1 over four sets."""
    shares = (0.5, 0.7, 0.9, 0.6)

    def trial(random: np.random.Generator) -> bool:
        answers = [
            SetAnswers(TOP1, random.random(images) < share, np.zeros(images, np.int64)).spread for share in shares
        ]
        return inside(mean_of(answers).interval(), 100 * float(np.mean(shares)))

    return trial


def seeds(number: int) -> Trial:
    """The mean over seeds, or over n-shot episodes."""
    return lambda random: inside(Estimate.of_mean(random.normal(0.6, 0.02, number)).interval(), 60.0)


def segmentations(images: int) -> Trial:
    """Whether two equally good segmentations of unlike images are called different."""

    def trial(random: np.random.Generator) -> bool:
        first, second = masks(random, images), masks(random, images)
        return bool(area_difference([first], [second], "miou").p_value() < LEVEL)

    return trial


def _more_cases() -> Iterator[Case]:
    for images in (300, 1000):
        yield Case(f"mean accuracy of 20 classes, {images:,} images", classes_judged(images))
    for images in (100, 400):
        yield Case(f"relative drop, {images:,} images", drop(images), quick=200 if images == 100 else 0)
    for images in (100, 500):
        yield Case(f"mean of 4 sets, {images:,} images each", sets_mean(images))
    for number in (3, 5, 100):
        words = "seeds" if number < 100 else "episodes"
        yield Case(f"mean over {number} {words}", seeds(number), quick=200 if number == 3 else 0)
    for images in (40, 100):
        yield Case(f"test: mIoU, {images:,} images", segmentations(images), *ERRS)


CASES = (*_cases(), *_more_cases(), *neighbour_cases())


def one_tier(checkpoints: int, trials: int, *, images: int = 500) -> float:
    """The share of tables of equal checkpoints, hard images being hard for all, in which all have one tier."""
    random, single = np.random.default_rng(0), 0
    for _ in range(trials):
        hardness = random.random(images)
        right = {
            str(number): torch.from_numpy(random.random(images) < np.clip(0.7 + 0.5 * (hardness - 0.5), 0, 1))
            for number in range(checkpoints)
        }
        p_values = pairwise({"top1": list(right)}, partial(_p_value, right))
        values = {name: statistics.percent(each) for name, each in right.items()}
        single += max(tiers("top1", values, p_values).values()) == 1
    return single / trials


def _p_value(right: dict[str, torch.Tensor], _figure: str, first: str, second: str) -> float:
    return accuracy.mcnemar(right[first], right[second])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--only", default="", metavar="WORDS", help="cases whose names have these words")
    options = parser.parse_args()
    trials = options.trials
    torch.set_num_threads(1)
    print("| interval or test | share of trials, % | aim, % |\n| --- | --- | --- |")
    for images in TOP1_IMAGES if options.only in "top-1" else ():
        for share in SHARES:
            point, band = at(wilson(images), share), around(wilson(images), share)
            print(
                f"| top-1 of {share:.0%}, {images:,} images, exactly | {100 * point:.1f} | |\n"
                f"| the mean of {share:.0%} ± {100 * BAND:.0f} points, exactly | {100 * band:.1f} | 95 |"
            )
    for case in (case for case in CASES if options.only in case.name):
        aim = "5" if case.most < 0.5 else "95"
        print(f"| {case.name} | {100 * held(case, trials):.1f} | {aim} |", flush=True)
    for checkpoints in TIERS if options.only in "one tier" else ():
        share = 100 * one_tier(checkpoints, trials)
        print(f"| {checkpoints} equal checkpoints, 500 images: one tier | {share:.1f} | 95 or more |", flush=True)


if __name__ == "__main__":
    main()
