"""The value of `--slurm`: its options, Slurm's times, and what is refused."""

import pytest

from excb.distributed.slurm_request import SlurmRequest, minutes, parse_request
from excb.errors import UserError


def test_a_request() -> None:
    request = parse_request("partition=gpu, nodes=2,gpus=8,time=24:00:00,mem=400,account=vision")
    assert request == SlurmRequest(partition="gpu", nodes=2, gpus=8, time="24:00:00", mem=400, account="vision")
    assert request.processes == 8
    assert parse_request("time=5").processes == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("90:30", 91),
        ("1:30:00", 90),
        ("2-0", 2880),
        ("1-12", 2160),
        ("1-01:30", 1530),
        ("1-00:00:01", 1441),
    ],
)
def test_times_are_slurms(text: str, expected: int) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu", "write name=value"),
        ("partition=", "write name=value"),
        ("partitoin=gpu,time=60", "did you mean 'partition'"),
        ("nodes=two,time=60", "nodes takes a whole number"),
        ("nodes=2", "needs time="),
        ("time=soon", "is not a time"),
        ("time=0", "above zero"),
        ("time=3", "longer than grace=180"),
        ("time=60,nodes=0", "nodes must be at least 1"),
        ("time=60,cpus=0", "cpus must be at least 1"),
        ("time=60,time=90", "names time twice"),
        ("time=60,gpus=2,tasks=2", "gpus= or tasks="),
        ("time=60,cluster=pbs", "must be one of slurm, local"),
        ("time=60,cluster=local,nodes=2", "one node"),
    ],
)
def test_requests_that_cannot_be_met(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_request(text)
