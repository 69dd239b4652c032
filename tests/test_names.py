"""One name, one meaning: no two files define a public class or function of one name, those of one interface apart.

Whoever searches for a name finds one definition. A name that many files define on purpose is in `INTERFACES`, with the
files that implement the interface; in any other file it is a duplicate like others.
"""

import ast
import re
from collections import defaultdict
from fnmatch import fnmatch
from functools import cache
from typing import NamedTuple

from tests.clone import ROOT

FOLDERS = ("excb", "pretrain", "transfer", "zoo")
SPOKEN = (*FOLDERS, "tests", "benchmarks", "docs")


class Interface(NamedTuple):
    """A function that several files define for one purpose."""

    why: str
    files: tuple[str, ...]  # patterns


INTERFACES = {
    "add_options": Interface("a command states its options: `excb.cli.Command`", ("*/commands/*.py",)),
    "assign": Interface(
        "the loss and what computes it, as equations or in streams",
        ("excb/objective/loss.py", "excb/objective/plain.py", "excb/objective/streamed.py"),
    ),
    "average": Interface(
        "backends of the loss: `excb.objective.scores.Operations`",
        ("excb/objective/chunked.py", "excb/objective/triton.py"),
    ),
    "centroid_gradient": Interface(
        "backends of the loss: `excb.objective.scores.Operations`",
        ("excb/objective/chunked.py", "excb/objective/triton.py"),
    ),
    "checked": Interface(
        "what a protocol's `measure` would compute, or its refusal",
        ("transfer/*/protocol.py", "transfer/*/label_sets.py"),
    ),
    "cross_entropy": Interface(
        "the loss and what computes it, as equations or in streams",
        ("excb/objective/loss.py", "excb/objective/plain.py", "excb/objective/streamed.py"),
    ),
    "figures_of": Interface("the figures of a protocol's measurements", ("transfer/*/protocol.py",)),
    "first_losses": Interface("engines of detection: `Engine`", ("transfer/detection/*/engine.py",)),
    "main": Interface("entry points, named in pyproject.toml", ("*/__main__.py", "transfer/cli.py")),
    "measure": Interface(
        "a protocol measures its task by its options: `Protocol`",
        ("transfer/*/protocol.py", "transfer/*/label_sets.py"),
    ),
    "open_task": Interface("a protocol loads and checks all that it needs", ("transfer/*/setup.py",)),
    "predict": Interface("engines of detection: `Engine`", ("transfer/detection/*/engine.py",)),
    "program": Interface(
        "the parsers of the entry points, for the reference",
        ("pretrain/__main__.py", "zoo/__main__.py", "transfer/cli.py"),
    ),
    "read": Interface(
        "a checkpoint as `Stored`, by its name, folder, file or kind",
        (
            "excb/checkpoint/exported.py",
            "excb/checkpoint/reading.py",
            "excb/hub/loading.py",
            "excb/hub/timm_models.py",
            "excb/hub/from_transformers/models.py",
            "excb/hub/untrained_models.py",
        ),
    ),
    "run": Interface("a command runs: `excb.cli.Command`", ("*/commands/*.py",)),
    "settings_of": Interface("every setting that a protocol's figures depend on", ("transfer/*/protocol.py",)),
    "train_detector": Interface("engines of detection: `Engine`", ("transfer/detection/*/engine.py",)),
}


@cache
def definitions() -> dict[str, list[str]]:
    """The files that define each public class and function at their top level."""
    files = defaultdict(list)
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                    files[node.name].append(file.relative_to(ROOT).as_posix())
    return files


def meanings(name: str, files: list[str]) -> list[str]:
    """The files of a name, those of its interface as one."""
    patterns = INTERFACES[name].files if name in INTERFACES else ()
    others = [file for file in files if not any(fnmatch(file, pattern) for pattern in patterns)]
    return [*others, "its interface"] if len(others) < len(files) else others


def test_no_name_has_two_meanings() -> None:
    ambiguous = {name: files for name, files in definitions().items() if len(set(meanings(name, files))) > 1}
    assert ambiguous == {}, "rename them, or name their common interface in INTERFACES"


def test_every_interface_has_several_implementations() -> None:
    defined = definitions()
    for name, interface in INTERFACES.items():
        for pattern in interface.files:
            assert any(fnmatch(file, pattern) for file in defined[name]), f"{name}: {pattern} matches no file"
        assert len(defined[name]) > 1, f"{name} needs no entry any more"


def test_no_docstring_begins_with_what() -> None:
    # "The options of ...", "Return ...": a docstring says what a thing is or does.
    offences = []
    for folder in SPOKEN:
        for file in sorted((ROOT / folder).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            if not re.search(r'"""\s*What ', text):  # to parse all files takes seconds
                continue
            for node in ast.walk(ast.parse(text)):
                if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    continue
                if (ast.get_docstring(node) or "").startswith("What "):
                    offences.append(f"{file.relative_to(ROOT)}: {getattr(node, 'name', 'the module')}")
    assert offences == []
