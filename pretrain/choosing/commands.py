"""The commands that follow from an experiment, and the hours that each would take on this machine."""

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from .. import overrides
from ..plan.choice import MOST_STEPS, RecipeChoice
from .recommendation import Recommendation
from .trials import Experiment, Trial


@dataclass(frozen=True)
class NextStep:
    """A command and its cost."""

    what: str  # it does
    command: str
    hours: float | None  # of training; None if it trains nothing
    recommended: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def next_steps(experiment: Experiment, recommendation: Recommendation, choice: RecipeChoice) -> list[NextStep]:
    """The recommended command first, then those of the other ways that were tried.

    Args:
        experiment: what was measured.
        recommendation: what follows from it.
        choice: the proposal without an experiment, whose images and values full runs have.
    """
    trials = [trial for kind in ("frozen", "adapted", "distilled", "pretrained") if (trial := experiment.best(kind))]
    chosen = recommendation.trial
    against = experiment.best("frozen")
    steps = []
    for trial in sorted(trials, key=lambda trial: trial is not chosen):
        command, hours = _command(trial, choice, against)
        steps.append(NextStep(_what(trial), command, hours, trial is chosen))
    return steps


def _what(trial: Trial) -> str:
    actions = {
        "frozen": f"embed your images with {trial.name} as it is",
        "adapted": f"adapt {trial.base}",
        "distilled": f"teach a small network what {trial.base} sees",
        "pretrained": "pretrain from random weights",
    }
    return actions[trial.kind]


def _command(trial: Trial, choice: RecipeChoice, against: Trial | None) -> tuple[str, float | None]:
    """The full run of what was tried, and its hours."""
    if trial.kind == "frozen":
        command = ["excb-eval", "embed", "--ckpt", trial.name, "--data", choice.data, "--out", "embeddings.npz"]
        return shlex.join(command), None
    if trial.kind == "pretrained":
        kept = [value for value in choice.values if _field(value) not in {_field(each) for each in trial.values}]
        words, epochs = [choice.recipe, *kept, *trial.values], _epochs([*choice.values])
    else:
        recipe = "adapt" if trial.kind == "adapted" else "distil"
        own = overrides.find_recipe(recipe).optim
        steps = max(1, choice.images // own.batch)
        epochs = own.epochs if recipe == "adapt" else max(5, min(own.epochs, round(MOST_STEPS / steps)))
        words = [recipe, trial.base, *trial.values, *([f"optim.epochs={epochs}"] if epochs != own.epochs else [])]
    compared = ["--against", against.name] if against is not None and trial.kind == "pretrained" else []
    command = ["excb-pretrain", words[0], *words[1:2], "--data", choice.data, *compared, *words[2:]]
    if trial.kind == "pretrained":
        command = ["excb-pretrain", words[0], "--data", choice.data, *compared, *words[1:]]
    hours = epochs * choice.images / trial.speed / 3600 if epochs and trial.speed else None
    return shlex.join(command), hours


def _field(value: str) -> str:
    return value.partition("=")[0]


def _epochs(values: list[str]) -> int:
    """The epochs that overrides state."""
    return next((int(value.partition("=")[2]) for value in values if _field(value) == "optim.epochs"), 0)
