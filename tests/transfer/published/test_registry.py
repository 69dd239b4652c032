"""The registry of published figures against the paper's source, its recorded digests, the catalogue and our results."""

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import pytest

from excb.errors import UserError
from excb.hub.catalogue import BUNDLED, checkpoints, find
from excb.pretrain.overrides import apply, find_recipe
from excb.results.result import ResultRecord
from excb.transfer.published.claim import Claim
from excb.transfer.published.registry import claims, select
from tests import paper

needs_paper = pytest.mark.skipif(not paper.PAPER.is_file(), reason="the paper's source is not beside the repository")

TABLES = [f"table{number}" for number in range(1, 10)]
COMPONENTS = {"none": "000", "predictor": "100", "predictor_stop": "110", "predictor_stop_decay": "111"}
# What `digest` gave when every cell had been compared with the paper: without its source, these stand for it.
DIGESTS = {
    "table1": "dc0a782c6404b782",
    "table2": "210679de38dba877",
    "table3": "dad492971b74320b",
    "table4": "ac0a1a410782c023",
    "table5": "b3eeb4e4d993452f",
    "table6": "873eeb98e8f20b15",
    "table7": "2cd3441ca3ddab8c",
    "table8": "ea258fb111956f52",
    "table9": "1f56096ba664532f",
    "figure2": "c2c08ea3c2f201e4",
    "text": "76d21935ea26f3d9",
    "appendix": "1f6bc9d09b846e51",
    "readme": "b220fde0a3586bd1",
    "repositories": "0427081876700ca1",
    "repositories_vit": "b97950f57ea17487",
    "repositories_supervised": "0cae9e4b5c685a53",
    "repositories_reevaluated": "6111915dcfc9452c",
    "repositories_finetuned": "a7104cf774af1ef3",
    "repositories_detection": "9f2695d97edb48ef",
    "repositories_voc": "5347d55395f8d66e",
    "shelf": "c5ed00033ff505b8",
    "efficient_probing": "7c28e85957588bee",
    "tiny_grocery": "3a50bc97eb937c80",
    "conv4_photos": "be7533607228adc0",
}


# ---------------------------------------------------------------------------------------------------------------------
# Against the paper's LaTeX
# ---------------------------------------------------------------------------------------------------------------------


def claimed() -> list[str]:
    """The claims of the tables and of the figure, in the paper's own order of facts."""
    return sorted(str(cell(claim)) for claim in claims() if claim.table in [*TABLES, "figure2"])


def cell(claim: Claim) -> paper.Cell:
    table, row, metric = claim.id.split("/")
    name = {"table6": "", "table7": row.rpartition("_")[2], "table8": COMPONENTS.get(row, ""), "table9": row}
    multi = claim.crops != "2x224" if table in {"table3", "table6", "table7", "table8", "table9"} else None
    return table, name.get(table, paper.name_of(claim.method)), claim.epochs, claim.batch, multi, metric, claim.value


@needs_paper
def test_every_cell_and_point_of_the_paper_is_a_claim_and_there_are_no_others() -> None:
    found = paper.cells(paper.PAPER.read_text(encoding="utf-8"))
    assert claimed() == sorted(map(str, found))
    assert len(set(found)) == len(found) == 23 + 8 + 35 + 40 + 48 + 3 + 4 + 4 + 2 + 17


@needs_paper
def test_a_changed_digit_in_the_paper_is_seen() -> None:
    source, ours = paper.PAPER.read_text(encoding="utf-8"), claimed()
    for value in {value for *_, value in paper.cells(source)}:
        changed = source.replace(value, f"{value[:-1]}{(int(value[-1]) + 1) % 10}")
        assert sorted(map(str, paper.cells(changed))) != ours


@needs_paper
def test_claims_in_words_are_the_papers() -> None:
    in_training, in_appendix = paper.words(paper.PAPER.read_text(encoding="utf-8"))
    assert in_training == [claim.value for claim in select("text", claims())]
    assert in_appendix == [claim.value for claim in select("appendix", claims())]


