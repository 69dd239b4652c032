"""Hostile inputs made of valid ones: bytes flipped, cut and spliced, other values, names that lead elsewhere."""

import copy
import json
import math
import reprlib
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.guard import CANARY

NAMES = (
    *(
        "",
        " ",
        ".",
        "..",
        "../escaped",
        "../../../../escaped",
        "a/../../escaped",
        "/escaped",
        "//escaped/x",
        "~/escaped",
    ),
    *(
        "..\\escaped",
        "C:\\escaped",
        "file:///escaped",
        "%2e%2e%2fescaped",
        "a\0b",
        "\0",
        "-rf",
        "--help",
        "$HOME",
        "`id`",
    ),
    *("\x1b[2J\x1b]0;owned\x07", "\x9b31m", "red\x1b[31m.jpg", "two\nlines", "bell\x07", "\x7f", "tab\tand\rreturn"),
    *("\u202egpj.exe", "\u2028", "\u0430dmin", "\uff0e\uff0e\uff0fescaped", "e\u0301", "\U0001f4a9", "\ufeff", "\xa0"),
    *("\udce9", "\ud800", "con", "NUL.pt", "aux.tar.gz", "COM1", "a" * 300, "b" * 5000, "x/" * 400, "{0.__class__}"),
    *(
        "%s%n%x",
        "<script>alert(1)</script>",
        "' OR 1=1 --",
        "*",
        "?",
        "[",
        "{0..9}",
        "s3://x/y",
        "hf-hub:../x@..",
        "None",
    ),
    *(CANARY, f"__import__('{CANARY}')", f"{CANARY}:run", "__class__", "catalogue.toml", "hashes.json", "downloads"),
)
NUMBERS = (
    *(0, -1, 1, 2, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63),
    *(-(2**63), -(2**63) - 1, 2**64, 10**20, 10**400, True, False, 0.0, -0.0, 0.5, -1.5, 1e-320, 1e19, 1e308, -1e308),
    *(math.nan, math.inf, -math.inf),
)

names = st.one_of(
    st.sampled_from(NAMES), st.text(max_size=12), st.sampled_from(NAMES).map(lambda name: f"a/{name}.jpg")
)
numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(), st.floats())
scalars = st.one_of(names, numbers, st.none())
values = st.one_of(
    scalars,
    st.lists(scalars, max_size=4),
    st.dictionaries(names, scalars, max_size=3),
    st.lists(st.lists(numbers, max_size=3), max_size=3),
)


class Large:
    """A value that is too large to be shown whole where a test fails."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return reprlib.repr(self.value)


# ---------------------------------------------------------------------------------------------------------------------
# Values of JSON, TOML and pickles
# ---------------------------------------------------------------------------------------------------------------------

Path = tuple[Any, ...]  # the keys and indices that lead to a value


def paths(value: Any) -> list[Path]:
    """Where every value inside a value of dictionaries and lists stands; the whole is at ()."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *rest) for key, item in inner for rest in paths(item))]


@st.composite
def changed(  # noqa: C901 - one case for each kind of change
    draw: st.DrawFn, value: Any, *, most: int = 3, new: st.SearchStrategy[Any] = values
) -> Any:
    """A copy of a value with one to `most` changes.

    Args:
        draw: hypothesis's.
        value: of dictionaries, lists and scalars.
        most: changes at most.
        new: what is put into it.
    """
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, most))):
        place = draw(st.sampled_from(paths(value)))
        if not place:
            if draw(st.integers(0, 9)) == 0:  # seldom: a whole of another kind is refused at once
                value = draw(new)
            continue
        *outer, key = place
        parent = value
        for step in outer:
            parent = parent[step]
        match draw(st.sampled_from(("replace", "replace", "replace", "remove", "rename", "wrap", "number", "double"))):
            case "replace":
                parent[key] = draw(new)
            case "number":
                parent[key] = draw(numbers)
            case "remove":
                del parent[key]
            case "rename" if isinstance(parent, dict):
                parent[draw(names)] = parent.pop(key)
            case "wrap":
                parent[key] = draw(
                    st.sampled_from(([parent[key]], {"a": parent[key]}, [[parent[key]]], str(parent[key])))
                )
            case "double" if isinstance(parent, list):
                parent.append(copy.deepcopy(parent[key]))
    return value


@st.composite
def json_text(draw: st.DrawFn, value: Any, *, most: int = 3) -> bytes:
    """The bytes of a JSON file: a changed value, now and then with damage to the text itself."""
    text = json.dumps(draw(changed(value, most=most))).encode()
    match draw(st.integers(0, 11)):
        case 0:
            return draw(damaged(text))
        case 1:
            depth = draw(st.sampled_from((100, 2_000, 200_000)))
            opening, closing = draw(st.sampled_from(((b"[", b"]"), (b'{"a":', b"}"))))
            return opening * depth + draw(st.sampled_from((b"", b"1"))) + closing * depth
        case 2:
            where = draw(st.integers(0, len(text)))
            extra = draw(
                st.sampled_from(
                    (b"1" * 6000, b"\xff\xfe", b"\\ud800", b"NaN", b",,", b"\xef\xbb\xbf", b"\0", b"1e999999")
                )
            )
            return text[:where] + extra + text[where:]
    return text


# ---------------------------------------------------------------------------------------------------------------------
# Bytes
# ---------------------------------------------------------------------------------------------------------------------

_WORDS = (
    *(
        b"\0",
        b"\xff",
        b"\x7f",
        b"\x80",
        b"\0" * 4,
        b"\xff" * 4,
        b"\xff\xff\xff\x7f",
        b"\0\0\0\x80",
        b"\x7f\xff\xff\xff",
    ),
    *(b"\0" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\0\x10", b"\x10\0", b"-1", b"../", b"\n", b"%n"),
)


@st.composite
def damaged(  # noqa: C901 - as `changed`
    draw: st.DrawFn, data: bytes, *, most: int = 4, until: int | None = None
) -> bytes:
    """A copy of some bytes with one to `most` changes: flips, cuts, splices, lengths of all sizes.

    Args:
        draw: hypothesis's.
        data: valid bytes.
        most: changes at most.
        until: places are drawn before this one; of a file whose sense is in its head.
    """
    for _ in range(draw(st.integers(1, most))):
        end = len(data) if until is None else min(until, len(data))
        if not end:
            return draw(st.binary(max_size=64))
        at = draw(st.integers(0, end - 1))
        length = draw(st.sampled_from((1, 2, 4, 8, 16, 64, 512)))
        match draw(
            st.sampled_from(("flip", "flip", "word", "word", "cut", "drop", "splice", "double", "zero", "insert"))
        ):
            case "flip":
                data = data[:at] + bytes((data[at] ^ (1 << draw(st.integers(0, 7))),)) + data[at + 1 :]
            case "word":
                word = draw(st.sampled_from(_WORDS))
                data = data[:at] + word + data[at + len(word) :]
            case "cut":
                data = data[:at]
            case "drop":
                data = data[:at] + data[at + length :]
            case "splice":
                start = draw(st.integers(0, end - 1))
                data = data[:at] + data[start : start + length] + data[at + length :]
            case "double":
                data = data[:at] + data[at : at + length] * draw(st.integers(2, 4)) + data[at + length :]
            case "zero":
                data = data[:at] + bytes(len(data[at : at + length])) + data[at + length :]
            case "insert":
                data = data[:at] + draw(st.binary(min_size=1, max_size=16)) + data[at:]
    return data
