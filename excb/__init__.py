"""ExCB: self-supervised visual representations by explicit cluster balancing. `excb.load` gives a backbone by name."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excb.version import __version__

if TYPE_CHECKING:
    from excb.errors import UserError
    from excb.hub.backbone import Backbone
    from excb.hub.catalogue import checkpoints
    from excb.hub.loading import load
    from excb.method import ExCB

# Public names resolve on first use, so that `import excb` and every `--help` stay quick: torch loads only for work.
_HOME = {
    "load": "excb.hub.loading",
    "checkpoints": "excb.hub.catalogue",
    "Backbone": "excb.hub.backbone",
    "ExCB": "excb.method",
    "UserError": "excb.errors",
}
__all__ = ["Backbone", "ExCB", "UserError", "__version__", "checkpoints", "load"]

# In a clone, excb.pretrain, excb.transfer and excb.zoo lie beside this folder (see pyproject.toml).
_CLONE = Path(__file__).resolve().parent.parent
if (_CLONE / "pretrain" / "__init__.py").is_file():
    __path__.append(str(_CLONE))


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'excb' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
