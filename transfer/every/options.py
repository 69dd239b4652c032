"""Options of `excb-eval all`, with those that protocols add."""

from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from typing import Any, TypeVar

from excb.options import REQUIRED, option

from ..options import CKPT, BaselineOptions, LabelledOptions
from ..protocols import PROTOCOLS

Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class SuiteOptions(BaselineOptions, LabelledOptions):
    """Checkpoints on the same images by every protocol."""

    ckpt: tuple[Any, ...] = option(
        REQUIRED,
        f"{CKPT}; several: compared",
        metavar="PATH",
        group="checkpoint and images",
        words={"action": "extend"},
    )
    own_preprocessing: bool = option(
        False,
        "with several checkpoints, keep each one's own resize and crop (default: those of the first, for all)",
    )
    only: tuple[str, ...] = option((), "only these steps, such as knn or semisup_1", metavar="NAME")


@cache
def suite_options() -> type[SuiteOptions]:
    """`SuiteOptions` and the options that protocols in the suite add."""
    kinds = [protocol.in_suite.options for protocol in PROTOCOLS.values() if protocol.in_suite is not None]
    added = [
        (each.name, each.type, field(default=each.default, metadata=each.metadata))
        for kind in dict.fromkeys(kinds)
        for each in fields(kind)
    ]
    made: type[SuiteOptions] = make_dataclass("SuiteOptions", added, bases=(SuiteOptions,), frozen=True, kw_only=True)
    return made


def options_of(options: Any, kind: type[Kind]) -> Kind:
    """Those of the options that a dataclass names."""
    return kind(**{each.name: getattr(options, each.name) for each in fields(kind)})  # type: ignore[arg-type]
