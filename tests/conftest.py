"""Settings of every test run: what is switched off before any import, and which marked tests are skipped and why."""

import os

# Set before anything reads them: no test may reach a hub, and no plot may need a screen.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
if "PYTEST_XDIST_WORKER" in os.environ:  # `-n`: there is a process for every core already
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc
import importlib.util
import shutil
import warnings
from collections.abc import Generator, Iterator
from importlib import metadata

import pytest
from packaging.version import Version

from tests.cpu_time import CpuTime
from tests.made_once import MadeOnce

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(autouse=True, scope="session")
def caches_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or fills the user's caches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXCB_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("EXCB_DATA", str(tmp_path_factory.mktemp("datasets")))
        patch.setenv("EXCB_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """Folders shared by the workers of this test run: each has a base of its own in the base of all."""
    base = tmp_path_factory.getbasetemp()
    return MadeOnce((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made_once")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny networks gain nothing from threads, which on a busy machine wait for one another most of the time.

    A module asks for it by `pytestmark`; sums on other numbers of threads would also differ in the last bit.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def short_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs end without curves and without a verdict, also those of forked programs.

    A module asks for it by `pytestmark`. A test that reads curves or verdict asks for `full_end`.
    """
    from tests.pretrain.short_end import VARIABLE, end_shortly

    with pytest.MonkeyPatch.context() as patch:
        if "full_end" not in request.fixturenames:
            patch.setenv(VARIABLE, "1")
            end_shortly(patch)
        yield


@pytest.fixture
def full_end() -> None:
    """Runs end with curves and a verdict, in a module where others do not."""


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_xdist_auto_num_workers() -> int:
    """Workers of `-n auto`: more than cores, as a third of the time is waiting for processes that tests start."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + min(cores, 8) // 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests live to the end: the garbage collector leaves them alone, now and while the tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow as well")
    parser.addoption("--site", metavar="DIR", help="test this built documentation site, instead of building it")
    parser.addoption("--cpu", metavar="N", type=int, help="list the N tests that took most CPU time")


def pytest_configure(config: pytest.Config) -> None:
    if most := config.getoption("--cpu"):
        config.pluginmanager.register(CpuTime(most))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for marker in ("slow", "gpu", "fake_cuda", "kernels", "detectron2", "browser"):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marker not in ("gpu", "fake_cuda", "kernels"):
            for item in marked:
                item.add_marker(pytest.mark.timeout(0))  # long by nature, or as slow as what they start
        if marked and (reason := _reason_to_skip(marker, config)):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def _reason_to_skip(marker: str, config: pytest.Config) -> str:
    """Say why tests with this marker cannot run here, or return an empty string if they can."""
    if marker == "slow" and not config.getoption("--run-slow"):
        return "slow: runs with --run-slow"
    if marker == "gpu" and not _cuda_available():
        return "gpu: no CUDA device"
    if marker == "fake_cuda":
        from tests.fake_cuda import obstacle

        return f"fake_cuda: {reason}" if (reason := obstacle()) else ""
    if marker == "detectron2" and importlib.util.find_spec("detectron2") is None:
        return "detectron2: not installed"
    if marker == "browser" and not any(map(shutil.which, CHROMIUM_NAMES)):
        return "browser: no Chromium"
    return _no_compiler() if marker == "kernels" else ""


def _no_compiler() -> str:
    """Why kernels cannot be compiled here as on a GPU; empty where they can."""
    try:
        found = Version(metadata.version("triton"))
    except metadata.PackageNotFoundError:
        return "kernels: Triton is not installed"
    return f"kernels: Triton {found} is older than 3.8" if found < Version("3.8") else ""


def _cuda_available() -> bool:
    import torch  # Only here: it takes seconds, and most runs have no gpu test to decide about.

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a driver that torch finds too old is a device we cannot use, not a failure
        return torch.cuda.is_available()
