"""COCO's compressed run-length codes, read here first: its own tools read beyond the end of a broken one."""

import numpy as np

_LONGEST = 6  # signs of a number: 30 bits, as many as an image has pixels


def run_lengths(code: str) -> np.ndarray:
    """Lengths of runs, of zeros first, int64 [N]; negative ones and any sum are for the caller to refuse.

    A number has five bits in each sign, the lowest first; a sixth says that more follow, and the last sign's fifth is
    the number's sign. From the fourth number on, each is the difference to the one two places before.

    Raises:
        ValueError: it is no such code.
    """
    signs = np.frombuffer(code.encode("ascii"), np.uint8).astype(np.int64) - 48  # UnicodeEncodeError is a ValueError
    last = (signs & 32) == 0
    if not (len(signs) and last[-1] and (signs.min() >= 0) and (signs.max() < 64)):
        raise ValueError("its run-length code is cut or no such code")
    ends = np.flatnonzero(last) + 1
    starts = np.concatenate(([0], ends[:-1]))
    if (ends - starts).max() > _LONGEST:
        raise ValueError("its run-length code has a number of more than 30 bits")
    places = np.arange(len(signs)) - np.repeat(starts, ends - starts)
    numbers = np.add.reduceat((signs & 31) << (5 * places), starts)
    numbers -= ((signs[ends - 1] & 16) > 0) * (1 << (5 * (ends - starts)))
    for first in (1, 2):
        numbers[first::2] = np.cumsum(numbers[first::2])
    return numbers
