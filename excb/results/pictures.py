"""Pictures that commands write among their results: their names, by which searches for images leave them out."""

from collections.abc import Collection
from pathlib import Path

from excb.files.run_files import RECIPE

# FILE.WORD.png beside FILE.json.
CONFUSION, LAYERS, MASKS, SEVERITY = "confusion", "layers", "masks", "severity"
BESIDE_RESULTS = (CONFUSION, LAYERS, MASKS, SEVERITY)

# The program that has drawn a picture, and the bytes by which a PNG and an SVG say so.
PROGRAM = "excb"
MARKS = (f"Software\0{PROGRAM}".encode(), f"<dc:title>{PROGRAM}</dc:title>".encode())

# In folders of their own: stems and names of the pictures, and of the files by which such a folder is recognised.
SIZES, CLUSTERS = "sizes", "clusters.json"  # of clusters
COMPARISON = "comparison"  # of several checkpoints, also the stem of its tables
STUDY, STUDY_TABLE = "picture", "table"
CURVES, QUICKSTART = "curves.png", "references.png"  # of runs, and of the quickstart's
OF_FOLDERS = (
    (frozenset({CLUSTERS}), f"{SIZES}.png"),
    (frozenset({f"{COMPARISON}.json", f"{COMPARISON}.csv"}), f"{COMPARISON}.png"),
    (frozenset({f"{STUDY_TABLE}.md", f"{STUDY_TABLE}.csv"}), f"{STUDY}.png"),
    (frozenset({RECIPE}), CURVES),
    (frozenset({RECIPE}), QUICKSTART),
)

# A folder of pictures only, with a sheet of all, in the run of a detector.
DETECTIONS, SHEET, DETECTION_RUN = "pictures", "sheet.png", "run.json"


def picture_beside(result: Path, word: str, suffix: str = ".png") -> Path:
    """The picture of one of `BESIDE_RESULTS` that belongs to FILE.json: FILE.WORD.png."""
    return result.with_name(f"{result.name.removesuffix('.json')}.{word}{suffix}")


def pictures_of_results(folder: Path, names: Collection[str], *, named: bool) -> set[str]:
    """Those of the names that commands drew, by the files beside them.

    Args:
        folder: that holds the files.
        names: of its files.
        named: whether the user named this very folder, whose pictures are wanted then where it has nothing else.
    """
    drawn = set[str]()
    for name in names:
        if name.endswith(".json"):
            drawn |= {f"{name.removesuffix('.json')}.{word}.png" for word in BESIDE_RESULTS}
    there = set(names)
    drawn |= {picture for beside, picture in OF_FOLDERS if beside <= there}
    if folder.name == DETECTIONS and not named and SHEET in there and (folder.parent / DETECTION_RUN).is_file():
        drawn |= {name for name in there if name.endswith(".png")}
    return drawn & there
