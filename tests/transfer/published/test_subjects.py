"""Which checkpoint is evidence for which claim: every pair of the paper's own networks, and of their runs."""

import dataclasses

import pytest

from excb.hub.backbone import Entry
from excb.hub.catalogue import find
from excb.networks.architecture import Architecture
from excb.pretrain.overrides import apply, find_recipe
from excb.transfer.published.claim import Claim
from excb.transfer.published.registry import claims, select
from excb.transfer.published.subjects import Subject, why_not_checked

ABLATIONS = [claim for table in ("table3", "table6", "table7", "table8", "table9") for claim in select(table, claims())]
OURS = [claim for claim in ABLATIONS if claim.method == "ExCB"]


def run_of(claim: Claim, *, epoch: float | None = None, official: bool = False) -> Subject:
    """The finished run that a claim's recipe trains."""
    name, *overrides = claim.recipe.split()
    recipe = apply(find_recipe(f"{name}_official" if official else name), overrides)
    done = recipe.optim.epochs if epoch is None else epoch
    entry = Entry("step.pt", Architecture(recipe.model.backbone), epoch=done, recipe=recipe.to_dict())
    return Subject.of_entry("run", entry)


@pytest.mark.parametrize("official", [False, True])
def test_a_run_is_evidence_for_the_claims_of_its_own_network_only(*, official: bool) -> None:
    for trained in OURS:
        subject = run_of(trained, official=official)
        for claim in OURS:
            same = claim.checkpoint == trained.checkpoint
            assert (why_not_checked(claim, subject) == "") == same, (
                claim.id,
                trained.id,
                why_not_checked(claim, subject),
            )


def test_another_number_of_clusters_than_any_ablated_is_seen() -> None:
    subject = run_of(OURS[0])
    recipe = apply(find_recipe(OURS[0].recipe), ["method.clusters=1000"]).to_dict()
    told = why_not_checked(OURS[0], dataclasses.replace(subject, recipe=recipe))
    assert told == "the run has method.clusters=1000, the claim 65536"


def test_an_unfinished_run_has_fewer_epochs() -> None:
    claim = OURS[0]
    assert (
        why_not_checked(claim, run_of(claim, epoch=99.5))
        == "run was trained with epochs 99, the claim is about epochs 100"
    )


def test_a_checkpoint_is_held_to_what_its_claims_checkpoint_is() -> None:
    """A README states no epochs, but the file that it is about has some."""
    (claim,) = select("repositories/swav_rn50_400ep/linear_top1", claims())
    assert claim.epochs is None
    other, own = find("swav_rn50_200ep"), find("swav_rn50_400ep")
    assert other is not None
    assert own is not None
    assert why_not_checked(claim, Subject.of_row(own)) == ""
    assert "epochs 200, the claim is about epochs 400" in why_not_checked(claim, Subject.of_row(other))


def test_multi_crop_of_any_sizes_is_what_the_paper_says_of_others() -> None:
    (claim,) = select("table3/swav_400ep/linear_top1", claims())
    row = find(claim.checkpoint)
    assert row is not None
    subject = Subject.of_row(row)
    assert why_not_checked(claim, subject) == ""
    assert why_not_checked(claim, dataclasses.replace(subject, crops="2x160+4x96")) == ""
    assert "crops 2x224, the claim is about crops of several sizes" in why_not_checked(
        claim, dataclasses.replace(subject, crops="2x224")
    )
    assert "is not stated" in why_not_checked(claim, dataclasses.replace(subject, crops=None))


def test_other_networks_and_methods_are_told_apart() -> None:
    (claim,) = select("table1/excb/knn_top1", claims())
    row = find("rn50_400ep")
    assert row is not None
    subject = Subject.of_row(row)
    assert why_not_checked(claim, subject) == ""
    assert "is a vit_small" in why_not_checked(claim, dataclasses.replace(subject, architecture="vit_small"))
    assert "was trained by SwAV" in why_not_checked(claim, dataclasses.replace(subject, method="SwAV"))
