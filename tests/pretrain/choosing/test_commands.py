"""The commands that follow from an experiment break no rule of the table, whatever the number of images."""

import shlex
from dataclasses import replace

import pytest

from excb.pretrain import overrides
from excb.pretrain.choosing.commands import next_steps
from excb.pretrain.choosing.recommendation import recommend
from excb.pretrain.plan.choice import RecipeChoice
from excb.pretrain.run.rules import SetFacts, breaches
from tests.pretrain.choosing.test_recommendation import FAST, FROZEN, SLOW, experiment, trial


@pytest.mark.parametrize("images", [150, 406, 2640, 20_000])
def test_full_runs_break_no_rule(images: int) -> None:
    tried = experiment(
        FROZEN,
        replace(trial("large adapted", "adapted", 61, SLOW, "large"), speed=20.0),
        replace(trial("student", "distilled", 45, FAST, "large"), speed=200.0),
    )
    choice = RecipeChoice("photos_small", (), "photos", images, 128, 1.0)
    commands = [shlex.split(step.command) for step in next_steps(tried, recommend(tried), choice)]
    judged = {words[1]: words for words in commands if words[0] == "excb-pretrain"}
    assert set(judged) == {"adapt", "distil"}
    for name, words in judged.items():
        recipe = overrides.apply(overrides.find_recipe(name), [word for word in words[5:] if "=" in word])
        assert not [
            breach.line for breach in breaches(recipe, SetFacts(images)) if breach.rule in ("clusters", "teacher")
        ]
