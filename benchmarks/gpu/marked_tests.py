"""The tests marked `gpu`, one process per file: after a CUDA error no other test of a process can pass.

Run: python -m benchmarks.gpu.marked_tests --json FILE [--files tests/...]

Only files that name the marker are collected, so that what other tests import need not be installed. FILE is replaced
after each of them, and those that it holds are not run again.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.processes import ROOT, end_with_parent, missing_module, read_figures
from excb.distributed.machine import usable_cores
from excb.files.atomic import write_text

LIMIT = 240.0  # seconds of one file; pytest-timeout cannot end a test that hangs inside a driver
Outcomes = dict[str, Any]  # passed: names; failed and skipped: the reason by name; seconds


class Recorder:
    """A plugin of pytest that notes how each test ended."""

    def __init__(self) -> None:
        self.outcomes: Outcomes = {"passed": [], "failed": {}, "skipped": {}}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test's end, or where its fixtures failed."""
        if report.failed:
            self.outcomes["failed"][report.nodeid] = _last_line(report.longreprtext)
        elif report.skipped and isinstance(report.longrepr, tuple):
            self.outcomes["skipped"][report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")
        elif report.passed and report.when == "call":
            self.outcomes["passed"].append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that could not be imported."""
        if report.failed and (module := missing_module([report.longreprtext])):
            self.outcomes["skipped"][report.nodeid] = f"not installed: {module}"
        elif report.failed:
            self.outcomes["failed"][report.nodeid] = _last_line(report.longreprtext)


def _last_line(text: str) -> str:
    return next(iter(reversed(text.strip().splitlines())), "")[:300]


def run_file(file: str, out: Path) -> int:
    """Run a file's marked tests in this process; write how they ended, and return pytest's exit code."""
    recorder = Recorder()
    code = pytest.main(["-m", "gpu", "-v", "--tb=short", "-p", "no:cacheprovider", file], plugins=[recorder])
    decided = recorder.outcomes["failed"] or recorder.outcomes["skipped"]
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not decided:
        recorder.outcomes["failed"][file] = f"pytest ended with {code!r}"
    write_text(json.dumps(recorder.outcomes), out)
    return int(code)


def outcomes_of(file: str, out: Path) -> Outcomes:
    """The same in a process of its own; one that dies or hangs counts as a failure of its file."""
    out.unlink(missing_ok=True)
    start, why = time.monotonic(), f"no end within {LIMIT:.0f} s"
    words = [sys.executable, "-m", "benchmarks.gpu.marked_tests", "--only", file, "--json", str(out)]
    with suppress(subprocess.TimeoutExpired):
        code = subprocess.run(
            words,
            cwd=ROOT,
            timeout=LIMIT,
            check=False,
            preexec_fn=end_with_parent,
        ).returncode
        why = f"the process ended with {code}"
    outcomes: Outcomes = read_figures(out) or {"passed": [], "failed": {file: why}, "skipped": {}}
    out.unlink(missing_ok=True)
    return {**outcomes, "seconds": round(time.monotonic() - start, 1)}


def marked_files() -> list[str]:
    """The files of tests that name the marker."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "mark.gpu" in file.read_text(encoding="utf-8")]


def main() -> int:
    """Run all files that are left; exit with 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="how the tests ended")
    parser.add_argument("--files", nargs="+", help="of tests (default: all that name the marker)")
    parser.add_argument("--jobs", type=int, default=max(1, usable_cores() // 3), help="files at a time")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        return run_file(options.only, options.json)
    figures: dict[str, Any] = read_figures(options.json) or {"files": {}}
    left = [file for file in options.files or marked_files() if file not in figures["files"]]
    parts = [options.json.with_suffix(f".part{number}") for number in range(len(left))]
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(outcomes_of, file, part): file for file, part in zip(left, parts, strict=True)}
        for future in as_completed(futures):
            figures["files"][futures[future]] = future.result()
            write_text(json.dumps(figures, indent=2) + "\n", options.json)
    failed = {name: why for file in figures["files"].values() for name, why in file["failed"].items()}
    for name, why in failed.items():
        print(f"FAILED {name}: {why}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
