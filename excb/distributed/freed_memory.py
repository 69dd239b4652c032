"""Freed memory: a program that trains on a CPU keeps it for its next step. Importing this needs no torch."""

import ctypes
from contextlib import suppress

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Let this process reuse what it frees. For programs of their own, not for a library's user.

    glibc gives large freed blocks back to the system. A training step allocates the same ones again at once, and the
    system clears every page of them: up to a fifth of a step on a CPU. Other C libraries are left as they are.
    """
    with suppress(OSError, AttributeError):
        change = ctypes.CDLL(None).mallopt
        change(_MMAP_MAX, 0)
        change(_TRIM_THRESHOLD, -1)
