"""Batches that are moved ahead are the loader's, in its order."""

from collections.abc import Iterator

import pytest
import torch

from excb.pretrain.data.batch import ViewBatch
from excb.pretrain.data.prefetch import prefetch_to_device

pytestmark = pytest.mark.usefixtures("one_thread")


def batches(count: int, *, local: bool) -> Iterator[ViewBatch]:
    """Batches that differ."""
    for number in range(count):
        crops = torch.full((2, 3, 64, 64, 3), number, dtype=torch.uint8)
        small, parameters = (crops[:, :, ::2], torch.full((2, 3, 10), float(number))) if local else (None, None)
        names = torch.arange(3) + number
        yield ViewBatch(crops, torch.full((2, 3, 10), float(number)), small, parameters, names, names, [], number)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_same_batches_in_order(device: str, local: bool, count: int) -> None:
    found = []
    for batch in prefetch_to_device(
        (batch.pin_memory() if device == "cuda" else batch for batch in batches(count, local=local)),
        torch.device(device),
    ):
        assert batch.global_crops.device.type == device
        assert batch.global_parameters.device.type == "cpu"  # the CPU decides by them
        if device == "cuda":  # a step's work, so that later copies could overtake what it reads
            torch.cuda._sleep(10_000_000)
        found.append((batch.global_crops.sum(), None if batch.local_crops is None else batch.local_crops.sum(), batch))
    expected = list(batches(count, local=local))
    assert [int(whole) for whole, _, _ in found] == [int(batch.global_crops.sum()) for batch in expected]
    assert [batch.position for _, _, batch in found] == list(range(count))
    if local:
        assert [int(small) for _, small, _ in found if small is not None] == [
            int(batch.local_crops.sum()) for batch in expected if batch.local_crops is not None
        ]
