"""The findings in a folder of photographs, printed, and written as a page and tables."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from excb.console import Reporter, plural
from excb.errors import UserError, require
from excb.files import json_text
from excb.files.atomic import check_writable_folder, write_text
from excb.files.csv_text import first_cells, path_cell, plain_table, text_cell
from excb.files.foreign import read_bytes, sha256_of
from excb.files.npy import DAMAGE
from excb.images.image_set import Images
from excb.images.scanning import refuse_among
from excb.pages.origin import PageOrigin, real_root, refuse_other_page
from excb.results.replacing import FOLDER_ADVICE, has_content

from .findings import Findings
from .page import pictures_of, render_photos
from .prediction import Guess

PAGE, TABLE, JSON = "photos.html", "photos.csv", "photos.json"
DIGEST = "table_sha256"  # in the JSON
LISTED, GROUPS, NEXT = 20, 3, 4  # on a terminal: rows of each table, groups of copies, images to label next
COLUMNS = (
    "path",
    "label",
    "group",
    "guess",
    "probability",
    "sure",
    "second_guess",
    "copy_of",
    "label_next",
    "possible_label",
)


def check_out(images: Images, out: Path, *, labels: Path | None = None, overwrite: bool = False) -> None:
    """Refuse a folder for the report before anything is computed.

    Args:
        images: that the report is on.
        out: the folder.
        labels: the table that their labels are read from, which may be the report's own with labels filled in.
        overwrite: what is there may be replaced: a report on other images, other files, and a table that was changed.

    Raises:
        UserError: it cannot be written, or something would be lost.
    """
    refuse_among(images, out)
    require(not out.exists() or out.is_dir(), f"--out {out} is a file: name a folder")
    check_writable_folder(out)
    if not overwrite:
        _refuse_lost(images, out, labels)


def _refuse_lost(images: Images, out: Path, labels: Path | None) -> None:
    refuse_other_page(out / PAGE, _origin(images), advice=FOLDER_ADVICE)
    table, record = out / TABLE, out / JSON
    written = None
    if has_content(record):
        try:
            facts = json_text.parse(read_bytes(record))
            folder, written = str(facts["folder"]), facts.get(DIGEST)
        except DAMAGE:
            raise UserError(f"{record} is there, and `excb-eval photos` did not write it: {FOLDER_ADVICE}") from None
        if real_root(folder) != real_root(str(images.root)):
            raise UserError(f"{record} is on other images, of {folder}: {FOLDER_ADVICE}")
    if not has_content(table):
        return
    digest = sha256_of(table)
    if first_cells(table) != [*COLUMNS]:
        raise UserError(f"{table} is there, and `excb-eval photos` did not write it: {FOLDER_ADVICE}")
    if written not in (None, digest) and not (labels is not None and labels.exists() and labels.samefile(table)):
        raise UserError(f"{table} was changed since it was written: name it with --labels, {FOLDER_ADVICE}")


def _origin(images: Images) -> PageOrigin:
    return PageOrigin.of("photos", str(images.root))


def write_findings(findings: Findings, out: Path, reporter: Reporter) -> list[Path]:
    """Write the page, the table and the JSON; their paths. Raises UserError if one cannot be written.

    The JSON has the digest of the table, by which a changed table is known. It is removed first, and written
    last: after a crash in between, the new table must not be taken for a changed one.
    """
    with reporter.progress("pictures of the page", pictures_of(findings)) as bar:
        page = render_photos(findings, origin=_origin(findings.images), progress=bar.advance)
    table = _table(findings)
    (out / JSON).unlink(missing_ok=True)
    write_text(page, out / PAGE)
    write_text(table, out / TABLE)
    digest = hashlib.sha256(table.encode("utf-8", "surrogateescape")).hexdigest()
    json_text.write_json(findings.to_dict() | {DIGEST: digest}, out / JSON)
    return [out / PAGE, out / TABLE, out / JSON]


def answer(findings: Findings, reporter: Reporter) -> None:
    """Print it for people."""
    reporter.answer(findings.inventory)
    for group in findings.copies[:GROUPS]:
        reporter.answer(f"look the same: {', '.join(group[:4])}{' ...' if len(group) > 4 else ''}")
    if (more := len(findings.copies) - GROUPS) > 0:
        reporter.answer(f"and {plural(more, 'more group')}, in the page and the table of --out")
    if findings.comparison is None:
        reporter.answer(f"No network is compared: {findings.why}")
    else:
        reporter.table(
            f"{findings.comparison.figure.capitalize()} on your labels, cross-validated logistic regression",
            ["features", "%", "95 %"],
            [
                [entry.name, f"{entry.accuracy:.1f}", "{:.1f} to {:.1f}".format(*entry.interval)]
                for entry in (*findings.comparison.of("network"), *findings.comparison.of("reference"))
            ],
        )
        reporter.answer(findings.comparison.words)
    if findings.predictions is not None:
        reporter.answer(findings.predictions.certainty.words)
        sure = len(findings.predictions.sure)
        copies = sum(bool(guess.copy_of) for guess in findings.predictions.guesses)
        asked = len(findings.images) - findings.labelled
        reporter.answer(
            f"{plural(asked, 'image')} without a label: {sure:,} of "
            f"{plural(len(findings.predictions), 'guess', 'guesses')} sure"
            + (f", {copies:,} of them since they look like a labelled image" if copies else "")
        )
    if findings.errors:
        rows = [
            [each.path, f"{each.label} ({100 * each.probability:.0f} %)", each.suggestion]
            for each in findings.errors[:LISTED]
        ]
        shown = f", the {LISTED} most suspicious" if len(findings.errors) > LISTED else ""
        title = f"{plural(len(findings.errors), 'label')} to look at{shown}"
        reporter.table(title, ["image", "label (how likely)", "looks like"], rows)
        if findings.doubt:
            reporter.answer(findings.doubt)
    if findings.next is not None:
        paths = findings.next.paths
        rest = f" and {len(paths) - NEXT:,} more, with pictures in the page" if len(paths) > NEXT else ""
        reporter.answer(f"Label next (by {findings.next.rule}): {', '.join(paths[:NEXT])}{rest}")


def _table(findings: Findings) -> str:
    """A row for every image."""
    guesses, errors = defaultdict[str, list[Guess]](list), defaultdict[str, list[str]](list)
    for guess in () if findings.predictions is None else findings.predictions.guesses:
        guesses[guess.path].append(guess)
    for error in findings.errors:
        errors[error.path].append(error.suggestion)
    ranks = {} if findings.next is None else {path: place for place, path in enumerate(findings.next.paths, 1)}
    rows = []
    for index, (path, group) in enumerate(zip(findings.images.paths, findings.groups.tolist(), strict=True)):
        cells = _cells(guesses.get(path, []))
        name, rank = findings.labels.name(index), str(ranks.get(path, ""))
        texts = map(text_cell, (name, str(group), *cells, rank, _joined(errors.get(path, []))))
        rows.append([path_cell(path), *texts])
    return plain_table(COLUMNS, rows)


def _cells(guesses: Sequence[Guess]) -> tuple[str, ...]:
    """Guess, probability, sure, second guess and copy of an image; of several labels, these of each, in one order."""
    return (
        _joined([guess.label for guess in guesses]),
        _joined([f"{guess.probability:.4f}" for guess in guesses]),
        _joined(["yes" if guess.sure else "no" for guess in guesses]),
        guesses[0].second if guesses else "",
        guesses[0].copy_of if guesses else "",
    )


def _joined(cells: Sequence[str]) -> str:
    return "; ".join(cells)
