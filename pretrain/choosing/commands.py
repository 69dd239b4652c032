"""The commands that follow from an experiment, and the hours that each would take on this machine."""

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from .. import overrides
from ..plan.choice import MOST_STEPS, RecipeChoice
from ..run.rules import clusters_for, followed_epochs, too_many_clusters
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
        ranges = [word for value in choice.declared for word in ("--range", value.partition("=")[2])]
        words = ["excb-eval", "embed", "--ckpt", trial.name, *choice.named, *ranges, "--out", "embeddings.npz"]
        return shlex.join(words), None
    if trial.kind == "pretrained":
        changed = {_field(value) for value in trial.values}
        start = [choice.recipe, *choice.named, *(["--against", against.name] if against is not None else [])]
        values = [*(value for value in choice.values if _field(value) not in changed), *trial.values]
        epochs = overrides.apply(overrides.find_recipe(choice.recipe), values).optim.epochs
    else:
        name = "adapt" if trial.kind == "adapted" else "distil"
        own = overrides.find_recipe(name)
        steps = max(1, choice.images // own.optim.batch)
        epochs = own.optim.epochs
        epochs = (
            max(epochs, followed_epochs(own, steps)) if name == "adapt" else max(5, min(epochs, MOST_STEPS // steps))
        )
        start = [name, trial.base, *choice.named]
        values = [*choice.declared, *trial.values, *([f"optim.epochs={epochs}"] if epochs != own.optim.epochs else [])]
        if too_many_clusters(own, choice.images):
            values.append(f"method.clusters={clusters_for(choice.images)}")
    return shlex.join(["excb-pretrain", *start, *values]), epochs * choice.images / trial.speed / 3600


def _field(value: str) -> str:
    return value.partition("=")[0]
