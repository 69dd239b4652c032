"""Studies as data: which recipes are compared, and the layout of their table and figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from excb.balancing.table import BALANCERS
from excb.errors import UserError, nearest_name

BASE = "conv4_tiny"  # the recipe that every cell changes
TRAINING = ("smallest_cluster", "largest_cluster", "confidence", "loss")  # figures of the last epoch
SIZES = ("smallest_cluster", "largest_cluster", "empty_share", "largest_size", "unused_share")


@dataclass(frozen=True, kw_only=True)
class StudyCell:
    """One recipe of a study."""

    name: str  # also the name of its folder
    factors: Mapping[str, str]  # what distinguishes it from the other cells, by the table's columns
    overrides: Sequence[str]  # of the base recipe, each "section.field=value"


@dataclass(frozen=True, kw_only=True)
class Study:
    """A grid of recipes."""

    name: str  # on the command line
    asks: str  # the question, as the title of table and figure
    paper: str  # what it corresponds to in the paper
    cells: Sequence[StudyCell]  # the recipes, in the order of the table
    # `sizes` sorted relative cluster sizes, `lines` accuracy against a number, `dots` accuracy by cell
    picture: Literal["sizes", "lines", "dots"]
    figures: Sequence[str] = TRAINING  # that the table shows, besides those by which cells are compared
    # the factor whose levels are the columns of the table in the paper's form; None for one row per cell
    across: str | None = None
    # sums of cells that are compared seed by seed: what it is called, and each cell's weight
    contrasts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def factors(self) -> list[str]:
        """Names of the factors, in the order of the table's columns."""
        return list(self.cells[0].factors)

    def select(self, names: Sequence[str] | None) -> list[StudyCell]:
        """The cells of these names, in the study's order; None for all.

        Raises:
            UserError: there is no such cell.
        """
        cells = [cell.name for cell in self.cells]
        for name in names or ():
            if name not in cells:
                raise UserError(
                    f"study {self.name} has no cell {name!r}{nearest_name(name, cells)} (it has {', '.join(cells)})"
                )
        return [cell for cell in self.cells if names is None or cell.name in names]

    def refuse_values_without_effect(self, words: Sequence[str]) -> None:
        """Raise UserError if an override for all cells is of a field that each of them sets itself."""
        for word in words:
            name = word.partition("=")[0]
            if all(any(own.startswith(f"{name}=") for own in cell.overrides) for cell in self.cells):
                raise UserError(
                    f"{word} would change no cell: study {self.name} compares {name}: leave it out, or name "
                    "cells with --cells"
                )


BATCHES = (16, 64, 256)
CLUSTERS = (16, 32, 64, 128, 256)


def _balancers() -> list[StudyCell]:
    # MIRA's assignments are as sharp as tau_t (1 - beta): with beta = 2/3, three times tau_t makes them the others'.
    also = {"mira": ["method.teacher_temperature=0.12"]}
    return [
        StudyCell(
            name=_cell_name(balancing),
            factors={"balancing": entry.title},
            overrides=[f"method.balancing={balancing}", *also.get(balancing, [])],
        )
        for balancing, entry in BALANCERS.items()
        if entry.title
    ]


def _cell_name(balancing: str) -> str:
    return "excb" if balancing == "linear" else balancing


SIMCLR = (
    "method.clustering=false",
    "method.contrast=1",
    "method.predictor=false",
    "method.teacher_statistics=averaged",
)


BYOL = ("method.clustering=false", "method.regression=1", "method.teacher_momentum=0.99")


def _methods() -> list[StudyCell]:
    """ExCB, what it becomes with the contrastive term, and its rivals: each on the same network, views and epochs."""
    clusterers = [replace(cell, factors={"method": cell.factors["balancing"]}) for cell in _balancers()]
    return [
        *(cell for cell in clusterers if cell.name != "none"),
        StudyCell(name="excb-contrast", factors={"method": "ExCB + contrast"}, overrides=["method.contrast=2"]),
        StudyCell(name="simclr", factors={"method": "SimCLR"}, overrides=SIMCLR),
        StudyCell(name="byol", factors={"method": "BYOL"}, overrides=BYOL),
    ]


def _differences(cells: Sequence[StudyCell], first: str) -> dict[str, dict[str, int]]:
    """One cell against every other one."""
    others = (cell.name for cell in cells if cell.name != first)
    return {f"{first} - {other}": {first: 1, other: -1} for other in others}


