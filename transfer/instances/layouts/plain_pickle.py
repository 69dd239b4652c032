"""Pickles of plain values, read without running code: containers, text, numbers and NumPy arrays of numbers.

The ground truth of ROxford and RParis is such a file. Nothing that a file names is the real thing: NumPy's names stand
for the small classes below, and any other name is refused before anything is built.
"""

import io
import pickle
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from excb.errors import UserError, first_line
from excb.files.foreign import TooLargeError, read_bytes
from excb.files.pickles import check_pickle

LARGEST = 2**26  # bytes of a file
_KINDS = frozenset(f"{kind}{size}" for kind, sizes in (("iu", "1248"), ("f", "48")) for kind in kind for size in sizes)
_TIMES = 16  # so many values for every byte of a file, at most: references repeat what a file holds once
_DAMAGE = (
    *(pickle.UnpicklingError, struct.error, ArithmeticError, AttributeError, EOFError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError),
)


class _Allowance:
    """Counts down what may still be built while a file is read."""

    def __init__(self) -> None:
        self.left = 0

    def spend(self, values: int) -> None:
        """Raise ValueError once more is built than a file of its size needs."""
        self.left -= values
        if self.left < 0:
            raise ValueError("its values repeat themselves")


_allowance = _Allowance()  # of the file that is read; one at a time


class _Kind:
    """Stands in for a dtype: the type of an array's numbers."""

    __slots__ = ("name", "order")

    def __init__(self, name: str = "", *_flags: Any) -> None:
        self.name, self.order = name, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] == ">" else "<"

    def numbers(self, raw: Any) -> list[Any]:
        """The numbers that bytes hold."""
        if self.name.lstrip("<>|=") not in _KINDS:
            raise ValueError(f"an array of {self.name!r}")
        _allowance.spend(len(raw))
        text = raw.encode("latin1") if isinstance(raw, str) else raw  # Python 2 wrote bytes as text
        return list(np.frombuffer(text, np.dtype(self.order + self.name.lstrip("<>|="))).tolist())


class _Array:
    """Stands in for an array: its numbers as one flat list."""

    __slots__ = ("values",)

    def __init__(self, *_parts: Any) -> None:
        self.values: list[Any] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, _shape, kind, _fortran, raw = state
        self.values = kind.numbers(raw)


class _BufferedArray(_Array):
    """The same, as protocol 5 stores it."""

    __slots__ = ()

    def __init__(self, raw: Any, kind: _Kind, *_parts: Any) -> None:
        super().__init__()
        self.values = kind.numbers(raw)


class _Scalar(_Array):
    """Stands in for one number."""

    __slots__ = ()

    def __init__(self, kind: _Kind, raw: Any) -> None:
        super().__init__()
        self.values = kind.numbers(raw)


class _Encoded(bytes):
    """Bytes, as protocols 0 to 2 store them."""

    __slots__ = ()

    def __new__(cls, text: str = "", _encoding: str = "latin1") -> "_Encoded":
        _allowance.spend(len(text))
        return super().__new__(cls, text.encode("latin1"))


_NAMES: dict[str, type] = {
    **dict.fromkeys(("_codecs.encode", "__builtin__.bytes"), _Encoded),
    "numpy.dtype": _Kind,
    "numpy.ndarray": _Array,
    **{
        f"numpy.{core}.{name}": stand_in
        for core in ("core", "_core")
        for name, stand_in in (
            ("multiarray._reconstruct", _Array),
            ("multiarray.scalar", _Scalar),
            ("numeric._frombuffer", _BufferedArray),
        )
    },
}


class _RefusedError(Exception):
    """A name that is none of `_NAMES`."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        whole = f"{module}.{name}"
        if whole not in _NAMES:
            raise _RefusedError(whole)
        return _NAMES[whole]


def read_pickle(file: Path) -> Any:
    """The contents of a file; arrays and numbers of NumPy have a list `values`.

    Raises:
        UserError: it cannot be read, is damaged, too large, or names anything but plain values.
    """
    try:
        packed = read_bytes(file, LARGEST)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None
    try:
        check_pickle(packed)
        _allowance.left = _TIMES * len(packed)
        contents = _Unpickler(io.BytesIO(packed), encoding="latin1").load()
        _check_repeats(contents, _TIMES * len(packed))
        return contents
    except TooLargeError as error:
        raise UserError(f"{file}: {error}") from None
    except _RefusedError as refused:
        raise UserError(
            f"{file} names {refused}, which ground truth has no need of: refused, since reading it could run code"
        ) from None
    except _DAMAGE as error:
        raise UserError(
            f"{file} is damaged or no pickle of plain values ({first_line(error)}): fetch it again"
        ) from None


def _check_repeats(contents: Any, most: int) -> None:
    """Raise ValueError where a reader that follows all references would meet more values than `most`, or a circle.

    Every container is looked at once, however often it is referred to.
    """
    sizes, entered, waiting = dict[int, int](), set[int](), [contents]  # values within each container, by its id
    while waiting:
        number = id(waiting[-1])
        if number in sizes:
            waiting.pop()
            continue
        inner = _values_in(waiting[-1])
        plain = _CONTAINERS.isdisjoint(map(type, inner))  # most have thousands of texts or numbers
        containers = [] if plain else [item for item in inner if type(item) in _CONTAINERS]
        if number in entered:
            waiting.pop()
            entered.remove(number)
            sizes[number] = 1 + len(inner) + sum(sizes[id(item)] for item in containers)
            if sizes[number] > most:
                raise ValueError("its values repeat themselves")
            continue
        entered.add(number)
        if any(id(item) in entered for item in containers):
            raise ValueError("its values hold themselves")
        waiting += [item for item in containers if id(item) not in sizes]


_CONTAINERS = frozenset((dict, list, tuple, set, frozenset, _Array, _BufferedArray, _Scalar))


def _values_in(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, _Array):
        return value.values
    return value if isinstance(value, list | tuple | set | frozenset) else ()


def numbers(value: Any) -> list[Any]:
    """The numbers of a list, a tuple or an array, of any nesting that an array of one dimension may have.

    Raises:
        ValueError: it holds something else.
    """
    if isinstance(value, _Array):
        return value.values
    if not isinstance(value, list | tuple):
        raise ValueError(f"a {type(value).__name__} where numbers belong")
    flat: list[Any] = []
    for each in value:
        if isinstance(each, int | float) and not isinstance(each, bool):
            flat.append(each)
        elif isinstance(each, _Array):
            flat += each.values
        else:
            raise ValueError(f"a {type(each).__name__} where a number belongs")
    return flat
