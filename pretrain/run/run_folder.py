"""A run folder: its recipe, its checkpoints, and the lock that admits one process at a time."""

import fcntl
import itertools
import os
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from excb.checkpoint import run_checkpoint
from excb.checkpoint.same_run import changes, require_same_run
from excb.console import plural
from excb.distributed.collectives import world_size
from excb.errors import UserError, require
from excb.files import json_text
from excb.files.atomic import check_writable_folder, nearest_existing
from excb.files.foreign import read_bytes
from excb.files.run_files import METRICS, RECIPE, REPORT, WATCH_FOLDER
from excb.images.image_set import CodedImages, Images, ImageSet, clipped_ledger, ledger_of, sizes_hash
from excb.images.pixels import EIGHT_BIT, pixels_of
from excb.images.scanning import refuse_among
from excb.version import __version__

from ..recipe import Recipe
from .remote_mirror import MARK, Mirror, RunLocation
from .watch_process import LOG

DIVERGED = "diverged"
LOCK = ".lock"
WRITTEN = (RECIPE, METRICS, "tensorboard", LOG, WATCH_FOLDER, MARK, LOCK)  # by a run before its first result
PRECISIONS = ("fp32", "bf16", "fp16", "fp64")  # that a run may be in; its recipe.json never says auto
# What may change between two starts of a run, because no weight depends on it.
LENGTH = ("optim.epochs", "optim.restarts")  # what `--extend` changes
RESUMABLE_CHANGES = ("efficiency", "monitor", "run.save_epochs", "run.save_steps", "run.keep", "run.log_steps")
MOST_LOOKED_AT = 100_000  # images whose sizes are compared with those of the run's beginning
MEASURING = (
    "monitor.images",
    "monitor.share",
    "monitor.k",
    "monitor.group",
)  # these affect figures, though not the weights


