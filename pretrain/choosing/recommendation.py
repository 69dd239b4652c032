"""The recommendation that follows from an experiment: a network as it is, adapted, distilled, from scratch, or none."""

from dataclasses import dataclass, replace
from typing import Literal

from excb.console import plural
from excb.hub.catalogue import bundled_folder

from ..run.taught import CHEAPER
from .trials import Experiment, Trial

Action = Literal["use", "adapt", "distil", "pretrain", "undecided"]


@dataclass(frozen=True)
class Recommendation:
    """The action to take.

    Attributes:
        action: in one word.
        trial: the trial that it follows from; None if nothing is recommended.
        reason: why, with figures.
        remarks: what else follows, one sentence each.
    """

    action: Action
    trial: Trial | None
    reason: str
    remarks: tuple[str, ...] = ()


def recommend(experiment: Experiment) -> Recommendation:
    """Decide, as `_decided` does, and say which short runs ended with an error: without them less was compared."""
    decided = _decided(experiment)
    if not experiment.failed or not experiment.of("distilled", "adapted", "pretrained"):
        return decided  # where none was tried, the remarks say why
    name, why = next(iter(experiment.failed.items()))
    failed = f"{plural(len(experiment.failed), 'short run')} ended with an error, such as {name}: {why}"
    return replace(decided, remarks=(*decided.remarks, failed))


def _decided(experiment: Experiment) -> Recommendation:
    """Decide; only differences beyond chance count, and the best of several has to show more.

    A tie goes to a student that is as good as the frozen network and cheaper, else to the network adapted: what full
    runs gain, short ones do not show, with labels or without (docs/photographs.md).
    """
    reference = experiment.best("reference")
    assert reference is not None  # guessing is always there
    frozen = experiment.best("frozen")
    tries = len(experiment.of("frozen", "distilled", "pretrained", "adapted"))
    if frozen is None or not frozen.leads(reference, tries=tries):
        return _without_network(experiment, reference, frozen, tries)
    adapted, scratch, student = (experiment.best(kind) for kind in ("adapted", "pretrained", "distilled"))
    ahead = f"{_said(frozen)} is ahead of {_said(reference)}, the best reference without training"
    if adapted is not None and adapted.leads(frozen):
        reason = f"{ahead}, and a short run that adapts it gains {adapted.value - frozen.value:.1f} points more"
        return Recommendation("adapt", adapted, reason, tuple(_remarks(experiment, frozen)))
    if scratch is not None and scratch.leads(frozen, tries=len(experiment.of("pretrained"))):
        reason = f"already {_said(scratch)} is ahead of {_said(frozen)}, the best network at hand"
        return Recommendation("pretrain", scratch, reason, tuple(_remarks(experiment, frozen)))
    if student is not None and _replaces(student, frozen):
        reason = (
            f"already {_said(student)} is level with its teacher {_said(frozen)} within chance "
            f"({student.margin(frozen):.1f} points), and cheaper to use ({_price(student, frozen)})"
        )
        return Recommendation("distil", student, reason, tuple(_remarks(experiment, frozen)))
    if adapted is not None and not frozen.leads(adapted):
        reason = (
            f"{ahead}; a short run that adapts it is level with it ({adapted.value - frozen.value:+.1f} points), and "
            "full ones gained on three of four unlike sets and lost on none"
        )
        return Recommendation("adapt", adapted, reason, tuple(_remarks(experiment, frozen)))
    untried = _untried(experiment) if not experiment.of("distilled", "adapted", "pretrained") else []
    return Recommendation("use", frozen, ahead, (*_remarks(experiment, frozen), *untried))


