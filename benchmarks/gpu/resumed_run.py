"""A run of a recipe that is stopped at its first checkpoint, and resumed by the same command.

Run: python -m benchmarks.gpu.resumed_run --recipe rn18_small --data DIR --gpus 1 --out RUN --json FILE
     [section.field=value ...]

Ended in the middle, it continues from the run's newest checkpoint when it is started again. The figures are those of
the run's report, the steps at which it resumed, and the first and last loss that its journal holds.
"""

import argparse
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.gpu.processes import ROOT, end_with_parent, read_figures
from excb.errors import require, run_program
from excb.files.atomic import write_text
from excb.files.run_files import REPORT, read_metrics

POLL = 0.1  # seconds between looks at the run's checkpoints
STOPPED = 128 + signal.SIGTERM  # exit code of a run that was asked to stop, and saved
REPORTED = ("steps", "seconds", "images_per_second", "peak_memory", "processes", "images")


class Stopping:
    """Remember a request to stop. It goes to the process group, so the run has it as well, saves and ends."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def newest_step(out: Path) -> int:
    """The step of a run's newest checkpoint; 0 if it has none."""
    from excb.checkpoint import run_checkpoint

    files = run_checkpoint.in_run(out)
    return run_checkpoint.step_of(files[0]) if files else 0


def train(words: list[str], out: Path, *, stop_at_checkpoint: bool) -> int:
    """Start or resume the run, and return its exit code; perhaps stop it once it has a checkpoint."""
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, preexec_fn=end_with_parent)  # noqa: PLW1509
    while (code := process.poll()) is None:
        if stop_at_checkpoint and newest_step(out):
            process.send_signal(signal.SIGTERM)
            return process.wait()
        time.sleep(POLL)
    return code


def figures_of(out: Path, resumed: list[int]) -> dict[str, Any]:
    """The figures of a finished run.

    Raises:
        UserError: it was not resumed, or lacks steps.
    """
    report, lines = read_figures(out / REPORT), read_metrics(out)
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    require(bool(report) and bool(losses), f"{out} has no report, or no step in its journal")
    require(bool(resumed), f"{out} ended before it had a checkpoint: set a smaller run.save_steps")
    require(all(map(math.isfinite, losses)), "a loss is not finite")
    steps = [line["step"] for line in lines if line["kind"] == "step"]
    require(steps == sorted(set(steps)), "the journal has steps twice, or not in order")
    figures = {name: report[name] for name in REPORTED}
    return {**figures, "resumed": resumed, "first_loss": losses[0], "last_loss": losses[-1]}


def main() -> int:
    """Train to the end, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    parser.add_argument("--recipe", default="rn18_small")
    parser.add_argument("--gpus", default="1", help="0 for the CPU")
    for name in ("data", "out", "json"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_intermixed_args()
    words = ["-m", "excb.pretrain", args.recipe, "--data", str(args.data), "--out", str(args.out), "--gpus", args.gpus]
    words += args.overrides
    stopping, notes = Stopping(), args.json.with_name("resumed.json")
    resumed: list[int] = read_figures(notes) or []
    code = STOPPED
    while code == STOPPED and not stopping.asked:
        if step := newest_step(args.out):
            resumed.append(step)
            write_text(json.dumps(resumed) + "\n", notes)
        code = train(words, args.out, stop_at_checkpoint=not step)
    if code:
        return code
    write_text(json.dumps(figures_of(args.out, resumed), indent=2) + "\n", args.json)
    return 0


if __name__ == "__main__":
    sys.exit(run_program("resumed_run", main))