class RunFolder:
    """The folder of one run.

    Args:
        place: the folder, which is created; with a URL, everything is copied there too.
        warn: called when something could not be sent to the URL, or images have changed.

    Raises:
        UserError: it cannot be written, or another process is training in it.
    """

    def __init__(self, place: RunLocation, warn: Callable[[str], None]) -> None:
        self.place, self.path, self._warn = place, place.folder, warn
        self._extends: tuple[int, int] | None = None  # epochs that the run has, and is to have
        path = self.path
        try:
            there, whole = nearest_existing(path), path.absolute()
            self._new_folders = [each for each in (whole, *whole.parents) if there in each.parents]
            path.mkdir(parents=True, exist_ok=True)
            self._new_files = [each for name in WRITTEN if not (each := path / name).exists()]
        except OSError as error:
            raise UserError(f"cannot write the run folder {path}: {error}") from None
        self._lock = _locked(path)
        # A forked data worker would inherit the lock, and may outlive a killed process by some seconds.
        os.register_at_fork(after_in_child=partial(_close, weakref.ref(self._lock)))
        self._mirror: Mirror | None = None
        if place.url:
            try:
                self._mirror = Mirror(place.url, path, warn)
            except UserError:
                self.abandon()
                raise

    def finish(self) -> None:
        """Wait until everything is at the URL, if there is one.

        Raises:
            UserError: something could not be sent.
        """
        if self._mirror is not None:
            self._mirror.finish()

    def close(self) -> None:
        """Release the lock."""
        if self._mirror is not None:
            self._mirror.close()
        self._lock.close()

    def abandon(self) -> None:
        """Remove what a refused run has written, here and at the URL, unless it has come to results; and close."""
        if not _has_trained(self.path):
            if self._mirror is not None:
                self._mirror.abandon()
            for file in self._new_files:  # the lock is the last
                _remove(file)
        self.close()
        for folder in self._new_folders:
            with suppress(OSError):  # something else is in it
                folder.rmdir()

    def begin(self, recipe: Recipe, images: Images) -> None:
        """Write `recipe.json` in a new run, or check that a stored run is the same one; fetch what only the URL has.

        Raises:
            UserError: the folder belongs to a run with another recipe or other images; or the URL cannot be used.
        """
        data, file = facts_of_images(images), self.path / RECIPE
        remote, extends = self._mirror.text(RECIPE) if self._mirror is not None else None, self._extends is not None
        refuse_other_run(self.place, recipe, data, extends=extends, remote=remote)
        if self._mirror is not None:
            self._mirror.receive()
        if extends:
            self._reopen(recipe.steps_per_epoch(len(images)))
        if not self.reported() or not file.is_file():
            sizes = self._sizes_of(images)
            recipe, begun_in = _spelt_as_stored(recipe, self._stored())
            begun = {"excb_version": __version__, "recipe": recipe.to_dict(), "data": data, "begun_in": begun_in}
            begun |= {} if sizes is None else {"file_sizes": sizes}
            json_text.write_json(begun, file)
        if self._mirror is not None:
            self._mirror.claim(RECIPE, new=remote is None)

    def _sizes_of(self, images: Images) -> str | None:
        """A hash of the files' sizes, with a warning if they were others when the run began or was resumed last."""
        if not isinstance(images, ImageSet) or len(images) > MOST_LOOKED_AT:
            return None
        now = sizes_hash(images)
        try:
            before = json_text.parse(text).get("file_sizes", now) if (text := self._stored()) is not None else now
        except (ValueError, AttributeError):  # `_refuse_others` says that it is damaged
            return now
        if before != now:
            self._warn(
                f"files of {images.root} have other sizes than when this run last started, under the same names: it "
                "continues with the images as they are now"
            )
        return now

    def extended(self, recipe: Recipe, epochs: int) -> Recipe:
        """A recipe with so many epochs more, where its run is stored here; `begin` then takes it for that run.

        The schedules begin anew where the run had ended. A run that has these epochs already stays as it is, so the
        same command resumes an extension that was interrupted.

        Args:
            recipe: of the run before it was extended.
            epochs: beyond those of the recipe.

        Raises:
            UserError: there is no run here, or it has more epochs.
        """
        before, longer = extended(recipe, self._stored(), self.place, epochs)
        self._extends = before, longer.optim.epochs
        return longer

    def _stored(self) -> str | bytes | None:
        """The run's `recipe.json`, here or at the URL; None for a new run."""
        text = self._mirror.text(RECIPE) if self._mirror is not None else None
        return text if text is not None else stored_recipe(self.path)

    def _reopen(self, steps_per_epoch: int) -> None:
        """Remove the report of a finished run that is to be longer.

        Raises:
            UserError: the run is not finished, or ended itself.
        """
        assert self._extends is not None
        before, after = self._extends
        refuse_unfinished(self.place, before, after, steps_per_epoch)
        if newest_step(self.path) < after * steps_per_epoch:
            with _changing(self.path):
                (self.path / REPORT).unlink(missing_ok=True)

    def precision(self) -> str | None:
        """The precision that the run has been computed in; None for a new run, or where `begin` will refuse the folder.

        Raises:
            UserError: the URL cannot be read.
        """
        try:
            return begun_precision(self._stored())
        except OSError:
            return None

    def save(self, contents: dict[str, Any], *, step: int, keep: int, best_step: int | None) -> Path:
        """Write a checkpoint and remove those that are neither among the newest `keep` nor the best one.

        Raises:
            UserError: it cannot be written, or another process has taken over the run at the URL.
        """
        file = self.path / run_checkpoint.FOLDER / run_checkpoint.name_of(step)
        run_checkpoint.write_run_checkpoint(contents, file)
        with _changing(file.parent):
            for old in run_checkpoint.in_run(self.path)[keep:]:
                if run_checkpoint.step_of(old) != best_step:
                    old.unlink()
        if self._mirror is not None:
            self._mirror.changed()
        return file

    def save_diverged(self, contents: dict[str, Any], *, step: int) -> Path:
        """Write the state of a run that cannot continue, for inspection; it is never resumed from automatically."""
        file = self.path / DIVERGED / run_checkpoint.name_of(step)
        run_checkpoint.write_run_checkpoint(contents, file)
        if self._mirror is not None:
            self._mirror.flush()
        return file

    def resume(self, warn: Any) -> dict[str, Any] | None:
        """Contents of the newest intact checkpoint, or None in a new run.

        Temporary files are removed. Damaged checkpoints, and what only has a checkpoint's name, are renamed to
        `.damaged`.

        Raises:
            UserError: there are checkpoints, but none is intact, or the folder cannot be written.
        """
        folder = self.path / run_checkpoint.FOLDER
        with _changing(folder):
            for leftover in folder.glob(".*.tmp"):
                leftover.unlink()
        newest = run_checkpoint.read_newest(self.path, warn)
        with _changing(folder):
            for place in run_checkpoint.no_files(self.path):
                _set_aside(place)  # the run will write a file of that name
            if newest is None:
                return None
            file, contents = newest
            for newer in run_checkpoint.in_run(self.path):
                if run_checkpoint.step_of(newer) > run_checkpoint.step_of(file):
                    _set_aside(newer)
        return contents

    def report(self, figures: dict[str, Any]) -> None:
        """Write `report.json`."""
        json_text.write_json(figures, self.path / REPORT)

    def reported(self) -> dict[str, Any]:
        """The report of the finished run that the folder holds; empty where there is none."""
        return finished_report(self.path)


