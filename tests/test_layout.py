"""The repository's shape, where import-linter cannot check it: packaging, folders, documents, light entry points.

Who may import whom is in pyproject.toml, `[tool.importlinter]`.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.clone import ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"
RELIABILITY = ROOT / "docs" / "reliability.md"
CORE = "excb"
LEAVES = ("pretrain", "transfer", "zoo")
FOLDERS = (CORE, *LEAVES, "tests")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SCRIPTS: dict[str, str] = PYPROJECT["project"]["scripts"]

MOST_MODULES = 15  # in one folder, `__init__.py` apart
VAGUE_NAMES = {"common", "misc", "util", "utils"}
HEAVY_MODULES = {"detectron2", "faiss", "matplotlib", "skimage", "sklearn", "timm", "torch", "torchvision"}
WORDS: dict[str, str] = tomllib.loads((ROOT / "docs" / "words.toml").read_text(encoding="utf-8"))

PRINT_MODULES_AFTER_IMPORT = """
import sys
import excb
print(*sys.modules, sep="\\n")
"""

ASK_FOR_HELP = """
import importlib, sys
module, _, function = sys.argv[1].partition(":")
main = getattr(importlib.import_module(module), function)
try:
    status = main(["--help"])
except SystemExit as stop:
    status = stop.code
sys.exit(status or ("--help imported torch" if "torch" in sys.modules else 0))
"""


def sources(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def documents() -> list[Path]:
    """The documents about the code, the checkpoint's card apart."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def packages() -> list[Path]:
    return [file.parent for file in sources(CORE, *LEAVES) if file.name == "__init__.py"]


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def installed_name(folder: Path) -> str:
    """The name under which a folder of the clone is imported: `pretrain/` is `excb.pretrain`."""
    parts = folder.relative_to(ROOT).parts
    return ".".join(parts if parts[0] == CORE else (CORE, *parts))


def absolute_imports(tree: ast.Module) -> Iterator[str]:
    """Every dotted name that the module may import absolutely, also inside functions and for type checkers only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            # `from excb import zoo` imports excb.zoo as much as `import excb.zoo` does.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def relative_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every relative import as its number of dots and the dotted name behind them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            for alias in node.names:
                yield node.level, ".".join(filter(None, (node.module, alias.name)))


def names_leaf(dotted: str) -> bool:
    """Whether an absolute name is a leaf's, as installed (`excb.zoo.card`) or as in a clone (`zoo.card`)."""
    return dotted.removeprefix(f"{CORE}.").split(".")[0] in LEAVES


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter from the clone's root, so that what other tests imported does not count."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def test_no_leaf_is_imported_by_an_absolute_name() -> None:
    # import-linter sees `excb.zoo` but not `zoo`, which works in a clone only; a leaf imports itself relatively.
    offences = [
        f"{where(file)}: {name}"
        for file in sources(CORE, *LEAVES)
        for name in absolute_imports(parse(file))
        if names_leaf(name)
    ]
    assert offences == []


def test_relative_imports_stay_within_their_leaf() -> None:
    # Once installed, a relative import with a dot too many reaches the core; in a clone it fails.
    offences = [
        f"{where(file)}: {'.' * dots}{name}"
        for file in sources(*FOLDERS)
        if "from ." in file.read_text(encoding="utf-8")  # to parse all of them takes seconds
        for dots, name in relative_imports(parse(file))
        if dots > len(file.relative_to(ROOT).parts) - 1 or where(file).startswith((CORE, "tests"))
    ]
    assert offences == []


def test_packages_in_pyproject_are_the_folders_with_an_init_file() -> None:
    assert PYPROJECT["tool"]["setuptools"]["packages"] == sorted(map(installed_name, packages()))


def test_packages_are_mapped_to_their_folders() -> None:
    expected = {installed_name(ROOT / folder): folder for folder in (CORE, *LEAVES)}
    assert PYPROJECT["tool"]["setuptools"]["package-dir"] == expected


def test_every_file_that_is_not_code_is_packaged() -> None:
    folders = {installed_name(folder): folder for folder in packages()}
    table: dict[str, list[str]] = PYPROJECT["tool"]["setuptools"]["package-data"]
    packaged = {file for package, globs in table.items() for glob in globs for file in folders[package].glob(glob)}
    files = {path for folder in (CORE, *LEAVES) for path in (ROOT / folder).rglob("*") if path.is_file()}
    data = {path for path in files if path.suffix != ".py" and "__pycache__" not in path.parts}
    assert sorted(map(where, data - packaged)) == []