# ---------------------------------------------------------------------------------------------------------------------
# Without the paper
# ---------------------------------------------------------------------------------------------------------------------


def digest(of: list[Claim]) -> str:
    """Of everything that sources state: equal as long as no digit changes."""
    facts = [[c.id, c.method, c.checkpoint, c.value, c.epochs, c.batch, c.crops, c.source] for c in of]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@pytest.mark.parametrize("table", DIGESTS)
def test_recorded_digest(table: str) -> None:
    assert digest(select(table, claims())) == DIGESTS[table]


def test_every_table_has_a_digest() -> None:
    assert DIGESTS.keys() == {claim.table for claim in claims()}


def test_a_changed_digit_changes_the_digest() -> None:
    for claim in claims():
        of = select(claim.table, claims())
        for place, digit in enumerate(claim.value):
            if digit.isdigit():
                value = f"{claim.value[:place]}{(int(digit) + 1) % 10}{claim.value[place + 1 :]}"
                changed = [dataclasses.replace(c, value=value) if c.id == claim.id else c for c in of]
                assert digest(changed) != DIGESTS[claim.table]


# ---------------------------------------------------------------------------------------------------------------------
# Against what else the package says
# ---------------------------------------------------------------------------------------------------------------------


def test_the_catalogues_figures_are_the_claims() -> None:
    """Both ways, for all that both have: the catalogue lists figures by checkpoint, the registry by source."""
    listed = {
        (row.name, re.sub("^ExCB, ", "ExCB (ECCV 2024), ", figure.source), figure.name, figure.value)
        for row in checkpoints()
        if row.source not in ("bundled", "imported")
        for figure in row.figures
    }
    claimed = {(claim.checkpoint, claim.source, claim.metric, claim.number) for claim in claims()}
    sources = {source for _, source, _, _ in listed}
    assert listed <= claimed
    beyond = {claim[2] for claim in claimed - listed if claim[1] in sources}
    assert beyond <= {"finetune_top1", "voc_AP", "voc_AP50", "voc_AP75"}  # which the catalogue does not list


def test_claims_are_about_rows_of_the_catalogue() -> None:
    for claim in claims():
        row = find(claim.checkpoint)
        assert row is not None, claim.id
        assert (row.method, row.architecture.name) == (claim.method, claim.architecture), claim.id


@pytest.mark.parametrize("checkpoint", ["tiny_grocery", "conv4_photos"])
def test_claims_of_our_own_are_those_of_the_result_files(checkpoint: str) -> None:
    ours = select(checkpoint, claims())
    files = {claim.source for claim in ours}
    assert {BUNDLED.parents[1] / file for file in files} >= {*(BUNDLED / checkpoint / "results").glob("*knn.json")}
    for claim in ours:
        result = ResultRecord.from_json((BUNDLED.parents[1] / claim.source).read_text(encoding="utf-8"))
        assert str(result.figures[claim.figure]) == claim.value
        for part in ("train", "test"):
            assert result.data[part]["fingerprint"] == getattr(claim.data, f"{part}_fingerprint")
            assert result.data[part]["images"] == getattr(claim.data, part)
        assert result.data["classes"] == claim.data.classes


def test_recipes_train_what_is_claimed() -> None:
    """Each printed command parses, and its epochs, batch and crops are the claim's."""
    trained = [claim for claim in claims() if claim.recipe]
    assert {claim.table for claim in trained} >= {*TABLES, "figure2", "text", "appendix", "readme"}
    for claim in trained:
        program, name, data, folder, *overrides = claim.command.split()
        assert [program, data, folder] == ["excb-pretrain", "--data", "DIR"]
        recipe = apply(find_recipe(name), overrides)
        views = recipe.views
        crops = f"{views.global_views}x{views.global_size}"
        crops += f"+{views.local_views}x{views.local_size}" if views.local_views else ""
        row = find(claim.checkpoint)
        assert row is not None
        assert (recipe.optim.epochs, recipe.optim.batch, crops) == (row.epochs, row.batch, row.crops), claim.id
        assert claim.epochs in (None, recipe.optim.epochs)
        assert claim.batch in (None, recipe.optim.batch)
        assert claim.crops in (None, crops)
        assert recipe.model.backbone == claim.architecture
        assert row.source != "own run" or f"`{claim.command}`" in row.note
    ours = {claim.checkpoint for claim in claims() if claim.method == "ExCB" and claim.table != "tiny_grocery"}
    assert ours == {claim.checkpoint for claim in trained}


