"""Heartbeats: who counts is alive, who has finished is not watched, and suspended time is not silence."""

import threading
from collections import defaultdict

import pytest

from excb.distributed import heartbeat
from excb.distributed.heartbeat import CHECKS, LEFT, SECONDS, VARIABLE, hang_seconds, watched
from excb.errors import UserError


@pytest.mark.parametrize(("text", "seconds"), [("", SECONDS), ("20", 20.0), ("0", 0.0), ("1e3", 1000.0)])
def test_seconds_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert hang_seconds() == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_other_texts_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UserError, match=f"{VARIABLE}={text} is not a number of seconds"):
        hang_seconds()


def test_one_process_is_not_watched() -> None:
    before = threading.active_count()
    with watched("test"):
        assert threading.active_count() == before


class Store:
    """Counts as torch's store does; before each check, other ranks count too."""

    def __init__(self, *others: str) -> None:
        self.counts: defaultdict[str, int] = defaultdict(int)
        self._others = others
        self.checks = 0

    def add(self, key: str, amount: int) -> int:
        if amount == 1:  # the process under test, once a check
            self.checks += 1
            for other in self._others:
                self.counts[other] += 1
        self.counts[key] += amount
        return self.counts[key]


class Checks:
    """An event that is set after a number of waits."""

    def __init__(self, number: int) -> None:
        self._left = number

    def wait(self, _seconds: float) -> bool:
        self._left -= 1
        return self._left < 0


def silence(monkeypatch: pytest.MonkeyPatch, store: Store, *, rank: int, checks: int = 40) -> list[int]:
    """The ranks that `rank`, of four, finds silent within a number of checks."""
    monkeypatch.setattr(heartbeat, "rank", lambda: rank)
    monkeypatch.setattr(heartbeat, "world_size", lambda: 4)
    return heartbeat._first_silence(store, ["0", "1", "2", "3"], 1.0, Checks(checks))  # type: ignore[arg-type]


def test_rank_0_reports_all_that_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("2")
    assert silence(monkeypatch, store, rank=0) == [1, 3]
    assert store.checks == CHECKS + 1  # one to learn the first counts


def test_other_ranks_watch_rank_0_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert silence(monkeypatch, Store("0"), rank=2) == []
    assert silence(monkeypatch, Store("1", "3"), rank=2) == [0]


def test_finished_ranks_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("1", "2")
    store.counts["3"] = LEFT + 7
    assert silence(monkeypatch, store, rank=0) == []
