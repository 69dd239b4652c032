"""The command line of `excb-pretrain`: which command a line runs, where overrides may stand, and what is refused."""

import pytest

from excb.pretrain.__main__ import COMMANDS, main, parse_command_line


@pytest.mark.parametrize(
    ("line", "command", "recipe", "overrides"),
    [
        ("rn18_small --data D", "train", "rn18_small", []),
        ("train rn18_small --data D", "train", "rn18_small", []),
        ("--data D rn18_small a.b=1", "train", "rn18_small", ["a.b=1"]),
        ("rn18_small a=1 --data D b=2 --quiet c=3", "train", "rn18_small", ["a=1", "b=2", "c=3"]),
        ("rn18_small --data list", "train", "rn18_small", []),
        ("show rn18_small --json a=1", "show", "rn18_small", ["a=1"]),
        ("plan --gpus 8 rn18_small a=1 --measure", "plan", "rn18_small", ["a=1"]),
        ("quickstart a=1 --json b=2", "quickstart", "quickstart", ["a=1", "b=2"]),
        ("--gpus 0 quickstart a=1", "quickstart", "quickstart", ["a=1"]),
        ("--json show rn18_small", "show", "rn18_small", []),
        ("doctor --data D rn18_small a=1 --all b=2", "doctor", "rn18_small", ["a=1", "b=2"]),
        ("doctor --data D", "doctor", None, []),
    ],
)
def test_a_line_names_a_command_a_recipe_and_overrides(
    line: str, command: str, recipe: str | None, overrides: list[str]
) -> None:
    options = parse_command_line(line.split())
    assert (options.command.name, options.recipe, options.overrides) == (command, recipe, overrides)


def test_other_processes_are_started_with_the_same_line() -> None:
    line = ["rn18_small", "--data", "D", "optim.epochs=1", "--gpus", "2"]
    assert parse_command_line(line).arguments == line


def test_a_study_takes_overrides_between_options() -> None:
    options = parse_command_line(["study", "form", "--data", "D", "optim.epochs=1", "--seeds", "2", "run.seed=4"])
    assert (options.name, options.overrides, options.seeds) == ("form", ["optim.epochs=1", "run.seed=4"], 2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("shw quickstart", "no recipe or command is called 'shw'; did you mean 'show'?"),
        ("rn18_smal --data D", "no recipe or command is called 'rn18_smal'; did you mean 'rn18_small'?"),
        ("--data D rn18_smal", "no recipe is called 'rn18_smal'; did you mean 'rn18_small'?"),
        ("show rn18_smal", "no recipe is called 'rn18_smal'; did you mean 'rn18_small'?"),
        ("rn18_small", "--data DIR"),
        (
            "rn18_small --dta D",
            "unrecognized arguments: --dta D; did you mean '--data'? (see `excb-pretrain train --help`)",
        ),
        ("list rn18_small", "unrecognized arguments: rn18_small (see `excb-pretrain list --help`)"),
        ("show rn18_small --measure", "unrecognized arguments: --measure (see `excb-pretrain show --help`)"),
        ("plan rn18_small --slurm time=1", "unrecognized arguments: --slurm time=1"),
        ("rn18_small --gpus two", "--gpus"),
        ("rn18_small --gpus -1", "--gpus takes 0"),
        ("rn18_small x --data D", "'x' is not an override"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("excb-pretrain: error: ")
    assert output.err.count("\n") == 1
    assert words in output.err


def test_help_of_the_program_names_every_command_and_of_a_command_its_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert [command.name for command in COMMANDS if f"\n    {command.name}" not in shown] == []
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    assert "excb-pretrain doctor rn50_400ep --data DIR --out RUN --gpus 8 " in capsys.readouterr().out
