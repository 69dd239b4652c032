"""Options of `excb-eval sets`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from excb.errors import require
from excb.option_parser import require_use
from excb.options import REQUIRED, option

from ..options import ALIKE, CKPT, PassOptions


@dataclass(frozen=True, kw_only=True)
class SetsOptions(PassOptions):
    """Checkpoints, sets and heads."""

    sets: tuple[str, ...] = option(
        (),
        "fine-grained, vtab-natural, single sets, or FILE.toml with your own",
        metavar="NAME",
        positional=True,
        words={"nargs": "*"},
    )
    ckpt: tuple[Any, ...] = option(
        REQUIRED,
        f"{CKPT}; several: compared",
        metavar="PATH",
        group="checkpoint and images",
        words={"action": "extend"},
    )
    data: Path | None = option(
        None, "folder with torchvision's data sets; nothing is downloaded there", metavar="DIR", group="images"
    )
    own_sets: Mapping[str, str] = option(
        (),
        "a set of your own, as --data of knn; repeatable",
        metavar="NAME=DIR",
        flag="set",
        group="images",
    )
    only: tuple[str, ...] = option((), "only these sets", metavar="NAME", group="images")
    shots: tuple[int, ...] = option(
        (1, 2, 5, 10),
        "images of each class in an episode (default: 1 2 5 10)",
        metavar="N",
        words={"nargs": "*"},
    )
    episodes: int = option(100, "episodes of each number of shots (default: 100)", metavar="N")
    k: int = option(20, "neighbours that vote (default: 20)", metavar="K")
    seed: int = option(0, "draws the train images that choose a penalty (default: 0)", metavar="S")
    own_preprocessing: bool = option(False, "keep each checkpoint's own resize and crop")

    def __post_init__(self) -> None:
        object.__setattr__(self, "own_sets", dict(self.own_sets))  # a dataclass takes no dictionary as a default

    def check(self) -> None:
        """Raise UserError where a number is not positive, or an option has no use beside the others."""
        fits = min(self.episodes, self.k, *self.shots) >= 1
        require(fits, "--shots, --episodes and --k must be at least 1")
        require_use(self, "episodes", used=bool(self.shots), why="are of shots, and --shots names none")
        alike = len(self.ckpt) > 1 and None in (self.resize, self.crop)
        require_use(self, "own_preprocessing", used=alike, why=ALIKE)
