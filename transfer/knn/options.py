"""Options of the k-NN protocol."""

from dataclasses import dataclass
from typing import Any, Literal

from excb.errors import require
from excb.options import option

from ..protocol import ProtocolOptions


@dataclass(frozen=True, kw_only=True)
class KnnOptions(ProtocolOptions):
    """Neighbours, their votes and the search."""

    k: tuple[int, ...] | None = option(None, "neighbours that vote (default: 10 20 100 200)", metavar="K")
    temperature: tuple[float, ...] = option((0.07,), "temperature of the vote (default: 0.07)", metavar="T")
    backend: Literal["auto", "faiss", "torch"] = option("auto", "search backend; all give the same")

    def check(self, _shared: Any) -> None:
        """Raise UserError unless every temperature is above 0."""
        positive = all(0 < T < float("inf") for T in self.temperature)
        require(positive, "--temperature must be above 0, such as DINO's 0.07")
