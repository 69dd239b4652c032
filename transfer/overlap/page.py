"""The audit as one page: its figures, and each overlapping test image beside the train images that it is like."""

import math
from collections.abc import Callable
from functools import partial

from excb.console import plural
from excb.images.image_set import Images
from excb.pages.gallery import GallerySection, GalleryTable, Picture, PictureGroup, render_gallery
from excb.results.result import folder_name, interval_text

from .altered import KINDS
from .auditing import ALL, ONLY, SHARE, WITHOUT, Audit
from .calibration import EITHER
from .hashing import bits_of
from .matching import Pair

MOST_IMAGES = 200  # test images that the page shows: a few megabytes of pictures

Progress = Callable[[int], None]
TITLES = {
    SHARE: "test images that overlap",
    ALL: "k-NN on all test images",
    WITHOUT: "k-NN without them",
    ONLY: "k-NN on them alone",
}


def shown_pairs(audit: Audit) -> list[list[Pair]]:
    """The pairs of each test image on the page, the most similar test image first."""
    order: dict[int, list[Pair]] = {}
    for pair in audit.pairs:
        order.setdefault(pair.test, []).append(pair)
    return list(order.values())[:MOST_IMAGES]


def render_audit(audit: Audit, *, progress: Progress = lambda _done: None) -> str:
    """The page; `progress` is called after every test image."""
    result = audit.result
    names = {name: folder_name(str(result.data[name]["root"])) for name in ("train", "test")}
    groups = []
    for pairs in shown_pairs(audit):
        groups.append(_group(audit, pairs))
        progress(1)
    total = len({pair.test for pair in audit.pairs})
    hidden = total - len(groups)
    title = f"{plural(total, 'test image')} with a near-duplicate" if total else "No near-duplicate was found"
    notes = [f"{plural(hidden, 'more test image is', 'more test images are')} in the list of pairs."] if hidden else []
    weights = str(result.checkpoint.get("weights_sha256", ""))[:16]
    by = f"features of {result.checkpoint.get('name')} (weights {weights})" if result.settings["cosine"] else "hashes"
    return render_gallery(
        "Overlap of train and test images",
        [GallerySection(title, groups, notes)],
        heading="Overlap of train and test images",
        subtitles=[
            f"{plural(len(audit.train), 'train image')} in {names['train']}",
            f"{plural(len(audit.test), 'test image')} in {names['test']}",
        ],
        figures=[
            (words, f"{result.figures[name]:.2f} %", interval_text(result.intervals.get(name)))
            for name, words in TITLES.items()
            if name in result.figures
        ],
        table=_calibration(audit),
        footer=f"Compared by {by}; by excb-eval overlap.",
    )


def calibration_table(audit: Audit) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the calibration: what each threshold finds of planted copies, in percent."""
    calibration = audit.calibration
    header = ["by", "near from", *(f"{kind} found %" for kind in KINDS), "precision %", "false alarms %"]
    rows = []
    for name in calibration.found:
        precisions = [calibration.precision(name, kind) for kind in KINDS]
        worst = min((each for each in precisions if not math.isnan(each)), default=math.nan)
        rows.append(
            [
                name,
                near_from(audit, name),
                *(f"{100 * calibration.recall(name, kind):.1f}" for kind in KINDS),
                f"{100 * worst:.1f}",
                f"{100 * float(calibration.alarms[name].double().mean()):.1f}",
            ]
        )
    return header, rows


def near_from(audit: Audit, name: str) -> str:
    """A descriptor's threshold in its unit."""
    if name == EITHER:
        return ""
    cosine = audit.calibration.thresholds[name]
    return f"{bits_of(cosine)} bits" if name == "hash" else f"cosine {cosine:.3f}"


def _calibration(audit: Audit) -> GalleryTable | None:
    header, rows = calibration_table(audit)
    if not rows:
        return None
    others = "train images of other classes" if audit.calibration.by_class else "all other train images"
    note = (
        "Planted: altered copies of train images. False alarms: train images that are not copies, compared with "
        f"{others}. Precision is that of the kind with the lowest, of as many copies as images that are none."
    )
    return GalleryTable("What the thresholds find", header, rows, note)


def _group(audit: Audit, pairs: list[Pair]) -> PictureGroup:
    near = [_picture(audit.train, pair.train, _words(pair)) for pair in pairs]
    return PictureGroup(near, _picture(audit.test, pairs[0].test, "test"))


def _words(pair: Pair) -> str:
    parts = [
        f"{bits_of(cosine)} bits" if name == "hash" else f"{cosine:.3f}" for name, cosine in pair.similarities.items()
    ]
    return ", ".join([*parts, *(["mirrored"] if pair.mirrored else [])])


def _picture(images: Images, index: int, mark: str) -> Picture:
    return Picture.of(images.paths[index], partial(images.open, index), mark=mark)
