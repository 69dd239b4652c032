"""ExCB: self-supervised visual representations by explicit cluster balancing. `excb.load` gives a backbone by name."""

from importlib import import_module
from pathlib import Path
from typing import Any

from excb.version import __version__

# Public names resolve on first use, so that `import excb` and every `--help` stay quick: torch loads only for work.
# Their types are in __init__.pyi.
_PUBLIC = {
    "Backbone": "excb.hub.backbone",
    "Encoder": "excb.hub.encoder",
    "ExCB": "excb.method",
    "UserError": "excb.errors",
    "checkpoints": "excb.hub.catalogue",
    "image_grid": "excb.images.grid",
    "load": "excb.hub.loading",
    # Of the leaves: named here as text only, and imported when they are used.
    "Embedder": "excb.transfer.embeddings.embedder",
    "Embeddings": "excb.transfer.embeddings.embeddings",
    "Photos": "excb.transfer.photos.photos",
    "Result": "excb.transfer.evaluate",
    "Run": "excb.pretrain.train",
    "compare": "excb.transfer.api",
    "embed": "excb.transfer.api",
    "evaluate": "excb.transfer.evaluate",
    "leaderboard": "excb.transfer.api",
    "plan": "excb.pretrain.train",
    "reproduce": "excb.transfer.api",
    "train": "excb.pretrain.train",
}
__all__ = [
    "Backbone",
    "Embedder",
    "Embeddings",
    "Encoder",
    "ExCB",
    "Photos",
    "Result",
    "Run",
    "UserError",
    "__version__",
    "checkpoints",
    "compare",
    "embed",
    "evaluate",
    "image_grid",
    "leaderboard",
    "load",
    "plan",
    "reproduce",
    "train",
]

# In a clone, excb.pretrain, excb.transfer and excb.zoo are beside this folder (see pyproject.toml).
_CLONE = Path(__file__).resolve().parent.parent
if (_CLONE / "pretrain" / "__init__.py").is_file():
    __path__.append(str(_CLONE))


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'excb' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
