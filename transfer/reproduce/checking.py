"""Measure what was published of a checkpoint, and say PASS, FAIL or CANNOT."""

from collections.abc import Container, Sequence
from dataclasses import fields, replace
from pathlib import Path

import torch

from excb.console import Reporter
from excb.distributed.collectives import all_succeed
from excb.errors import UserError, is_rank0
from excb.hub.loading import obtain

from ..data.classes import OtherClassesError
from ..options import MachineOptions
from ..protocol import Measurement
from ..published import registry
from ..shell import Shell
from . import tables
from .options import ReproduceOptions
from .runs import EvaluationRun, planned
from .verdicts import Verdict, Word, judge, other_images


def run_reproduction(options: ReproduceOptions, shell: Shell, device: torch.device) -> set[Word]:
    """`excb-eval reproduce` in this process; all ranks call this.

    Returns:
        The verdicts; none where only a list or a plan was asked for.

    Raises:
        UserError: there is no such claim, or its images are not named or unusable.
    """
    reporter = shell.reporter
    if not (options.listed or shell.dry_run):
        verdicts = check_claims(options, device, reporter, results=shell.out, overwrite=shell.overwrite)
        if is_rank0():
            tables.verdicts(verdicts, reporter, as_json=shell.json)
        return {verdict.word for verdict in verdicts}
    claims, runs, verdicts = planned(options)
    if is_rank0():
        if options.listed:
            tables.listing(claims, runs, verdicts, reporter, as_json=shell.json)
        else:
            tables.dry_run(runs, verdicts, reporter, as_json=shell.json)
    return set()


def check_claims(
    options: ReproduceOptions,
    device: torch.device,
    reporter: Reporter,
    *,
    results: Path | None = None,
    overwrite: bool = False,
) -> list[Verdict]:
    """Measure what the options of `excb-eval reproduce` name, and judge it; all ranks call this.

    Raises:
        UserError: there is no such claim, or its images are not named or unusable.
    """
    claims, runs, verdicts = planned(options)
    order = {claim.id: number for number, claim in enumerate(claims)}
    places = _places(options.data, runs, {claim.data.name for claim in registry.claims(options.claims)})
    for run in runs:
        verdicts += _check(run, places, options, device, reporter, results=results, overwrite=overwrite)
    return sorted(verdicts, key=lambda verdict: order[verdict.claim.id])


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
    run: EvaluationRun,
    places: dict[str, str],
    options: ReproduceOptions,
    device: torch.device,
    reporter: Reporter,
    *,
    results: Path | None,
    overwrite: bool,
) -> list[Verdict]:
    images = run.claims[0].data
    if images.name not in places:
        return _cannot(run, f"the images of {images.title} are not named: add --data {images.name}=DIR")
    try:
        all_succeed(lambda: obtain(run.subject))
    except UserError as error:
        return _cannot(run, str(error))
    if isinstance(
        made := _measure(run, places[images.name], options, device, reporter, results=results, overwrite=overwrite), str
    ):
        return _cannot(run, made)
    verdicts = [judge(claim, made.result) for claim in run.claims]
    if results is not None:
        claims = {verdict.claim.id: verdict.to_dict() for verdict in verdicts}
        files = made.write(replace(made.result, claims=claims), results / f"{run.name}.json")
        reporter.note(f"wrote {', '.join(map(str, files))}")
    return verdicts


def _cannot(run: EvaluationRun, why: str) -> list[Verdict]:
    return [Verdict(claim=claim, word="CANNOT", why=why) for claim in run.claims]


def _measure(
    run: EvaluationRun,
    folder: str,
    options: ReproduceOptions,
    device: torch.device,
    reporter: Reporter,
    *,
    results: Path | None,
    overwrite: bool,
) -> Measurement | str:
    """The run's measurement, or why it is not evidence: images or an engine that are not here."""
    evaluation = run.evaluation(folder)
    reporter.note(f"excb-eval {' '.join(run.words(folder))}")
    protocol, own = evaluation.protocol, evaluation.own
    if results is not None and protocol.state and protocol.keeps_state(own):
        own = replace(own, **{protocol.state: results / f"{run.name}.state"})
    taken = {each.name for each in fields(MachineOptions)} & {each.name for each in fields(protocol.shared)}
    shared = replace(evaluation.shared, **{name: getattr(options, name) for name in taken})
    if why := protocol.missing(own):
        return why
    images, evaluation = run.claims[0].data, replace(evaluation, shared=shared, own=own)
    try:
        out = None if results is None else results / f"{run.name}.json"
        task = evaluation.open(device, reporter, out=out, overwrite=overwrite)
    except OtherClassesError:
        return f"these images are not {images.title}: their classes are others"  # the claim wrote --rename, nobody else
    return other_images(images, task.describe()["data"]) or evaluation.measure(task, reporter)
