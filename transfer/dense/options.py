"""Options of the dense protocol."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from excb.errors import UserError, require
from excb.options import REQUIRED, option

from ..protocol import ProtocolOptions
from .heads.recipes import LINEAR, LOGISTIC, SETTINGS, DenseSettings, HeadName

_SET, _HEADS, _MAPS = "images and masks", "heads", "inputs, masks and maps"
# Options that only one head, or one mode, has use for.
_OF_HEAD: dict[HeadName, tuple[str, ...]] = {
    "knn": ("k", "temperature", "parts", "backend"),
    "linear": ("linear",),
    "logreg": ("logistic",),
}
_OF_MODES = {"resize": ("crop", "window"), "step": ("window",)}


@dataclass(frozen=True, kw_only=True)
class DenseOptions(ProtocolOptions):
    """Images and masks, heads, and how images become maps. None is what `settings` say, else `DenseSettings`."""

    data: Path = option(REQUIRED, "images and masks, in a layout of docs/dense.md", metavar="DIR", group=_SET)
    layout: str | None = option(
        None, "coco, coco-super, voc, voc-aug, pascal-context, ... (default: found)", metavar="NAME", group=_SET
    )
    settings: str | None = option(
        None,
        f"a paper's settings: {', '.join(SETTINGS)}; other options override them",
        choices=lambda: SETTINGS,
        metavar="NAME",
        group=_HEADS,
    )
    heads: tuple[HeadName, ...] | None = option(
        None, "knn, linear, logreg (default: knn linear)", metavar="HEAD", group=_HEADS
    )
    k: int | None = option(None, "neighbours that vote (default: 30)", metavar="K", group=_HEADS)
    temperature: float | None = option(None, "temperature of the vote (default: 0.02)", metavar="T", group=_HEADS)
    parts: tuple[int, ...] = option((1,), "k-NN with 1/P of the train images (default: 1)", metavar="P", group=_HEADS)
    memory: int = option(
        10_240_000, "at most this many train patches (default: 10240000)", metavar="PATCHES", group=_HEADS
    )
    seeds: tuple[int, ...] = option(
        (0,), "seeds; figures are means over them (default: 0)", metavar="SEED", group=_HEADS
    )
    linear: str | None = option(
        None,
        f"recipe of the linear head: {', '.join(LINEAR)} (default: fast)",
        choices=lambda: LINEAR,
        metavar="NAME",
        group=_HEADS,
    )
    logistic: str | None = option(
        None,
        f"for logreg: {', '.join(LOGISTIC)} (default: fast)",
        choices=lambda: LOGISTIC,
        metavar="NAME",
        group=_HEADS,
    )
    backend: Literal["auto", "faiss", "torch"] = option("auto", "search backend; all give the same", group=_HEADS)
    mode: Literal["resize", "crop", "window"] | None = option(
        None, "the whole image (default), its centre, or windows", group=_MAPS
    )
    size: int | None = option(
        None, "side of the network's input (default: the checkpoint's)", metavar="PIXELS", group=_MAPS
    )
    resize: int | None = option(
        None, "shorter side before crop or windows (default: --size)", metavar="PIXELS", group=_MAPS
    )
    step: int | None = option(
        None, "step between windows (default: two thirds of --size)", metavar="PIXELS", group=_MAPS
    )
    stride: int | None = option(
        None, "stride of the network's map (default: that of its last map)", metavar="PIXELS", group=_MAPS
    )
    interpolation: Literal["bilinear", "bicubic"] | None = option(
        None, "interpolation of images (default: the checkpoint's)", group=_MAPS
    )
    mask_size: Literal["original", "input"] | None = option(
        None, "resolution at which masks are scored (default: original)", group=_MAPS
    )
    upsampling: Literal["bilinear", "nearest"] | None = option(
        None, "upsampling of predictions (default: bilinear)", group=_MAPS
    )

    matching: Literal["none", "hungarian"] = option(
        "none",
        "hungarian: also mIoU after predicted classes are matched to true ones, as open-hummingbird reports it",
        group=_MAPS,
    )

    @property
    def resolved(self) -> DenseSettings:
        """The settings: as given, else as the named ones have them, else the defaults."""
        given = {field.name: getattr(self, field.name) for field in fields(DenseSettings)}
        named = DenseSettings() if self.settings is None else SETTINGS[self.settings]
        how = replace(named, **{name: value for name, value in given.items() if value is not None})
        return replace(how, heads=tuple(dict.fromkeys(how.heads)))

    def check(self, _shared: Any) -> None:
        """Raise UserError unless all of it can be measured, and every option that is given has a use."""
        how = self.resolved
        require(how.k >= 1, f"--k {how.k}: at least one neighbour votes")
        require(0 < how.temperature < float("inf"), "--temperature must be above 0, such as 0.02")
        require(self.memory >= 1, "--memory is a number of patches, at least 1")
        require(min(self.parts) >= 1, f"--parts {min(self.parts)}: 8 stands for an eighth of the train images")
        require(
            how.mask_size == "original" or how.mode != "window",
            "--mask-size input has no meaning for windows, which overlap: use original, or another --mode",
        )
        for head, names in _OF_HEAD.items():
            if head not in how.heads and (unused := self.given(*names)):
                raise UserError(f"{unused[0]} is an option of the head {head}: add it to --heads, or leave it out")
        for name, modes in _OF_MODES.items():
            if how.mode not in modes and (unused := self.given(name)):
                raise UserError(f"{unused[0]} has no use with --mode {how.mode}: it is for {' and '.join(modes)}")
