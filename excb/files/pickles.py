"""Pickles of unknown origin, looked at before an unpickler builds anything, so that its time and memory have a bound.

An unpickler that runs no code still takes any amount of memory, or any time: `bytearray` of a number is as many bytes,
and the hash of tuples that refer to each other twice takes twice as long with every one of them.
"""

import pickletools
from typing import IO

from excb.files.foreign import check_memory

MOST_STEPS, MOST_CONTAINERS = 2**23, 2**20  # operations of a pickle, and those that make an object of others
_REPEATS, _MOST_VALUES = 16, 2**25  # so many values for every byte of a file, and in all, where references repeat them
_TIMES = 10  # this many times `memory_limit` may be built, as of JSON
# Bytes of what an operation builds in CPython; those of containers with what a reader that follows them takes.
_BUILT = dict.fromkeys(("EMPTY_DICT", "DICT", "EMPTY_SET", "FROZENSET"), 500)
_BUILT |= dict.fromkeys(("EMPTY_LIST", "LIST", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST", "BUILD"), 300)
_LEAST = 64
_TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET")
_GETS, _PUTS = ("GET", "BINGET", "LONG_BINGET"), ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
_SIZED = " bytearray"  # of a number: as many bytes
_MARK = -1


class _Values:
    """The stack and the memo of an unpickler, with the number of values in each value instead of the value."""

    def __init__(self, size: int) -> None:
        self.stack, self.memo = list[int](), dict[int, int]()
        self._size, self._left = size, min(_REPEATS * size, _MOST_VALUES)

    def step(self, code: pickletools.OpcodeInfo, argument: object) -> None:
        """Do as an operation does."""
        name, stack = code.name, self.stack
        if name in _PUTS:
            number = len(self.memo) if name == "MEMOIZE" else int(str(argument))
            if number > self._size:  # the unpickler would make a list of so many
                raise ValueError(f"{name} {number}")
            self.memo[number] = stack[-1]
        elif name in _GETS:
            stack.append(self.memo[int(str(argument))])
        elif name == "POP":
            stack.pop()
        elif name == "DUP":
            stack.append(stack[-1])
        else:
            inner = self._taken(code)
            made = inner + 1 if name in _TUPLES else 1
            if made == 1:  # a tuple is followed once it is a key or an argument
                self._left -= inner
            if max(0, made) > _MOST_VALUES or self._left < 0:
                raise ValueError("its values repeat themselves")
            stack.extend(_MARK if each is pickletools.markobject else made for each in code.stack_after)

    def _taken(self, code: pickletools.OpcodeInfo) -> int:
        """The number of values in all that an operation takes from the stack."""
        taken, inner = code.stack_before, 0
        if pickletools.markobject in taken:
            while (each := self.stack.pop()) != _MARK:
                inner += each
            taken = taken[: taken.index(pickletools.markobject)]
        return inner + sum(self.stack.pop() for _ in taken)


def check_pickle(stream: IO[bytes], size: int) -> None:
    """Look at the pickle that begins here, and leave the stream at its end.

    Args:
        stream: open.
        size: bytes of the whole file.

    Raises:
        ValueError: it is damaged, or an unpickler would take too much memory or time.
    """
    values, built, containers = _Values(size), 0, 0
    try:
        for steps, (code, argument, _place) in enumerate(pickletools.genops(stream), 1):
            containers += code.name in _BUILT
            if steps > MOST_STEPS or containers > MOST_CONTAINERS:
                raise ValueError(f"it has more than {MOST_STEPS:,} operations or {MOST_CONTAINERS:,} containers")
            built += _BUILT.get(code.name, _LEAST)
            if not steps % 1024:
                check_memory(built / _TIMES)
            if code.name == "GLOBAL" and str(argument).endswith(_SIZED):
                raise ValueError("it holds a bytearray")
            values.step(code, argument)
    except (LookupError, TypeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