def _remove(place: Path) -> None:
    with suppress(OSError):
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)


def _locked(folder: Path) -> FileIO:
    """The lock of a run folder, held until it is closed. Raises UserError if it cannot be had."""
    try:
        lock = (folder / LOCK).open("ab", buffering=0)
    except OSError as error:
        raise UserError(f"cannot write the run folder {folder}: {error}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it however the process ends
    except BlockingIOError:
        lock.close()
        raise UserError(f"another process is training in {folder}: wait for it, or choose another --out") from None
    except OSError as error:
        lock.close()
        raise UserError(f"cannot lock the run folder {folder} ({error}): choose an --out on another disk") from None
    if not _is_still(folder / LOCK, lock):  # a refused run has removed it meanwhile (`RunFolder.abandon`)
        lock.close()
        return _locked(folder)
    return lock


def _is_still(file: Path, opened: FileIO) -> bool:
    """Whether the name of an opened file leads to it and not to another one, or to none."""
    try:
        return os.path.samestat(os.fstat(opened.fileno()), file.stat())
    except FileNotFoundError:
        return False


def refuse_place(place: RunLocation) -> None:
    """Refuse a run folder that cannot be written, or in which another process is training; nothing is left there.

    A URL is not looked at, only the folder that holds its copy.
    """
    check_writable_folder(place.folder)
    if (place.folder / LOCK).exists():
        _locked(place.folder).close()


def stored_recipe(folder: Path) -> bytes | None:
    """The `recipe.json` of a folder whose run has come to results, else None."""
    return read_bytes(folder / RECIPE) if _has_trained(folder) else None


def begun_precision(text: str | bytes | None) -> str | None:
    """The precision that the run of a `recipe.json` has been computed in; None where it does not say it."""
    try:
        stored = None if text is None else json_text.parse(text)["recipe"]["efficiency"]["precision"]
    except (ValueError, KeyError, TypeError):
        return None
    return stored if stored in PRECISIONS else None


def finished_report(folder: Path) -> dict[str, Any]:
    """The `report.json` of a folder's newest checkpoint, thus of a finished run; empty where there is none."""
    try:
        report = json_text.parse(read_bytes(folder / REPORT))
        return dict(report) if report["steps"] == newest_step(folder) else {}
    except (OSError, ValueError, LookupError, TypeError):  # changed by hand: it is written anew
        return {}


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint in a run folder; 0 where there is none."""
    return max(map(run_checkpoint.step_of, run_checkpoint.in_run(folder)), default=0)


def extended(recipe: Recipe, text: str | bytes | None, place: object, epochs: int) -> tuple[int, Recipe]:
    """How many epochs a stored run has, and its recipe with so many more (`RunFolder.extended`).

    Args:
        recipe: of the run before it was extended.
        text: its `recipe.json`, or None.
        place: where it is, for messages.
        epochs: beyond those of `recipe`.

    Raises:
        UserError: there is no run, it has more epochs, or `epochs` is below 1.
    """
    require(epochs >= 1, f"extend a run by one epoch or more, not by {epochs}")
    if text is None:
        raise UserError(f"--extend continues a finished run, and {place} holds none: name its folder with --out")
    try:
        stored = json_text.parse(text)["recipe"]["optim"]
        before, restarts = int(stored["epochs"]), tuple(map(int, stored.get("restarts", ())))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(_damaged(place)) from None
    after, more = recipe.optim.epochs + epochs, before - recipe.optim.epochs
    require(after >= before, f"the run in {place} has {plural(before, 'epoch')} already: --extend {more} or more")
    marks = restarts if after == before else (*restarts, before)
    return before, recipe.change(optim={"epochs": after, "restarts": marks})


def refuse_unfinished(place: RunLocation, before: int, after: int, steps_per_epoch: int) -> None:
    """Refuse to extend a run from `before` to `after` epochs that has not finished, or that ended itself.

    Raises:
        UserError: it is so.
    """
    if after <= before or newest_step(place.folder) >= before * steps_per_epoch:
        return
    if ended := _why_ended(place.folder / REPORT):
        raise UserError(
            f"the run in {place} ended itself ({ended}), and more epochs would not help: start another one from it "
            f"with init={place}"
        )
    raise UserError(
        f"the run in {place} has not finished its {plural(before, 'epoch')}: finish it with the command that began "
        "it, then extend it"
    )


def _why_ended(report: Path) -> str:
    """Why a run ended before its last epoch, from its report; empty where it did not, or is not finished."""
    try:
        return str(json_text.parse(read_bytes(report)).get("ended") or "")
    except (OSError, ValueError, AttributeError):
        return ""


def refuse_folder(
    place: RunLocation,
    recipe: Recipe | None,
    images: CodedImages,
    *,
    extends: bool = False,
    remote: str | None = None,
) -> None:
    """Refuse the folder that a run itself would refuse, before it starts.

    Args:
        place: of the run.
        recipe: with all values that the run takes from images and checkpoints; None if it is not known.
        images: the training images.
        extends: the run in the folder is extended.
        remote: the `recipe.json` at the URL, if there is one.

    Raises:
        UserError: the folder is among the images, or belongs to a run with another recipe or other images.
    """
    if place.url is None:
        refuse_among(images, place.folder)
    if recipe is not None:
        refuse_other_run(place, recipe, facts_of_images(images), extends=extends, remote=remote)


def refuse_other_run(
    place: RunLocation, recipe: Recipe, data: dict[str, Any], *, extends: bool, remote: str | None
) -> None:
    """Refuse a place that holds a run with another recipe or other images; arguments as `refuse_folder`.

    A run that was refused before its first step (a wrong init=) left a recipe but no result, and does not count.
    With `extends` the run may have other epochs.

    Raises:
        UserError: the folder belongs to a run with another recipe or other images.
    """
    folder = place.folder
    if remote is not None:
        _refuse_others(remote, recipe, data, str(place), extends=extends)
    if _has_trained(folder):
        text = read_bytes(folder / RECIPE)
        _refuse_others(text, recipe, data, os.fspath(folder), extends=extends)
        finished = bool(finished_report(folder)) and not extends
        if finished or recipe.measures_start:
            _refuse_other_figures(text, recipe, os.fspath(folder), finished=finished)


def _has_trained(folder: Path) -> bool:
    """Whether a folder holds a run that has come to results."""
    metrics = folder / METRICS
    trained = any((folder / name).is_dir() for name in (run_checkpoint.FOLDER, DIVERGED))
    return (folder / RECIPE).is_file() and (trained or (metrics.is_file() and metrics.stat().st_size > 0))


def _set_aside(place: Path) -> None:
    """Rename to `.damaged`, in place of nothing: what was set aside before stays."""
    names = itertools.chain([".damaged"], (f".{number}.damaged" for number in itertools.count(2)))
    place.rename(next(free for name in names if not os.path.lexists(free := place.with_suffix(name))))


def _damaged(place: object) -> str:
    return f"{place}/{RECIPE} is damaged: move the folder away, or choose another --out"


def _refuse_others(text: str | bytes, recipe: Recipe, data: dict[str, Any], place: str, *, extends: bool) -> None:
    """Compare a stored `recipe.json` with recipe and images."""
    try:
        old = json_text.parse(text)
        old_recipe, old_data = completed(old["recipe"]), old["data"]
        old_images, old_root, old_fingerprint = (old_data[name] for name in ("images", "root", "fingerprint"))
        if not isinstance(old_fingerprint, str):
            raise TypeError("the fingerprint is not text")
        more, restarts = old_recipe["optim"]["epochs"] - recipe.optim.epochs, tuple(old_recipe["optim"]["restarts"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(_damaged(place)) from None
    new_recipe = completed(_spelt_as_stored(recipe, text)[0].to_dict())
    others = changes(old_recipe, new_recipe, resumable_changes=(*RESUMABLE_CHANGES, *LENGTH))
    if not others and not extends and recipe.optim.restarts != restarts and more > 0:
        raise UserError(
            f"the run in {place} was extended by {plural(more, 'epoch')}: repeat the command with --extend {more}"
        )
    require_same_run(
        place,
        old_recipe,
        new_recipe,
        resumable_changes=(*RESUMABLE_CHANGES, *(LENGTH if extends else ())),
        advice="repeat its settings to resume it, or choose another --out",
    )
    require_same_run(
        place,
        {"images": old_fingerprint},
        {"images": data["fingerprint"]},
        advice=f"use the {plural(old_images, 'image')} of {old_root} again, with the same names and classes (now there "
        f"are {data['images']:,} in {data['root']}), or choose another --out (init={place} takes its weights)",
    )


def _refuse_other_figures(text: bytes, recipe: Recipe, place: str, *, finished: bool) -> None:
    """Refuse to measure in another way than before what is compared with it."""
    old, new = completed(json_text.parse(text)["recipe"])["monitor"], recipe.all_values()["monitor"]
    names = [name for name in MEASURING if old[(field := name.partition(".")[2])] != new[field]]
    if names:
        values = {name: old[name.partition(".")[2]] for name in names}
        was = " ".join(f"{name}={'none' if value is None else value}" for name, value in values.items())
        measured = "the run is finished, and its figures were" if finished else "the start of the run was"
        raise UserError(f"{place}: {measured} measured with {was}: repeat that, or choose another --out")


def _spelt_as_stored(recipe: Recipe, text: str | bytes | None) -> tuple[Recipe, str]:
    """The recipe with paths of networks spelt as where its run began, if they lead to the same places; and that folder.

    Args:
        recipe: of this start, whose relative paths begin in the working directory.
        text: the `recipe.json` of the run, or None for a new one. Those of earlier versions do not say where it began.
    """
    here = str(Path.cwd())
    try:
        old = json_text.parse(text) if text is not None else {}
        begun_in, init, teachers = old["begun_in"], old["recipe"]["init"], old["recipe"]["distil"]["teachers"]
    except (ValueError, KeyError, TypeError):
        return recipe, here

    def spelt(name: str | None, before: object) -> str | None:
        if name is None or not isinstance(before, str):
            return name
        places = (os.path.normpath(os.path.join(*each)) for each in ((here, name), (begun_in, before)))  # noqa: PTH118
        return before if len(set(places)) == 1 else name

    if not isinstance(begun_in, str):
        return recipe, here
    named = zip(recipe.distil.teachers, teachers, strict=False) if isinstance(teachers, list) else ()
    respelt = {name: spelt(name, before) for name, before in named}
    names = tuple(respelt.get(name) or name for name in recipe.distil.teachers)
    return replace(recipe, init=spelt(recipe.init, init)).change(distil={"teachers": names}), begun_in


@contextmanager
def _changing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot change {folder} ({error}): make it writable, then start again") from None


def device_name(device: torch.device) -> str:
    """The name of a GPU, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def numerics(device: torch.device) -> dict[str, Any]:
    """The versions and settings that the last bits of a run's figures depend on, besides its recipe and images."""
    gpu = device.type == "cuda"
    return {
        "processes": world_size(),
        "device": device_name(device),
        "threads": None if gpu else torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def numerics_changed(old: dict[str, Any], new: dict[str, Any]) -> str:
    """A message if a run resumes with other `numerics`, or an empty string; fields that were not stored are skipped."""
    changed = [f"{name} {old[name]}, now {value}" for name, value in new.items() if old.get(name, value) != value]
    if not changed:
        return ""
    return (
        f"so far {'; '.join(changed)}: images keep their order, but sums are rounded differently, so the run is no "
        "longer bit-exact with an uninterrupted one"
    )


def facts_of_images(images: Images) -> dict[str, Any]:
    """The facts that a run stores about its images."""
    pixels, ledger = pixels_of(images), ledger_of(images) + clipped_ledger(images)
    return {
        "root": os.fspath(images.root),
        "images": len(images),
        "fingerprint": images.fingerprint,
        "classes": list(images.classes) if images.classes is not None else None,
    } | {
        **({} if pixels == EIGHT_BIT else {"pixels": pixels.to_dict()}),
        **({"ledger": ledger.to_dict()} if ledger else {}),
    }


def recipe_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Fields of two recipes that change the weights and differ, each as "section.field was A, now B"."""
    return changes(completed(old), completed(new), resumable_changes=RESUMABLE_CHANGES)


def completed(recipe: dict[str, Any]) -> dict[str, Any]:
    """A stored recipe in today's fields: those that it leaves out, or an earlier version did not have, as they were."""
    return {
        section: {field: (recipe.get(section) or {}).get(field, default) for field, default in values.items()}
        if isinstance(values, dict)
        else recipe.get(section)
        for section, values in Recipe(name="").all_values().items()
    }


def _close(lock: "weakref.ref[FileIO]") -> None:
    """Close a parent's lock in its child, which may have closed the file's number already."""
    if (file := lock()) is not None:
        with suppress(OSError):
            file.close()
