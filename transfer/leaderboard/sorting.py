"""Published and measured figures sorted into boards: one table per task and images, ranks only in one protocol."""

from collections.abc import Iterable
from typing import Any

from excb.errors import UserError
from excb.inference.tiers import ranks
from excb.results.result import folder_name

from ..protocol import Fields, FigureKind
from ..protocols import families, family_of, kind_of
from ..published.claim import Claim
from ..reporting.fields import OTHER, differences, digest
from . import comparable
from .board import Board, FigureSource, Group, LeaderboardCell, LeaderboardRow, MeasuredResult
from .comparable import ImagesKey

PACKAGED = "excb/bundled/"  # files of results that come with the package
AUTHORS = "https://github.com/ManiadisG/ExCB"  # where the paper is named


def boards(measured: Iterable[MeasuredResult], published: Iterable[Claim]) -> list[Board]:
    """Sort figures into boards, and into groups of one protocol; only within these are rows ranked.

    Args:
        measured: results.
        published: claims; those that are not accuracy, such as numbers of clusters, are left out.
    """
    sorter = _Boards(list(published))
    for claim in sorter.published:
        sorter.add_claim(claim)
    for each in measured:
        sorter.add_result(each)
    return sorter.ordered()


class _Boards:
    def __init__(self, published: list[Claim]) -> None:
        self.published = published
        self._boards: dict[str, Board] = {}
        self._groups: dict[tuple[str, str], Group] = {}

    def add_claim(self, claim: Claim) -> None:
        # What its source measured by other means stays under the source's name: an attentive probe is no linear head.
        if (kind := kind_of(claim.metric if claim.differences else claim.figure)) is None:
            return
        images = ImagesKey(claim.data.name, claim.data.title, "all")
        try:
            fields = comparable.of_claim(claim, kind)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"the protocol {claim.protocol.name} of {claim.id} states no options ({reason})") from None
        group = self._group(kind, images, fields, claim.table if claim.differences else claim.protocol.name)
        facts = (claim.checkpoint, claim.method, claim.architecture, claim.epochs, claim.batch, claim.crops)
        row = _row_like(group, LeaderboardRow(*facts))
        published = row.cells.setdefault(kind.metric, LeaderboardCell()).published
        if claim.value not in published:
            published.append(claim.value)
        paper = claim.source.startswith("ExCB (ECCV 2024)")
        _add(
            row.sources,
            FigureSource(claim.source.replace("ExCB (ECCV 2024)", "paper"), AUTHORS if paper else claim.address),
        )
        unstated, otherwise = ", ".join(claim.unstated), "; ".join(claim.differs)
        for note in (claim.note, unstated and f"not stated: {unstated}", otherwise and f"not as here: {otherwise}"):
            _add(row.notes, note)

    def add_result(self, each: MeasuredResult) -> None:
        result = each.result
        images = comparable.images_of_result(result)
        for figure, value in result.figures.items():
            if (kind := kind_of(figure)) is None:
                continue
            group = self._group(kind, images, comparable.fields_of_result(result, kind), result.protocol)
            row = _row_like(group, _measured_row(each))
            row.own = row.own or not each.source.text.startswith(PACKAGED)
            cell = row.cells.setdefault(kind.metric, LeaderboardCell())
            if cell.measured is not None:  # as of other seeds: the file named first counts, and no figure is lost
                _add(row.notes, f"{each.source.text} gives {kind.metric} {value:.2f}")
                continue
            cell.measured, cell.interval = value, result.intervals.get(figure)
            # A claim that was read from this very file is the same measurement: agreeing with it reproduces nothing.
            recorded = {claim.value for claim in self._recorded(each) if claim.figure == figure}
            cell.published = [published for published in cell.published if published not in recorded]
            # The file may also be the source of a claim.
            row.sources = [source for source in row.sources if source.text != each.source.text]
            _add(row.sources, each.source)
            for note in result.remarks:
                _add(row.notes, note)
            self._judge(row, cell, each, figure)

    def _recorded(self, each: MeasuredResult) -> list[Claim]:
        return [claim for claim in self.published if claim.source == each.source.text]

    def _judge(self, row: LeaderboardRow, cell: LeaderboardCell, each: MeasuredResult, figure: str) -> None:
        """Judge anew the claims that the file answers or that share the row: a verdict in a file is not trusted."""
        from ..reproduce.verdicts import judge

        for claim in self.published:
            if claim.figure != figure:
                continue
            answered = claim.id in each.result.claims
            if answered and claim.value not in cell.published:
                cell.published.append(claim.value)
            if answered or (claim.checkpoint == row.model and claim.value in cell.published):
                row.verdicts.add(judge(claim, each.result).word)

    def _group(self, kind: FigureKind, images: ImagesKey, fields: Fields, name: str) -> Group:
        key = f"{kind.family} {images.key}"
        board = self._boards.setdefault(key, Board(family_of(kind).title, images.title, key, kind.family))
        if kind.metric not in board.metrics:
            board.metrics.append(kind.metric)
        if not kind.higher_is_better:
            board.lowest_first.add(kind.metric)
        code = digest(fields)
        if (key, code) not in self._groups:
            self._groups[key, code] = Group(fields)
            board.groups.append(self._groups[key, code])
        group = self._groups[key, code]
        _add(group.names, name)
        return group

    def ordered(self) -> list[Board]:
        for board in self._boards.values():
            board.groups.sort(key=group_order)
            for number, group in enumerate(board.groups):
                _rank(group, board)
                unlike = [differences(group.fields, before.fields) for before in board.groups[:number]]
                other = group.fields.get(OTHER)
                group.apart = [other] if other else min(unlike, key=len, default=[])
                _tell_weights_apart(group)
        return sorted(self._boards.values(), key=_board_order)


