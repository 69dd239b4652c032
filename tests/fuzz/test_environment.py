"""Environment variables that anybody may have set: what is read of them is used, or ends in one line."""

import os
from unittest import mock

from hypothesis import strategies as st

from excb.distributed.heartbeat import hang_seconds
from excb.distributed.launcher import check_environment, ending_with_launcher
from excb.distributed.parallel import _own_device
from excb.distributed.workers import worker_count
from excb.hub.catalogue import checkpoints, damaged
from excb.pretrain.__main__ import main
from excb.remote.hf_repository import _cache, endpoint, offline
from excb.remote.home import cache_root, home
from tests.fuzz import hostile
from tests.fuzz.guard import Guard
from tests.fuzz.lane import fuzz

KIND = "environment"
NUMBERS = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "EXCB_LAUNCHER", "EXCB_CORES", "EXCB_HANG_SECONDS")
RANKS = ("RANK", "WORLD_SIZE")  # together they make a rank of this process
PLACES = ("EXCB_HOME", "EXCB_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE")
WORDS = ("EXCB_ENDPOINT", "HF_ENDPOINT", "HF_HUB_OFFLINE")


def held(text: str) -> str:
    """The text as the system can hold it in a variable."""
    return os.fsdecode(text.encode("utf-8", "replace").replace(b"\0", b""))


texts = hostile.names.map(held)
numbers = st.one_of(
    texts, hostile.numbers.map(str), st.sampled_from(("0", "1", "2", "x", "", " 1", "\u0661", "9" * 5000, "1e999"))
)
places = st.one_of(texts, st.sampled_from(("~nosuchuser", "~nosuchuser/zoo", "~", "$NOWHERE", "/dev/null", "relative")))


@fuzz(
    KIND,
    inputs=150,
    counts=st.dictionaries(st.sampled_from((*NUMBERS, *RANKS)), numbers, max_size=4),
    folders=st.dictionaries(st.sampled_from(PLACES), places, max_size=2),
    words=st.dictionaries(st.sampled_from(WORDS), texts, max_size=2),
)
def test_variables(guard: Guard, counts: dict[str, str], folders: dict[str, str], words: dict[str, str]) -> None:
    if counts.get("RANK", "").isdecimal():
        counts["RANK"] = "0"  # the others leave it to this one to tell
    with mock.patch.dict(os.environ, counts | folders | words):
        for read in (hang_seconds, check_environment, home, cache_root, endpoint, offline, _cache):
            guard.run(read)
        guard.run(lambda: worker_count(-1))
        guard.run(lambda: _own_device("cpu"))
        guard.run(lambda: (checkpoints(), damaged()))


def watched() -> None:
    with ending_with_launcher("fuzz"):
        return


@fuzz(
    KIND,
    inputs=40,
    counts=st.dictionaries(st.sampled_from(NUMBERS), numbers, max_size=3),
    # Not of a launcher that lives elsewhere: this process would end with it, as it should.
    launcher=st.sampled_from(("x", "", "-1", "0", "9" * 5000, "1.5")),
)
def test_variables_of_a_rank(guard: Guard, counts: dict[str, str], launcher: str) -> None:
    ours = {"RANK": "0", "WORLD_SIZE": "1", "EXCB_LAUNCHER": launcher}
    with mock.patch.dict(os.environ, counts | ours):
        guard.run(watched)
        guard.command(main, "list")
