"""Options of the layers protocol."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from excb.errors import UserError, require
from excb.options import option

from ..probes.recipes import LinearProtocol, protocol_of_name
from ..protocol import ProtocolOptions
from .poolings import ATTENTIVE, POOLINGS, Pooling

LR, WEIGHT_DECAY = (0.01, 0.03, 0.1, 0.3, 1.0), (0.0, 0.001)  # of the linear heads of a cell: a part of `fast`'s grid


@dataclass(frozen=True, kw_only=True)
class LayersOptions(ProtocolOptions):
    """The blocks and poolings to compare, and how."""

    probe: Literal["linear", "knn"] = option("linear", "probe that evaluates a cell (default: linear heads)")
    blocks: tuple[int, ...] | None = option(None, "counted from 1 (default: all)", metavar="N")
    poolings: tuple[Pooling, ...] | None = option(None, f"{', '.join(POOLINGS)} (default: all it has)", metavar="NAME")
    attentive: tuple[int | Literal["best", "all", "none"], ...] = option(
        ("best",),
        "blocks with attentive probes; best (default): the best one so far and the last; all; none",
        metavar="N",
    )
    epochs: int | None = option(None, "epochs for the heads, instead of 30", metavar="N")
    lr: tuple[float, ...] | None = option(None, "learning rates of the linear heads to try", metavar="LR")
    wd: tuple[float, ...] | None = option(None, "weight decays of the linear heads to try", metavar="WD")
    seed: int = option(0, "default: 0", metavar="S")

    @property
    def attentive_blocks(self) -> tuple[int, ...] | Literal["best", "all"]:
        """Blocks with attentive probes, counted from 1; "best" are the best one with linear heads and the last one.

        Raises:
            UserError: words and numbers are mixed.
        """
        if self.attentive == ("best",):
            return "best"
        if self.attentive == ("all",):
            return "all"
        if self.attentive == ("none",):
            return ()
        numbers = tuple(block for block in self.attentive if isinstance(block, int))
        if len(numbers) < len(self.attentive):
            words = " ".join(map(str, self.attentive))
            raise UserError(f"--attentive {words}: name blocks by numbers, or best, all or none")
        return numbers

    def plans(self, images: int) -> tuple[LinearProtocol, LinearProtocol]:
        """How linear heads and attentive probes are trained on so many images.

        Raises:
            UserError: a setting is out of range.
        """
        both = (
            protocol_of_name(
                "fast",
                epochs=self.epochs,
                lr=LR if self.lr is None else self.lr,
                weight_decay=WEIGHT_DECAY if self.wd is None else self.wd,
            ),
            protocol_of_name(ATTENTIVE, epochs=self.epochs),
        )
        # Of few images a batch holds all, and learning rates stay as they are.
        linear, attentive = (
            replace(plan, batch=images, lr_batch=images) if images < plan.batch else plan for plan in both
        )
        return linear, attentive

    def check(self, _shared: Any) -> None:
        """Raise UserError as `plans` and `attentive_blocks`, or where votes are asked to train."""
        self.plans(1)
        trained = self.attentive_blocks not in ("best", ())
        if self.probe == "knn":
            require(
                not self.given("epochs", "lr", "wd"), "--probe knn trains nothing: leave out --epochs, --lr and --wd"
            )
            require(not trained, "attentive probes are trained: leave out --attentive, or --probe knn")
