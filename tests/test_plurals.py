"""A number in a message agrees with its noun: "1 image", not "1 images"; `excb.console.plural` writes both."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clone import ROOT

NOUNS = (
    "arrays|batches|bands|blocks|boxes|bytes|categories|cells|channels|checkpoints|claims|"
    "classes|clusters|copies|cores|corruptions|crops|devices|epochs|episodes|exemplars|figures|"
    "files|folds|folders|groups|heads|images|kernels|labels|levels|lines|machines|masks|"
    "measurements|members|neighbours|numbers|objects|pairs|parameters|parts|patches|pictures|"
    "places|points|predictions|processes|queries|readers|results|rows|runs|samples|seeds|"
    "shards|steps|strengths|teachers|tensors|threads|trials|values|vectors|weights|words|"
    "workers"
)
# Between number and noun: adjectives, not words after which the noun is of something else.
_OTHERS = (
    "a|and|are|as|at|by|for|from|gives|has|have|holds|in|is|makes|names|needs|not|of|on|or|per|reads|returned|sends|takes|"
    "the|to|with"
)
_NOUN = re.compile(rf" (?:(?!(?:{_OTHERS}) )[a-z-]+ ){{0,2}}({NOUNS})\b(?![=.(-])")
_CONSTANT = re.compile(r"[\w.]*\b[A-Z_0-9]+( [+*-] [A-Z_0-9]+)*")
# Values that are texts, or numbers that are never 1 where they stand.
EXEMPT = {
    *(
        "gallery",
        "kind",
        "name",
        "options.gallery",
        "part",
        "probe",
        "root",
        "split",
        "text",
        "type_name(values.dtype)",
    ),
    *("', '.join(images)", "' or '.join(map(str, counts))", "share.get('images')", "first.data.get('classes')"),
    *("train_set.root", "type(value).__name__"),
    *("grid.width", "processes", "ratio", "was[1]", "world_size"),
}
# Words after a number that do not change with it: adjectives, extensions, names, and verbs beside the other form.
UNCHANGED = {"kind", "what", "how", "word"}


def uncounted_names(source: str) -> Iterator[str]:
    """Nouns in a variable after a number, as in f"{n:,} {noun}", and plurals spelled as 's' * (n != 1)."""
    for node in ast.walk(ast.parse(source)):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for number, between, noun in zip(parts, parts[1:], parts[2:], strict=False):
            if not isinstance(number, ast.FormattedValue) or not isinstance(noun, ast.FormattedValue):
                continue
            count, word = ast.unparse(number.value), ast.unparse(noun.value)
            grouped = number.format_spec is not None and ast.unparse(number.format_spec) in ("f','", "','")
            follows = isinstance(between, ast.Constant) and between.value == " "
            if follows and (grouped or count.startswith("len(")) and word not in UNCHANGED and " == 1 " not in word:
                yield f"line {number.lineno}: {{{count}}} {{{word}}}"
            if isinstance(between, ast.Constant) and re.match(r"'e?s' \*", word) and not count.startswith("'"):
                yield f"line {number.lineno}: {{{count}}} ... {{{word}}}"


def uncounted(source: str) -> Iterator[str]:
    """The plural nouns after a number that `plural` has not written."""
    for node in ast.walk(ast.parse(source)):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for value, text in pairwise(parts):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            written = ast.unparse(value.value)
            decimals = value.format_spec is not None and "." in ast.unparse(value.format_spec)
            if decimals or written.startswith("plural(") or written in EXEMPT or _CONSTANT.fullmatch(written):
                continue
            if noun := _NOUN.match(str(text.value)):
                yield f"line {value.lineno}: {{{written}}}{noun[0]}"


def found_in(source: str) -> list[str]:
    """All of both kinds."""
    return [*uncounted(source), *uncounted_names(source)]


@pytest.mark.parametrize("room", ["excb", "pretrain", "transfer", "zoo"])
def test_numbers_agree_with_their_nouns(room: str) -> None:
    files = sorted(Path(ROOT / room).rglob("*.py"))
    found = [f"{file.relative_to(ROOT)}, {each}" for file in files for each in found_in(file.read_text("utf-8"))]
    assert not found, "write {plural(number, 'noun')}, or list the value as a text in EXEMPT:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ('f"{n:,} images"', 1),
        ('f"{len(a)} held-out train images are left out"', 1),
        ("f\"{plural(n, 'image')} in {m} files\"", 1),
        ("f\"{plural(n, 'image')} of {share:.1f} % steps\"", 0),
        ('f"{FOLDS} folds"', 0),
        ('f"{file} names images"', 0),
        ('f"{n:,} {noun}"', 1),
        ('f"{len(a)} {noun}"', 1),
        ('f"{n:,} {nouns if n != 1 else noun}"', 1),
        ('f"{n:,} {noun if n == 1 else nouns}"', 0),
        ('f"{len(a)} {kind} ({few(a)})"', 0),
        ("f\"{n} node{'s' * (n > 1)}\"", 1),
        ('f"{file} {reason}"', 0),
    ],
)
def test_the_check_finds_them(source: str, number: int) -> None:
    assert len(found_in(source)) == number
