"""Which lane this run takes, and the line that says how many inputs were tried."""

import pytest

from tests.fuzz.guard import import_all
from tests.fuzz.lane import LANE


def pytest_configure(config: pytest.Config) -> None:
    LANE.slow = bool(config.getoption("--run-slow"))
    given = config.getoption("--hypothesis-seed", default=None)
    if given is not None:
        LANE.seed = int(given)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LANE.tried:
        terminalreporter.write_line(LANE.summary())
        if LANE.slow:
            terminalreporter.write_line(f"fuzz: the same inputs again with --run-slow --hypothesis-seed {LANE.seed}")


@pytest.fixture(autouse=True, scope="session")
def libraries_are_there() -> None:
    """Import and set up what is lazy, which would count as an input's doing otherwise."""
    import_all()


@pytest.fixture(autouse=True)
def one_thread_each(one_thread: None) -> None:
    """Tiny inputs gain nothing from threads."""
