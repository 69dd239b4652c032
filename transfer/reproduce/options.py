"""Options of `excb-eval reproduce`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from excb.options import option

from ..options import MachineOptions

_WHICH = "which claims"


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(MachineOptions):
    """Claims, their images, and perhaps a checkpoint of one's own."""

    what: str | None = option(
        None,
        "a claim, a table (or TABLE/ROW), or a checkpoint",
        metavar="WHAT",
        positional=True,
        words={"nargs": "?"},
    )
    data: tuple[str, ...] = option(
        (),
        "the claim's images, as its protocol takes them; with NAME=, such as coco2017=, where claims need several",
        metavar="[NAME=]DIR",
        words={"action": "append", "nargs": None},
    )
    ckpt: Any = option(
        None, "check the claims on this checkpoint of yours instead of the published one", metavar="PATH"
    )
    claims: tuple[Path, ...] = option(
        (),
        "more claims, from your own file",
        metavar="FILE.toml",
        group=_WHICH,
        words={"action": "append", "nargs": None},
    )
    listed: bool = option(False, "list claims, and which of them can be checked", flag="list", group=_WHICH)
    of_table: str | None = option(None, "claims of this table only", metavar="NAME", flag="table", group=_WHICH)
    of_method: str | None = option(None, "claims of this method only", metavar="NAME", flag="method", group=_WHICH)
    of_protocol: str | None = option(
        None, "claims of this protocol only", metavar="NAME", flag="protocol", group=_WHICH
    )
    status: Literal["runnable", "cannot"] | None = option(
        None, "only claims that can be checked, or that cannot", group=_WHICH
    )
