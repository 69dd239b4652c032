"""One name, one meaning: no two files define a public class or function of one name, those of one interface apart.

Whoever searches for a name finds one definition. A name that many files define on purpose is in `INTERFACES`, with the
files that implement the interface; in any other file it is a duplicate like others.
"""

import ast
from collections import defaultdict
from fnmatch import fnmatch
from functools import cache
from typing import NamedTuple

from tests.clone import ROOT

FOLDERS = ("excb", "pretrain", "transfer", "zoo")
SPOKEN = ("excb", "zoo", "tests", "benchmarks", "docs")


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
    "cross_entropy": Interface(
        "the loss and what computes it, as equations or in streams",
        ("excb/objective/loss.py", "excb/objective/plain.py", "excb/objective/streamed.py"),
    ),
    "first_losses": Interface("engines of detection: `Engine`", ("transfer/detection/*/engine.py",)),
    "main": Interface("entry points, named in pyproject.toml", ("*/__main__.py", "transfer/cli.py")),
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
            "excb/hub/untrained_models.py",
        ),
    ),
    "run": Interface("a command runs: `excb.cli.Command`", ("*/commands/*.py",)),
    "train": Interface("engines of detection: `Engine`", ("transfer/detection/*/engine.py",)),
}

# Names that still have two meanings. The list only shrinks.
TO_RENAME = (
    "Assignment",
    "Batch",
    "Choice",
    "Descriptor",
    "Evaluation",
    "Hashes",
    "Heads",
    "InSuite",
    "Layout",
    "Measured",
    "Measurement",
    "Memory",
    "Neighbours",
    "Outcome",
    "Plan",
    "Probe",
    "Protocol",
    "Result",
    "Rows",
    "Run",
    "Scores",
    "Source",
    "Step",
    "StoppedError",
    "Store",
    "SuiteStep",
    "Trainer",
    "Verdict",
    "Whitening",
    "Work",
    "add_options",
    "assign",
    "average_precision",
    "by_class",
    "check",
    "check_file",
    "checked",
    "choose",
    "chosen",
    "command",
    "compare",
    "describe",
    "describe_images",
    "draw",
    "embed",
    "evaluate",
    "existing",
    "export",
    "figures_of",
    "forecast",
    "headline",
    "images_of",
    "interval",
    "is_imagenet",
    "labelled",
    "labelled_images",
    "layout_of",
    "load",
    "measure",
    "named",
    "names_of",
    "nearest",
    "obstacle",
    "of_result",
    "open_images",
    "open_task",
    "opened",
    "parse",
    "plan",
    "read",
    "report",
    "reproduce",
    "resamples",
    "resnet",
    "results_of",
    "run",
    "scores_of",
    "settings_for",
    "settings_of",
    "sheet",
    "show",
    "summary",
    "to_dict",
    "train",
    "train_and_test",
    "unpack",
    "warn_of_unknown",
    "write",
)


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
    assert sorted(ambiguous) == sorted(TO_RENAME), "rename the new ones, and delete from TO_RENAME what is unique now"


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
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    continue
                if (ast.get_docstring(node) or "").startswith("What "):
                    offences.append(f"{file.relative_to(ROOT)}: {getattr(node, 'name', 'the module')}")
    assert offences == []
