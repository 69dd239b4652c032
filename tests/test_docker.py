"""The Dockerfile: its steps work in a fresh environment. No image is built: that needs Docker and a registry."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.clone import ROOT


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, each with what follows it."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    words = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in words]


def copied() -> list[str]:
    """The files that `COPY . .` takes: `.dockerignore` excludes everything and then names what stays."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "*"
    return [line.removeprefix("!") for line in lines if line.startswith("!")]


def test_what_is_copied_suffices_to_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = project["tool"]["setuptools"]["package-dir"].values()
    needed = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    assert needed | {folder.partition("/")[0] for folder in folders} <= set(copied())
    assert [name for name in copied() if not (ROOT / name).exists()] == []


def test_its_command_is_a_program_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert json.loads(dict(instructions())["CMD"])[0] in project["project"]["scripts"]


@pytest.mark.slow
def test_its_steps_work_in_a_fresh_environment(tmp_path: Path) -> None:
    # A new interpreter, of an environment of its own.
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EXCB_", "HF_"))}
    environment = inherited | {
        "PATH": f"{tmp_path / 'venv' / 'bin'}:/usr/bin:/bin",
        "VIRTUAL_ENV": str(tmp_path / "venv"),
    }
    folder, outputs = tmp_path, []
    for word, rest in instructions():
        if word == "WORKDIR":
            folder = tmp_path / "image" / rest.strip("/")
            folder.mkdir(parents=True)
        elif word == "COPY":
            assert rest == ". ."
            for name in copied():
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, folder / name)
        elif word in ("RUN", "CMD"):
            command = ["bash", "-euc", rest] if word == "RUN" else json.loads(rest)
            found = shutil.which(command[0], path=environment["PATH"])
            assert found is not None, command
            done = subprocess.run(
                [found, *command[1:]], cwd=folder, env=environment, capture_output=True, check=False, text=True
            )
            assert done.returncode == 0, done.stderr
            outputs.append(done.stdout)
        else:
            assert word in ("FROM", "ARG"), word
    assert "k-NN" in outputs[-1]
