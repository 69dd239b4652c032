"""Verify a checkpoint: hashes of its files, every tensor in its place, the load self-test, and ever trained at all."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from excb.checkpoint import exported
from excb.console import Reporter
from excb.errors import UserError
from excb.hub import loading, selftest
from excb.hub.backbone import Backbone
from excb.hub.catalogue import find
from excb.images.photographs import PhotographError

State = Literal["ok", "failed", "cannot"]


class Row(NamedTuple):
    """One check."""

    check: str
    state: State
    what: str


@dataclass
class Verification:
    """What was found; it passed only where every check could be made and was ok."""

    rows: list[Row] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all is well."""
        return bool(self.rows) and all(row.state == "ok" for row in self.rows)

    def make(self, check: str, work: Callable[[], str]) -> bool:
        """Make one check: `work` returns what was found, or raises why it fails or cannot be made."""
        try:
            self.rows.append(Row(check, "ok", work()))
        except (PhotographError, _UnknownError) as error:
            self.rows.append(Row(check, "cannot", str(error)))
        except UserError as error:
            self.rows.append(Row(check, "failed", str(error)))
        return self.rows[-1].state == "ok"


class _UnknownError(UserError):
    """There is nothing to compare with."""


def verify(name: str, reporter: Reporter) -> Verification:
    """Verify what a name or path stands for, fetching it first where need be.

    Args:
        name: what `excb.load` takes; without an exported folder, hashes and self-test cannot be checked.
        reporter: where to talk.

    Raises:
        UserError: there is no such checkpoint.
    """
    found, place = Verification(), loading.obtain(name)
    folder = place.parent if place.name == exported.WEIGHTS else place
    has_folder = (folder / exported.CONFIG).is_file()
    with reporter.progress(f"verifying {name}", 4) as bar:
        hashes = found.make("sha256", lambda: _hashes(name, folder, known=has_folder))
        bar.advance()
        if hashes or not has_folder:
            loaded: list[Backbone] = []
            if found.make("coverage", lambda: _coverage(place, loaded)):
                bar.advance()
                found.make("self-test", lambda: _self_test(folder, loaded[0], known=has_folder))
                bar.advance()
                found.make("trained", lambda: _trained(loaded[0]))
    return found


def _hashes(name: str, folder: Path, *, known: bool) -> str:
    if not known:
        raise _UnknownError("hashes are in exported folders: `excb-zoo export` writes one")
    block = exported.read_config(folder).get("excb")
    if not isinstance(block, dict) or not isinstance(block.get("sha256"), dict):
        raise _UnknownError(f"{exported.CONFIG} names no hashes")
    for part in (exported.WEIGHTS, exported.HEADS, exported.SELFTEST):
        exported.read_part(folder, part)
    row, weights = find(name), exported.sha256_of(folder / exported.WEIGHTS)
    told = f"files are as {exported.CONFIG} says"
    if row is None or row.digest is None or not row.digest.startswith("sha256:"):
        return told
    origin = (block.get("origin") or {}).get("sha256")
    published = row.digest.removeprefix("sha256:")
    if not any(str(each).startswith(published) for each in (weights, origin)):
        raise UserError(f"the catalogue says {published[:16]}..., the weights are {weights[:16]}...: fetch them anew")
    return f"{told}, and as the catalogue says"


def _coverage(place: Path, loaded: list[Backbone]) -> str:
    loaded.append(loading.load(place))
    tensors = len(loaded[0].network.state_dict())
    return f"all {tensors} tensors of {loaded[0].entry.architecture.name} are there, and no others"


def _self_test(folder: Path, backbone: Backbone, *, known: bool) -> str:
    stored = exported.read_part(folder, exported.SELFTEST) if known else None
    if stored is None:
        raise _UnknownError("there is no self-test beside the weights: export them with this version")
    selftest.check(backbone, stored)
    return "features of packaged photographs are those of the export"


def _trained(backbone: Backbone) -> str:
    selftest.trained(backbone)
    return "tells photographs apart better than random networks do"
