"""The state of a run: all that a checkpoint holds, gathered from its parts and restored into them."""

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from excb.console import Reporter
from excb.distributed.collectives import rank
from excb.distributed.machine import peak_memory
from excb.errors import UserError, first_line
from excb.images.image_set import Images, clipped_ledger, clipped_of, ledger_of, share_clipped
from excb.images.pixels import pixels_of
from excb.ledger import Ledger

from ..data.broken_files import BrokenFiles
from ..data.feed import BatchFeed
from ..recipe import Recipe
from ..run.journal import EpochStatistics
from ..run.progress import Progress
from ..run.run_folder import MEASURING, facts_of_images, numerics, numerics_changed
from ..step import Trainer, state_tensors
from .teaching import Teaching


@dataclass
class RunState:
    """The parts of a run that change while it trains."""

    recipe: Recipe
    images: Images
    trainer: Trainer
    statistics: EpochStatistics
    feed: BatchFeed
    progress: Progress = field(default_factory=Progress)
    broken: BrokenFiles = field(default_factory=BrokenFiles)
    teaching: Teaching = field(default_factory=Teaching)
    trained_on: str | None = None  # the device of a run that was finished before, if its checkpoint says it

    @property
    def epochs_done(self) -> float:
        """How far the run is, in epochs."""
        return self.progress.step / self.trainer.schedules.steps_per_epoch

    @property
    def finished(self) -> bool:
        """Whether no step and no epoch's figures are left."""
        all_done = self.progress.step >= self.trainer.schedules.steps or self.progress.ended is not None
        return all_done and not self.statistics.complete

    @property
    def ledger(self) -> Ledger:
        """All that was left out of the images or is doubted in them; of all ranks once `share_clipped` was called."""
        return ledger_of(self.images) + clipped_ledger(self.images) + self.broken.ledger

    def contents(self) -> dict[str, Any]:
        """The contents of a checkpoint, on rank 0; empty on other ranks, which all call it too.

        Nothing but `arithmetic`, `seconds` and `peak_memory` depends on the number of ranks.
        """
        recipe, progress = self.recipe, self.progress
        statistics, stream = self.statistics.state(), self.feed.stream_state(progress.step)
        share_clipped(self.images)
        clipped = clipped_of(self.images)
        if rank() > 0:
            return {}
        return {
            "step": progress.step,
            "epoch": self.epochs_done,
            "architecture": dataclasses.asdict(recipe.model.architecture),
            "preprocessing": replace(recipe.views.preprocessing, pixels=pixels_of(self.images)).to_dict(),
            "recipe": recipe.to_dict(),
            "data": facts_of_images(self.images),
            "model": state_tensors(self.trainer.model),
            **self.trainer.state(),
            "statistics": statistics,
            "stream": stream,
            "broken": {"seen": self.broken.seen, "found": self.broken.found},
            **({} if clipped is None else {"clipped": torch.tensor(clipped.indices)}),
            "seconds": progress.seconds,
            "images": progress.images,
            "peak_memory": max(progress.peak_memory, peak_memory(self.trainer.device)),
            "best": progress.best,
            "last": progress.last,
            "health": progress.health,
            "counts": progress.counts,
            "started_from": progress.started_from,
            "start": progress.start,
            "gauges": progress.gauges,
            "hits": progress.hits,
            "measurements": progress.measurements,
            "losing": progress.losing,
            "ended": progress.ended,
            "teachers": self.teaching.facts,
            # What to load instead of this one; where the run is not measured against its start, the newest is loaded.
            "evaluated_step": progress.best["step"] if progress.start is not None and progress.best else None,
            "arithmetic": numerics(self.trainer.device),
        }

    def restore(self, contents: dict[str, Any], reporter: Reporter) -> None:
        """Resume from the contents of a checkpoint, and say what makes the rest of the run no longer bit-exact.

        Raises:
            UserError: it lacks something, or holds what no run writes.
        """
        try:
            self.trainer.model.load_state_dict(contents["model"])
            self.trainer.restore(contents)
            self.statistics.restore(contents["statistics"])
            self.feed.restore(contents.get("stream"))
            self.broken = BrokenFiles(**contents["broken"])
            if (clipped := clipped_of(self.images)) is not None and "clipped" in contents:
                clipped.add(contents["clipped"].tolist())
            stored = contents.keys() & Progress.__dataclass_fields__.keys()  # older checkpoints hold fewer
            self.progress = Progress(**{name: contents[name] for name in stored})
            self._follow_monitor(contents["recipe"]["monitor"], reporter)
        except torch.OutOfMemoryError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"the newest checkpoint, of step {ascii(contents.get('step'))[:40]}, is not one of this run "
                f"({type(error).__name__}: {first_line(error)}): move it away to resume from the one before"
            ) from None
        arithmetic = contents.get("arithmetic", {})
        if self.finished:  # this process computes nothing of it
            self.trained_on = arithmetic.get("device")
        elif changed := numerics_changed(arithmetic, numerics(self.trainer.device)):
            reporter.note(changed)

    def _follow_monitor(self, before: dict[str, Any], reporter: Reporter) -> None:
        """Choose the best epoch anew if the monitor's figures are measured in another way from now on."""
        now = self.recipe.all_values()["monitor"]
        names = [name for name in MEASURING if before.get(field := name.partition(".")[2], now[field]) != now[field]]
        if names and self.progress.best is not None:
            self.progress.best = None
            reporter.note(f"{' and '.join(names)} changed: the best epoch is chosen anew, from the next one on")

    def not_finite(self) -> str | None:
        """Name of a model tensor that holds NaN or infinity, if there is one."""
        state = {name: value for name, value in self.trainer.model.state_dict().items() if value.is_floating_point()}
        finite = torch.stack([value.isfinite().all() for value in state.values()]).tolist()
        return next((name for name, good in zip(state, finite, strict=True) if not good), None)
