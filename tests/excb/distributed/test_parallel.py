"""Work in a process group: errors of one of several processes, in the words that one process has for them."""

import subprocess
from pathlib import Path

import pytest

from tests import forked

RANK = """
import errno, os, sys
from excb.distributed.collectives import gather_numbers, rank
from excb.distributed.parallel import run_joined

def work(_device):
    if sys.argv[1] == "both" or rank() == 1:
        raise {"disk": OSError(errno.ENOSPC, "No space left on device"), "both": MemoryError()}[sys.argv[1]]
    gather_numbers([0])  # waits for the other process
    return 0

sys.exit(run_joined("a_rank", "cpu", work))
"""


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("disk", "a_rank: error: No space left on device: free some space, or name a place on another disk"),
        ("both", "a_rank: error: out of memory: free some memory, or raise its limit (`ulimit -v`)"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    (tmp_path / "joined_rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = forked.launcher("joined_rank", [fault], 2)
    ended = forked.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60)
    assert ended.returncode == 2, ended.stdout
    assert [line for line in ended.stdout.splitlines() if ": error: " in line] == [said]
    assert "Traceback" not in ended.stdout
