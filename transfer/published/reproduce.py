"""`excb-eval reproduce`: measure what was published of a checkpoint, and say PASS, FAIL or CANNOT."""

import argparse
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from excb.console import Reporter
from excb.distributed.collectives import all_succeed
from excb.errors import UserError, is_rank0, nearest_name
from excb.hub.catalogue import Checkpoint, find
from excb.hub.loading import load, obtain
from excb.hub.resolve import local_folder
from excb.results.result import Result

from . import claims as registry
from . import tables
from .claim import Claim, Data
from .subjects import Subject, obstacle
from .verdicts import Verdict, Word, judge

FILTERS = ("table", "method", "protocol")
# What keeps the state of an unfinished evaluation, by command.
STATE = {"linear": "--state", "semisup": "--state", "detection": "--run"}

# A result, and what writes its files: the result as it shall be written, and FILE.json.
Measured = tuple[Result, Callable[[Result, Path], list[Path]]]
# Evaluate by a command line of `excb-eval` if its images are those that are wanted; else say why not.
Measure = Callable[[list[str], Data], Measured | str]


@dataclass(frozen=True)
class Run:
    """One evaluation, which may answer several claims."""

    subject: str
    claims: list[Claim]

    @property
    def name(self) -> str:
        """What its files are called."""
        label = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in Path(self.subject).name)
        return f"{label}-{self.claims[0].protocol.name}"

    def command(self, data: str) -> list[str]:
        """The command line of `excb-eval`, without the program."""
        first, *options = self.claims[0].protocol.arguments()
        renames = [word for rename in self.claims[0].data.rename for word in ("--rename", rename)]
        return [first, "--ckpt", self.subject, "--data", data, *options, *renames]


def chosen_claims(chosen: argparse.Namespace) -> list[Claim]:
    """The claims that a command line asks for.

    Raises:
        UserError: there are none, or nothing was named.
    """
    found = registry.claims(chosen.claims)
    if chosen.what is not None:
        found = registry.select(chosen.what, found)
    elif not chosen.list and chosen.of_table is None:
        raise UserError("name a claim, a table or a checkpoint (`excb-eval reproduce --list` shows all)")
    for name in FILTERS:
        wanted = getattr(chosen, f"of_{name}")
        if wanted is not None:
            known = dict.fromkeys(each for claim in found for each in _names(claim, name))
            found = [claim for claim in found if wanted.casefold() in map(str.casefold, _names(claim, name))]
            if not found:
                raise UserError(f"no claim of these is of --{name} {wanted}{nearest_name(wanted, known)}")
    return found


def _names(claim: Claim, filtered: str) -> list[str]:
    """What a filter may call a claim: a protocol has its own name and its command's."""
    if filtered == "protocol":
        return [claim.protocol.name, claim.protocol.command]
    return [claim.table if filtered == "table" else claim.method]


def plan(found: Sequence[Claim], checkpoint: str | None) -> tuple[list[Run], list[Verdict]]:
    """The runs that answer claims, each once, and verdicts of the claims that cannot be checked.

    Args:
        found: claims.
        checkpoint: what to check them on; None is each one's own.

    Raises:
        UserError: the checkpoint cannot be loaded.
    """
    own = None if checkpoint is None else all_succeed(lambda: _subject(checkpoint))
    runs: dict[tuple[str, ...], Run] = {}
    cannot = []
    for claim in found:
        subject = own or Subject.of_row(_row(claim.checkpoint))
        if why := obstacle(claim, subject):
            cannot.append(Verdict(claim=claim, word="CANNOT", why=why))
            continue
        key = (subject.name, claim.data.name, *claim.protocol.arguments())
        runs.setdefault(key, Run(subject.name, [])).claims.append(claim)
    return list(runs.values()), cannot


def _subject(name: str) -> Subject:
    """A checkpoint of the user's choice: what lies on the disk tells more of itself than the catalogue does."""
    row = find(name)
    if row is not None and local_folder(row) is None:
        return Subject.of_row(row)
    return Subject.of_entry(name, load(name).entry)


def _row(name: str) -> Checkpoint:
    row = find(name)
    if row is None:
        raise UserError(f"a claim is about '{name}', which no catalogue knows: `excb-zoo import` can add it")
    return row


# ---------------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------------


def reproduce(chosen: argparse.Namespace, measure: Measure, reporter: Reporter) -> set[Word]:
    """`excb-eval reproduce`; all processes call this.

    Returns:
        The verdicts that were found; none where nothing was asked but to list.

    Raises:
        UserError: there is no such claim, or its images are not named or unusable.
    """
    found = chosen_claims(chosen)
    runs, verdicts = plan(found, chosen.ckpt)
    runs = [] if chosen.status == "cannot" else runs
    verdicts = [] if chosen.status == "runnable" else verdicts
    order = {claim.id: number for number, claim in enumerate(found)}
    if chosen.list or chosen.dry_run:
        if is_rank0() and chosen.list:
            status = [(claim, "") for run in runs for claim in run.claims] + [(v.claim, v.why) for v in verdicts]
            tables.listing(sorted(status, key=lambda s: order[s[0].id]), reporter, as_json=chosen.json)
        elif is_rank0():
            plans = [(run.command("DIR"), run.claims) for run in runs]
            tables.dry_run(plans, verdicts, reporter, as_json=chosen.json)
        return set()
    places = _places(chosen.data, runs, {claim.data.name for claim in registry.claims(chosen.claims)})
    for run in runs:
        verdicts += _check(run, places, chosen.out, measure, reporter)
    verdicts.sort(key=lambda verdict: order[verdict.claim.id])
    if is_rank0():
        tables.verdicts(verdicts, reporter, as_json=chosen.json)
    return {verdict.word for verdict in verdicts}


def _places(given: Sequence[str], runs: Sequence[Run], known: Container[str]) -> dict[str, str]:
    """Where the images of each run lie, by the name of the set: folders without a name go to the sets in order."""
    needed = list(dict.fromkeys(run.claims[0].data.name for run in runs))
    places = {
        name: folder for name, equals, folder in (word.partition("=") for word in given) if name in known and equals
    }
    unnamed = [word for word in given if word.partition("=")[0] not in places]
    places |= dict(zip((name for name in needed if name not in places), unnamed, strict=False))
    if needed and not any(name in places for name in needed):
        claim = runs[0].claims[0]
        raise UserError(f"name the images of {claim.data.title} with --data DIR: {claim.id} is about them")
    return places


def _check(run: Run, places: dict[str, str], out: Path | None, measure: Measure, reporter: Reporter) -> list[Verdict]:
    """Make one run, and judge its claims."""

    def cannot(why: str) -> list[Verdict]:
        return [Verdict(claim=claim, word="CANNOT", why=why) for claim in run.claims]

    data = run.claims[0].data
    if data.name not in places:
        return cannot(f"the images of {data.title} are not named: add --data {data.name}=DIR")
    try:
        all_succeed(lambda: obtain(run.subject))
    except UserError as error:
        return cannot(str(error))
    command = run.command(places[data.name])
    reporter.note(f"excb-eval {' '.join(command)}")
    if out is not None and command[0] in STATE:
        command += [STATE[command[0]], str(out / f"{run.name}.state")]
    found = measure(command, data)
    if isinstance(found, str):
        return cannot(found)
    result, write = found
    judged = [judge(claim, result) for claim in run.claims]
    if out is not None:
        told = {verdict.claim.id: verdict.to_dict() for verdict in judged}
        files = write(replace(result, claims=told), out / f"{run.name}.json")
        reporter.note(f"wrote {', '.join(map(str, files))}")
    return judged
