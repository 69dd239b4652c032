"""Tests of what makes figures comparable: which fields define a protocol, and what tells two apart."""

from dataclasses import replace
from typing import Any

import pytest

from excb.hub.catalogue import bundled_folder
from excb.results.result import ResultRecord
from excb.transfer.leaderboard import comparable
from excb.transfer.protocol import FigureKind
from excb.transfer.protocols import kind_of
from excb.transfer.published.registry import claims
from excb.transfer.reporting import fields as protocol_fields
from tests.transfer.result_files import IMAGENET, linear, result

KNN = result({"knn_top1_k20": 1})
CLAIMS = {claim.id: claim for claim in claims()}


def fields(found: ResultRecord, figure: str) -> dict[str, Any]:
    kind = kind_of(figure)
    assert kind is not None
    return comparable.fields_of_result(found, kind)


@pytest.mark.parametrize(
    ("figure", "kind"),
    [
        ("knn_top1_k20", FigureKind("knn", "top-1", (("k", 20),))),
        ("knn_top5_k200_T0.1", FigureKind("knn", "top-5", (("k", 200), ("T", 0.1)))),
        ("linear_top1", FigureKind("linear", "top-1")),
        ("semisup_10pct_frozen_top5", FigureKind("semisup_10pct_frozen", "top-5")),
        ("segm_AP75", FigureKind("detection", "mask AP75")),
        ("linear_top1_seed0", None),
        ("semisup_1pct_top1_sd", None),
        ("empty_clusters_unbalanced", None),
    ],
)
def test_kinds_of_figures(figure: str, kind: FigureKind | None) -> None:
    assert kind_of(figure) == kind


def test_top5_of_older_versions_stands_apart_and_top1_does_not() -> None:
    older = result({}, settings={"k": [20], "temperature": [0.07], "similarity": "cosine", "vote": "exp(s / T)"})
    assert fields(older, "knn_top1_k20") == fields(KNN, "knn_top1_k20")
    told = protocol_fields.differences(fields(older, "knn_top5_k20"), fields(KNN, "knn_top5_k20"))
    assert told == ["top5 also classes without a vote, not none"]


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (KNN, result({"knn_top1_k200": 1}, settings={"k": [200], "temperature": [0.07]}), "k 20, not 200"),
        (KNN, result({"knn_top1_k20": 1}, settings={"k": [20], "temperature": [0.1]}), "T 0.07, not 0.1"),
        (KNN, result({"knn_top1_k20": 1}, preprocessing={"resize": 224, "crop": 224}), "resize 256, not 224"),
        (linear("a", 1), linear("b", 1, settings={"epochs": 90}), "epochs 100, not 90"),
        (linear("a", 1), linear("b", 1, settings={"batch": 1024}), "batch 256, not 1024"),
        (KNN, result({"knn_top1_k20": 1}, train="other"), "train images 747261696e00, not 6f7468657200"),
        (
            result({"semisup_1pct_top1": 1}, protocol="semisup", settings={"share": {"images": 9, "sha256": "a" * 64}}),
            result({"semisup_1pct_top1": 1}, protocol="semisup", settings={"share": {"images": 9, "sha256": "b" * 64}}),
            "split aaaaaaaaaaaa, not bbbbbbbbbbbb",
        ),
    ],
    ids=["k", "T", "resize", "epochs", "batch", "train", "split"],
)
def test_every_difference_is_named_alone(one: ResultRecord, other: ResultRecord, told: str) -> None:
    first, second = (fields(each, next(iter(each.figures))) for each in (one, other))
    assert protocol_fields.differences(first, second) == [told]
    assert protocol_fields.digest(first) != protocol_fields.digest(second)


def test_a_grid_of_neighbours_compares_with_a_single_number() -> None:
    grid = result({"knn_top1_k20": 1, "knn_top1_k10": 1}, settings={"k": [10, 20], "temperature": [0.07, 0.1]})
    single = result({"knn_top1_k20": 2})
    kind = kind_of("knn_top1_k20_T0.07")
    assert kind is not None
    assert comparable.fields_of_result(grid, kind) == fields(single, "knn_top1_k20")


def test_what_was_found_or_drawn_defines_nothing() -> None:
    one = linear("a", 1)
    other = linear("b", 2, settings={"chosen": {"lr": 9}, "seed": 3, "source": "someone"})
    assert fields(one, "linear_top1") == fields(other, "linear_top1")


@pytest.mark.parametrize(
    ("claim", "found"),
    [
        ("table1/excb/knn_top1", result({"knn_top1_k20": 70.9}, data=IMAGENET)),
        ("table1/excb/linear_top1", linear("rn50_400ep", 76.4)),
        ("table1/simsiam/linear_top1", linear("simsiam", 71.3, plan="simsiam")),
    ],
)
def test_a_measured_figure_has_the_fields_of_the_published_one(claim: str, found: ResultRecord) -> None:
    kind = kind_of(CLAIMS[claim].figure)
    assert kind is not None
    assert comparable.of_claim(CLAIMS[claim], kind) == comparable.fields_of_result(found, kind)
    assert comparable.images_of_result(found).key == CLAIMS[claim].data.name == "imagenet"


def test_figures_of_our_own_checkpoint_are_on_the_registrys_images() -> None:
    folder = bundled_folder("tiny_grocery")
    assert folder is not None
    found = ResultRecord.from_json((folder / "results" / "linear.json").read_text(encoding="utf-8"))
    assert comparable.images_of_result(found) == comparable.ImagesKey("grocery128", "grocery128", "all")
    claim = CLAIMS["tiny_grocery/linear/linear_top1"]
    assert comparable.of_claim(claim, FigureKind("linear", "top-1")) == fields(found, "linear_top1")
    other = replace(found, data=found.data | {"train": found.data["train"] | {"fingerprint": "e" * 64}})
    assert comparable.images_of_result(other) == comparable.ImagesKey("grocery128", "grocery128", "e" * 12)


def test_settings_that_nobody_states_stay_apart() -> None:
    stated, unstated = CLAIMS["table1/excb/linear_top1"], CLAIMS["table1/nnclr/linear_top1"]
    kind = FigureKind("linear", "top-1")
    told = protocol_fields.differences(comparable.of_claim(unstated, kind), comparable.of_claim(stated, kind))
    assert told == ["epochs, batch and learning rate of the classifier: stated nowhere"]
