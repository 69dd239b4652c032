"""TensorBoard's own reader sees what was written, and later starts hide what earlier ones wrote beyond their step."""

import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from excb.charts.tensorboard import TensorBoardWriter


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def write(folder: Path, start: int, stop: int, value: float) -> None:
    writer = TensorBoardWriter(folder, purge_step=start)
    for step in range(start, stop):
        writer.add_scalars({"loss": value, "rate": 2 * value}, step)
    writer.close()


def test_scalars_are_read_back(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "er", 0, 3, 0.5)
    expected = {"loss": [(step, 0.5) for step in range(3)], "rate": [(step, 1.0) for step in range(3)]}
    assert read(tmp_path / "deep" / "er") == expected


def test_values_can_be_read_while_the_file_is_open(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path, purge_step=1)
    writer.add_scalars({"loss": 4.0}, 1)
    assert read(tmp_path) == {"loss": [(1, 4.0)]}
    writer.close()


@pytest.mark.parametrize("clock", [1, -1])
def test_a_later_start_hides_steps_that_it_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: int) -> None:
    """Whatever the clock says: it may have been set back in between."""
    write(tmp_path, 0, 12, 1.0)
    later = time.time_ns() + clock * 10**12
    monkeypatch.setattr(time, "time_ns", lambda: later)
    write(tmp_path, 10, 14, 2.0)
    assert read(tmp_path)["loss"] == [(step, 1.0 if step < 10 else 2.0) for step in range(14)]
