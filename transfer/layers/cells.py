"""The cells that are compared: every block of a backbone with every pooling of its output."""

from collections.abc import Sequence
from dataclasses import dataclass

from excb.console import plural
from excb.errors import UserError, require

from ..features.parts import Part, Shapes
from .poolings import ATTENTIVE, DEFAULT, LAST4, POOLINGS

LAST = 4  # blocks of "last4"


@dataclass(frozen=True)
class Cell:
    """A pooling of a block."""

    block: int  # counted from 0; the last one of "default" and "last4"
    pooling: str

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that are read for it, side by side."""
        block = self.block
        parts: dict[str, tuple[Part, ...]] = {
            DEFAULT: (Part("own"),),
            "cls": (Part("cls", block),),
            "mean": (Part("mean", block),),
            "cls+mean": (Part("cls", block), Part("mean", block)),
            "gem": (Part("gem", block),),
            LAST4: tuple(Part("cls", each) for each in range(block - LAST + 1, block + 1)),
            ATTENTIVE: (Part("patches", block),),
        }
        return parts[self.pooling]

    @property
    def text(self) -> str:
        """Its name for people: "block 3, mean"."""
        return f"block {self.block + 1}, {self.pooling}"


def cells_of(shapes: Shapes, *, blocks: Sequence[int] | None, poolings: Sequence[str] | None) -> list[Cell]:
    """The cells with one vector an image; the default comes first, so that it wins where others are no better.

    Args:
        shapes: of the backbone.
        blocks: counted from 1; None takes all.
        poolings: of `poolings.POOLINGS`; None takes all that the backbone has.

    Raises:
        UserError: the backbone has no such block or pooling.
    """
    last = len(shapes.maps) - 1
    blocks_chosen = [number - 1 for number in blocks_of(shapes, blocks)]
    possible = [name for name in POOLINGS if shapes.has_class_token or name in ("mean", "gem")]
    if last + 1 < LAST and LAST4 in possible:
        possible.remove(LAST4)
    if missing := [name for name in poolings or () if name not in possible]:
        reason = "it has no class token" if not shapes.has_class_token else f"it has fewer than {LAST} blocks"
        raise UserError(f"--poolings {missing[0]}: this backbone has none, because {reason} ({', '.join(possible)})")
    wanted = [name for name in possible if poolings is None or name in poolings]
    cells = [Cell(block, name) for block in blocks_chosen for name in wanted if name != LAST4]
    return [Cell(last, DEFAULT), *cells, *([Cell(last, LAST4)] if LAST4 in wanted else [])]


def blocks_of(shapes: Shapes, blocks: Sequence[int] | None, *, option: str = "--blocks") -> list[int]:
    """Blocks counted from 1, ascending; all where None is named.

    Raises:
        UserError: there is no such block.
    """
    count = len(shapes.maps)
    for number in blocks or ():
        require(1 <= number <= count, f"{option} {number}: this backbone has {plural(count, 'block')}, counted from 1")
    return sorted(set(blocks)) if blocks else list(range(1, count + 1))


def parts_of(cells: Sequence[Cell]) -> list[Part]:
    """Everything that cells need, each part once."""
    return list(dict.fromkeys(part for cell in cells for part in cell.parts))
