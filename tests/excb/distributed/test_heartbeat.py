"""Signs of life: who counts is alive, who left is not watched, and suspended time is nobody's silence."""

import threading
from collections import defaultdict

import pytest

from excb.distributed import heartbeat
from excb.distributed.heartbeat import LEFT, LOOKS, SECONDS, VARIABLE, hang_seconds, watched
from excb.errors import UserError


@pytest.mark.parametrize(("text", "seconds"), [("", SECONDS), ("20", 20.0), ("0", 0.0), ("1e3", 1000.0)])
def test_seconds_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert hang_seconds() == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_what_is_no_number_of_seconds(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UserError, match=f"{VARIABLE}={text} is no number of seconds"):
        hang_seconds()


def test_one_process_is_not_watched() -> None:
    before = threading.active_count()
    with watched("test"):
        assert threading.active_count() == before


class Store:
    """Counts as torch's store does; before each look, others count by themselves."""

    def __init__(self, *others: str) -> None:
        self.counts: defaultdict[str, int] = defaultdict(int)
        self._others = others
        self.looks = 0

    def add(self, key: str, amount: int) -> int:
        if amount == 1:  # the process under test, once a look
            self.looks += 1
            for other in self._others:
                self.counts[other] += 1
        self.counts[key] += amount
        return self.counts[key]


class Looks:
    """An event that is set after so many waits."""

    def __init__(self, number: int) -> None:
        self._left = number

    def wait(self, _seconds: float) -> bool:
        self._left -= 1
        return self._left < 0


def silence(monkeypatch: pytest.MonkeyPatch, store: Store, *, rank: int, looks: int = 40) -> list[int]:
    """Whom process `rank` of four finds silent in so many looks."""
    monkeypatch.setattr(heartbeat, "rank", lambda: rank)
    monkeypatch.setattr(heartbeat, "world_size", lambda: 4)
    return heartbeat._first_silence(store, ["0", "1", "2", "3"], 1.0, Looks(looks))  # type: ignore[arg-type]


def test_process_0_names_all_that_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("2")
    assert silence(monkeypatch, store, rank=0) == [1, 3]
    assert store.looks == LOOKS + 1  # one to know where they stand


def test_others_look_at_process_0_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert silence(monkeypatch, Store("0"), rank=2) == []
    assert silence(monkeypatch, Store("1", "3"), rank=2) == [0]


def test_who_has_left_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("1", "2")
    store.counts["3"] = LEFT + 7
    assert silence(monkeypatch, store, rank=0) == []