def test_every_file_of_code_is_in_a_package() -> None:
    offences = [where(file) for file in sources(CORE, *LEAVES) if not (file.parent / "__init__.py").is_file()]
    assert offences == []


def test_no_folder_is_crowded() -> None:
    sizes = {where(folder): len(list(folder.glob("*.py"))) - 1 for folder in packages()}
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_every_file_says_its_purpose_in_its_first_line() -> None:
    offences = []
    for file in sources(*FOLDERS):
        docstring = ast.get_docstring(parse(file), clean=False) or ""
        if not docstring.partition("\n")[0].strip():
            offences.append(where(file))
    assert offences == []


def test_no_file_or_folder_has_a_vague_name() -> None:
    paths = (path for folder in FOLDERS for path in ((ROOT / folder), *(ROOT / folder).rglob("*")))
    assert [where(path) for path in paths if path.stem.lower() in VAGUE_NAMES] == []


@pytest.mark.parametrize(("word", "better"), WORDS.items())
def test_words_of_the_old_dialect_are_gone(word: str, better: str) -> None:
    others = [ROOT / name for name in ("benchmarks", "examples", ".github")]
    files = [*sources(CORE, *LEAVES), *documents()]
    files += [file for folder in others for file in folder.rglob("*") if file.suffix in (".py", ".md", ".yml", ".sh")]
    pattern = re.compile(rf"\b({word})\b", re.IGNORECASE)
    offences = [where(file) for file in files if pattern.search(file.read_text(encoding="utf-8"))]
    assert offences == [], f"write {better}"


def test_the_architecture_page_lists_every_folder() -> None:
    listed = re.findall(r"^\| `([\w/]+)/` \|", ARCHITECTURE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(map(where, packages()))


def test_the_architecture_picture_shows_every_room_of_the_core() -> None:
    picture = ARCHITECTURE.with_suffix(".svg").read_text(encoding="utf-8")
    assert [
        folder.name for folder in packages() if folder.parent.name == CORE and f">{folder.name}<" not in picture
    ] == []


def test_every_link_of_a_document_leads_to_a_file() -> None:
    offences = []
    for document in documents():
        for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
            target = link.partition("#")[0]
            if target and "://" not in link and not (document.parent / target).exists():
                offences.append(f"{where(document)}: {link}")
    assert offences == []


def test_every_file_of_code_that_a_document_names_exists() -> None:
    named = rf"`((?:{'|'.join(FOLDERS)})/[\w/]+\.\w+)`"
    offences = [
        f"{where(document)}: {file}"
        for document in documents()
        for file in re.findall(named, document.read_text(encoding="utf-8"))
        if document.name != "CHANGELOG.md" and not (ROOT / file).exists()
    ]
    assert offences == []


def test_every_promise_names_tests_that_exist() -> None:
    promised = RELIABILITY.read_text(encoding="utf-8").partition("## Attacks on whole commands")[0]  # then figures
    rows = [line for line in promised.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith(("| what", "| ---"))]
    offences = [row for row in promises if "::test_" not in row]
    for file, test in re.findall(r"`([\w/]+\.py)::(\w+)`", "\n".join(promises)):
        names = [node.name for node in ast.walk(parse(ROOT / "tests" / file)) if isinstance(node, ast.FunctionDef)]
        offences += [f"{file}::{test}"] if test not in names else []
    assert offences == []


def test_importing_excb_is_light() -> None:
    result = run_python(PRINT_MODULES_AFTER_IMPORT)
    assert result.returncode == 0, result.stderr
    modules = set(result.stdout.split())
    assert modules & (HEAVY_MODULES | {f"{CORE}.{leaf}" for leaf in LEAVES}) == set()


@pytest.mark.parametrize("target", SCRIPTS.values(), ids=SCRIPTS)
def test_command_answers_help_without_torch(target: str) -> None:
    result = run_python(ASK_FOR_HELP, target)
    assert result.returncode == 0, result.stderr
    assert "usage" in result.stdout.lower()


def test_the_reference_names_every_environment_variable_of_ours() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    read = {name for file in sources(CORE, *LEAVES) for name in re.findall(r"\bEXCB_[A-Z_]+", file.read_text("utf-8"))}
    of_launchers = {"EXCB_LAUNCHER", "EXCB_CORES"}  # for the ranks that they start
    assert sorted(read - of_launchers) == sorted(set(re.findall(r"\bEXCB_[A-Z_]+", page)))
