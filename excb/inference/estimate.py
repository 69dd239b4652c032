"""A figure with its standard error: intervals and tests by Student's t, from independent parts or otherwise.

The sampling unit is that of whatever measured the error; the functions that return estimates name it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from excb.inference.accuracy import COVERAGE, in_percent

LEAST = 30  # units below which the coverage of intervals of other figures than means is not near 95 %


@dataclass(frozen=True)
class Estimate:
    """A figure and its spread.

    Attributes:
        value: the figure, or a difference of two; a share of 1 where an interval in percent is wanted.
        error: its standard error; NaN where there are too few units to know it.
        freedom: degrees of freedom of Student's t.
    """

    value: float
    error: float
    freedom: float

    @classmethod
    def of_mean(cls, values: Sequence[float] | np.ndarray) -> "Estimate":
        """The mean of independent values [n], such as those of seeds or episodes; of one, the error is not known."""
        known = np.asarray(values, np.float64)
        error = known.std(ddof=1) / np.sqrt(len(known)) if len(known) > 1 else np.nan
        return cls(float(known.mean()), float(error), max(1, len(known) - 1))

    def margin(self, *, tries: int = 1) -> float:
        """Half the width of the 95 % interval; NaN where the error is not known.

        Args:
            tries: number of figures of which this one is the best; each had its chance (Bonferroni).
        """
        return self.quantile(tries=tries) * self.error

    def quantile(self, *, tries: int = 1) -> float:
        """`margin` in standard errors."""
        from scipy.stats import t

        return float(t.ppf(1 - (1 - COVERAGE) / 2 / max(1, tries), self.freedom))

    def interval(self, *, lowest: float = 0.0, tries: int = 1) -> tuple[float, float] | None:
        """The 95 % interval in percent, from `lowest` (-1 of a difference) to 1; None where the error is not known."""
        if np.isnan(self.error):
            return None
        half = self.margin(tries=tries)
        return in_percent(max(lowest, self.value - half), min(1.0, self.value + half))

    def p_value(self) -> float:
        """Two-sided, of the hypothesis that the value is 0; 1 where the error is not known, which says nothing."""
        from scipy.stats import t

        if np.isnan(self.error):
            return 1.0
        if self.error == 0:
            return float(self.value == 0)
        return float(2 * t.sf(abs(self.value) / self.error, self.freedom))


def mean_of(figures: Sequence[Estimate]) -> Estimate:
    """The mean of independent figures, such as those of several sets; the sampling unit stays theirs."""
    error = np.sqrt(sum(one.error**2 for one in figures)) / len(figures)
    freedom = sum(one.freedom for one in figures)
    return Estimate(float(np.mean([one.value for one in figures])), float(error), freedom)
