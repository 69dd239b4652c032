"""The value of `--slurm`, checked and parsed: the resources that a job requests."""

import re
import typing
from dataclasses import dataclass, fields
from typing import Any, Literal

from excb.errors import UserError, nearest_name, require
from excb.options import option, require_choices

_TIME = re.compile(r"(?:(?P<days>\d+)-(?P<of_day>\d+)|(?P<first>\d+))(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


@dataclass(frozen=True, kw_only=True)
class SlurmRequest:
    """The resources that a job requests."""

    time: str = option("", "time limit in Slurm's format, after which the job saves and queues again; required")
    partition: str | None = option(None, "partition to queue in")
    nodes: int = option(1, "machines")
    gpus: int = option(0, "GPUs per node, with one process each; 0 for the CPU")
    tasks: int = option(0, "processes per node without GPUs; 0 for one")
    cpus: int | None = option(None, "cores per process, including its workers")
    mem: int | None = option(None, "memory per node in GB")
    account: str | None = option(None, "account that is charged")
    qos: str | None = option(None, "quality of service")
    constraint: str | None = option(None, "features that the nodes must have")
    grace: int = option(180, "seconds before the limit at which the run is asked to save")
    requeues: int = option(100, "how often the job may queue again at its limit")
    cluster: Literal["slurm", "local"] = option("slurm", "local runs the job on this machine, to try it")

    def __post_init__(self) -> None:
        """Raise UserError for values out of range."""
        require_choices("--slurm", self)
        require(bool(self.time), "--slurm needs time=, such as time=24:00:00: after it the job saves and queues again")
        require(
            60 * minutes(self.time) > self.grace, f"--slurm time={self.time} must be longer than grace={self.grace} s"
        )
        require(self.nodes >= 1, "--slurm nodes must be at least 1")
        require(self.cluster == "slurm" or self.nodes == 1, "--slurm cluster=local is one node")
        require(not (self.gpus and self.tasks), "--slurm takes gpus= or tasks=, not both: a process runs for each GPU")
        require(self.cpus is None or self.cpus >= 1, "--slurm cpus must be at least 1")
        for name in ("gpus", "tasks", "grace", "requeues"):
            require(getattr(self, name) >= 0, f"--slurm {name} must not be negative")

    @property
    def processes(self) -> int:
        """Processes per node."""
        return self.gpus or self.tasks or 1


def parse_request(text: str) -> SlurmRequest:
    """Read "partition=gpu,nodes=2,gpus=8,time=24:00:00". Raises UserError for an unknown name or invalid value."""
    types: dict[str, Any] = typing.get_type_hints(SlurmRequest)
    values: dict[str, Any] = {}
    for item in text.split(","):
        name, equals, value = item.strip().partition("=")
        if not equals or not value:
            raise UserError(f"--slurm {item!r}: write name=value, such as partition=gpu,nodes=2,gpus=8,time=24:00:00")
        if name not in types:
            options = ", ".join(field.name for field in fields(SlurmRequest))
            raise UserError(f"--slurm has no option {name!r}{nearest_name(name, types)} (its options are {options})")
        require(name not in values, f"--slurm names {name} twice: remove one")
        integer = int in (types[name], *typing.get_args(types[name]))
        require(not integer or value.isdecimal(), f"--slurm {name} takes a whole number, not {value!r}")
        values[name] = int(value) if integer else value
    return SlurmRequest(**values)


def minutes(text: str) -> int:
    """Minutes, rounded up, of Slurm's M, M:S, H:M:S, D-H, D-H:M or D-H:M:S. Raises UserError for others, or zero."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise UserError(f"--slurm time={text} is not a time: write minutes, hours:minutes:seconds or days-hours")
    days, of_day, first, second, third = (int(part or 0) for part in match.groups())
    if match["days"] is not None:
        seconds = 86_400 * days + 3600 * of_day + 60 * second + third
    elif match["third"] is not None:
        seconds = 3600 * first + 60 * second + third
    else:
        seconds = 60 * first + second
    require(seconds > 0, f"--slurm time={text} must be above zero")
    return -(-seconds // 60)
