"""How claims, plans and verdicts are shown: tables for people, JSON for machines."""

import json
from collections.abc import Iterable, Sequence

from excb.console import Reporter, plural
from excb.hub.catalogue import find

from ..published.claim import Claim
from .costs import describe_cost
from .runs import EvaluationRun
from .verdicts import Verdict


def listing(
    claims: Sequence[Claim],
    runs: Sequence[EvaluationRun],
    verdicts: Sequence[Verdict],
    reporter: Reporter,
    *,
    as_json: bool,
) -> None:
    """`--list`: claims in their order, those that the runs answer and those that cannot be checked, with the reason."""
    reasons = dict.fromkeys((claim.id for run in runs for claim in run.claims), "")
    reasons |= {verdict.claim.id: verdict.why for verdict in verdicts}
    shown = [(claim, reasons[claim.id]) for claim in claims if claim.id in reasons]
    if as_json:
        listed = [claim.to_dict() | {"status": _status(why), "why": why} for claim, why in shown]
        reporter.answer(json.dumps({"claims": listed}, indent=2, ensure_ascii=False))
        return
    rows = [[c.id, c.value, c.method, c.checkpoint, c.protocol.name, _status(why)] for c, why in shown]
    runnable = sum(not why for _, why in shown)
    title = f"{plural(len(rows), 'claim')}, {runnable} of them runnable (--dry-run says why others are not)"
    reporter.table(title, ["claim", "published", "method", "checkpoint", "protocol", "status"], rows)


def _status(why: str) -> str:
    return "cannot" if why else "runnable"


def dry_run(runs: Sequence[EvaluationRun], cannot: Sequence[Verdict], reporter: Reporter, *, as_json: bool) -> None:
    """`--dry-run`: every evaluation with what it fetches, reads and computes; of the rest, why it cannot be made."""
    if as_json:
        planned = [
            {
                "command": ["excb-eval", *run.words("DIR")],
                "claims": [claim.id for claim in run.claims],
                "costs": _costs(run),
                "differs": _differences(run),
            }
            for run in runs
        ]
        why = [{"claim": v.claim.id, "why": v.why, "command": v.claim.command} for v in cannot]
        reporter.answer(json.dumps({"runs": planned, "cannot": why}, indent=2, ensure_ascii=False))
        return
    for run in runs:
        reporter.answer(f"excb-eval {' '.join(run.words('DIR'))}")
        reporter.answer(f"  answers: {', '.join(f'{claim.id} ({claim.value})' for claim in run.claims)}")
        for line in _costs(run):
            reporter.answer(f"  {line}")
        for line in _differences(run):
            reporter.answer(f"  differs from the source: {line}")
    _reasons(cannot, reporter)


def verdicts(judged: Sequence[Verdict], reporter: Reporter, *, as_json: bool) -> None:
    """Print the verdict on every claim."""
    counts = {word: sum(verdict.word == word for verdict in judged) for word in ("PASS", "FAIL", "CANNOT")}
    if as_json:
        listed = [verdict.claim.to_dict() | verdict.to_dict() for verdict in judged]
        reporter.answer(json.dumps({"counts": counts, "claims": listed}, indent=2, ensure_ascii=False))
        return
    rows = [
        [
            verdict.claim.id,
            verdict.claim.value,
            "" if verdict.measured is None else f"{verdict.measured:.2f}",
            "" if verdict.interval is None else "{:.2f} to {:.2f}".format(*verdict.interval),
            "" if verdict.tolerance is None else f"{verdict.tolerance:.2f}",
            verdict.word,
        ]
        for verdict in judged
    ]
    title = ", ".join(f"{number} {word}" for word, number in counts.items())
    reporter.table(title, ["claim", "published", "measured", "95 % interval", "allowed", "verdict"], rows)
    _reasons([verdict for verdict in judged if verdict.why], reporter)


def _costs(run: EvaluationRun) -> list[str]:
    """The cost of a run. A checkpoint outside the catalogue is the user's own, and costs what the claim's costs."""
    claim = run.claims[0]
    if (row := find(run.subject)) is not None:
        return describe_cost(claim, row)
    usual = find(claim.checkpoint)
    assert usual is not None
    return [f"download: nothing, {run.subject} is your own", *describe_cost(claim, usual)[1:]]


def _differences(run: EvaluationRun) -> list[str]:
    """In what a run differs from how its claims were measured, each difference once."""
    return list(dict.fromkeys(line for claim in run.claims for line in claim.differences))


def _reasons(judged: Iterable[Verdict], reporter: Reporter) -> None:
    """Each reason once, with the claims that it is the reason of, and how their network would be trained."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for verdict in judged:
        claim = verdict.claim
        train = f"train it: {claim.command}" if verdict.word == "CANNOT" and claim.command else ""
        train += "; then check it with --ckpt RUN" if train and claim.protocol.command else ""
        reasons.setdefault((verdict.word, verdict.why, train), []).append(claim.id)
    for (word, why, train), names in reasons.items():
        reporter.answer(f"{word} {', '.join(names)}: {why}")
        if train:
            reporter.answer(f"  {train}")
