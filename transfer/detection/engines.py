"""The table of engines. A new engine is one folder beside this file and one entry in the table."""

import importlib.util
from collections.abc import Callable, Mapping

from excb.errors import UserError, nearest_name, require

from .setup.job import Engine

INSTALL = (
    "Detectron2 is not installed: add --engine torchvision, which is, or build Detectron2 (pip install 'setuptools<82' "
    "wheel ninja, then pip install --no-build-isolation git+https://github.com/facebookresearch/detectron2)"
)


def _detectron2() -> Engine:
    require(importlib.util.find_spec("detectron2") is not None, INSTALL)
    from .detectron2 import engine

    return engine


def _torchvision() -> Engine:
    from .torchvision import engine

    return engine


# Each entry imports its engine when it is called: Detectron2 is optional, and slow to import.
ENGINES: Mapping[str, Callable[[], Engine]] = {"detectron2": _detectron2, "torchvision": _torchvision}


def open_engine(name: str) -> Engine:
    """Import an engine.

    Raises:
        UserError: there is no such engine, or it is not installed.
    """
    if name not in ENGINES:
        raise UserError(f"no engine is named '{name}'{nearest_name(name, ENGINES)}: choose {' or '.join(ENGINES)}")
    return ENGINES[name]()
