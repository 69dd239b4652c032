"""The frozen teachers of a run: whether they can be loaded and fit the recipe, and have room in the cache."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from excb.console import plural
from excb.errors import UserError
from excb.files.atomic import nearest_existing
from excb.hub import loading
from excb.hub.resolve import resolve
from excb.remote.home import cache_root

from ..distil.settings import DistilSettings
from ..distil.teachers import Teacher
from ..plan.frozen_teachers import teachers_report
from ..recipe import Recipe
from ..training.teaching import require_samples, samples_seen
from .finding import Finding, size

LOADED = "teachers"  # the finding's name where they cannot be; none of the others begins so
FEW = 5  # images in a cluster, below which a warning is worth it: a guess
FAR = 2  # times the size that a teacher was trained for, or one of so many parts of it


def check_teachers(recipe: Recipe, images: int, load: Callable[[], Sequence[Teacher]]) -> list[Finding]:
    """Load the teachers, which fetches them, and check what the run does with them; nothing without teachers.

    Args:
        recipe: of the run.
        images: of the set.
        load: gives the teachers, or raises UserError.
    """
    if not recipe.distil.active:
        return []
    try:
        report = teachers_report(recipe, load(), images)
    except UserError as error:
        problem, _, fix = str(error).rpartition(": ")
        return [Finding(LOADED, "error", problem or fix, fix if problem else "name another (`excb-zoo list`)")]
    assert report is not None
    findings = [_network(row, recipe) for row in report["networks"]]
    if recipe.distil.assignments > 0:
        findings.append(_clusters(recipe.distil, images))
    return [*findings, _room(cache_root(), report["once"]["kept"])]


def _network(row: dict[str, Any], recipe: Recipe) -> Finding:
    name, side, asked = row["name"], row["input"], recipe.distil.teacher_size
    found = f"{plural(row['parameters'], 'parameter')}, {plural(row['width'], 'feature')}, images of {side} pixels"
    if recipe.init is not None and _same(name, recipe.init):
        fix = "name another teacher, or leave init out: this student is its teacher from the first step"
        return Finding(f"teacher {name}", "warning", f"{found}; the student starts from the same network", fix)
    if asked is not None:
        trained = loading.read(name).preprocessing.crop
        if not trained / FAR <= side <= trained * FAR:
            fix = f"distil.teacher_size=none, or between {trained // FAR} and {trained * FAR}"
            return Finding(f"teacher {name}", "warning", f"{found}; it was trained for {trained}", fix)
    return Finding(f"teacher {name}", "ok", found)


def _same(one: str, other: str) -> bool:
    """Whether two names lead to one network, as far as names tell."""
    try:
        first, second = resolve(one), resolve(other)
    except UserError:  # which the run reports
        return False
    if first.path is None or second.path is None:
        return first.name == second.name
    return first.path.resolve() == second.path.resolve()


def _clusters(settings: DistilSettings, images: int) -> Finding:
    try:
        require_samples(settings, images)
    except UserError as error:
        problem, _, fix = str(error).rpartition(": ")
        return Finding("clusters of features", "error", problem, fix)
    each = samples_seen(settings, images) / settings.clusters
    found = f"{plural(settings.clusters, 'cluster')} start from {each:,.3g} images each"
    if each < FEW:
        return Finding("clusters of features", "warning", found, f"lower distil.clusters: fewer than {FEW} images each")
    return Finding("clusters of features", "ok", found)


def _room(root: Path, need: int) -> Finding:
    """Check that the cache can be written and has room for `need` bytes of features."""
    home, elsewhere = nearest_existing(root), "name a folder elsewhere in EXCB_CACHE"
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=home):
            free = shutil.disk_usage(home).free
    except OSError as error:
        return Finding("kept features", "error", f"cannot write in {home}: {error.strerror or error}", elsewhere)
    found = f"{size(need)} in {root}, unless they are there already; {size(free)} free"
    if free < need:
        return Finding("kept features", "error", found, f"free {size(need - free)}, or {elsewhere}")
    return Finding("kept features", "ok", found)
