"""The rule of PASS, FAIL and CANNOT, by exact decimal arithmetic."""

import dataclasses
from decimal import Decimal
from typing import Any

import pytest

from excb.results.result import ResultRecord
from excb.transfer.published.claim import Claim, ClaimImages
from excb.transfer.published.registry import claims, select
from excb.transfer.reproduce.verdicts import judge, other_images

(KNN,) = select("table1/excb/knn_top1", claims())
(UNSTATED,) = select("readme/rn50_400ep/knn_top1", claims())
(BOX,) = select("table5/excb/bbox_AP", claims())


def measured(claim: Claim, value: str, interval: tuple[str, str] | None = None) -> ResultRecord:
    return ResultRecord(
        protocol="any",
        figures={claim.figure: float(value)},
        settings={},
        checkpoint={},
        data={},
        seconds=0,
        intervals={} if interval is None else {claim.figure: (float(interval[0]), float(interval[1]))},
        environment={},
    )


@pytest.mark.parametrize("claim", [KNN, BOX], ids=["interval", "spread"])
def test_the_tolerance_is_half_a_unit_and_half_the_interval(claim: Claim) -> None:
    """Around the edge, in steps of a thousandth: 71.0 +- (0.05 + 0.4), and 39.2 +- (0.05 + 0.3) without an interval."""
    printed = Decimal(claim.value)
    noise = Decimal("0.4") if claim is KNN else Decimal("0.3")
    for side in (-1, 1):
        for thousandths in range(-3, 4):
            distance = Decimal("0.05") + noise + Decimal(thousandths) / 1000
            value = printed + side * distance
            interval = (str(value - noise), str(value + noise)) if claim is KNN else None
            verdict = judge(claim, measured(claim, str(value), interval))
            assert verdict.word == ("PASS" if thousandths <= 0 else "FAIL"), value
            assert verdict.tolerance == pytest.approx(float(Decimal("0.05") + noise))
            assert (verdict.why == "") == (verdict.word == "PASS")


def test_precision_counts() -> None:
    """71 may have been 70.5, 71.00 not 70.9."""
    for printed, value, word in (("71", "70.5", "PASS"), ("71.0", "70.9", "FAIL"), ("71.00", "70.996", "PASS")):
        claim = dataclasses.replace(KNN, value=printed)
        assert judge(claim, measured(claim, value, (value, value))).word == word


def test_a_fail_names_the_figure_and_the_gap() -> None:
    why = judge(KNN, measured(KNN, "69.5", ("69.1", "69.9"))).why
    assert why == "knn_top1_k20 is 69.50, -1.50 from 71.0, and 0.45 is allowed"


def test_a_gap_that_a_known_difference_may_explain_is_no_failure() -> None:
    claim = dataclasses.replace(
        KNN, differs=("other crops",), protocol=dataclasses.replace(KNN.protocol, differs=("other norm",))
    )
    verdict = judge(claim, measured(claim, "69.5", ("69.1", "69.9")))
    assert verdict.word == "CANNOT"
    assert verdict.why.endswith("0.45 is allowed; but it was measured otherwise: other crops; other norm")
    assert judge(claim, measured(claim, "71.1", ("70.7", "71.5"))).word == "PASS"


def test_what_nobody_states_is_no_failure() -> None:
    near, far = (judge(UNSTATED, measured(UNSTATED, value, (value, value))) for value in ("71.62", "69.5"))
    assert near.word == "PASS"
    assert far.word == "CANNOT"
    assert far.why.endswith("; but nobody states the k")
    assert far.measured == 69.5


def test_a_result_without_the_figure_tells_nothing() -> None:
    assert judge(KNN, measured(BOX, "39.2")).word == "CANNOT"


IMAGES = {"classes": 3, "train": {"images": 30, "fingerprint": "a"}, "test": {"images": 9, "fingerprint": "b"}}
THESE = ClaimImages(name="x", title="X", classes=3, train=30, test=9, train_fingerprint="a", test_fingerprint="b")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"classes": None, "train": None, "train_fingerprint": None}, ""),
        ({"classes": 4}, "3 classes, not 4"),
        ({"train": 31}, "30 train images, not 31"),
        ({"test": 1000}, "9 test images, not 1,000"),
        ({"train_fingerprint": "c"}, "the train images are others, of equal number"),
        ({"test_fingerprint": "c"}, "the test images are others, of equal number"),
    ],
)
def test_other_images_are_seen(change: dict[str, Any], said: str) -> None:
    told = other_images(dataclasses.replace(THESE, **change), IMAGES)
    assert told == (f"these images are not X: {said}" if said else "")
