"""The folder of the notebooks' outputs: one for each state of our sources, of the packages and of Python."""

import hashlib
import os
import platform
import shutil
import time
from importlib import metadata
from pathlib import Path

from jupyter_cache import get_cache

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("excb", "pretrain", "transfer", "zoo")
KEPT = 30 * 24 * 3600.0  # seconds after which a folder that no build used is removed


def folder() -> Path:
    """The folder for what is here now, in the user's cache: a notebook's own cells are its key inside it."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "excb-docs"
    here = caches / state()[:16]
    here.mkdir(parents=True, exist_ok=True)
    here.touch()
    get_cache(here).db  # noqa: B018 - made before the processes of `sphinx-build -j` would all make it
    for other in caches.iterdir():
        if time.time() - other.stat().st_mtime > KEPT:
            shutil.rmtree(other, ignore_errors=True)
    return here


def state() -> str:
    """SHA-256 of every file of ours that a notebook may read, of Python's version and of the packages' versions."""
    packages = sorted(f"{package.name}=={package.version}" for package in metadata.distributions())
    digest = hashlib.sha256("\n".join([platform.platform(), platform.python_version(), *packages]).encode())
    files = sorted(file for source in SOURCES for file in (ROOT / source).rglob("*") if file.is_file())
    for file in files:
        if "__pycache__" not in file.parts:
            digest.update(f"\n{file.relative_to(ROOT).as_posix()}\n".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
