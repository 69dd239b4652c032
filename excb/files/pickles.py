"""Pickles of unknown origin, looked at before an unpickler builds anything, so that its time and memory have a bound.

An unpickler that runs no code still takes any amount of memory, or any time: `bytearray` of a number is as many bytes,
and the hash of tuples that refer to each other twice takes twice as long with every one of them.
"""

import pickletools
from mmap import mmap
from typing import Any, NamedTuple

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
_SIZED = b"bytearray"  # of a number: as many bytes

# Kinds of operations, the frequent ones first. Most make a value of their argument.
_VALUE, _PUT, _GET, _GLOBAL, _STOP, _OTHER = range(6)
_KINDS = dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _PUT)
_KINDS |= dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _GET) | {"GLOBAL": _GLOBAL, "STOP": _STOP}


class _Step(NamedTuple):
    """The effect of an operation on the stack."""

    taken: int  # values, those above a mark apart
    marked: bool  # takes those above the last mark as well, and the mark
    made: int  # values
    mark: bool
    tupled: bool  # the value holds those that were taken, as a key does
    more: int  # bytes beside `_LEAST`; 0 for all but containers


def _step(code: pickletools.OpcodeInfo) -> _Step:
    taken, marked = code.stack_before, pickletools.markobject in code.stack_before
    before = taken.index(pickletools.markobject) if marked else len(taken)
    mark = pickletools.markobject in code.stack_after
    more = _BUILT.get(code.name, _LEAST) - _LEAST
    return _Step(before, marked, len(code.stack_after) - mark, mark, code.name in _TUPLES, more)


def _kind(code: pickletools.OpcodeInfo, step: _Step) -> int:
    plain = step == _Step(0, marked=False, made=1, mark=False, tupled=False, more=0)
    return _KINDS.get(code.name, _VALUE if plain else _OTHER)


def _length(code: pickletools.OpcodeInfo) -> int:
    """Bytes of the argument, or what it begins with: less than 0 for lines, more than `_COUNTED` for a count."""
    if code.arg is None:
        return 0
    if code.arg.n >= 0:
        return code.arg.n
    if code.arg.n == pickletools.UP_TO_NEWLINE:
        return -2 if code.arg is pickletools.stringnl_noescape_pair else -1
    return _COUNTED + _COUNTS[code.arg.n]


_COUNTED = 16
_COUNTS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_UNKNOWN = 10**9
# By the byte of the operation.
_STEPS: list[_Step | None] = [None] * 256
_KIND_OF, _LENGTH_OF = [_UNKNOWN] * 256, [0] * 256
for _code in pickletools.opcodes:
    _STEPS[ord(_code.code)] = _step(_code)
    _KIND_OF[ord(_code.code)] = _kind(_code, _step(_code))
    _LENGTH_OF[ord(_code.code)] = _length(_code)


def check_pickle(data: bytes | mmap, begin: int = 0, end: int | None = None) -> int:
    """Look at the pickle that begins at a place, and return where it ends.

    Args:
        data: of a file, or a part of it.
        begin: where the pickle begins.
        end: where what belongs to it ends.

    Raises:
        ValueError: it is damaged, or an unpickler would take too much memory or time.
    """
    end = len(data) if end is None else end
    try:
        return _Look(end - begin).follow(data, begin, end)
    except (LookupError, TypeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


class _Look:
    """What an unpickler would hold, in numbers."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._stack, self._marks = list[int](), list[int]()  # numbers of the values in each value, in its place
        self._containers, self._more = 0, 0
        self._most = self._left = min(_REPEATS * size, _MOST_VALUES)

    def follow(self, data: bytes | mmap, place: int, end: int) -> int:
        """Look at all operations until the one that stops, and return the place after it."""
        stack, memo, size = self._stack, dict[int, int](), self._size
        kinds, lengths, steps = _KIND_OF, _LENGTH_OF, 0
        while place < end:
            code = data[place]
            start = place + 1
            length, kind = lengths[code], kinds[code]
            place = start + length if 0 <= length < _COUNTED else _after(data, start, length, end)
            steps += 1
            if not steps % _AT_ONCE:
                self._check(steps)
            if kind == _VALUE:
                stack.append(1)
            elif kind == _PUT:
                number = _number(data, start, place, length) if length else len(memo)
                if number > size:  # the unpickler would make a list of so many
                    raise ValueError(f"the place {number} of its memo")
                memo[number] = stack[-1]
            elif kind == _GET:
                stack.append(memo[_number(data, start, place, length)])
            elif kind == _OTHER:
                step = _STEPS[code]
                assert step is not None
                self._apply(step)
            elif kind == _GLOBAL:
                if data[start:place].endswith(b"\n" + _SIZED + b"\n"):
                    raise ValueError("it holds a bytearray")
                stack.append(1)
            elif kind == _STOP and place <= end:
                self._check(steps)
                stack.pop()
                return place
            else:
                raise ValueError(f"no operation of pickles, {bytes([code])!r}")
        raise ValueError("it ends before its last operation")

    def _check(self, steps: int) -> None:
        check_memory((_LEAST * steps + self._more) / _TIMES)
        if steps > MOST_STEPS or self._containers > MOST_CONTAINERS:
            raise ValueError(f"it has more than {MOST_STEPS:,} operations or {MOST_CONTAINERS:,} containers")

    def _apply(self, step: _Step) -> None:
        """Do to the stack what an operation does."""
        stack, marks = self._stack, self._marks
        if step.mark:
            marks.append(len(stack))
            return
        inner = 0
        if step.marked:
            first = marks.pop()
            inner = sum(stack[first:])
            del stack[first:]
        if step.taken:
            first = len(stack) - step.taken
            if first < (marks[-1] if marks else 0):
                if marks.pop() == len(stack) and not step.made:  # POP, which takes a mark too
                    return
                raise ValueError("an operation without its values")
            inner += sum(stack[first:])
            del stack[first:]
        if step.more:
            self._containers += 1
            self._more += step.more
        if not step.tupled:  # a tuple is followed once it is a key or an argument
            self._left -= inner
        if self._left < 0 or inner > self._most:
            raise ValueError("its values repeat themselves")
        stack += [inner + 1 if step.tupled else 1] * step.made


def _after(data: bytes | mmap, start: int, length: int, end: int) -> int:
    """The place after an argument of lines, or of a counted number of bytes."""
    if length > 0:
        width = length - _COUNTED
        return start + width + int.from_bytes(data[start : start + width], "little")
    for _ in range(-length):
        start = data.find(b"\n", start, end) + 1
        if not start:
            raise ValueError("a line without an end")
    return start


def _number(data: bytes | mmap, start: int, place: int, length: int) -> int:
    """The place in the memo that an argument names."""
    argument = data[start:place]
    return int(argument) if length < 0 else int.from_bytes(argument, "little")
