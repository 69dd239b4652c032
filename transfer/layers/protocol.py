"""The layers protocol: cells judged on held-out train images, the best one and the default on the test images."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from excb.console import Reporter, plural
from excb.distributed.collectives import all_succeed
from excb.errors import UserError
from excb.inference import accuracy
from excb.references.guessing import majority
from excb.results.result import ResultRecord, interval_text

from ..features.parts import GEM_POWER, Part, PartRows, Shapes
from ..probes.failure import SameFeatures
from ..probes.logistic import SOLVER
from ..probes.penalty import FEW_SETTINGS
from ..probes.recipes import FOLDS, LinearProtocol
from ..probes.rows import part_rows, shapes_of
from ..probes.selection import HELD_OUT, has_few_labels, held_out
from ..protocol import Measurement
from ..reporting.predictions import Predictions
from ..reporting.references import NEIGHBOURS, tell_notes
from ..reporting.report import make_result
from ..task import Task
from .cells import Cell, blocks_of, cells_of, parts_of
from .judging import CELL_STRENGTHS, CellHeads, Judged, Votes, best_of
from .options import LayersOptions
from .picture import LayerFiles
from .poolings import ATTENTIVE, DEFAULT

FIGURE, BESIDE = "layers_{}", "layers_default_{}"
K, TEMPERATURE = 20, 0.07  # of votes


@dataclass(frozen=True)
class LayersPlan:
    """All that `measure` computes."""

    shapes: Shapes
    cells: list[Cell]  # those judged on the first pass over the train images
    linear: LinearProtocol
    attentive: LinearProtocol
    few: bool = False  # whether vectors have the form for few labels

    @property
    def parts(self) -> list[Part]:
        """The parts that the pass keeps."""
        return parts_of(self.cells)

    @property
    def width(self) -> int:
        """Numbers that it keeps of an image."""
        return sum(map(self.shapes.width, self.parts))

    @property
    def widest(self) -> int:
        """Numbers of an image that are in memory at once: those of a cell; patches are read batch by batch."""
        read = [cell for cell in self.cells if cell.pooling != ATTENTIVE]
        return max(sum(map(self.shapes.width, cell.parts)) for cell in read)


def checked(task: Task, options: LayersOptions) -> LayersPlan:
    """The plan that `measure` computes; it refuses what `measure` refuses before any work.

    Raises:
        UserError: the backbone has no blocks to read, or no such ones; or a setting is out of range.
    """
    all_succeed(lambda: options.check(None))
    attentive = options.attentive_blocks
    shapes = all_succeed(lambda: _shapes(task))
    cells = cells_of(shapes, blocks=options.blocks, poolings=options.poolings)
    if attentive not in ("best", ()):
        numbers = blocks_of(shapes, None if isinstance(attentive, str) else attentive, option="--attentive")
        cells += [Cell(number - 1, ATTENTIVE) for number in numbers]
    assert task.train.labels is not None
    labels = task.train.labels
    all_succeed(lambda: held_out(labels, options.seed))
    few = options.probe == "linear" and has_few_labels(labels) and not options.given("epochs", "lr", "wd")
    return LayersPlan(shapes, cells, *options.plans(len(labels)), few=few)


def _shapes(task: Task) -> Shapes:
    try:
        return shapes_of(task)
    except UserError as error:
        raise UserError(f"{str(error).partition(':')[0]}, so no layers: evaluate it by linear or knn") from None


def measure(task: Task, options: LayersOptions, reporter: Reporter) -> Measurement:
    """Judge every cell on held-out train images; the best one and the default are judged on the test images.

    A seeded tenth of every class's train images is held out. Heads of all cells are trained on the others, and the held
    out images choose a head for each cell, and the cell. The chosen cell's head is trained again on all train images.
    So is the default's, which is what the backbone itself returns. The test images choose nothing.

    One pass over the train images keeps the pooled vectors of all blocks, in the cache on disk. A cell's are in memory
    at a time. Patches of all blocks would be a hundred times as much, so by default attentive probes come after the
    linear heads: a second pass keeps the patches of two blocks, the best one so far and the last. `attentive` names
    blocks instead, whose patches the first pass keeps.

    Args:
        task: backbone and images.
        options: what is compared, and how.
        reporter: prints notes and progress.

    Returns:
        Figures `layers_top1` and `layers_top5` of the chosen cell and `layers_default_top1` and `_top5`, with all cells
        in the settings' sweep, and the test images' predictions.

    Raises:
        UserError: as `checked`, or an image cannot be read.
    """
    start = time.monotonic()
    plan = checked(task, options)
    probe: CellHeads | Votes
    if options.probe == "knn":
        probe = Votes(task, K, TEMPERATURE, options.seed)
    else:
        probe = CellHeads(task, plan.linear, plan.attentive, plan.shapes, options.seed, few=plan.few)
        if plan.few:
            reporter.note(
                f"{plural(len(task.train), 'train image is', 'train images are')} few labels: cells have a logistic "
                f"regression, judged by {FOLDS} folds (settings of heads, such as --lr, take heads)"
            )
    reporter.note(storage(task, plan))
    rows = part_rows(task, task.train, plan.parts, plan.shapes, reporter, name="train")
    judged = _judged(probe, plan.cells, rows, reporter)
    sources = dict.fromkeys(plan.cells, rows)
    if options.probe == "linear" and options.attentive_blocks == "best":
        later = [Cell(block, ATTENTIVE) for block in sorted({best_of(judged).cell.block, len(plan.shapes.maps) - 1})]
        patches = part_rows(task, task.train, parts_of(later), plan.shapes, reporter, name="train, patches")
        judged += _judged(probe, later, patches, reporter)
        sources |= dict.fromkeys(later, patches)
    best, default = best_of(judged), judged[0]
    both = list(dict.fromkeys((best.cell, default.cell)))
    test = part_rows(task, task.test, parts_of(both), plan.shapes, reporter, name="test")
    guesses = {}
    with reporter.progress("heads of all train images", len(both)) as bar:
        for each in (default, best)[: len(both)]:
            parts = each.cell.parts
            guesses[each.cell] = probe.predict(each, sources[each.cell](parts), test(parts))
            bar.advance()
    predictions = Predictions.of(task, {FIGURE: guesses[best.cell], BESIDE: guesses[default.cell]})
    same = _same_features(task, plan, best.cell, sources[best.cell], test)
    result = make_result(
        task,
        protocol=f"layers_{options.probe}",
        settings=_settings(options, plan, judged, best),
        scored=predictions,
        seconds=time.monotonic() - start,
        notes=[_difference(best, predictions), *_failed(task, same, predictions)],
        references={} if same is None else {NEIGHBOURS: {FIGURE.format("top1"): same.percent}},
    )
    return Measurement(result, predictions, partial(_show, result), LayerFiles(predictions))


def _same_features(task: Task, plan: LayersPlan, cell: Cell, train: Any, test: Any) -> SameFeatures | None:
    """The vote of the nearest train images on a cell's features; of patches on their means."""
    assert task.train.labels is not None
    assert task.test.labels is not None
    labels, targets = (torch.from_numpy(images.labels) for images in (task.train, task.test))
    return SameFeatures.of(
        (train(cell.parts), labels),
        (test(cell.parts), targets),
        classes=len(task.train.classes or ()),
        device=task.device,
        channels=plan.shapes.maps[cell.block][0] if cell.pooling == ATTENTIVE else None,
    )


