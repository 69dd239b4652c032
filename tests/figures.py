"""Measured figures in texts, with their intervals."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t

NUMBER = r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?![\d^]|\.\d|,\d{3})"
UNIT = r"%|points?|(?:CPU )?(?:seconds?|minutes?|hours?)|s|ms|min|[KMG]i?B|images/s"
FIGURE = re.compile(
    rf"(?<![\w.^/-])(?P<value>{NUMBER})(?: ± (?P<half>{NUMBER}))?(?: ?(?P<unit>{UNIT})(?![\w/]))?"
    rf"(?: \((?P<low>{NUMBER}) to (?P<high>{NUMBER})\))?"
)
VERSION = re.compile(
    r"(?:torch|Python|NumPy|SciPy|scikit-image|OpenCV|ImageMagick|Triton|Pillow|imaug|[Vv]ersion) [\d.-]+"
)


@dataclass(frozen=True)
class Figure:
    """A value, its decimals, and the distances to the ends of its 95 % interval, None if it has none."""

    value: float
    decimals: int = 0
    down: float | None = None
    up: float | None = None

    def rounds(self, exact: "Figure") -> bool:
        """Whether this figure, as a page has it, is `exact` rounded; the sign, which words may say, is not compared."""
        pairs = [(abs(self.value), abs(exact.value))]
        if self.down is not None and self.up is not None:
            if exact.down is None or exact.up is None:
                return False
            pairs += [(self.down, exact.down), (self.up, exact.up)]
        rounding = 0.5 * 10**-self.decimals + 1e-6
        return self.decimals <= exact.decimals and all(abs(a - b) <= rounding for a, b in pairs)

    def minus(self, other: "Figure") -> "Figure":
        """The difference to an independent figure."""
        if self.down is None or self.up is None or other.down is None or other.up is None:
            return Figure(self.value - other.value, self.decimals)
        down, up = math.hypot(self.down, other.up), math.hypot(self.up, other.down)
        return Figure(self.value - other.value, self.decimals, down, up)

    def ends(self) -> "list[Figure]":
        """Both ends of the interval."""
        if self.down is None or self.up is None:
            return []
        return [Figure(self.value - self.down, self.decimals), Figure(self.value + self.up, self.decimals)]


def figures_in(text: str) -> list[Figure]:
    """The measured figures of a text: numbers with decimals, a unit, ± or an interval. 95 % alone is a level."""
    matches = list(FIGURE.finditer(VERSION.sub("", re.sub(r"\b95 %(?! for)", "", text))))
    measured = [each for each in matches if each["unit"] or re.search(r"\.\d| [±(]", each[0])]
    return [figure for each in measured for figure in _parsed(each)]


def figure_of(text: str) -> Figure:
    """The figure that is the whole text, whole numbers too; ValueError if there is none."""
    if not (match := FIGURE.fullmatch(text)):
        raise ValueError(f"{text!r} is not a figure")
    return _parsed(match)[0]


def of_seeds(values: Sequence[float], decimals: int) -> Figure:
    """Mean and 95 % interval of a mean over seeds, by Student's t."""
    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return Figure(statistics.fmean(values), decimals, half, half)


def of_images(percent: Figure, images: int) -> Figure:
    """A share of test images in percent, with its 95 % interval by the normal distribution."""
    share = percent.value / 100
    half = 196 * math.sqrt(share * (1 - share) / images)
    return Figure(percent.value, percent.decimals, half, half)


def _parsed(match: re.Match[str]) -> list[Figure]:
    value, half, low, high = (
        float((each or "nan").replace(",", "")) for each in match.group("value", "half", "low", "high")
    )
    decimals = len(match["value"].partition(".")[2])
    if not match["half"] and match["low"]:
        return [Figure(value, decimals, value - low, high - value)]
    ends = [Figure(each, decimals) for each in (low, high) if match["low"]]
    return [Figure(value, decimals, half, half) if match["half"] else Figure(value, decimals), *ends]
