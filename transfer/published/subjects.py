"""The checkpoint that a claim is checked on, and why it may be no evidence: other training, or no weights at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from excb.checkpoint.teachers import teachers_in
from excb.hub.catalogue import Checkpoint, find, method_of
from excb.settings import MethodSettings

from .claim import MULTI, Claim
from .registry import claims

if TYPE_CHECKING:
    from excb.hub.backbone import Entry


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A checkpoint, as far as it is known how it was trained."""

    name: str  # what `excb.load` takes
    method: str | None = None  # that trained it; None is not known, here and below
    architecture: str | None = None  # of the backbone
    epochs: int | None = None  # of pretraining that were done
    batch: int | None = None  # images per step
    crops: str | None = None  # as "2x224+6x96"
    # every option that it was trained with, by section; empty where unknown
    recipe: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""  # why there are no weights of it; empty where there are

    @classmethod
    def of_row(cls, row: Checkpoint) -> "Subject":
        """A row of the catalogue; nothing is fetched."""
        from excb.hub.resolve import local_folder

        there = local_folder(row) is not None or bool(row.locations)
        named = "://" in row.source  # published, but not so that it could be fetched as it is
        note = row.note if row.source == "unpublished" or named else ""
        none = f"the weights of {row.name} cannot be fetched" if named else f"no weights of {row.name} are public"
        return cls(
            name=row.name,
            method=None if row.method == "unknown" else row.method,
            architecture=row.architecture.name,
            epochs=row.epochs,
            batch=row.batch,
            crops=row.crops,
            missing="" if there else f"{none}. {note}".strip(". "),
        )

    @classmethod
    def of_entry(cls, name: str, entry: "Entry") -> "Subject":
        """A loaded checkpoint: what its catalogue row says, or else the recipe of its run."""
        recipe, row = entry.recipe, entry.checkpoint
        facts: dict[str, Any] = {"method": method_of(recipe) if recipe else None}
        if recipe:
            optim, views = recipe["optim"], recipe["views"]
            crops = f"{views['global_views']}x{views['global_size']}"
            crops += f"+{views['local_views']}x{views['local_size']}" if views["local_views"] else ""
            done = optim["epochs"] if entry.epoch is None else min(optim["epochs"], int(entry.epoch))
            facts |= {"epochs": done, "batch": optim["batch"], "crops": crops}
        if row is not None:
            stated = {each: getattr(row, each) for each in ("method", "epochs", "batch", "crops")}
            known = {each: value for each, value in stated.items() if value not in (None, "unknown")}
            facts |= known | ({"method": facts["method"]} if teachers_in(recipe) else {})  # a student is called one
        return cls(name=name, architecture=entry.architecture.name, recipe=recipe, **facts)


def why_not_checked(claim: Claim, subject: Subject) -> str:
    """Why a claim cannot be checked on a checkpoint; empty where it can."""
    return (
        subject.missing
        or _other_training(claim, subject)
        or _other_recipe(claim, subject.recipe)
        or claim.protocol.cannot
    )


def _other_training(claim: Claim, subject: Subject) -> str:
    """In what the checkpoint's pretraining differs from the claim's, or may."""
    if subject.architecture not in (None, claim.architecture):
        return f"{subject.name} is a {subject.architecture}, the claim is about a {claim.architecture}"
    if subject.method not in (None, claim.method):
        return f"{subject.name} was trained by {subject.method}, the claim is about {claim.method}"
    row = find(claim.checkpoint)
    for name in ("epochs", "batch", "crops"):
        wanted = getattr(claim, name) or getattr(row, name, None)  # what one source does not state, the other may
        have = getattr(subject, name)
        same = have == wanted or (wanted == MULTI and have is not None and "+" in have)
        if wanted is None or same:
            continue
        claimed = "crops of several sizes" if wanted == MULTI else f"{name} {wanted}"
        if have is None:
            return f"with what {name} {subject.name} was trained is not stated, the claim is about {claimed}"
        return f"{subject.name} was trained with {name} {have}, the claim is about {claimed}"
    return ""


def _other_recipe(claim: Claim, recipe: Mapping[str, Any]) -> str:
    """Which of the options that the paper ablates the run has otherwise than the claim."""
    if not claim.recipe or not recipe:
        return ""
    name, *overrides = claim.recipe.split()
    if recipe["name"].removesuffix("_official") != name:
        return f"the run's recipe is {recipe['name']}, the claim's {name}"
    own = dict(override.split("=") for override in overrides)
    ablated = {word for each in claims() if each.recipe for word in each.recipe.split()[1:]}
    for option, value in sorted(word.split("=") for word in ablated):
        section, _, field_name = option.partition(".")
        have = _spelt(recipe[section][field_name])
        usual = _spelt(getattr(MethodSettings(), field_name)) if section == "method" else None
        wanted = own.get(option, usual)
        # Of what is not an option of the method, the core knows no default: then another claim's value is refused.
        if have != wanted if wanted is not None else have == value:
            return f"the run has {option}={have}, the claim {wanted or 'another value'}"
    return ""


def _spelt(value: Any) -> str:
    """A value as overrides spell it: true, 65536, 1."""
    return (
        str(value).lower() if isinstance(value, bool) else f"{value:.10g}" if isinstance(value, float) else str(value)
    )
