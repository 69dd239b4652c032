"""The machine: devices by name, and memory."""

import pytest
import torch

from excb.distributed.machine import available_memory, choose_device, peak_memory
from excb.errors import UserError


def test_devices_by_name() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("warp", "cuda:99", "meta:x", "meta", ""):
        with pytest.raises(UserError) as refusal:
            choose_device(name)
        assert "\n" not in str(refusal.value)


def test_memory_is_measured_in_bytes() -> None:
    held = torch.ones(2**20)
    assert peak_memory(torch.device("cpu")) > held.nbytes
    assert available_memory() > 2**20
