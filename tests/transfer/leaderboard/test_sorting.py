"""Tests of the leaderboard: what is ranked with what, published beside measured, tables, and our own results."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from excb.files import foreign
from excb.hub.catalogue import BUNDLED, find
from excb.ledger import doubt
from excb.results.result import ResultRecord
from excb.transfer.cli import main
from excb.transfer.leaderboard import figure, tables
from excb.transfer.leaderboard.board import Board, FigureSource, Group, LeaderboardRow, MeasuredResult
from excb.transfer.leaderboard.gather import gather
from excb.transfer.leaderboard.sorting import boards
from excb.transfer.published.registry import claims
from tests.clone import ROOT
from tests.transfer.result_files import HOSTILE, linear, result, write

OURS = ROOT / "leaderboard"


def measured(*results: ResultRecord) -> list[MeasuredResult]:
    return [
        MeasuredResult(each, FigureSource(f"{n}.json"), find(str(each.checkpoint["name"])))
        for n, each in enumerate(results)
    ]


def only(found: list[Board]) -> Board:
    assert len(found) == 1
    return found[0]


def models(group: Group) -> list[tuple[int | None, str]]:
    return [(rank, row.model) for rank, row in zip(group.ranks, group.rows, strict=True)]


def the_row(found: list[Board], model: str, **wanted: Any) -> LeaderboardRow:
    rows = [row for board in found for group in board.groups for row in group.rows if row.model == model]
    rows = [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]
    assert len(rows) == 1
    return rows[0]


def test_ranks_are_of_one_protocol() -> None:
    k20 = [
        result({"knn_top1_k20": value}, name=name, weights=name) for name, value in (("a", 50), ("b", 60), ("c", 60))
    ]
    k200 = result({"knn_top1_k200": 99}, name="d", settings={"k": [200], "temperature": [0.07]})
    board = only(boards(measured(*k20, k200), []))
    assert [models(group) for group in board.groups] == [[(1, "b"), (1, "c"), (3, "a")], [(1, "d")]]
    assert [group.apart for group in board.groups] == [[], ["k 200, not 20"]]


def test_what_nobody_states_is_not_ranked() -> None:
    board = next(board for board in boards([], claims()) if board.key == "knn imagenet")
    assert [(group.names, group.ranked, group.why_apart) for group in board.groups] == [
        (["knn"], True, ""),
        (
            ["efficient_probing"],
            False,
            "Not ranked: measured as only the source does it (see the claims efficient_probing)",
        ),
        (["knn_unstated"], False, "Not ranked: k: stated nowhere"),
    ]
    assert [rank for rank, _ in models(board.groups[0])] == [1, 2, 3, 4, 5, 6]
    assert {rank for group in board.groups[1:] for rank, _ in models(group)} == {None}


def test_other_test_images_are_another_table() -> None:
    found = boards(measured(result({"knn_top1_k20": 1}), result({"knn_top1_k20": 2}, test="other")), [])
    assert {board.images for board in found} == {"photos (74657374)", "photos (6f746865)"}


def test_equal_names_with_other_weights_are_told_apart() -> None:
    group = only(boards(measured(*(result({"knn_top1_k20": n}, weights=f"w{n}") for n in (1, 2))), [])).groups[0]
    assert models(group) == [(1, "mine"), (2, "mine")]
    assert [row.notes for row in group.rows] == [
        [f"weights hash {code}00000000: another row of this name has another"] for code in ("7732", "7731")
    ]


@pytest.mark.parametrize(("value", "status"), [(76.4, "reproduced"), (70.0, "not reproduced")])
def test_published_beside_reproduced(value: float, status: str) -> None:
    row = the_row(boards(measured(linear("rn50_400ep", value)), claims()), "rn50_400ep", status=status)
    cell = row.cells["top-1"]
    assert (cell.measured, cell.interval, cell.published) == (value, (value - 1, value + 1), ["76.5", "76.6"])
    assert cell.value == value
    assert [source.text for source in row.sources][-1] == "0.json"


@pytest.mark.parametrize(("value", "status"), [(76.5, "reproduced"), (70.0, "not reproduced")])
def test_a_claim_that_the_file_answers_is_judged_anew_for_a_checkpoint_of_any_name(value: float, status: str) -> None:
    told = {"table1/excb/linear_top1": {"verdict": "PASS", "claimed": "76.5"}}
    found = linear("my run", value)
    row = the_row(boards(measured(ResultRecord(**{**vars(found), "claims": told})), claims()), "my run")
    assert (row.status, row.cells["top-1"].published) == (status, ["76.5"])


def test_a_claim_that_was_read_from_the_file_itself_is_not_reproduced_by_it(tmp_path: Path) -> None:
    def of_linear(named: list[Path]) -> LeaderboardRow:
        found = [board for board in boards(gather(named, tmp_path)[0], claims()) if board.family == "linear"]
        return the_row(found, "tiny_grocery")

    bundled = BUNDLED / "tiny_grocery" / "results" / "linear.json"
    copy = tmp_path / "copy.json"
    copy.write_bytes(bundled.read_bytes())
    for named in ([], [copy]):
        row = of_linear(named)
        assert (row.status, row.cells["top-1"].published) == ("measured", [])
    recorded = ResultRecord.read(bundled)
    again = replace(recorded, checkpoint=recorded.checkpoint | {"name": "tiny_grocery"})
    copy.write_text(again.to_json(), encoding="utf-8")
    row = of_linear([copy])
    assert (row.status, row.cells["top-1"].published) == ("reproduced", ["42.334"])


def test_of_two_files_of_one_row_the_first_counts_and_the_other_is_noted() -> None:
    own = measured(linear("rn50_400ep", 76.4), linear("rn50_400ep", 60.0, settings={"seed": 1}))
    row = the_row(boards(own, claims()), "rn50_400ep", status="reproduced")
    assert row.cells["top-1"].measured == 76.4
    assert "1.json gives top-1 60.00" in row.notes


def test_the_ledger_is_noted_in_the_row() -> None:
    one = replace(linear("rn50_400ep", 76.4), ledger=doubt("of 9 images look alike", ["a"], "look", of="test"))
    row = the_row(boards(measured(one), claims()), "rn50_400ep", status="reproduced")
    assert "test: 1 of 9 images looks alike, such as a: look" in row.notes


def test_every_accuracy_of_the_registry_is_there() -> None:
    values = {(claim.checkpoint, claim.value) for claim in claims() if "top" in claim.metric}
    shown = {
        (row.model, value)
        for board in boards([], claims())
        for group in board.groups
        for row in group.rows
        for cell in row.cells.values()
        for value in cell.published
    }
    assert values <= shown


# ---------------------------------------------------------------------------------------------------------------------
# Figure 2
# ---------------------------------------------------------------------------------------------------------------------


def test_figure_2_is_the_registrys() -> None:
    points, left_out = figure.figure_points(claims(), boards([], claims()))
    assert left_out == []
    told = {(point.name, point.epochs, point.batch, point.value) for point in points}
    assert told == {(c.method, c.epochs, c.batch, c.number) for c in claims() if c.table == "figure2"}
    areas = {point.batch: point.radius**2 for point in points}
    assert areas[4096] / areas[1024] == pytest.approx(4)


def test_own_runs_are_drawn_or_named_with_the_reason() -> None:
    own = measured(
        linear("run", 70.0, pretraining={"method": "ExCB", "epochs": 50, "batch": 512, "crops": None}),
        linear("no epochs", 70.0),
        linear("edited", 1e9, pretraining={"method": "ExCB", "epochs": 50, "batch": 512, "crops": None}),
        linear("vit", 70.0, architecture="vit_small"),
        linear("photos", 70.0, data={"classes": 3, "train": 9, "test": 6}),
    )
    points, left_out = figure.figure_points(claims(), boards(own, []))
    assert [(p.name, p.epochs, p.batch, p.value) for p in points if p.own] == [("run", 50, 512, 70.0)]
    assert sorted(left_out) == [
        "edited: its figure is not an accuracy in percent",
        "no epochs: its epochs are not known",
        "photos: its figure is of photos (74657374), not of ImageNet-1k",
        "vit: it is a vit_small, not a ResNet-50",
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Tables
# ---------------------------------------------------------------------------------------------------------------------


def test_csv_has_a_line_for_every_figure_and_no_formula() -> None:
    own = measured(result({"knn_top1_k20": 61.5}, name="=1+1"), linear("rn50_400ep", 76.4))
    lines = list(csv.DictReader(io.StringIO(tables.boards_as_csv(boards(own, claims())))))
    mine = [line for line in lines if line["model"] == "'=1+1"]
    assert [(line["percent"], line["low"], line["high"], line["status"]) for line in mine] == [
        ("61.5", "60.5", "62.5", "measured")
    ]
    both = [(line["kind"], line["percent"]) for line in lines if line["model"] == "rn50_400ep" and line["low"]]
    assert both == [("measured", "76.4"), ("measured", "90.0")]


def test_markdown_of_hostile_names_is_a_table_all_the_same() -> None:
    text = tables.boards_as_markdown(boards(measured(result({"knn_top1_k20": 61.5}, name=HOSTILE)), []))
    rows = [line for line in text.splitlines() if line.startswith("| 1 |")]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 10
    assert "<img" not in text
    assert "61.50 (60.5 to 62.5)" in rows[0]


# ---------------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------------


def test_files_and_folders_are_gathered_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "in" / "deep", "a.json", result({"knn_top1_k20": 50}))
    write(tmp_path / "in", "again.json", result({"knn_top1_k20": 50}))
    (tmp_path / "in" / "other.json").write_text('{"a": 1}', encoding="utf-8")
    assert (
        main(["leaderboard", str(tmp_path / "in"), str(file), "--out", str(tmp_path / "out"), "--json", "--quiet"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    rows = [row for board in told["boards"] for group in board["groups"] for row in group["rows"] if row["weights"]]
    mine = [row for row in rows if row["model"] == "mine"]
    assert [row["sources"][0] for row in mine] == [{"text": "again.json", "address": "../in/again.json"}]
    assert {row["model"] for row in rows} == {"mine", "conv4_photos", "tiny_grocery"}
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "leaderboard.csv",
        "leaderboard.html",
        "leaderboard.md",
    ]


def test_each_file_of_a_folder_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, read = tmp_path / "in", list[str]()
    write(folder, "a.json", result({"knn_top1_k20": 50}))
    write(folder, "none.json", result({"empty_clusters": 1}))
    (folder / "other.json").write_text('{"a": 1}', encoding="utf-8")
    usual = foreign.open_file

    def open_file(file: Path | str) -> Any:
        read.append(Path(file).name)
        return usual(file)

    monkeypatch.setattr(foreign, "open_file", open_file)
    assert main(["leaderboard", str(folder), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert [read.count(name) for name in ("a.json", "none.json", "other.json")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["leaderboard"], "name the folder to write with --out DIR"),
        (["leaderboard", "{place}/none.json", "--out", "{place}/out"], "cannot read the result"),
        (["leaderboard", "{place}/odd/b.json", "--out", "{place}/out"], "is not a result of `excb-eval`"),
        (["leaderboard", "--out", "{place}/odd/b.json"], "is a file: name a folder"),
        (["leaderboard", "--check"], "name the result files to check"),
        (["leaderboard", "{place}/odd", "--check"], "no result of `excb-eval` below {place}/odd"),
        (["leaderboard", "{place}/odd", "--out", "{place}/out"], "no result of `excb-eval` below {place}/odd"),
        (["leaderboard", "{place}/cut", "--out", "{place}/out"], "{place}/cut/a.json cannot be read as JSON"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "odd" / "b.json"
    odd.parent.mkdir()
    odd.write_text("{}", encoding="utf-8")
    cut = write(tmp_path / "cut", "a.json", result({"knn_top1_k20": 50}))
    cut.write_bytes(cut.read_bytes()[:-20])
    assert main([word.format(place=tmp_path) for word in words]) == 2
    err = capsys.readouterr().err
    assert message.format(place=tmp_path) in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not OURS.is_dir(), reason="no clone: the leaderboard is not installed")
def test_our_leaderboard_is_what_the_command_makes(tmp_path: Path) -> None:
    out = OURS.parent / "leaderboard"
    code = main(["leaderboard", str(OURS / "results"), "--out", str(tmp_path / "leaderboard"), "--quiet", "--json"])
    assert code == 0
    for name in ("leaderboard.md", "leaderboard.csv"):
        assert (tmp_path / "leaderboard" / name).read_bytes() == (out / name).read_bytes(), (
            "rebuild it: excb-eval leaderboard leaderboard/results --out leaderboard"
        )


@pytest.mark.skipif(not OURS.is_dir(), reason="no clone: the leaderboard is not installed")
def test_every_file_of_our_leaderboard_may_stand_there(capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(map(str, (OURS / "results").glob("*.json")))
    assert main(["leaderboard", str(OURS / "results"), "--check"]) == 0
    assert capsys.readouterr().out.count("schema 2") == len(files) > 0


def test_the_page_begins_with_the_readers_own_results() -> None:
    from excb.transfer.leaderboard import page

    own = linear("mine", 74.1)
    packaged = result({"knn_top1_k20": 61.5}, name="theirs")
    measured = [
        MeasuredResult(own, FigureSource("mine.json")),
        MeasuredResult(packaged, FigureSource("excb/bundled/theirs/results/knn.json")),
    ]
    made = boards(measured, claims())
    text = page.render_leaderboard(made, [], [])
    section = text.partition('id="own"')[2].partition("</section>")[0]
    assert "<strong>mine</strong>" in section
    assert "top-1 74.10 (73.1 to 75.1), rank " in section
    assert "by the same protocol; the best is " in section
    assert "theirs" not in section
    assert text.index('id="own"') < text.index('class="toolbar"')
    assert 'id="own"' not in page.render_leaderboard(boards(measured[1:], claims()), [], [])
