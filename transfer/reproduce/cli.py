"""`excb-eval reproduce`: its options, and what it does in each process."""

from typing import TYPE_CHECKING, Any

from ..shell import Shell, shell_command
from .options import ReproduceOptions

if TYPE_CHECKING:
    import torch

FAILED, NOTHING_CHECKED = 1, 3  # exit codes


def _work(given: list[Any], shell: Shell, device: "torch.device") -> int:
    from .checking import run_reproduction

    words = run_reproduction(given[0], shell, device)
    return FAILED if "FAIL" in words else 0 if "PASS" in words or not words else NOTHING_CHECKED


REPRODUCE = shell_command(
    "reproduce",
    "check published figures: PASS, FAIL or CANNOT, and why",
    (ReproduceOptions,),
    _work,
    out="folder",
    metavar="DIR",
    answers=(FAILED, NOTHING_CHECKED),
    group="everything, and against others",
    examples=(
        "reproduce table1/excb --data imagenet",
        "reproduce table1/excb --data imagenet --dry-run",
    ),
)
