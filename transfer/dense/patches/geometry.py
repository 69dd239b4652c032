"""Which parts of an image pass through the network: the whole, a central square, or overlapping windows."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from excb.errors import require

Mode = Literal["resize", "crop", "window"]
Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels of an image


@dataclass(frozen=True)
class Geometry:
    """The parts of an image, each resized to a square of `side` pixels.

    - "resize": the whole image; its aspect ratio changes.
    - "crop": the central square of `side` pixels of an image whose shorter side is `short`; the rest does not count.
    - "window": squares of that size, `step` pixels from one to the next, the last ones at the borders; predictions are
      averaged where windows overlap.

    Args:
        mode: one of them.
        side: of a network's input, in pixels.
        short: shorter side of the resized image, in pixels; of "crop" and "window".
        step: between windows, in pixels of the resized image.

    Raises:
        UserError: there is no such mode, or a size is out of range.
    """

    mode: Mode
    side: int
    short: int
    step: int

    def __post_init__(self) -> None:
        modes = get_args(Mode)
        require(self.mode in modes, f"--mode is {', '.join(modes)}, not '{self.mode}'")
        require(self.side >= 8, f"--size {self.side}: the network's input has at least 8 pixels a side")
        require(self.short >= self.side, f"--resize {self.short} is below --size {self.side}, which is cut out of it")
        require(1 <= self.step <= self.side, f"--step {self.step} must lie in 1 to {self.side}, the size of a window")

    def boxes(self, width: int, height: int) -> list[Box]:
        """The parts of an image of this size; they lie in it and have at least one pixel."""
        if self.mode == "resize":
            return [(0, 0, width, height)]
        scale = min(width, height) / self.short
        side = max(1, min(round(self.side * scale), width, height))
        if self.mode == "crop":
            left, top = (width - side) // 2, (height - side) // 2
            return [(left, top, left + side, top + side)]
        step = max(1, round(self.step * scale))
        return [
            (left, top, left + side, top + side)
            for top in _starts(height, side, step)
            for left in _starts(width, side, step)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The settings that define it, for JSON: sizes that have no effect are left out."""
        effective = {"resize": ("mode", "side"), "crop": ("mode", "side", "short")}
        values = asdict(self)
        return {name: values[name] for name in effective.get(self.mode, values)}


def _starts(length: int, side: int, step: int) -> list[int]:
    """Where windows start that cover a length; the last one ends with it."""
    return [*range(0, length - side, step), length - side]
