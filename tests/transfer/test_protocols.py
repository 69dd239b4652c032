"""Tests of the table of protocols: one line adds one, records are consistent, and no other file knows their names."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from excb.errors import UserError
from excb.option_parser import of_arguments
from excb.transfer import protocols
from excb.transfer.cli import program
from excb.transfer.leaderboard.board import FigureSource, MeasuredResult
from excb.transfer.leaderboard.sorting import boards
from excb.transfer.protocol import Family, FigureKind
from excb.transfer.protocols import PROTOCOLS, families, kind_of
from excb.transfer.published.registry import claims
from excb.transfer.runner import Evaluation, of_python
from tests.transfer.result_files import result

TRANSFER = Path(protocols.__file__).parent
ROOMS = (
    "knn",
    "retrieval",
    "instances",
    "linear",
    "layers",
    "robustness",
    "dense",
    "finetuning",
    "detection",
    "clusters",
)
PAPERS_FIGURE = "leaderboard/figure.py"  # draws the paper's Figure 2, which is of linear accuracy


def test_no_file_outside_their_rooms_names_a_protocol() -> None:
    names = set(PROTOCOLS)
    offences = [
        file.relative_to(TRANSFER).as_posix()
        for file in TRANSFER.rglob("*.py")
        if file.relative_to(TRANSFER).parts[0] not in ROOMS and names & strings(file)
    ]
    assert offences == [PAPERS_FIGURE]


def strings(file: Path) -> set[str]:
    """All strings of a file's code. A docstring is one as a whole, whatever it quotes."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_names_of_protocols_families_and_steps_are_unique() -> None:
    steps = [name for protocol in PROTOCOLS.values() if protocol.in_suite for name in protocol.in_suite.names]
    for names in ([each.name for each in PROTOCOLS.values()], [each.name for each in families()], steps):
        assert len(set(names)) == len(names)
    assert [each.name for each in PROTOCOLS.values()] == [*PROTOCOLS]


def test_every_claim_that_a_command_measures_has_its_protocol_and_its_table() -> None:
    for claim in claims():
        if claim.protocol.command:
            kind, protocol = kind_of(claim.figure), protocols.of_command(claim.protocol.command)
            if protocol is not None and not protocol.families:  # of clusters: no table ranks them
                continue
            assert kind is not None
            assert protocol is not None
            assert kind.family in [family.name for family in protocol.families]
            assert protocol.claim_fields(dict(claim.protocol.options), kind)


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("knn", "knn"),
        ("linear_fast", "linear"),
        ("semisup-frozen", "semisup"),
        ("linearly", None),
        ("all", None),
    ],
)
def test_results_belong_to_the_protocol_that_made_them(made: str, name: str | None) -> None:
    protocol = protocols.protocol_of_result(made)
    assert (None if protocol is None else protocol.name) == name


def test_python_and_the_command_line_describe_the_same_evaluation() -> None:
    """All that a result depends on is one value, whoever asks for it."""
    knn = protocols.protocol_named("knn")
    args = program(["knn"]).parse_args(["knn", "--ckpt", "x", "--k", "5", "--rename", "a=b", "--pixels"])
    typed = Evaluation(knn, of_arguments(knn.shared, args), of_arguments(knn.options, args))
    assert of_python(knn, {"ckpt": "x", "k": 5, "rename": {"a": "b"}, "pixels": True}) == typed


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ckpt": "x", "percent": 1}, "knn has no option percent"),
        ({"ckpt": "x", "piksels": True}, "knn has no option piksels; did you mean 'pixels'"),
        ({"ckpt": "x", "k": "5"}, "k takes a whole number, not '5'"),
        ({"k": 5}, "knn needs ckpt"),
    ],
)
def test_wrong_options_in_python_give_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        of_python(protocols.protocol_named("knn"), values)


def test_a_protocol_whose_figure_is_no_percentage_and_best_where_lowest(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more record in the table, and the leaderboard ranks its figures, in their own unit and direction."""
    kind = FigureKind("depth", "error", unit="metres", higher_is_better=False)
    depth = replace(
        protocols.protocol_named("knn"),
        name="depth",
        families=(Family("depth", "Depth", "Depth"),),
        kind_of=lambda figure: kind if figure == "depth_error" else None,
        result_fields=lambda settings, _kind: settings,
    )
    monkeypatch.setattr(protocols, "PROTOCOLS", {**PROTOCOLS, "depth": depth})
    results = [
        result({"depth_error": value}, protocol="depth", settings={}, name=name, weights=name)
        for name, value in (("far", 250.0), ("near", 1.5), ("middle", 20.0))
    ]
    (board,) = boards([MeasuredResult(each, FigureSource("file")) for each in results], [])
    assert [(rank, row.model) for rank, row in zip(board.groups[0].ranks, board.groups[0].rows, strict=True)] == [
        (1, "near"),
        (2, "middle"),
        (3, "far"),
    ]
