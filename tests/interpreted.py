"""Triton's interpreter, in a process of its own: it decides when Triton is imported whether kernels are interpreted."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clone import ROOT

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")


def interpret(module: str, *functions: str, cache: Path) -> None:
    """Call functions of a test module, one after the other, where kernels are interpreted."""
    calls = "; ".join(f"{module}.{name}()" for name in functions)
    # A new interpreter: Triton reads the variable when it is imported.
    subprocess.run(
        [sys.executable, "-c", f"import {module}; {calls}"],
        cwd=ROOT,
        env=os.environ | {"TRITON_CACHE_DIR": str(cache), "TRITON_INTERPRET": "1"},
        check=True,
        timeout=600,
    )