def test_the_ablations_change_what_their_tables_say() -> None:
    changed = {claim.id.split("/")[1]: claim for claim in claims() if claim.table in TABLES[5:]}
    for row, claim in changed.items():
        method = apply(find_recipe(claim.recipe.split()[0]), claim.recipe.split()[1:]).method
        if row.startswith("clusters"):
            assert method.clusters == int(row.rpartition("_")[2])
        if row in COMPONENTS:
            assert (method.predictor, not method.centroid_gradient_from_local) == tuple(
                mark == "1" for mark in COMPONENTS[row][:2]
            )
            assert ("centroid_decay=1" in claim.recipe) == (COMPONENTS[row][2] == "0")
        if row in {"squared", "linear"}:
            assert method.balancing == row


def test_the_readme_differs_from_the_paper_and_says_so() -> None:
    marked = {claim.id: claim for claim in claims() if claim.differs_from}
    by_id = {claim.id: claim for claim in claims()}
    pairs = {(claim.value, by_id[claim.differs_from].value) for claim in marked.values()}
    assert pairs == {("76.6", "76.5"), ("71.6", "71.0"), ("77.2", "77.1")}


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "half"), [("71.0", 0.05), ("40.5634", 0.00005), ("76", 0.5), ("10,946", 0.5), ("75.18", 0.005)]
)
def test_precision_is_that_of_the_last_digit(value: str, half: float) -> None:
    claim = dataclasses.replace(claims()[0], value=value)
    assert claim.half_unit == pytest.approx(half)
    assert claim.number == float(value.replace(",", ""))


def test_select_by_table_row_id_and_checkpoint() -> None:
    every = claims()
    assert {claim.table for claim in select("table1", every)} == {"table1"}
    assert [claim.metric for claim in select("table1/excb", every)] == ["linear_top1", "knn_top1"]
    assert [claim.id for claim in select("table1/excb/knn_top1", every)] == ["table1/excb/knn_top1"]
    assert select("excb_rn50", every) == select("rn50_400ep", every) != []  # an alias


@pytest.mark.parametrize(
    ("what", "nearest"),
    [("tabel1", "table1"), ("table1/excb/knn", "table1/excb/knn_top1"), ("rn50_400epp", "rn50_400ep")],
)
def test_unknown_names_are_met_with_the_nearest(what: str, nearest: str) -> None:
    with pytest.raises(UserError, match=f"did you mean '{nearest}'") as caught:
        select(what, claims())
    assert "\n" not in str(caught.value)


OWN = """\
[data.mine]
title = "Mine"
classes = 3

[mine]
title = "My figures"
method = "ExCB"
architecture = "timm:resnet10t"
data = "mine"
source = "my notebook"
columns = ["row", "checkpoint", "knn_top1_k20"]
rows = [["run", "tiny_grocery", "41.3"]]
"""


def test_claims_of_a_users_file_come_after_the_registry(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(OWN)
    *registry, mine = claims([file])
    assert registry == claims()
    assert (mine.id, mine.value, mine.protocol.name, mine.data.classes) == (
        "mine/run/knn_top1_k20",
        "41.3",
        "knn_grid",
        3,
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"41.3"', "41.3", "must stand in quotes"),
        ('"41.3"', '"many"', "could not convert"),
        ("knn_top1_k20", "luck", "one protocol must be that of mine/run/luck, not none"),
        ('data = "mine"', 'data = "yours"', "yours"),
        ("source =", "sauce =", "unknown field 'sauce'"),
        ('"41.3"', "", "shorter"),
        ("[mine]", "[tiny_grocery]\nx", "claims"),
    ],
)
def test_a_users_file_that_cannot_be_read_is_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(OWN.replace(old, new))
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        claims([file])
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)
