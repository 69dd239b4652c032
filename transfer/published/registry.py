"""The registry of published figures: every claim of the ExCB paper and of the checkpoints' own repositories.

The tables are `claims/*.toml`; `paper.toml` and `protocols.toml` explain their fields. Importing this needs no torch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from excb.errors import UserError, nearest_name
from excb.files import toml

from .claim import MOST, Claim, ClaimImages, ClaimProtocol, from_table

FOLDER = Path(__file__).with_name("claims")
# Later ones use what earlier ones define.
FILES = ("protocols.toml", "paper.toml", "repositories.toml", "shelf.toml", "bundled.toml")
NOT_STATED = "-"


def claims(files: Sequence[Path] = ()) -> list[Claim]:
    """Every claim of the registry, then those of the user's files, in the order of their tables.

    Args:
        files: TOML with tables as in `claims/paper.toml`, and with protocols and data of its own where it needs any.

    Raises:
        UserError: a file cannot be read, or a claim's name is taken.
    """
    registry = _built_in()
    every = list(registry.claims)
    for file in files:
        registry = registry.extended(file)
        taken = {claim.id for claim in every} & {claim.id for claim in registry.claims}
        if taken:
            raise UserError(f"{file}: the claim {min(taken)} is there already: give its table another name")
        every += registry.claims
    return every


def select(what: str, among: Iterable[Claim]) -> list[Claim]:
    """The claims that a name stands for: a claim's id, the beginning of some (TABLE or TABLE/ROW), or a checkpoint.

    Raises:
        UserError: there is none.
    """
    from excb.hub.catalogue import find

    every, start = list(among), f"{what.rstrip('/')}/"
    if matches := [claim for claim in every if f"{claim.id}/".startswith(start)]:
        return matches
    row = find(what)
    name = what if row is None else row.name
    if matches := [claim for claim in every if claim.checkpoint == name]:
        return matches
    if row is not None:
        raise UserError(f"nobody claims anything of {name} (`excb-eval reproduce --list` shows all claims)")
    names = [name for claim in every for name in (claim.id, claim.id.rpartition("/")[0], claim.table, claim.checkpoint)]
    raise UserError(
        f"no claim, table or checkpoint is called '{what}'{nearest_name(what, dict.fromkeys(names))} "
        "(`excb-eval reproduce --list` shows all)"
    )


# A row's columns, or fields of its table for all its rows; every other column is a metric.
_FACTS = {"method", "architecture", "checkpoint", "data", "epochs", "batch", "crops", "source", "differs_from"}
_OF_TABLE = {"title", "columns", "rows", "notes", "unstated", "differs"}


@dataclass(frozen=True)
class _Registry:
    """The definitions in files. Protocols, data and recipes are of all files so far, the claims of the last."""

    protocols: dict[str, ClaimProtocol] = field(default_factory=dict)
    data: dict[str, ClaimImages] = field(default_factory=dict)
    recipes: dict[str, str] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()

    def extended(self, file: Path) -> "_Registry":
        """With what a file defines.

        Raises:
            UserError: it cannot be read, or a table of it is none that this version knows.
        """
        try:
            tables = toml.read_toml(file)
            protocols, data, recipes = (tables.pop(name, {}) for name in ("protocols", "data", "recipes"))
            new = _Registry(
                self.protocols
                | {name: from_table(ClaimProtocol, each | {"name": name}) for name, each in protocols.items()},
                self.data | {name: from_table(ClaimImages, each | {"name": name}) for name, each in data.items()},
                self.recipes | recipes,
            )
            parsed = [claim for name, table in tables.items() for claim in new._claims(name, table)]
        except (OSError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise UserError(f"{file} cannot be read as claims ({type(error).__name__}: {error}): fix it") from None
        return _Registry(new.protocols, new.data, new.recipes, tuple(parsed))

    def _claims(self, name: str, table: dict[str, Any]) -> Iterable[Claim]:
        if odd := table.keys() - _FACTS - _OF_TABLE:
            raise ValueError(f"table {name} has an unknown field {min(odd)!r}")
        for cells in table["rows"]:
            row = dict(zip(table["columns"], cells, strict=True))
            stated = {key: value for key, value in row.items() if value != NOT_STATED}
            facts = {key: value for key, value in (table | stated).items() if key in _FACTS}
            key = row.get("row", row["checkpoint"])
            metrics = {each: value for each, value in stated.items() if each not in _FACTS and each != "row"}
            for metric, value in metrics.items():
                yield self._claim(
                    f"{name}/{key}/{metric}",
                    facts,
                    metric=metric,
                    value=value,
                    note=table.get("notes", {}).get(key, ""),
                    unstated=tuple(table.get("unstated", {}).get(key, ())),
                    differs=tuple(table.get("differs", {}).get(key, ())),
                )

    def _claim(self, name: str, facts: dict[str, Any], *, metric: str, value: str, **rest: Any) -> Claim:
        if not isinstance(value, str):
            raise ValueError(f"the figure of {name} must stand in quotes: its digits count")
        if "differs_from" in facts:
            facts = facts | {"differs_from": f"{facts['differs_from']}/{metric}"}
        fits = [(protocol.fit(metric, facts, name.partition("/")[0]), protocol) for protocol in self.protocols.values()]
        best = max((fit for fit, _ in fits), default=-1)
        fitting = [protocol for fit, protocol in fits if fit == best >= 0]
        if len(fitting) != 1:
            names = " and ".join(protocol.name for protocol in fitting) or "none"
            raise ValueError(f"one protocol must be that of {name}, not {names}")
        stated = {"recipe": self.recipes.get(facts["checkpoint"], ""), "data": self.data[facts["data"]]}
        figure = {"id": name, "metric": metric, "value": value, "protocol": fitting[0]}
        claim = from_table(Claim, facts | stated | figure | rest)
        if not abs(claim.number) < MOST:  # raises ValueError where the figure is not a number
            raise ValueError(f"the figure of {name} is {value}")
        return claim


@cache
def _built_in() -> _Registry:
    registry, every = _Registry(), list[Claim]()
    for name in FILES:
        registry = registry.extended(FOLDER / name)
        every += registry.claims
    return _Registry(registry.protocols, registry.data, registry.recipes, tuple(every))
