"""Permissions that hold for a test: root, as which tests often run, may read and write everything."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_LIBC = ctypes.CDLL(None, use_errno=True)
_VERSION = 0x20080522  # of Linux's capability sets, the third: two words for each of the three sets
_PASSING_OVER = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("process", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def ordinary_user() -> Iterator[None]:
    """`obey_permissions` for a while."""
    before = obey_permissions()
    try:
        yield
    finally:
        _set(before)


def obey_permissions() -> int:
    """Modes of files bind this thread, and the processes it forks, but no program it starts; what it could before."""
    header, sets = _Header(_VERSION, 0), (_Sets * 2)()
    _check(_LIBC.capget(ctypes.byref(header), sets))
    before = sets[0].effective
    _set(before & ~_PASSING_OVER)
    return before


def _set(effective: int) -> None:
    header, sets = _Header(_VERSION, 0), (_Sets * 2)()
    _check(_LIBC.capget(ctypes.byref(header), sets))
    sets[0].effective = effective
    _check(_LIBC.capset(ctypes.byref(header), sets))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
