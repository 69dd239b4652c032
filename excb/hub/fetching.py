"""Bring what a name leads to onto this machine, from the first of its locations that has it."""

from pathlib import Path
from typing import NamedTuple

from excb.console import Reporter
from excb.errors import UserError
from excb.hub.buckets import fetch_kept
from excb.hub.resolve import HUB, WEB, Resolved
from excb.remote.fetch import fetch_url
from excb.remote.hf_repository import fetch_repo


class Fetched(NamedTuple):
    """What was fetched: a path, and whether it is a foreign file that must be imported first."""

    path: Path
    foreign: bool


def fetch(resolved: Resolved, reporter: Reporter) -> Fetched:
    """Fetch what a name leads to; a path on this machine is returned as it is.

    Args:
        resolved: what the name leads to, except "timm:NAME", which timm itself fetches.
        reporter: shows progress.

    Raises:
        UserError: no location has it, or its hash is wrong.
    """
    if resolved.path is not None:
        return Fetched(resolved.path, foreign=False)
    failures = []
    for location in resolved.locations:
        try:
            return _from(location, resolved, reporter)
        except UserError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    reasons = "; ".join(map(str, failures))
    raise UserError(f"{resolved.name} could not be fetched from any of its {len(failures)} locations: {reasons}")


def _from(location: str, resolved: Resolved, reporter: Reporter) -> Fetched:
    if location.startswith(HUB):
        repo, _, revision = location.removeprefix(HUB).partition("@")
        return Fetched(fetch_repo(repo, revision or None, reporter=reporter), foreign=False)
    if location.startswith(WEB):
        digest = resolved.row.digest if resolved.row else None
        return Fetched(fetch_url(location, digest=digest, reporter=reporter, name=resolved.name), foreign=True)
    return Fetched(fetch_kept(location, reporter), foreign=False)
