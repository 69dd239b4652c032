"""`--cpu N`: the N tests that took most CPU time, with their fixtures and all processes that they started."""

import os
import resource
from collections.abc import Generator
from multiprocessing import forkserver
from pathlib import Path

import pytest

NAME = "CPU seconds"  # of the property that a report carries from a worker to the process that sums up


class CpuTime:
    """The plugin behind `--cpu`.

    Args:
        most: how many tests to list.
    """

    def __init__(self, most: int) -> None:
        self.most, self.seconds, self._begun = most, dict[str, float](), 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Look at the clock before a test's first fixture."""
        self._begun = spent()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note what a test took, after its last fixture."""
        report = yield
        if call.when == "teardown":
            report.user_properties.append((NAME, spent() - self._begun))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the note of a test."""
        for name, value in report.user_properties:
            if name == NAME and isinstance(value, float):
                self.seconds[report.nodeid] = value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the costliest tests."""
        costly = sorted(self.seconds.items(), key=lambda one: -one[1])[: self.most]
        terminalreporter.section(f"{len(self.seconds):,} tests took {sum(self.seconds.values()):,.1f} CPU seconds")
        for test, seconds in costly:
            terminalreporter.write_line(f"{seconds:7.2f} {test}")


def spent() -> float:
    """CPU seconds of this process, of the children that have ended, and of those of the server of `tests.forked`."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used) + _of_the_server()


def _of_the_server() -> float:
    """It is a child that has not ended, so it is not in `getrusage`."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    try:
        fields = Path(f"/proc/{server}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:  # there is none, or no /proc
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # its own, and of its children that have ended