def _batch_interactions() -> dict[str, dict[str, int]]:
    """ExCB's loss of accuracy from the largest batch to a smaller one, less that of a rival."""
    largest = BATCHES[-1]
    return {
        f"(excb-{batch} - excb-{largest}) - ({rival}-{batch} - {rival}-{largest})": {
            f"excb-{batch}": 1,
            f"excb-{largest}": -1,
            f"{rival}-{batch}": -1,
            f"{rival}-{largest}": 1,
        }
        for rival in ("centering", "sinkhorn")
        for batch in BATCHES[:-1]
    }


def _batch_sizes() -> list[StudyCell]:
    return [
        StudyCell(
            name=f"{_cell_name(balancing)}-{batch}",
            factors={"balancing": BALANCERS[balancing].title, "batch": str(batch)},
            overrides=[f"method.balancing={balancing}", f"optim.batch={batch}"],
        )
        for balancing in ("linear", "centering", "sinkhorn")
        for batch in BATCHES
    ]


def _components() -> list[StudyCell]:
    """The paper's four rows, each adding a component; then the last row without one of those that all share."""
    columns = ("predictor", "stop-gradient", "decay of C", "multi-crop", "projector on local", "balancing")
    without = {
        "predictor": ["method.predictor=false"],
        "stop-gradient": ["method.centroid_gradient_from_local=true"],
        "decay of C": ["optim.centroid_decay=1"],
        "multi-crop": ["views.local_views=0", "views.global_scale=0.14,1"],
        "projector on local": ["method.projector_on_local=false"],
        "balancing": ["method.balancing=none"],
    }
    lacking = {
        "baseline": ("predictor", "stop-gradient", "decay of C"),
        "predictor": ("stop-gradient", "decay of C"),
        "stop-gradient": ("decay of C",),
        "excb": (),
        "no-local-projector": ("projector on local",),
        "no-multi-crop": ("multi-crop",),
        "no-balancing": ("balancing",),
    }
    return [
        StudyCell(
            name=name,
            factors={column: "no" if column in absent else "yes" for column in columns},
            overrides=[override for column in absent for override in without[column]],
        )
        for name, absent in lacking.items()
    ]


def _forms() -> list[StudyCell]:
    shapes = {"squared": "1 - (1 - z)(sK)^2", "linear": "1 - (1 - z)(sK)", "none": "z"}
    return [
        StudyCell(name=name, factors={"B(z; s), s < 1/K": shape}, overrides=[f"method.balancing={name}"])
        for name, shape in shapes.items()
    ]


_ALL = (
    Study(
        name="methods",
        asks="Accuracy by method",
        paper="its comparisons with other methods, all trained here alike",
        cells=_methods(),
        picture="dots",
        contrasts=_differences(_methods(), "excb-contrast") | _differences(_methods(), "excb"),
    ),
    Study(
        name="balancers",
        asks="Relative cluster sizes by balancing",
        paper="Section 4 and the appendix: sizes of ExCB's and DINO's clusters",
        cells=_balancers(),
        figures=SIZES,
        picture="sizes",
    ),
    Study(
        name="batch-size",
        asks="Accuracy by batch size",
        paper="the table of batch sizes (256, 512, 1,024)",
        cells=_batch_sizes(),
        picture="lines",
        across="batch",
        contrasts=_batch_interactions(),
    ),
    Study(
        name="components",
        asks="Accuracy by component",
        paper="the ablation of components; the last three rows are ours",
        cells=_components(),
        picture="dots",
        contrasts=_differences(_components(), "excb"),
    ),
    Study(
        name="clusters",
        asks="Accuracy by number of clusters",
        paper="the table of K (32,768 to 98,304)",
        cells=[StudyCell(name=f"k{K}", factors={"K": str(K)}, overrides=[f"method.clusters={K}"]) for K in CLUSTERS],
        picture="lines",
        across="K",
    ),
    Study(
        name="form",
        asks="Accuracy by the form of B below 1/K",
        paper="the appendix's table of B",
        cells=_forms(),
        picture="dots",
        contrasts=_differences(_forms(), "linear"),
    ),
)
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}


def find_study(name: str) -> Study:
    """The study of that name.

    Raises:
        UserError: there is no such study.
    """
    if name not in STUDIES:
        raise UserError(f"no study is called {name!r}{nearest_name(name, STUDIES)} (`excb-pretrain study` lists all)")
    return STUDIES[name]
