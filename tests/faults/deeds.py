"""Faults injected into a run's process: killed when it changes its folder, stopped at a step, given NaN.

A deed is named as text, `NAME=VALUE`, so that it reaches any process of a run: `python -m tests.faults.deeds DEED ...`
is `excb-pretrain ...` with the deed done to it, and `start` in `tests.faults.runs` takes it as well.
"""

import inspect
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data._utils import worker as torch_worker

from excb.networks import features
from excb.pretrain import step
from excb.pretrain.__main__ import main
from excb.pretrain.data.loader import TrainingViews
from excb.pretrain.data.sampler import SampleRef
from excb.pretrain.run import monitor
from tests import ordinary_user

PATCH = pytest.MonkeyPatch()  # never undone: the process is the run's
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")


def kill_at_change(number: str, run: Path) -> None:
    """SIGKILL at the n-th time, from 1, that this process changes the run folder: opens, renames, removes, syncs.

    Just before it, but for a file that is opened to be written anew: that one is empty by then.
    """
    below, left, sync = os.fspath(run) + os.sep, int(number), os.fsync

    def count(emptied: Path | None = None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if emptied is not None and emptied.is_file():
                os.truncate(emptied, 0)  # is heard as well, and counts below zero
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(event: str, values: tuple[Any, ...]) -> None:
        changes = values[2] & WRITES if event == "open" else event in CHANGES
        if changes and isinstance(values[0], str | os.PathLike) and os.fspath(values[0]).startswith(below):
            count(Path(values[0]) if event == "open" and values[2] & os.O_TRUNC else None)

    def counted_sync(descriptor: int) -> None:
        count()
        sync(descriptor)

    sys.addaudithook(hear)
    PATCH.setattr(os, "fsync", counted_sync)


def kill_at_byte(place: str, _run: Path) -> None:
    """STEP,BYTES: from a step on the kernel kills this process in the write that would make a file longer than that."""
    at, size = map(int, place.split(","))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def limit(_trainer: step.Trainer, _batch: Any, taken: int) -> None:
        if taken == at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    _before_step(limit)


def obey_permissions(_value: str, _run: Path) -> None:
    """Give up root's power over permissions, if this is root."""
    ordinary_user.obey_permissions()


def pause_at(number: str, _run: Path) -> None:
    """Stop this process, as SIGSTOP does, before it takes a step."""

    def pause(_trainer: step.Trainer, _batch: Any, taken: int) -> None:
        if taken == int(number):
            os.kill(os.getpid(), signal.SIGSTOP)

    _before_step(pause)


def pause_in_measuring(number: str, _run: Path) -> None:
    """Stop this process, as SIGSTOP does, at its n-th pass over the images to be measured; there are two each time."""
    real, left = features.extract, int(number)

    def extract(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(*arguments, **options)

    PATCH.setattr(monitor, "extract", extract)


def slow(seconds: str, _run: Path) -> None:
    """Make every step longer."""
    _before_step(lambda _trainer, _batch, _taken: time.sleep(float(seconds)))


def record(file: str, _run: Path) -> None:
    """Append the samples that this process sees to FILE.RANK, a line for each step."""

    def write(_trainer: step.Trainer, batch: Any, taken: int) -> None:
        with Path(f"{file}.{os.environ.get('RANK', '0')}").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps([taken, batch.samples.tolist(), batch.used.tolist()]) + "\n")

    _before_step(write)


def not_finite(place: str, _run: Path) -> None:
    """NaN in the loss of one micro-batch: STEP,POSITION,RANK with the place of its first image in the epoch."""
    at, position, rank = map(int, place.split(","))
    real = step.Trainer._forward

    def forward(trainer: step.Trainer, part: Any, taken: int) -> Any:
        output = real(trainer, part, taken)
        if (taken, part.position, int(os.environ.get("RANK", "0"))) == (at, position, rank):
            output.loss.mul_(torch.nan)
        return output

    PATCH.setattr(step.Trainer, "_forward", forward)


def worker_killed(sample: str, _run: Path) -> None:
    """SIGKILL to the data worker that reads a sample, as when memory runs out."""

    def die(_views: TrainingViews, index: int) -> None:
        if index == int(sample):
            os.kill(os.getpid(), signal.SIGKILL)

    _before_image(die)


def worker_fails(sample: str, _run: Path) -> None:
    """An exception that nobody expects in the data worker that reads a sample."""

    def fail(_views: TrainingViews, index: int) -> None:
        if index == int(sample):
            raise ZeroDivisionError("a decoder's fault")

    _before_image(fail)


def orphan(worker: str, _run: Path) -> None:
    """SIGKILL to this process from one of its data workers, at the first thing that worker does."""
    real = torch_worker._worker_loop
    names = inspect.signature(real)

    def loop(*arguments: Any) -> None:
        if names.bind(*arguments).arguments["worker_id"] == int(worker):
            parent = os.getppid()
            os.kill(parent, signal.SIGKILL)
            while os.getppid() == parent:
                os.sched_yield()
        real(*arguments)

    PATCH.setattr(torch_worker, "_worker_loop", loop)


def clock_back(seconds: str, _run: Path) -> None:
    """Set the wall clock back, by so many seconds more each time it is read."""
    real, read = time.time, [0]

    def wrong() -> float:
        read[0] += 1
        return real() - read[0] * float(seconds)

    PATCH.setattr(time, "time", wrong)
    PATCH.setattr(time, "time_ns", lambda: int(1e9 * wrong()))


def _before_step(deed: Callable[[step.Trainer, Any, int], None]) -> None:
    real = step.Trainer.step

    def taken(trainer: step.Trainer, batch: Any, number: int) -> Any:
        deed(trainer, batch, number)
        return real(trainer, batch, number)

    PATCH.setattr(step.Trainer, "step", taken)


def _before_image(deed: Callable[[TrainingViews, int], None]) -> None:
    real = TrainingViews.__getitem__

    def read(views: TrainingViews, slot: SampleRef) -> Any:
        deed(views, slot.sample)
        return real(views, slot)

    PATCH.setattr(TrainingViews, "__getitem__", read)


DEEDS: dict[str, Callable[[str, Path], None]] = {
    deed.__name__: deed
    for deed in (
        kill_at_change,
        kill_at_byte,
        obey_permissions,
        pause_at,
        pause_in_measuring,
        slow,
        record,
        not_finite,
        worker_killed,
        worker_fails,
        orphan,
        clock_back,
    )
}


def do(deed: str, arguments: list[str]) -> None:
    """Do a deed, or several with semicolons, to this process, which will run `excb-pretrain` with these arguments."""
    for one in deed.split(";"):
        name, _, value = one.partition("=")
        DEEDS[name](value, Path(arguments[arguments.index("--out") + 1]))


if __name__ == "__main__":
    do(sys.argv[1], sys.argv[2:])
    sys.exit(main(sys.argv[2:]))
