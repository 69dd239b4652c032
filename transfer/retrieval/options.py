"""Options of the retrieval protocol."""

from dataclasses import dataclass
from typing import Literal

from excb.options import option

from ..protocol import ProtocolOptions


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions(ProtocolOptions):
    """The images that are ranked."""

    gallery: Literal["train", "test"] = option(
        "train", "what test images retrieve: train images (default), or the other test images"
    )
