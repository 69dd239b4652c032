"""Options of the robustness protocol."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from excb.errors import require
from excb.options import option

from ..protocol import ProtocolOptions
from .names import ALL, GROUPS, SEVERITIES, corruptions_named

_CORRUPTIONS, _OTHERS, _HEAD = "corruptions of the test images", "other test images", "head"


@dataclass(frozen=True, kw_only=True)
class RobustnessOptions(ProtocolOptions):
    """Corruptions, other test images, and the penalty of the head."""

    corruptions: tuple[str, ...] = option(
        ("common",),
        f"common: the paper's fifteen (default), all, none, {', '.join(GROUPS)}, or by name: {', '.join(ALL)}",
        metavar="NAME",
        group=_CORRUPTIONS,
    )
    severities: tuple[int, ...] = option(SEVERITIES, "1 to 5 (default: all)", metavar="S", group=_CORRUPTIONS)
    images: int | None = option(
        None, "number of test images, drawn from every class (default: all)", metavar="N", group=_CORRUPTIONS
    )
    stored: Literal["jpeg", "exact"] = option(
        "jpeg",
        "corrupted images as JPEGs of quality 85 hold them, which ImageNet-C consists of (default), or exactly",
        group=_CORRUPTIONS,
    )
    reference: str | None = option(
        None,
        "errors that mCE is divided by: alexnet (default on ImageNet), untrained, or the file of a result",
        metavar="NAME",
        group=_CORRUPTIONS,
    )
    also: tuple[str, ...] = option(
        (),
        "sets whose class folders are classes of the train set; DIR=MAP.json maps their names",
        metavar="DIR",
        group=_OTHERS,
    )
    border: int = option(
        0,
        "pixels to remove around images of sets with a map (ObjectNet: 2)",
        metavar="PIXELS",
        group=_OTHERS,
    )
    candidates: Literal["common", "all"] = option(
        "common", "classes that may be predicted on another set: its own (default), or all", group=_OTHERS
    )
    labels: Path | None = option(
        None, "several right classes for each test image: ReaL's JSON", metavar="FILE", group=_OTHERS
    )
    l2: tuple[float, ...] = option(
        (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5),
        "penalties; the best on held-out train images is taken (default: 1, 0.1, ... 1e-5)",
        metavar="L2",
        group=_HEAD,
    )
    seed: int = option(
        0, "of held-out images, a share of the test images and corruptions (default: 0)", metavar="SEED", group=_HEAD
    )

    @property
    def corruption_names(self) -> tuple[str, ...]:
        """The corruptions by name, in the order of `names.ALL`. Raises UserError where a word names nothing."""
        return corruptions_named(self.corruptions)

    @property
    def ascending_severities(self) -> tuple[int, ...]:
        """The severities, each once, the lowest first."""
        return tuple(sorted(set(self.severities)))

    def check(self, _shared: Any) -> None:
        """Raise UserError unless all of it can be measured, and every option is of use."""
        known = f"{SEVERITIES[0]} to {SEVERITIES[-1]}"
        require(all(each in SEVERITIES for each in self.severities), f"--severities are {known}")
        require(self.images is None or self.images >= 1, f"--images {self.images}: at least one test image")
        require(self.border >= 0, f"--border {self.border}: pixels to cut off, at least 0")
        require(all(0 < l2 < math.inf for l2 in self.l2), "--l2 must be above 0, such as 0.01")
        if self.corruption_names:
            from .corruptions import require_libraries

            require_libraries(self.corruption_names)
        self._check_use()

    def _check_use(self) -> None:
        corrupted, mapped = bool(self.corruption_names), any(map(is_mapped, self.also))
        drawn = corrupted or self.images is not None or len(set(self.l2)) > 1
        for names, of_use, needs in (
            (("severities", "stored", "reference"), corrupted, "corruptions, and there are none"),
            (("candidates",), bool(self.also), "other sets, which --also names"),
            (("border",), mapped, "a set with a map of its classes: --also DIR=MAP.json"),
            (("seed",), drawn, "corruptions, --images or several --l2: nothing else is drawn"),
        ):
            given = self.given(*names)
            require(of_use or not given, f"{' '.join(given[:1])} needs {needs}")


def is_mapped(place: str) -> bool:
    """Whether a set is named with a map of its classes, DIR=MAP.json."""
    _, sign, file = place.rpartition("=")
    return bool(sign) and file.endswith(".json")
