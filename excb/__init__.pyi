"""Types of the public names, which `__init__.py` resolves on first use."""

from excb.errors import UserError as UserError
from excb.hub.backbone import Backbone as Backbone
from excb.hub.catalogue import checkpoints as checkpoints
from excb.hub.encoder import Encoder as Encoder
from excb.hub.loading import load as load
from excb.images.grid import image_grid as image_grid
from excb.method import ExCB as ExCB
from excb.pretrain.train import Run as Run
from excb.pretrain.train import plan as plan
from excb.pretrain.train import train as train
from excb.transfer.api import compare as compare
from excb.transfer.api import embed as embed
from excb.transfer.api import leaderboard as leaderboard
from excb.transfer.api import reproduce as reproduce
from excb.transfer.embeddings.embedder import Embedder as Embedder
from excb.transfer.embeddings.embeddings import Embeddings as Embeddings
from excb.transfer.evaluate import Result as Result
from excb.transfer.evaluate import evaluate as evaluate
from excb.transfer.photos.photos import Photos as Photos
from excb.version import __version__ as __version__

__all__ = [
    "Backbone",
    "Embedder",
    "Embeddings",
    "Encoder",
    "ExCB",
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
