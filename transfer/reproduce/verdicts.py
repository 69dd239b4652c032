"""Whether a measurement bears a published figure out: PASS, FAIL, or CANNOT with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from excb.console import plural
from excb.results.result import ResultRecord

from ..published.claim import Claim, ClaimImages

Word = Literal["PASS", "FAIL", "CANNOT"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a claim."""

    claim: Claim  # the published figure
    word: Word  # PASS, FAIL or CANNOT
    why: str = ""  # of a FAIL the gap, of a CANNOT the reason; empty of a PASS
    measured: float | None = None  # the figure here, in the claim's unit; None where none was measured
    interval: tuple[float, float] | None = None  # its 95 % interval; None where the protocol gives none
    tolerance: float | None = None  # how far it may lie from the claim

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON and result files, without the claim's own."""
        return {
            "verdict": self.word,
            "claimed": self.claim.value,
            "measured": self.measured,
            "interval": None if self.interval is None else list(self.interval),
            "tolerance": None if self.tolerance is None else round(self.tolerance, 6),
            "why": self.why,
        }


def judge(claim: Claim, result: ResultRecord) -> Verdict:
    """Compare a claim with a result of its protocol, on its images and of a checkpoint like its own.

    PASS where |measured - claimed| <= half a unit of the last printed digit + half the width of the measurement's 95 %
    interval; a protocol without intervals has the half spread between trainings that its source states instead. A
    larger difference is a FAIL, but a CANNOT where the measurement is known to differ from the claim's, or where a
    setting behind the claim is stated nowhere.
    """
    if (measured := result.figures.get(claim.figure)) is None:
        return Verdict(claim=claim, word="CANNOT", why=f"the result has no figure {claim.figure}")
    interval = result.intervals.get(claim.figure)
    noise = claim.protocol.spread if interval is None else (interval[1] - interval[0]) / 2
    tolerance = claim.half_unit + noise
    gap = measured - claim.number
    facts: dict[str, Any] = {"claim": claim, "measured": measured, "interval": interval, "tolerance": tolerance}
    if abs(gap) <= tolerance + 1e-9:
        return Verdict(word="PASS", **facts)
    gap_text = f"{claim.figure} is {measured:.2f}, {gap:+.2f} from {claim.value}, and {tolerance:.2f} is allowed"
    if claim.differences:
        why = f"{gap_text}; but it was measured otherwise: {'; '.join(claim.differences)}"
        return Verdict(word="CANNOT", why=why, **facts)
    if unstated := [*claim.unstated, *claim.protocol.unstated]:
        return Verdict(word="CANNOT", why=f"{gap_text}; but nobody states the {', '.join(unstated)}", **facts)
    return Verdict(word="FAIL", why=gap_text, **facts)


def other_images(wanted: ClaimImages, data: Mapping[str, Any]) -> str:
    """Why images are not those of a claim; empty where they are, as far as the registry knows.

    Args:
        wanted: those of the claim.
        data: as in `Result.data`. A protocol on one set, such as clusters, takes the train images.
    """
    sets = {"train": data["images"]} if "images" in data else {part: data[part] for part in ("train", "test")}
    numbers = [("class", "classes", wanted.classes, data["classes"])]
    for part, images in sets.items():
        numbers.append((f"{part} image", f"{part} images", getattr(wanted, part), images["images"]))
    for noun, nouns, expected, actual in numbers:
        if expected is not None and expected != actual:
            return f"these images are not {wanted.title}: {plural(actual, noun, nouns)}, not {expected:,}"
    for part, images in sets.items():
        fingerprint = getattr(wanted, f"{part}_fingerprint")
        if fingerprint is not None and fingerprint != images["fingerprint"]:
            return f"these images are not {wanted.title}: the {part} images are others, of equal number"
    return ""