def _failed(task: Task, same: SameFeatures | None, predictions: Predictions) -> list[str]:
    """A sentence that blames the chosen cell's head, where it failed."""
    if same is None:
        return []
    assert task.train.labels is not None
    hits, guessing = predictions.hits(within=1), majority(torch.from_numpy(task.train.labels), predictions.targets)
    return same.blame(hits[FIGURE.format("top1")], guessing=guessing, advice="try --probe knn")


def storage(task: Task, plan: LayersPlan) -> str:
    """The parts that a pass keeps, for people."""
    images, where = len(task.train), "in memory" if task.cache is None else "in the cache"
    return (
        f"{plural(len(plan.shapes.maps), 'block')}, {plural(len(plan.cells), 'cell')}: one pass over "
        f"{plural(images, 'train image')} keeps {4 * images * plan.width / 1e9:.3g} GB {where}; "
        f"{4 * images * plan.widest / 1e9:.3g} GB of it at a time are read into memory"
    )


def _judged(probe: CellHeads | Votes, cells: Sequence[Cell], rows: Any, reporter: Reporter) -> list[Judged]:
    judged = []
    with reporter.progress("blocks and poolings", len(cells)) as bar:
        for cell in cells:
            wanted: PartRows = rows(cell.parts)
            judged.append(probe.judge(cell, wanted))
            bar.advance()
    return judged


