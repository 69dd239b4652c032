"""`best.json`: a pointer to the best checkpoint that a watch has measured and the run still has."""

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from excb.files.atomic import write_text
from excb.files.run_files import WATCH_BEST

from ..protocols import kind_of
from .log import Measurement
from .runs import Run


def ranked(measured: Iterable[Measurement]) -> list[Measurement]:
    """Measurements by their main figure, the best first; of equal ones the earlier step."""

    def key(one: Measurement) -> tuple[float, int]:
        kind = kind_of(one.figure)
        return -one.value if kind is None or kind.higher_is_better else one.value, one.step

    return sorted(measured, key=key)


def point(measured: Iterable[Measurement], run: Run, kept: Collection[int]) -> dict[str, Any] | None:
    """What `best.json` says.

    Args:
        measured: the checkpoints.
        run: where they are.
        kept: the steps that the run still has.

    Returns:
        The best checkpoint that is kept, or where none is the best one; and the steps of better ones that are gone.
        None where nothing is measured.
    """
    order = ranked(measured)
    if not order:
        return None
    best = next((one for one in order if one.step in kept), order[0])
    return {
        "checkpoint": run.address(best.step),
        "kept": best.step in kept,
        "step": best.step,
        "epoch": best.epoch,
        "figure": best.figure,
        "value": best.value,
        "interval": best.interval,
        "weights_sha256": best.weights_sha256,
        "better_but_gone": [one.step for one in order[: order.index(best)] if one.value != best.value],
    }


def write(pointer: dict[str, Any], folder: Path) -> None:
    """Write `best.json`.

    Raises:
        UserError: it cannot be written.
    """
    write_text(json.dumps(pointer, indent=2) + "\n", folder / WATCH_BEST)
