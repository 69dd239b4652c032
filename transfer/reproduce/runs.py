"""Which evaluations answer which claims. Listing them needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from excb.errors import UserError, nearest_name
from excb.hub.catalogue import Checkpoint, find
from excb.hub.resolve import local_folder

from ..protocols import protocol_named
from ..published import registry
from ..published.claim import Claim
from ..published.subjects import Subject, why_not_checked
from ..runner import Evaluation, of_python
from .options import ReproduceOptions
from .verdicts import Verdict

FILTERS = ("table", "method", "protocol")


@dataclass(frozen=True)
class EvaluationRun:
    """One evaluation, which may answer several claims."""

    subject: str
    claims: list[Claim]

    @property
    def name(self) -> str:
        """The name of its files."""
        label = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in Path(self.subject).name)
        return f"{label}-{self.claims[0].protocol.name}"

    def evaluation(self, data: str) -> Evaluation:
        """The evaluation of the claims on images, as `--data` takes them.

        Raises:
            UserError: the claims' options are none of the protocol.
        """
        claim = self.claims[0]
        stated = {name.replace("-", "_"): value for name, value in claim.protocol.options.items()}
        rename = dict(pair.split("=", 1) for pair in claim.data.rename)
        values = {"ckpt": self.subject, "data": data, **stated, **({"rename": rename} if rename else {})}
        return of_python(protocol_named(claim.protocol.command), values)

    def words(self, data: str) -> list[str]:
        """The command line of `excb-eval`, without the program."""
        first, *options = self.claims[0].protocol.arguments()
        renames = [word for rename in self.claims[0].data.rename for word in ("--rename", rename)]
        return [first, "--ckpt", self.subject, "--data", data, *options, *renames]


def claims_of(options: ReproduceOptions) -> list[Claim]:
    """The claims that a command line asks for.

    Raises:
        UserError: there are none, or nothing was named.
    """
    claims = registry.claims(options.claims)
    if options.what is not None:
        claims = registry.select(options.what, claims)
    elif not options.listed and options.of_table is None:
        raise UserError("name a claim, a table or a checkpoint (`excb-eval reproduce --list` shows all)")
    for name in FILTERS:
        if (wanted := getattr(options, f"of_{name}")) is not None:
            known = dict.fromkeys(each for claim in claims for each in _names(claim, name))
            claims = [claim for claim in claims if wanted.casefold() in map(str.casefold, _names(claim, name))]
            if not claims:
                raise UserError(f"no claim of these is of --{name} {wanted}{nearest_name(wanted, known)}")
    return claims


def _names(claim: Claim, filtered: str) -> list[str]:
    """The names by which a filter may call a claim: a protocol has its own name and its command's."""
    if filtered == "protocol":
        return [claim.protocol.name, claim.protocol.command]
    return [claim.table if filtered == "table" else claim.method]


def planned(options: ReproduceOptions) -> tuple[list[Claim], list[EvaluationRun], list[Verdict]]:
    """The claims that are asked for, the runs that answer them, and verdicts of those that cannot be checked.

    Raises:
        UserError: as `claims_of` and `plan_runs`.
    """
    claims = claims_of(options)
    runs, verdicts = plan_runs(claims, options.ckpt)
    runs = [] if options.status == "cannot" else runs
    verdicts = [] if options.status == "runnable" else verdicts
    return claims, runs, verdicts


def plan_runs(claims: Sequence[Claim], checkpoint: str | None) -> tuple[list[EvaluationRun], list[Verdict]]:
    """The runs that answer claims, each once, and verdicts of the claims that cannot be checked.

    Raises:
        UserError: the checkpoint cannot be loaded.
    """
    own = None if checkpoint is None else _own_subject(checkpoint)
    runs: dict[tuple[str, ...], EvaluationRun] = {}
    cannot = []
    for claim in claims:
        subject = own or Subject.of_row(_row(claim.checkpoint))
        if why := why_not_checked(claim, subject):
            cannot.append(Verdict(claim=claim, word="CANNOT", why=why))
            continue
        key = (subject.name, claim.data.name, *claim.protocol.arguments())
        runs.setdefault(key, EvaluationRun(subject.name, [])).claims.append(claim)
    return list(runs.values()), cannot


def _own_subject(name: str) -> Subject:
    """A checkpoint of the user's choice: what lies on the disk tells more of itself than the catalogue does."""
    from excb.distributed.collectives import all_succeed
    from excb.hub.loading import load

    row = find(name)
    if row is not None and local_folder(row) is None:
        return Subject.of_row(row)
    return Subject.of_entry(name, all_succeed(lambda: load(name)).entry)


def _row(name: str) -> Checkpoint:
    if (row := find(name)) is None:
        raise UserError(f"a claim is about '{name}', which no catalogue knows: `excb-zoo import` can add it")
    return row
