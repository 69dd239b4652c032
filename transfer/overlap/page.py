"""The audit as one page that holds all it needs: its figures, and each overlapping test image beside train images."""

import math
from collections.abc import Callable

from PIL import Image

from excb.images.decoding import BrokenImageError
from excb.images.image_set import Images
from excb.results.result import folder_name, interval_text

from ..reporting.markup import Html, element, join, page
from ..reporting.thumbnails import thumbnail
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


def shown(audit: Audit) -> list[list[Pair]]:
    """The pairs of each test image on the page, the most alike test image first."""
    order: dict[int, list[Pair]] = {}
    for pair in audit.pairs:
        order.setdefault(pair.test, []).append(pair)
    return list(order.values())[:MOST_IMAGES]


def render(audit: Audit, *, progress: Progress = lambda _done: None) -> str:
    """The page; `progress` is called after every test image."""
    result = audit.result
    names = {name: folder_name(str(result.data[name]["root"])) for name in ("train", "test")}
    head = element(
        "header",
        element("h1", "Overlap of train and test images"),
        element("p", f"{len(audit.train):,} train images in {names['train']}", class_="subtitle"),
        element("p", f"{len(audit.test):,} test images in {names['test']}", class_="subtitle"),
        element("dl", *(_figure(audit, name) for name in TITLES if name in result.figures), class_="figures"),
        class_="masthead",
    )
    groups = shown(audit)
    total = len({pair.test for pair in audit.pairs})
    body = [_group(audit, group, progress) for group in groups]
    hidden = total - len(groups)
    more = element("p", f"{hidden:,} more test images are in the list of pairs.", class_="note") if hidden else None
    title = f"{total:,} test images with a near-duplicate" if total else "No near-duplicate was found"
    pictures = element("section", element("h2", title), *body, more, class_="panel")
    weights = str(result.checkpoint.get("weights_sha256", ""))[:16]
    by = f"features of {result.checkpoint.get('name')} (weights {weights})" if result.settings["cosine"] else "hashes"
    foot = element("footer", f"Compared by {by}; by excb-eval overlap.")
    return page("Overlap of train and test images", join(head, _calibration(audit), pictures, foot), style="search")


def _figure(audit: Audit, name: str) -> Html:
    result = audit.result
    value = element("dd", f"{result.figures[name]:.2f} %", element("small", interval_text(result.intervals[name])))
    return element("div", element("dt", TITLES[name]), value)


def table(audit: Audit) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the calibration: what each threshold finds of planted copies, in percent."""
    found = audit.calibration
    header = ["by", "near from", *(f"{kind} found %" for kind in KINDS), "precision %", "false alarms %"]
    rows = []
    for name in found.found:
        precisions = [found.precision(name, kind) for kind in KINDS]
        worst = min((each for each in precisions if not math.isnan(each)), default=math.nan)
        rows.append(
            [
                name,
                near_from(audit, name),
                *(f"{100 * found.recall(name, kind):.1f}" for kind in KINDS),
                f"{100 * worst:.1f}",
                f"{100 * float(found.alarms[name].double().mean()):.1f}",
            ]
        )
    return header, rows


def near_from(audit: Audit, name: str) -> str:
    """A descriptor's threshold in its unit."""
    if name == EITHER:
        return ""
    cosine = audit.calibration.thresholds[name]
    return f"{bits_of(cosine)} bits" if name == "hash" else f"cosine {cosine:.3f}"


def _calibration(audit: Audit) -> Html | None:
    header, rows = table(audit)
    if not rows:
        return None
    head = element("tr", *(element("th", name) for name in header))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    whole = element("table", element("thead", head), element("tbody", *body))
    others = "train images of other classes" if audit.calibration.by_class else "all other train images"
    note = (
        "Planted: altered copies of train images. False alarms: train images that are no copies, compared with "
        f"{others}. Precision is that of the kind with the lowest, of as many copies as images that are none."
    )
    return element(
        "section", element("h2", "What the thresholds find"), whole, element("p", note, class_="note"), class_="panel"
    )


def _group(audit: Audit, group: list[Pair], progress: Progress) -> Html:
    first = group[0]
    query = _picture(audit.test, first.test, join(element("b", "test"), " ", audit.test.paths[first.test]))
    near = [_picture(audit.train, pair.train, join(_words(pair), " ", audit.train.paths[pair.train])) for pair in group]
    progress(1)
    return element("div", query, element("div", *near, class_="pictures"), class_="query group")


def _words(pair: Pair) -> Html:
    parts = [
        f"{bits_of(cosine)} bits" if name == "hash" else f"{cosine:.3f}" for name, cosine in pair.similarities.items()
    ]
    return element("b", ", ".join([*parts, *(["mirrored"] if pair.mirrored else [])]))


def _picture(images: Images, index: int, caption: Html) -> Html:
    """An image with its caption; one that is gone since it was compared has a grey square."""
    name = images.paths[index].rpartition("/")[2]
    try:
        picture: Image.Image | None = images.open(index)
    except BrokenImageError:
        picture = None
    drawn = (
        element("div", class_="gone", role="img", aria_label=f"{name} is not there")
        if picture is None
        else element("img", src=thumbnail(picture), alt=name, loading="lazy")
    )
    return element("figure", drawn, element("figcaption", caption, title=images.paths[index]))
