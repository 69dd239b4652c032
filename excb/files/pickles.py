"""Pickles of unknown origin, looked at before an unpickler builds anything, so that its time and memory have a bound.

An unpickler that runs no code still takes any amount of memory, or any time: `bytearray` of a number is as many bytes,
and the hash of tuples that refer to each other twice takes twice as long with every one of them.
"""

import pickletools
import warnings
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from excb.files.foreign import check_memory

MOST_STEPS, MOST_CONTAINERS = 2**23, 2**20  # operations of a pickle, and those that make an object of others
_REPEATS, _MOST_VALUES = 16, 2**25  # so many values for every byte of a file, and in all, where references repeat them
_TIMES = 10  # this many times `memory_limit` may be built, as of JSON
# Bytes of what an operation builds in CPython; those of containers with what a reader that follows them takes.
_BUILT = dict.fromkeys(("EMPTY_DICT", "DICT", "EMPTY_SET", "FROZENSET"), 500)
_BUILT |= dict.fromkeys(("EMPTY_LIST", "LIST", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST", "BUILD"), 300)
_LEAST = 64
_AT_ONCE = 256  # operations between looks at what is built
_TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET", "DUP")
_SIZED = " bytearray"  # of a number: as many bytes
_MARK = -1


class _Step(NamedTuple):
    """The effect of an operation on the stack."""

    taken: int  # values, those above a mark apart
    marked: bool  # takes those above the last mark as well, and the mark
    made: int  # values
    mark: bool
    tupled: bool  # the value holds those that were taken, as a key does
    built: int  # bytes


def _step(code: pickletools.OpcodeInfo) -> _Step:
    taken, marked = code.stack_before, pickletools.markobject in code.stack_before
    before = taken.index(pickletools.markobject) if marked else len(taken)
    mark = pickletools.markobject in code.stack_after
    built = _BUILT.get(code.name, _LEAST)
    return _Step(before, marked, len(code.stack_after) - mark, mark, code.name in _TUPLES, built)


_STEPS = {code.name: _step(code) for code in pickletools.opcodes}
_GETS, _PUTS = {"GET", "BINGET", "LONG_BINGET"}, {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}


def check_pickle(stream: IO[bytes], size: int) -> None:
    """Look at the pickle that begins here, and leave the stream at its end.

    Args:
        stream: open.
        size: bytes of the whole file.

    Raises:
        ValueError: it is damaged, or an unpickler would take too much memory or time.
    """
    stack, memo = list[int](), dict[int, int]()  # numbers of the values in each value, in place of the value
    built, containers, most = 0, 0, min(_REPEATS * size, _MOST_VALUES)
    left = most
    try:
        for steps, (code, argument, _place) in enumerate(_operations(stream), 1):
            name = code.name
            step = _STEPS[name]
            built += step.built
            containers += name in _BUILT
            if not steps % _AT_ONCE:
                _check(built, steps, containers)
            if name in _GETS:
                stack.append(memo[int(argument)])
            elif name in _PUTS:
                memo[_place_of(argument, memo, size)] = stack[-1]
            else:
                inner = _apply(step, stack)
                left -= 0 if step.tupled else inner  # a tuple is followed once it is a key or an argument
                if left < 0 or inner > most:
                    raise ValueError("its values repeat themselves")
                if name == "GLOBAL" and str(argument).endswith(_SIZED):
                    raise ValueError("it holds a bytearray")
    except (LookupError, TypeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _operations(stream: IO[bytes]) -> Iterator[tuple[pickletools.OpcodeInfo, Any, Any]]:
    """`genops` without Python's warnings of odd escapes in texts."""
    with warnings.catch_warnings(action="ignore"):
        yield from pickletools.genops(stream)


def _check(built: int, steps: int, containers: int) -> None:
    check_memory(built / _TIMES)
    if steps > MOST_STEPS or containers > MOST_CONTAINERS:
        raise ValueError(f"it has more than {MOST_STEPS:,} operations or {MOST_CONTAINERS:,} containers")


def _place_of(argument: Any, memo: dict[int, int], size: int) -> int:
    """The place in the memo that is written."""
    place = len(memo) if argument is None else int(argument)
    if place > size:  # the unpickler would make a list of so many
        raise ValueError(f"the place {place} of its memo")
    return place


def _apply(step: _Step, stack: list[int]) -> int:
    """Do to the stack what an operation does; the number of values in all that it takes."""
    inner = 0
    if step.marked:
        while (each := stack.pop()) != _MARK:
            inner += each
    for _ in range(step.taken):
        inner += stack.pop()
    if step.mark:
        stack.append(_MARK)
    elif step.made:
        stack += [inner + 1 if step.tupled else 1] * step.made
    return inner
