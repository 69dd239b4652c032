"""Tests of options dataclasses at the edge: words of a command line and values of Python give the same options."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from excb.cli import Parser
from excb.errors import UserError
from excb.option_parser import add_option_fields, of_arguments, of_values, plain, to_words
from excb.options import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One option of each kind."""

    ckpt: str = option(REQUIRED, "required")
    count: int | None = option(None, "a number, or none")
    rate: float = option(0.5, "a number")
    many: tuple[int, ...] = option((1,), "several")
    batch: int | Literal["auto"] = option(64, "a number or a word")
    kind: Literal["a", "b"] = option("a", "a choice")
    place: Path | None = option(None, "a path", flag="where")
    quick: bool | None = option(None, "a switch", off=("slow", "the other way"))
    rename: Mapping[str, str] = option((), "pairs", metavar="TEST=TRAIN")

    def __post_init__(self) -> None:
        object.__setattr__(self, "rename", dict(self.rename))


def parsed(*words: str) -> Sample:
    parser = Parser(prog="sample", allow_abbrev=False)
    add_option_fields(parser, Sample)
    return of_arguments(Sample, parser.parse_args(words))


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ((), {}),
        (("--count", "3", "--rate", "2"), {"count": 3, "rate": 2}),
        (("--many", "4", "5"), {"many": [4, 5]}),
        (("--many", "4", "5"), {"many": range(4, 6)}),
        (("--many", "4"), {"many": np.int64(4)}),
        (("--batch", "auto"), {"batch": "auto"}),
        (("--batch", "8"), {"batch": 8}),
        (("--kind", "b"), {"kind": "b"}),
        (("--where", "x/none"), {"place": "x/none"}),
        (("--where", "none"), {"where": Path("none")}),
        (("--quick",), {"quick": True}),
        (("--slow",), {"quick": False}),
        (("--rename", "cat=feline", "--rename", "a=b=c"), {"rename": {"cat": "feline", "a": "b=c"}}),
    ],
)
def test_words_and_values_give_the_same_options(words: tuple[str, ...], values: dict[str, Any]) -> None:
    of_words = parsed("--ckpt", "x", *words)
    assert of_values(Sample, {"ckpt": "x", **values}, owner="sample") == of_words
    again = to_words(of_words)
    assert parsed(*again) == of_words


@pytest.mark.parametrize("text", ["none", "None", "true", "1e3", "a,b", "x=y"])
def test_text_and_paths_stay_as_they_are(text: str) -> None:
    made = of_values(Sample, {"ckpt": text, "place": Path(text)}, owner="sample")
    assert (made.ckpt, made.place) == (text, Path(text))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": "3"}, "count takes a whole number, not '3'"),
        ({"count": 1.5}, "count takes a whole number, not 1.5"),
        ({"count": True}, "count takes a whole number, not True"),
        ({"rate": "0.1"}, "rate takes a number, not '0.1'"),
        ({"rate": float("nan")}, "rate takes a finite number"),
        ({"many": [1, "2"]}, "many takes a whole number, not '2'"),
        ({"batch": "all"}, "batch must be one of auto, not 'all'"),
        ({"kind": "B"}, "kind must be one of a, b, not 'B'"),
        ({"quick": 1}, "quick is true or false, not 1"),
        ({"rename": "a=b"}, "rename takes a dictionary, not 'a=b'"),
        ({"cuont": 3}, "sample has no option cuont; did you mean 'count'?"),
        ({"json": True}, "json is not an option in Python: print it yourself"),
    ],
)
def test_a_wrong_value_gives_one_clear_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        of_values(Sample, {"ckpt": "x", **values}, owner="sample", refused={"json": "print it yourself"})
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_option_without_a_default_has_to_be_given() -> None:
    with pytest.raises(UserError, match="sample needs ckpt"):
        of_values(Sample, {"count": 3}, owner="sample")
    with pytest.raises(UserError, match="--ckpt"):
        parsed("--count", "3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batch", "all"), "takes a number, or auto, not 'all'"),
        (("--rename", "ant"), "--rename ant: write TEST=TRAIN"),
        (("--kind", "c"), "invalid choice"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parsed("--ckpt", "x", *words)


def test_values_become_plain_for_json() -> None:
    made = parsed("--ckpt", "x", "--many", "1", "2", "--where", "a/b", "--rename", "a=b")
    assert plain(made.many) == [1, 2]
    assert plain(made.place) == "a/b"
    assert plain(made.rename) == {"a": "b"}


def test_groups_keep_the_order_of_the_fields() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Grouped:
        first: int = option(1, "in the first group", group="one")
        second: int = option(1, "in the second", group="two")
        third: int = option(1, "in the first, again", group="one")
        alone: list[int] = field(default_factory=list, metadata={"shell": {"hidden": True}})

    parser = argparse.ArgumentParser()
    add_option_fields(parser, Grouped)
    text = parser.format_help().partition("options:")[2]
    assert text.index("one:") < text.index("--first") < text.index("--third") < text.index("two:")
    assert "--alone" not in text
