"""Freed memory stays in the process: its pages are not fetched from the system again."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys
from excb.distributed.freed_memory import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def fill():
    blocks = [c.malloc(2**26) for _ in range(2)]
    for block in blocks:
        ctypes.memset(block, 1, 2**26)
    for block in blocks:
        c.free(block)
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="another C library than glibc")
def test_a_block_that_was_freed_is_used_again() -> None:
    faults = {}
    for word in ("keep", "give"):
        answer = subprocess.run([sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, check=True)
        faults[word] = int(answer.stdout)
    assert faults["give"] > 1_000  # else this shows nothing
    assert faults["keep"] < faults["give"] / 20
