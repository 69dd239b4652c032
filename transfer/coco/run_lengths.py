"""COCO's compressed run-length codes, checked before pycocotools sees them: it reads beyond the end of a broken one."""

import numpy as np

_LONGEST = 6  # characters of a number: 30 bits, enough for any image's number of pixels


def run_lengths(code: str) -> np.ndarray:
    """Lengths of runs, zeros first, int64 [N]. The caller checks for negative lengths and for the sum.

    Every character carries five bits of a number, the lowest first. The sixth bit says that more characters follow; the
    fifth bit of the last one is the sign. From the fourth number on, each is the difference to the one two before.

    Raises:
        ValueError: the text is not such a code.
    """
    digits = np.frombuffer(code.encode("ascii"), np.uint8).astype(np.int64) - 48  # UnicodeEncodeError is a ValueError
    last = (digits & 32) == 0
    if not (len(digits) and last[-1] and (digits.min() >= 0) and (digits.max() < 64)):
        raise ValueError("its run-length code is truncated or malformed")
    ends = np.flatnonzero(last) + 1
    starts = np.concatenate(([0], ends[:-1]))
    if (ends - starts).max() > _LONGEST:
        raise ValueError("its run-length code has a number of more than 30 bits")
    places = np.arange(len(digits)) - np.repeat(starts, ends - starts)
    numbers = np.add.reduceat((digits & 31) << (5 * places), starts)
    numbers -= ((digits[ends - 1] & 16) > 0) * (1 << (5 * (ends - starts)))
    for first in (1, 2):
        numbers[first::2] = np.cumsum(numbers[first::2])
    return numbers
