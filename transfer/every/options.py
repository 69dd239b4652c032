"""Options of `excb-eval all`, with those that protocols add."""

from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from typing import Any, TypeVar

from excb.option_parser import require_use
from excb.options import REQUIRED, option

from ..options import AGAINST, ALIKE, CKPT, REFERENCES, BaselineOptions, LabelledOptions
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

    def check(self) -> None:
        """Raise UserError where an option has no use beside the others."""
        if not set(self.only) <= {name for each in _in_suite() for name in each.in_suite.names}:
            return  # `suite.steps` refuses what is no step
        alike = len(self.ckpt) > 1 and None in (self.resize, self.crop)
        require_use(self, "own_preprocessing", used=alike, why=ALIKE)
        wanted = [each for each in _in_suite() if not self.only or set(each.in_suite.names) & set(self.only)]
        for each in _in_suite():
            own = [field.name for field in fields(each.in_suite.options)]
            why = f"is of the step {' or '.join(each.in_suite.names)}, which --only leaves out"
            require_use(self, *own, used=each in wanted, why=why)
        references = {name for each in wanted for name in (*each.references, *_against(each))}
        idle = [name for name in (*REFERENCES, AGAINST) if name not in references]
        require_use(self, *idle, used=False, why=f"is of no step that --only names ({' '.join(self.only)})")


def _in_suite() -> list[Any]:
    """The protocols of the suite."""
    return [protocol for protocol in PROTOCOLS.values() if protocol.in_suite is not None]


def _against(protocol: Any) -> tuple[str, ...]:
    return (AGAINST,) if hasattr(protocol.shared, AGAINST) else ()


@cache
def suite_options() -> type[SuiteOptions]:
    """`SuiteOptions` and the options that protocols in the suite add."""
    kinds = [protocol.in_suite.options for protocol in _in_suite()]
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
