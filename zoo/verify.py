"""Verify a checkpoint: hashes, coverage of tensors, the load self-test, and whether it was ever trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from excb.checkpoint import exported
from excb.checkpoint.stored import Which
from excb.console import Reporter, plural
from excb.errors import UserError
from excb.files.foreign import sha256_of
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


class _UnknownError(UserError):
    """There is nothing to compare with."""


def verify(name: str, reporter: Reporter) -> list[Row]:
    """Verify what a name or path stands for, fetching it first if needed. It is sound if every check is "ok".

    Args:
        name: what `excb.load` takes; without an exported folder, hashes and self-test cannot be checked.
        reporter: shows progress.

    Raises:
        UserError: there is no such checkpoint.
    """
    rows, place = list[Row](), loading.obtain(name)
    folder = place.parent if place.name == exported.WEIGHTS else place
    is_export = (folder / exported.CONFIG).is_file()

    def passes(check: str, work: Callable[[], str]) -> bool:
        """Make one check: `work` returns its result, or raises the reason why it fails or cannot be made."""
        try:
            rows.append(Row(check, "ok", work()))
        except (PhotographError, _UnknownError) as error:
            rows.append(Row(check, "cannot", str(error)))
        except UserError as error:
            rows.append(Row(check, "failed", str(error)))
        bar.advance()
        return rows[-1].state == "ok"

    with reporter.progress(f"verifying {name}", 4) as bar:
        hashes = passes("sha256", lambda: _hashes(name, folder, is_export=is_export))
        if hashes or not is_export:
            loaded: list[Backbone] = []
            if passes("coverage", lambda: _coverage(place, loaded, network=_network(folder))):
                passes("self-test", lambda: _self_test(folder, loaded[0], is_export=is_export))
                passes("trained", lambda: _trained(loaded[0]))
    return rows


def _hashes(name: str, folder: Path, *, is_export: bool) -> str:
    if not is_export:
        raise _UnknownError("only exported folders list hashes: `excb-zoo export` writes one")
    block = exported.read_config(folder).get("excb")
    if not isinstance(block, dict) or not isinstance(block.get("sha256"), dict):
        raise _UnknownError(f"{exported.CONFIG} lists no hashes")
    for part in (exported.WEIGHTS, exported.HEADS, exported.SELFTEST):
        exported.read_part(folder, part)
    row, weights = find(name), sha256_of(folder / exported.WEIGHTS)
    message = f"files match {exported.CONFIG}"
    if row is None or row.digest is None or not row.digest.startswith("sha256:"):
        return message
    origin = (block.get("origin") or {}).get("sha256")
    published = row.digest.removeprefix("sha256:")
    if not any(str(each).startswith(published) for each in (weights, origin)):
        raise UserError(f"the catalogue says {published[:16]}..., the weights are {weights[:16]}...: fetch them again")
    return f"{message} and the catalogue"


def _network(folder: Path) -> Which:
    """The network that is verified: the teacher, unless an exported folder holds the student alone."""
    block = exported.read_config(folder).get("excb") if (folder / exported.CONFIG).is_file() else None
    return "student" if isinstance(block, dict) and block.get("network") == "student" else "teacher"


def _coverage(place: Path, loaded: list[Backbone], *, network: Which) -> str:
    loaded.append(loading.load(place, network=network))
    tensors = len(loaded[0].network.state_dict())
    return f"all {plural(tensors, 'tensor')} of {loaded[0].entry.architecture.name} are present, and no others"


def _self_test(folder: Path, backbone: Backbone, *, is_export: bool) -> str:
    stored = exported.read_part(folder, exported.SELFTEST) if is_export else None
    if stored is None:
        raise _UnknownError("no self-test beside the weights: export them with this version")
    selftest.check_self_test(backbone, stored)
    return "features of packaged photographs match the export"


def _trained(backbone: Backbone) -> str:
    selftest.check_trained(backbone)
    return "separates photographs better than random networks do"
