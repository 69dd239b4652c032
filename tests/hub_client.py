"""A process for huggingface_hub's real client, and what tests have it do; it loads no torch by itself."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from excb.errors import UserError
from tests.hub_server import TOKEN, Hub


@contextmanager
def client(hub: Hub, folder: Path, *, xet: bool, **environment: str) -> Iterator[ProcessPoolExecutor]:
    """A process of its own for huggingface_hub's client, which reads its environment once, when it is imported.

    Args:
        hub: the hub that it knows.
        folder: where its caches and the zoo's folder are to lie.
        xet: whether large files go by Xet; else by LFS.
        environment: further variables, or other values.
    """
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "hf"),
        "EXCB_HOME": str(folder / "zoo"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "0" if xet else "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": "1",
        "NO_PROXY": "127.0.0.1",
    }
    with mock.patch.dict(os.environ, settings | environment):
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        pool.submit(os.getpid).result()  # starts it, with this environment
    with pool:
        yield pool


def publish(folder: Path, repo: str, **options: Any) -> str:
    """Upload a folder as it is, and give the commit."""
    from excb.zoo import publish as module

    usual: dict[str, Any] = {"tag": "v1", "private": False, "message": "first"}
    commit: str = module.publish(folder, repo, **usual | options)
    return commit


def refused(process: ProcessPoolExecutor, *call: Any, **options: Any) -> str:
    """The one line of a UserError that a call ends in."""
    with pytest.raises(UserError) as error:
        process.submit(*call, **options).result()
    assert "\n" not in str(error.value)
    return str(error.value)
