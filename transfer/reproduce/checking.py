"""Measure what was published of a checkpoint, and say PASS, FAIL or CANNOT."""

import argparse
from collections.abc import Container, Sequence
from dataclasses import replace

import torch

from excb.console import Reporter
from excb.distributed.collectives import all_succeed
from excb.errors import UserError, is_rank0
from excb.hub.loading import obtain

from .. import protocols
from ..data.classes import OtherClassesError
from ..old_protocol import Measured
from ..published import registry
from ..published.claim import Claim
from . import tables
from .runs import EvaluationRun, claims_of, plan
from .verdicts import Verdict, Word, judge, other_images

# Options of this machine, which every protocol that has them takes from `reproduce`.
_OF_MACHINE = ("workers", "batch_size", "feature_precision", "cache", "no_cache", "quiet")


def reproduce(args: argparse.Namespace, device: torch.device, reporter: Reporter) -> set[Word]:
    """`excb-eval reproduce` in this process; all ranks call this.

    Returns:
        The verdicts; none where only a list or a plan was asked for.

    Raises:
        UserError: there is no such claim, or its images are not named or unusable.
    """
    if not (args.list or args.dry_run):
        verdicts = check(args, device, reporter)
        if is_rank0():
            tables.verdicts(verdicts, reporter, as_json=args.json)
        return {verdict.word for verdict in verdicts}
    claims, runs, verdicts = _planned(args)
    order = {claim.id: number for number, claim in enumerate(claims)}
    if is_rank0():
        if args.list:
            status = [(claim, "") for run in runs for claim in run.claims] + [(v.claim, v.why) for v in verdicts]
            tables.listing(sorted(status, key=lambda s: order[s[0].id]), reporter, as_json=args.json)
        else:
            tables.dry_run(runs, verdicts, reporter, as_json=args.json)
    return set()


def check(args: argparse.Namespace, device: torch.device, reporter: Reporter) -> list[Verdict]:
    """Measure what the options of `excb-eval reproduce` name, and judge it; all ranks call this.

    Raises:
        UserError: there is no such claim, or its images are not named or unusable.
    """
    claims, runs, verdicts = _planned(args)
    order = {claim.id: number for number, claim in enumerate(claims)}
    places = _places(args.data, runs, {claim.data.name for claim in registry.claims(args.claims)})
    for run in runs:
        verdicts += _check(run, places, args, device, reporter)
    return sorted(verdicts, key=lambda verdict: order[verdict.claim.id])


def _planned(args: argparse.Namespace) -> tuple[list[Claim], list[EvaluationRun], list[Verdict]]:
    """The claims that are asked for, the runs that answer them, and verdicts of those that cannot be checked."""
    claims = claims_of(args)
    runs, verdicts = plan(claims, args.ckpt)
    runs = [] if args.status == "cannot" else runs
    verdicts = [] if args.status == "runnable" else verdicts
    return claims, runs, verdicts


def _places(named: Sequence[str], runs: Sequence[EvaluationRun], sets: Container[str]) -> dict[str, str]:
    """The folder of each run's images, by the name of the set: folders without a name go to the sets in order."""
    needed = list(dict.fromkeys(run.claims[0].data.name for run in runs))
    places = {
        name: folder for name, equals, folder in (word.partition("=") for word in named) if name in sets and equals
    }
    unnamed = [word for word in named if word.partition("=")[0] not in places]
    places |= dict(zip((name for name in needed if name not in places), unnamed, strict=False))
    if needed and not any(name in places for name in needed):
        claim = runs[0].claims[0]
        raise UserError(f"name the images of {claim.data.title} with --data DIR: {claim.id} is about them")
    return places


def _check(
    run: EvaluationRun, places: dict[str, str], args: argparse.Namespace, device: torch.device, reporter: Reporter
) -> list[Verdict]:
    images = run.claims[0].data
    if images.name not in places:
        return _cannot(run, f"the images of {images.title} are not named: add --data {images.name}=DIR")
    try:
        all_succeed(lambda: obtain(run.subject))
    except UserError as error:
        return _cannot(run, str(error))
    if isinstance(measured := _measure(run, places[images.name], args, device, reporter), str):
        return _cannot(run, measured)
    result, write = measured
    verdicts = [judge(claim, result) for claim in run.claims]
    if args.out is not None:
        claims = {verdict.claim.id: verdict.to_dict() for verdict in verdicts}
        files = write(replace(result, claims=claims), args.out / f"{run.name}.json")
        reporter.note(f"wrote {', '.join(map(str, files))}")
    return verdicts


def _cannot(run: EvaluationRun, why: str) -> list[Verdict]:
    return [Verdict(claim=claim, word="CANNOT", why=why) for claim in run.claims]


def _measure(
    run: EvaluationRun, folder: str, args: argparse.Namespace, device: torch.device, reporter: Reporter
) -> Measured | str:
    """The run's result and what writes it, or why it is no evidence: images or an engine that are not here."""
    command = run.command(folder)
    reporter.note(f"excb-eval {' '.join(command)}")
    protocol, options = protocols.parse(command)
    if args.out is not None and protocol.state:
        protocol, options = protocols.parse([*command, protocol.state, str(args.out / f"{run.name}.state")])
    for name in _OF_MACHINE:
        if hasattr(options, name):
            setattr(options, name, getattr(args, name))
    if why := protocol.missing(options):
        return why
    images = run.claims[0].data
    try:
        evaluation = protocol.open(options, device, reporter, results=args.out)
    except OtherClassesError:
        return f"these images are not {images.title}: their classes are others"  # the claim wrote --rename, nobody else
    return other_images(images, evaluation.data) or evaluation.measure(False)