def group_order(group: Group) -> tuple[bool, int]:
    """Protocols that anybody can repeat come first, then those with most rows."""
    return not group.ranked, -len(group.rows)


def _board_order(board: Board) -> tuple[int, int, str]:
    names = [family.name for family in families()]
    place = names.index(board.family) if board.family in names else len(names)
    return place, -sum(len(group.rows) for group in board.groups), board.key


def _rank(group: Group, board: Board) -> None:
    """Sort the rows by the first metric that any has, the best first, and number them."""
    first = next(metric for metric in board.metrics if any(metric in row.cells for row in group.rows))
    values = [(row, row.cells[first].value if first in row.cells else None) for row in group.rows]
    known = [(row, value) for row, value in values if value is not None]
    numbers = ranks([value for _, value in known], higher_is_better=first not in board.lowest_first)
    found = {id(row): int(number) for (row, _), number in zip(known, numbers, strict=True)}
    group.rows.sort(key=lambda row: (found.get(id(row), len(group.rows) + 1), row.model))
    group.ranks = [found.get(id(row)) if group.ranked else None for row in group.rows]


def _tell_weights_apart(group: Group) -> None:
    """Rows of one name are of unlike weights: each says so."""
    for row in group.rows:
        if row.weights and any(other is not row and other.model == row.model for other in group.rows):
            _add(row.notes, f"weights hash {row.weights[:12]}: another row of this name has another")


def _model_name(each: MeasuredResult) -> str:
    if each.checkpoint is not None:
        return each.checkpoint.name
    checkpoint = each.result.checkpoint
    return str(checkpoint.get("name") or folder_name(str(checkpoint.get("source", ""))) or "unnamed")


def _measured_row(each: MeasuredResult) -> LeaderboardRow:
    """The row of a result, without figures: the catalogue's facts, else what the result says of the pretraining."""
    checkpoint, row = each.result.checkpoint, each.checkpoint
    stated = checkpoint.get("pretraining") if isinstance(checkpoint.get("pretraining"), dict) else {}
    facts = {name: stated.get(name) for name in ("method", "epochs", "batch", "crops")} if stated else {}
    if row is not None:
        facts |= {name: getattr(row, name) for name in ("method", "epochs", "batch", "crops")}
    epochs = facts.get("epochs")
    if epochs is None and checkpoint.get("epoch") is not None:
        epochs = round(checkpoint["epoch"])
    return LeaderboardRow(
        _model_name(each),
        str(facts.get("method") or ""),
        str(checkpoint.get("architecture", "")),
        epochs,
        facts.get("batch"),
        facts.get("crops"),
        weights=str(checkpoint.get("weights_sha256", "")),
    )


def _row_like(group: Group, new: LeaderboardRow) -> LeaderboardRow:
    """The group's row of that checkpoint, else the new one: published figures are of no weights of their own."""
    for row in group.rows:
        if row.model == new.model and (not row.weights or not new.weights or row.weights == new.weights):
            row.weights = row.weights or new.weights
            return row
    group.rows.append(new)
    return new


def _add(to: list[Any], value: Any) -> None:
    if value and value not in to:
        to.append(value)
