"""The part of a student that learns from teachers: a head for each of them, and the objectives that are on."""

from collections.abc import Sequence
from importlib import import_module
from typing import Literal

import torch
from torch import Tensor, nn

from excb.exact import widened
from excb.heads import MLP
from excb.method import Distilled

from .interface import Objective, Targets
from .maps import on_grid
from .settings import DistilSettings
from .statistics import Statistics
from .table import OBJECTIVES


def target_pair_weights(sees: Literal["image", "view", "other_view"], globals_: int, views: int) -> Tensor:
    """The weight of every pair of a target and a view of the student, [T, V]; their sum is 1.

    Args:
        sees: `DistilSettings.teacher_sees`.
        globals_: number G of global views.
        views: number V of all views, the global ones first.
    """
    if sees == "image":
        weights = torch.ones(1, views, dtype=torch.float64)
    elif sees == "view":
        weights = torch.eye(views, dtype=torch.float64)
    else:
        weights = 1 - torch.eye(globals_, views, dtype=torch.float64)
    return weights / weights.sum()


class TeacherHead(nn.Module):
    """One teacher's head: from the student's features to the teacher's, and what compares them.

    Args:
        settings: of the run.
        width: of the student's features.
        teacher_width: D of the teacher's vectors.
        map_widths: of the student's and the teacher's maps; None where no maps are compared.
        style: of the head's hidden layer, see `MLP`.
    """

    def __init__(
        self,
        settings: DistilSettings,
        *,
        width: int,
        teacher_width: int,
        map_widths: tuple[int, int] | None,
        style: Literal["batchnorm", "gelu"],
    ) -> None:
        super().__init__()
        self.rows = self.cells = None
        self.statistics: Statistics | None = None
        self.map_statistics: Statistics | None = None
        if settings.needs_rows:
            hidden_layers = int(settings.head == "mlp")
            self.rows = MLP(width, settings.hidden, teacher_width, layers=hidden_layers, style=style)
            self.statistics = Statistics(teacher_width, settings.statistics, floor=settings.whitening_floor)
        mine, theirs = map_widths or (0, 0)
        if map_widths is not None:
            self.cells = nn.Conv2d(mine, theirs, 1)
            self.map_statistics = Statistics(theirs, settings.statistics, floor=settings.whitening_floor)
        self.objectives = nn.ModuleDict(
            {
                name: objective_of(name)(settings, theirs if OBJECTIVES[name].maps else teacher_width)
                for name in settings.weights
            }
        )

    def start(self, rows: Tensor, maps: Tensor | None, *, seed: int) -> None:
        """Take statistics and first clusters from a sample of the training images.

        Args:
            rows: the teacher's vectors, [N, D]; of no images where nothing needs them.
            maps: cells of its maps, [M, D].
            seed: of the k-means.
        """
        if self.statistics is not None:
            self.statistics.start(rows)
        if self.map_statistics is not None and maps is not None:
            self.map_statistics.start(maps)
        for name, objective in self.objectives.items():
            if len(rows) and self.statistics is not None and not OBJECTIVES[name].maps:
                assert isinstance(objective, Objective)
                objective.start(self.statistics(rows[rows.isfinite().all(1)]), seed=seed)

    def forward(
        self, features: Tensor, maps: Sequence[Tensor], targets: Targets, weights: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Compare: losses [] and what `Objective.update` needs, by objective.

        Args:
            features: of the student, [V, B, width].
            maps: of the student's backbone, [v, B, width, h, w] for each resolution.
            targets: of this teacher.
            weights: of pairs, [T, V].
        """
        terms, pending = dict[str, Tensor](), dict[str, Tensor]()
        rows = None
        if self.rows is not None:
            assert self.statistics is not None
            assert targets.rows is not None
            predicted = self.rows(features.flatten(0, 1)).unflatten(0, features.shape[:2])
            known = targets.rows.any(-1, keepdim=True).all(0)  # [B, 1]
            # An image that the teacher could not read has a row of zeros: no gradient passes, whatever the objective.
            rows = widened(predicted).masked_fill(~known, 0), self.statistics(widened(targets.rows))
        with torch.autocast(features.device.type, enabled=False):
            for name, objective in self.objectives.items():
                if OBJECTIVES[name].maps:
                    continue
                assert rows is not None
                terms[name], needed = objective(*rows, weights.to(rows[0]))
                if needed is not None:
                    pending[name] = needed
        if self.cells is not None:
            terms["maps"] = self._map_term(maps, targets)
        return terms, pending

    def _map_term(self, maps: Sequence[Tensor], targets: Targets) -> Tensor:
        assert self.cells is not None
        assert self.map_statistics is not None
        assert targets.maps is not None
        views, losses = sum(len(part) for part in maps), []
        for part, wanted in zip(maps, targets.maps, strict=True):
            predicted = widened(self.cells(part.flatten(0, 1)))
            with torch.autocast(part.device.type, enabled=False):
                cells = on_grid(widened(wanted.flatten(0, 1)), predicted.shape[-2:]).movedim(1, -1)
                target = self.map_statistics(cells).movedim(-1, 1).unflatten(0, part.shape[:2])
                shares = predicted.new_full((len(part),), 1 / views)
                losses.append(self.objectives["maps"](predicted.unflatten(0, part.shape[:2]), target, shares)[0])
        return torch.stack(losses).sum()


def objective_of(name: str) -> type[Objective]:
    """The objective of that name in the table, imported on first use."""
    kind: type[Objective] = import_module(f"{__package__}.{OBJECTIVES[name].module}").OBJECTIVE
    return kind


def loss_by_chance(settings: DistilSettings, batch: int) -> float:
    """The loss of a student that learns nothing, of batches of so many images."""
    return sum(weight * objective_of(name).chance(settings, batch) for name, weight in settings.weights.items())


class Distillation(nn.Module):
    """All teachers' heads.

    Args:
        settings: of the run.
        globals_: number of global views.
        heads: one for each teacher, in the order of the targets.
    """

    weights: Tensor

    def __init__(self, settings: DistilSettings, heads: Sequence[TeacherHead], *, globals_: int, views: int) -> None:
        super().__init__()
        self._settings = settings
        self.heads = nn.ModuleList(heads)
        self.register_buffer("weights", target_pair_weights(settings.teacher_sees, globals_, views), persistent=False)

    @property
    def needs_maps(self) -> bool:
        """Whether `forward` needs the student's maps."""
        return self._settings.needs_maps

    def forward(self, features: Tensor, maps: Sequence[Tensor], targets: Sequence[Targets]) -> Distilled:
        """Compare a batch with what all teachers make of it.

        Args:
            features: of the student, [V, B, width], the global views first.
            maps: of its last layer, [v, B, width, h, w] for each resolution; empty where none are needed.
            targets: of each teacher.
        """
        terms: dict[str, list[Tensor]] = {name: [] for name in self._settings.weights}
        pending = dict[str, Tensor]()
        for number, (head, wanted) in enumerate(zip(self.heads, targets, strict=True)):
            losses, needed = head(features, maps, wanted, self.weights)
            for name, loss in losses.items():
                terms[name].append(loss)
            pending |= {f"{number}.{name}": values for name, values in needed.items()}
        means = {name: torch.stack(losses).mean() for name, losses in terms.items()}
        loss = torch.stack([self._settings.weights[name] * term for name, term in means.items()]).sum()
        if not self._settings.needs_rows:
            # Some networks have layers behind their last map, whose gradients DistributedDataParallel would wait for.
            loss = loss + 0 * features.sum()
        return Distilled(loss, means, pending)

    @torch.no_grad()
    def update(self, pending: dict[str, Tensor]) -> None:
        """Take in the batch after the optimizer's step; all ranks call this."""
        for place, values in pending.items():
            number, _, name = place.partition(".")
            self.heads[int(number)].objectives[name].update(values)  # type: ignore[union-attr,index]
