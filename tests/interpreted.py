"""Triton's interpreter, in a process of its own: it decides when Triton is imported whether kernels are interpreted."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clone import ROOT

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")


def interpret(function: str, cache: Path) -> None:
    """Call a function of a test module, such as "tests.here.test_it.check", where kernels are interpreted."""
    module, _, name = function.rpartition(".")
    # A new interpreter: Triton reads the variable when it is imported.
    subprocess.run(
        [sys.executable, "-c", f"import {module}; {module}.{name}()"],
        cwd=ROOT,
        env=os.environ | {"TRITON_CACHE_DIR": str(cache), "TRITON_INTERPRET": "1"},
        check=True,
        timeout=600,
    )
