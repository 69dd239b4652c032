"""How claims, plans and verdicts are shown: tables for people, JSON for machines."""

import json
from collections.abc import Iterable, Sequence

from excb.console import Reporter
from excb.hub.catalogue import find

from ..published.claim import Claim
from .costs import describe
from .verdicts import Verdict

# The command line of an evaluation, without the program and with DIR for the images, and the claims that it answers.
Plan = tuple[list[str], list[Claim]]


def listing(claims: Sequence[tuple[Claim, str]], reporter: Reporter, *, as_json: bool) -> None:
    """`--list`: what is claimed, and why it cannot be checked, or an empty string where it can."""
    if as_json:
        listed = [claim.to_dict() | {"status": _status(why), "why": why} for claim, why in claims]
        reporter.answer(json.dumps({"claims": listed}, indent=2, ensure_ascii=False))
        return
    rows = [[c.id, c.value, c.method, c.checkpoint, c.protocol.name, _status(why)] for c, why in claims]
    runnable = sum(not why for _, why in claims)
    title = f"{len(rows)} claims, {runnable} of them runnable (--dry-run says why others are not)"
    reporter.table(title, ["claim", "published", "method", "checkpoint", "protocol", "status"], rows)


def _status(why: str) -> str:
    return "cannot" if why else "runnable"


def dry_run(plans: Sequence[Plan], cannot: Sequence[Verdict], reporter: Reporter, *, as_json: bool) -> None:
    """`--dry-run`: every evaluation with what it fetches, reads and computes; of the rest, why it cannot be made."""
    if as_json:
        runs = [
            {
                "command": ["excb-eval", *command],
                "claims": [claim.id for claim in claims],
                "costs": _costs(command, claims),
            }
            for command, claims in plans
        ]
        why = [{"claim": v.claim.id, "why": v.why, "command": v.claim.command} for v in cannot]
        reporter.answer(json.dumps({"runs": runs, "cannot": why}, indent=2, ensure_ascii=False))
        return
    for command, claims in plans:
        reporter.answer(f"excb-eval {' '.join(command)}")
        reporter.answer(f"  answers: {', '.join(f'{claim.id} ({claim.value})' for claim in claims)}")
        for line in _costs(command, claims):
            reporter.answer(f"  {line}")
    _reasons(cannot, reporter)


def verdicts(judged: Sequence[Verdict], reporter: Reporter, *, as_json: bool) -> None:
    """What was judged of every claim."""
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


def _costs(command: Sequence[str], claims: Sequence[Claim]) -> list[str]:
    """What an evaluation takes; a checkpoint that no catalogue knows is the user's own, and like the claim's."""
    name = command[command.index("--ckpt") + 1]
    row, usual = find(name), find(claims[0].checkpoint)
    if row is not None:
        return describe(claims[0], row)
    assert usual is not None
    return [f"download: nothing, {name} is your own", *describe(claims[0], usual)[1:]]


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