def _settings(options: LayersOptions, plan: LayersPlan, judged: Sequence[Judged], best: Judged) -> dict[str, Any]:
    vectors = [cell for cell in plan.cells if cell.pooling not in (DEFAULT, ATTENTIVE)]
    heads: dict[str, Any] = {"k": K, "temperature": TEMPERATURE}
    if options.probe == "linear":
        linear = SOLVER | FEW_SETTINGS | {"C": list(CELL_STRENGTHS)} if plan.few else plan.linear.settings()
        heads = {"heads": linear, "attentive_heads": plan.attentive.settings()}
        blocks = options.attentive_blocks
        heads |= {"attentive": blocks if isinstance(blocks, str) else list(blocks)}
    return heads | {
        "blocks": sorted({cell.block + 1 for cell in vectors}),
        "poolings": sorted({cell.pooling for cell in vectors}),
        "gem_power": GEM_POWER,
        "maps": [list(each) for each in plan.shapes.maps],
        "held_out": None if plan.few else HELD_OUT,
        "select": "folds" if plan.few else "holdout",
        "select_images": best.images,
        "chosen": best.row(),
        "sweep": [each.row() for each in judged],
        "seed": options.seed,
    }


def _difference(best: Judged, predictions: Predictions) -> str:
    """A sentence on the chosen cell beside the default."""
    if best.cell.pooling == DEFAULT:
        return "the held-out images choose what the backbone itself returns: both figures are the same"
    hits = predictions.hits(within=1)
    beside, chosen = hits[BESIDE.format("top1")], hits[FIGURE.format("top1")]
    low, high = accuracy.difference_interval(beside, chosen)
    return (
        f"{best.cell.text} is chosen on {plural(best.images, 'held-out train image')}; on the test images it is "
        f"{accuracy.accuracy(chosen) - accuracy.accuracy(beside):+.2f} points from what the backbone itself returns "
        f"(95 %: {low:+.2f} to {high:+.2f}, paired)"
    )


def _show(result: ResultRecord, reporter: Reporter) -> None:
    """The held-out accuracy of every cell, and the figures."""
    settings, sweep = result.settings, result.settings["sweep"]
    poolings = list(dict.fromkeys(each["pooling"] for each in sweep))
    cells = {(each["block"], each["pooling"]): f"{each['holdout_top1']:.2f}" for each in sweep}
    best = settings["chosen"]["block"], settings["chosen"]["pooling"]
    cells[best] += " *"
    lines = [
        [
            f"{block}",
            " x ".join(map(str, settings["maps"][block - 1])),
            *(cells.get((block, name), "") for name in poolings),
        ]
        for block in sorted({block for block, _ in cells})
    ]
    title = f"Top-1 % on {plural(settings['select_images'], 'held-out train image')} (* chosen)"
    reporter.table(title, ["block", "map", *poolings], lines)
    rows = [
        [name, f"{result.figures[figure]:.2f}", interval_text(result.intervals.get(figure)), top5]
        for name, template in ((f"chosen: block {best[0]}, {best[1]}", FIGURE), ("default", BESIDE))
        for figure, top5 in ((template.format("top1"), f"{result.figures[template.format('top5')]:.2f}"),)
    ]
    reporter.table("On the test images", ["", "top-1 %", "95 % interval", "top-5 %"], rows)
    tell_notes(result, reporter)
