"""The machine: devices by name, counts of workers, and workers that leave signals to their parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from excb.distributed.machine import MOST_WORKERS, choose_device, worker_count
from excb.errors import UserError


def test_devices_by_name() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("warp", "cuda:99", "meta:x", "meta", ""):
        with pytest.raises(UserError) as refusal:
            choose_device(name)
        assert "\n" not in str(refusal.value)


def test_worker_counts() -> None:
    assert worker_count(0) == 0
    assert worker_count(3) == 3
    assert 1 <= worker_count(-1) <= min(MOST_WORKERS, os.cpu_count() or 1)


def test_workers_ignore_signals_meant_for_the_group() -> None:
    program = (
        "import os, signal; from excb.distributed.machine import follow_parent; follow_parent(0);"
        "os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGTERM); print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True, cwd=Path.cwd())
    assert done.stdout == "alive\n"


ORPHANS = """
import os, signal
from torch.utils.data import DataLoader
from excb.distributed.machine import follow_parent

def start(worker):
    follow_parent(worker)
    if worker == 1:
        parent = os.getppid()
        os.kill(parent, signal.SIGKILL)
        while os.getppid() == parent:
            pass

next(iter(DataLoader(range(8), num_workers=2, worker_init_fn=start)))
"""


def test_workers_whose_parent_is_killed_while_they_start_end_too() -> None:
    # They hold the pipe that the output is read from: it ends when the last of them has.
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def test_command_lines_let_waiting_threads_sleep() -> None:
    program = "import os, excb.pretrain.__main__; print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for chosen, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        if chosen:
            environment["OMP_WAIT_POLICY"] = chosen
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, text=True, env=environment
        )
        assert done.stdout.strip() == expected