def _without_network(experiment: Experiment, reference: Trial, frozen: Trial | None, tries: int) -> Recommendation:
    """Where no network at hand is ahead of what needs none."""
    run = experiment.best("distilled", "pretrained")
    ahead = f"ahead of {_said(reference)}, the best reference,"
    none = f"no network at hand is {ahead} by more than chance" if experiment.networks else "no trained network is here"
    small = experiment.networks == 0 if frozen is None else bundled_folder(frozen.name) is not None
    fetch = "fetch one to compare with, such as mobilenetv2 (`excb-zoo pull mobilenetv2`, 9 MB), and repeat this"
    remarks = [fetch] if small else []
    untried = frozen is None and bool(experiment.too_slow)
    if untried:
        none = f"no trained network was tried for lack of time ({', '.join(experiment.too_slow)})"
        remarks = ["repeat this with more --minutes: what a trained network can do comes first"]
    if run is not None and run.leads(reference, tries=tries):
        action: Action = "distil" if run.kind == "distilled" else "pretrain"
        return Recommendation(
            action, run, f"{none}, and already {_said(run)} is {ahead} after a short run", tuple(remarks)
        )
    if not experiment.of("distilled", "adapted", "pretrained"):
        more = () if untried else _untried(experiment)
        return Recommendation("undecided", None, f"{none}, and no short run was tried", (*remarks, *more))
    few = "label some dozen to some hundred of them (--labels FILE.csv)"
    return Recommendation(
        "undecided",
        None,
        f"{none}, and no short run is {ahead} by more than chance",
        tuple(remarks) if untried else (*remarks, "add images" if experiment.labelled else few),
    )


def _untried(experiment: Experiment) -> list[str]:
    """A remark on why no short run was tried, where that can be changed."""
    if experiment.failed:
        name, why = next(iter(experiment.failed.items()))
        return [f"fix what kept short runs from being tried, and repeat this ({name}: {why})"]
    return [] if experiment.stopped else ["repeat this with more --minutes, so that short runs are tried"]


def _remarks(experiment: Experiment, frozen: Trial) -> list[str]:
    """Everything else that a user would want to know."""
    remarks = []
    adapted, student, scratch = (experiment.best(kind) for kind in ("adapted", "distilled", "pretrained"))
    if adapted is not None and not adapted.leads(frozen):
        lead = frozen.value - adapted.value
        if frozen.leads(adapted):
            remarks.append(f"a short run that adapts {frozen.name} lost {lead:.1f} points")
        else:
            remarks.append(
                f"until a full run has adapted {frozen.name}, use it as it is; its verdict says whether it gained, "
                "and labelled images of another day or place (--monitor) say it better (docs/adapt.md)"
            )
    if student is not None and student.cost is not None and frozen.cost is not None and _cheaper(student, frozen):
        kept = 100 * student.value / max(frozen.value, 1e-9)
        remarks.append(
            f"if time or size decides: {student.name} has {student.value:.1f} % after a short run of "
            f"{plural(student.seen, 'image')}, {kept:.0f} % of that, at {_price(student, frozen)}; a full run "
            "keeps more"
        )
    if scratch is not None and frozen.leads(scratch):
        lead = frozen.value - scratch.value
        remarks.append(
            f"from random weights, {_said(scratch)} is {lead:.1f} points behind after a short run of "
            f"{plural(scratch.seen, 'image')}"
        )
    if not experiment.labelled:
        remarks.append(
            "without labels this says how well features find an altered copy of an image again, not what they say of "
            "its subject: a few hundred labels (--labels FILE.csv, columns path and label) decide better"
        )
    return remarks


def _said(trial: Trial) -> str:
    return f"{trial.name} ({trial.value:.1f} %)"


def _replaces(student: Trial, frozen: Trial) -> bool:
    return not frozen.leads(student) and _cheaper(student, frozen)


def _cheaper(student: Trial, frozen: Trial) -> bool:
    assert student.cost is not None
    assert frozen.cost is not None
    return student.cost.milliseconds < CHEAPER * frozen.cost.milliseconds


def _price(student: Trial, frozen: Trial) -> str:
    assert student.cost is not None
    assert frozen.cost is not None
    share = student.cost.milliseconds / max(frozen.cost.milliseconds, 1e-9)
    return f"{student.cost.milliseconds:.2g} ms an image, {100 * share:.0f} % of its time"
