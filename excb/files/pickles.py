"""Pickles of unknown origin, looked at before an unpickler builds anything, so that its time and memory have a bound.

An unpickler that runs no code still takes any amount of memory, or any time: `bytearray` of a number is as many bytes,
and the hash of tuples that refer to each other twice takes twice as long with every one of them.
"""

import pickletools
import struct
from mmap import mmap
from typing import NamedTuple

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
_SIZED = b"\nbytearray\n"  # of a number: as many bytes
_COUNT = struct.Struct("<I")
_OUTSIDE = "a place of its memo beyond its end"  # the unpickler would make a list of so many

# Kinds of operations, the frequent ones first. Most make a value of their argument.
_TEXT, _LONG_PUT, _SHORT_PUT, _SHORT_GET, _VALUE, _MARK, _OTHER, _GET, _PUT, _GLOBAL, _STOP = range(11)
_KINDS = {"BINUNICODE": _TEXT, "LONG_BINPUT": _LONG_PUT, "BINPUT": _SHORT_PUT, "PUT": _PUT, "MEMOIZE": _PUT}
_KINDS |= {"BINGET": _SHORT_GET, "LONG_BINGET": _GET, "GET": _GET, "MARK": _MARK, "GLOBAL": _GLOBAL, "STOP": _STOP}


class _Step(NamedTuple):
    """The effect of an operation on the stack."""

    taken: int  # values, those above a mark apart
    marked: bool  # takes those above the last mark as well, and the mark
    made: int  # values
    tupled: bool  # the value holds those that were taken, as a key does
    more: int  # bytes beside `_LEAST`; 0 for all but containers


def _step(code: pickletools.OpcodeInfo) -> _Step:
    taken, marked = code.stack_before, pickletools.markobject in code.stack_before
    before = taken.index(pickletools.markobject) if marked else len(taken)
    more = _BUILT.get(code.name, _LEAST) - _LEAST
    return _Step(before, marked, len(code.stack_after), code.name in _TUPLES, more)


def _kind(code: pickletools.OpcodeInfo, step: _Step) -> int:
    plain = step == _Step(0, marked=False, made=1, tupled=False, more=0)
    return _KINDS.get(code.name, _VALUE if plain else _OTHER)


def _length(code: pickletools.OpcodeInfo) -> int:
    """Bytes of the argument; less than 0 for so many lines, and `_COUNTED` and its bytes for a count before it."""
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
_UNKNOWN = -1
# By the byte of the operation.
_STEPS = dict[int, _Step]()
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
    except (LookupError, TypeError, OverflowError, struct.error) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


class _Look:
    """The stack of an unpickler, with numbers in place of its values."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._stack, self._marks = list[int](), list[int]()  # numbers of the values in each value, in its place
        self._containers, self._more = 0, 0
        self._most = self._left = min(_REPEATS * size, _MOST_VALUES)

    # One loop: a pickle has ten thousands of operations, and calls would double the time of each.
    def follow(self, data: bytes | mmap, place: int, end: int) -> int:  # noqa: C901, PLR0912, PLR0915
        """Look at all operations until the one that stops, and return the place after it."""
        stack, marks, memo, push = self._stack, self._marks, dict[int, int](), self._stack.append
        kinds, lengths, unpack, at_once, size, steps = _KIND_OF, _LENGTH_OF, _COUNT.unpack_from, _AT_ONCE, self._size, 0
        while place < end:
            code = data[place]
            start = place + 1
            steps += 1
            if not steps % at_once:
                self._check(steps)
            kind = kinds[code]
            if kind == _TEXT:
                push(1)
                place += 5 + unpack(data, start)[0]
            elif kind == _LONG_PUT:
                number = unpack(data, start)[0]
                if number > size:
                    raise ValueError(_OUTSIDE)
                memo[number] = stack[-1]
                place += 5
            elif kind == _SHORT_PUT:
                memo[data[start]] = stack[-1]
                place += 2
            elif kind == _SHORT_GET:
                push(memo[data[start]])
                place += 2
            else:
                length = lengths[code]
                place = start + length if 0 <= length < _COUNTED else _after(data, start, length, end)
                if kind == _VALUE:
                    push(1)
                elif kind == _MARK:
                    marks.append(len(stack))
                elif kind == _GET:
                    push(memo[_number(data[start:place], length)])
                elif kind == _OTHER:
                    self._apply(_STEPS[code])
                elif kind == _PUT:
                    number = _number(data[start:place], length) if length else len(memo)
                    if number > size:
                        raise ValueError(_OUTSIDE)
                    memo[number] = stack[-1]
                elif kind == _GLOBAL:
                    if data[start:place].endswith(_SIZED):
                        raise ValueError("it holds a bytearray")
                    push(1)
                elif kind == _STOP:
                    self._check(steps)
                    stack.pop()
                    return place
                else:
                    raise ValueError(f"no operation, {bytes([code])!r}")
        raise ValueError("it ends before its last operation")

    def _check(self, steps: int) -> None:
        check_memory((_LEAST * steps + self._more) / _TIMES)
        if steps > MOST_STEPS or self._containers > MOST_CONTAINERS:
            raise ValueError(f"it has more than {MOST_STEPS:,} operations or {MOST_CONTAINERS:,} containers")

    def _apply(self, step: _Step) -> None:
        """Do to the stack what an operation does."""
        taken, marked, made, tupled, more = step
        stack, marks, inner = self._stack, self._marks, 0
        if marked:
            first = marks.pop()
            inner = sum(stack[first:])
            del stack[first:]
        if taken:
            first = len(stack) - taken
            if first < (marks[-1] if marks else 0):
                if marks.pop() == len(stack) and not made:  # POP, which takes a mark too
                    return
                raise ValueError("an operation without its values")
            inner += sum(stack[first:])
            del stack[first:]
        if more:
            self._containers += 1
            self._more += more
        if not tupled:  # a tuple is followed once it is a key or an argument
            self._left -= inner
        if self._left < 0 or inner > self._most:
            raise ValueError("its values repeat themselves")
        stack += [inner + 1 if tupled else 1] * made


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


def _number(argument: bytes, length: int) -> int:
    """A place in the memo, as an argument of so many bytes or of a line has it."""
    return int(argument) if length < 0 else int.from_bytes(argument, "little")
