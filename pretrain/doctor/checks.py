"""The table of checks: a new one is a function that returns findings, and one line here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from excb.console import Reporter
from excb.distributed.machine import choose_device
from excb.distributed.workers import worker_count
from excb.images.image_set import CodedImages
from excb.images.survey import surveyed, with_pixels

from ..data.broken_files import MAX_SHARE
from ..distil.teachers import Teacher
from ..plan import frozen_teachers
from ..recipe import Recipe
from ..run.remote_mirror import RunLocation
from ..run.rules import RULES, breaches_on
from ..run.run_folder import refuse_folder
from .accelerator import check_accelerator
from .files import check_files
from .finding import Finding
from .limits import check_cores, check_open_files, check_shared_memory
from .pixels import VALUES, check_pixels, check_profiles
from .requirements import batch_bytes, check_step, checkpoint_bytes
from .run_folder import check_folder, check_space, check_store
from .teachers import LOADED, check_teachers
from .tree import check_tree
from .versions import check_versions


@dataclass(frozen=True)
class CheckedMachine:
    """The subject of the checks: the images, the machine and, where a recipe is given, what its run needs."""

    images: CodedImages
    named_recipe: Recipe | None  # None where no recipe is given
    place: RunLocation  # the run folder, which may not exist yet, and where it is kept
    reporter: Reporter
    gpus: int | None = None  # GPUs of this machine for the run; None for one if there is one
    everything: bool = False  # decode every image, not a sample

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, or the usual values where none is given."""
        return self.named_recipe or Recipe(name="")

    @property
    def processes(self) -> int:
        """Training processes on this machine."""
        return max(1, self.gpus or 1)

    @property
    def workers(self) -> int:
        """Image-reading workers of each process; an automatic number shares the cores among processes."""
        requested = self.recipe.efficiency.workers
        count = worker_count(requested)
        return count if requested >= 0 else max(1, min(count, worker_count(-1) // self.processes))

    @property
    def device(self) -> torch.device:
        """Where the run computes."""
        return choose_device("cpu" if self.gpus == 0 else self.recipe.efficiency.device)

    @cached_property
    def teachers(self) -> list[Teacher]:
        """The frozen teachers that the run learns from, on the CPU. Raises UserError where it would."""
        return frozen_teachers.frozen_teachers_of(self.recipe)

    def refuse_folder(self) -> None:
        """Raise UserError where the run itself would refuse its folder: among the images, or another run's."""
        refuse_folder(self.place, self.named_recipe, self.images)


@dataclass(frozen=True)
class Check:
    """One check."""

    run: Callable[[CheckedMachine], list[Finding]]
    needs_recipe: bool = False  # it is made only where a recipe is given
    # beginnings of findings' names; after an error in one of these the check is left out
    not_after: tuple[str, ...] = ()


def _rules(subject: CheckedMachine) -> list[Finding]:
    """The table of rules: values of the recipe against each other and the images."""
    found = breaches_on(subject.recipe, subject.images)
    if not found:
        return [Finding("rules", "ok", f"none of {len(RULES)} is broken by these values and images")]
    return [Finding(f"rule: {each.rule}", each.severity, each.found, each.fix) for each in found]


def _shared_memory(subject: CheckedMachine) -> list[Finding]:
    batch = batch_bytes(subject.recipe, subject.processes)
    return [check_shared_memory(batch, subject.workers, subject.recipe.efficiency.prefetch, subject.processes)]


def _space(subject: CheckedMachine) -> list[Finding]:
    checkpoint = checkpoint_bytes(subject.recipe, len(subject.images), subject.teachers)
    return [check_space(subject.place.folder, checkpoint, subject.recipe.run.keep)]


def _files(subject: CheckedMachine) -> list[Finding]:
    side = subject.named_recipe.views.global_size if subject.named_recipe else None
    images = with_pixels(subject.images, surveyed(subject.images, subject.recipe.data.pixels).pixels)
    return check_files(images, subject.reporter, max_share=MAX_SHARE, side=side, everything=subject.everything)


CHECKS = (  # quick ones first
    Check(lambda s: check_tree(s.images, s.named_recipe.optim.batch if s.named_recipe else None)),
    Check(lambda _: check_versions()),
    Check(lambda s: check_accelerator(s.recipe.efficiency.device, s.recipe.efficiency.precision, s.gpus)),
    Check(lambda s: [check_cores(s.workers, s.processes)]),
    Check(lambda s: [check_open_files(s.workers, s.recipe.efficiency.prefetch)]),
    Check(lambda s: check_folder(s.place.folder, s.refuse_folder)),
    Check(lambda s: [check_store(s.place.url)] if s.place.url is not None else []),
    Check(_rules, needs_recipe=True),
    Check(_shared_memory, needs_recipe=True),
    Check(lambda s: check_teachers(s.recipe, len(s.images), lambda: s.teachers), needs_recipe=True),
    Check(_space, needs_recipe=True, not_after=("run folder", LOADED)),
    Check(
        lambda s: [check_step(s.recipe, s.device, s.processes, s.teachers)],
        needs_recipe=True,
        not_after=("GPU", "bf16", "versions", LOADED),
    ),
    Check(lambda s: [*check_pixels(s.images, s.recipe.data), check_profiles(s.images)]),
    Check(_files, not_after=(VALUES,)),
)


def examine(subject: CheckedMachine) -> Iterator[Finding]:
    """Make all checks.

    Raises:
        UserError: the recipe cannot make a run with so many processes.
    """
    errors: list[str] = []
    for check in CHECKS:
        lacks_recipe = check.needs_recipe and subject.named_recipe is None
        if lacks_recipe or any(name.startswith(check.not_after) for name in errors):
            continue
        findings = check.run(subject)
        errors += [finding.name for finding in findings if finding.verdict == "error"]
        yield from findings
