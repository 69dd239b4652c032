"""A run folder: its recipe, its checkpoints, which of them are kept, and one process at a time."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from excb import __version__, checkpoint, json_text
from excb.errors import UserError
from excb.images import Images
from excb.results import write_text

from .recipes import Recipe

RECIPE, REPORT, CURVES, DIVERGED = "recipe.json", "report.json", "curves.png", "diverged"
# What may change between two starts of one run: none of it moves the weights.
FREE = ("efficiency", "monitor", "run.save_epochs", "run.save_steps", "run.keep", "run.log_steps")


class RunFolder:
    """The folder of one run.

    Args:
        path: the folder; it is made.

    Raises:
        UserError: it cannot be written, or another process is training in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".lock").open("a+")
        except OSError as error:
            raise UserError(f"cannot write the run folder {path}: {error}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel frees it however the process ends
        except OSError:
            self._lock.close()
            raise UserError(f"another process is training in {path}: wait for it, or choose another --out") from None

    def close(self) -> None:
        """Let other processes train here."""
        self._lock.close()

    def begin(self, recipe: Recipe, images: Images) -> None:
        """Write `recipe.json`, or hold the one that is there against recipe and images.

        Raises:
            UserError: the folder belongs to a run with another recipe or other images.
        """
        data = describe(images)
        file = self.path / RECIPE
        if file.is_file():
            try:
                old = json_text.parse(file.read_text(encoding="utf-8"))
                changed = differences(old["recipe"], recipe.to_dict())
                old_data = old["data"]
            except (ValueError, KeyError, TypeError, AttributeError):
                raise UserError(f"{file} is damaged: move the folder away, or choose another --out") from None
            if changed:
                raise UserError(
                    f"{self.path} holds a run with other settings ({'; '.join(changed)}): repeat them to go on, "
                    "or choose another --out"
                )
            if old_data["fingerprint"] != data["fingerprint"]:
                raise UserError(
                    f"{self.path} holds a run on other images ({old_data['images']} from {old_data['root']}, now "
                    f"{data['images']}): choose another --out, with init={self.path} to start from its weights"
                )
        write_text(
            json.dumps({"excb_version": __version__, "recipe": recipe.to_dict(), "data": data}, indent=2) + "\n", file
        )

    def save(self, contents: dict[str, Any], *, step: int, keep: int, best_step: int | None) -> Path:
        """Write a checkpoint and remove those that are neither among the newest `keep` nor the best one."""
        file = self.path / checkpoint.FOLDER / f"step-{step}.pt"
        checkpoint.write(contents, file)
        for old in checkpoint.in_run(self.path)[keep:]:
            if checkpoint.step_of(old) != best_step:
                old.unlink()
        return file

    def save_diverged(self, contents: dict[str, Any], *, step: int) -> Path:
        """Write the state of a run that cannot go on; it is for people to look at, no run goes on from it by itself."""
        file = self.path / DIVERGED / f"step-{step}.pt"
        checkpoint.write(contents, file)
        return file

    def resume(self, warn: Any) -> dict[str, Any] | None:
        """The newest intact checkpoint's contents, or None in a new run; half-written and damaged files are removed.

        Raises:
            UserError: there are checkpoints, but none is intact.
        """
        for leftover in (self.path / checkpoint.FOLDER).glob(".*.tmp"):
            leftover.unlink()
        found = checkpoint.read_newest(self.path, warn)
        if found is None:
            return None
        file, contents = found
        for newer in checkpoint.in_run(self.path):
            if checkpoint.step_of(newer) > checkpoint.step_of(file):
                newer.replace(newer.with_suffix(".damaged"))
        return contents

    def report(self, figures: dict[str, Any]) -> None:
        """Write `report.json`."""
        write_text(json.dumps(figures, indent=2) + "\n", self.path / REPORT)


def describe(images: Images) -> dict[str, Any]:
    """What a run remembers of its images."""
    return {
        "root": os.fspath(images.root),
        "images": len(images),
        "fingerprint": images.fingerprint,
        "classes": list(images.classes) if images.classes is not None else None,
    }


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Fields that move the weights and differ, each as "section.field was A, now B".

    A field that an earlier version did not have counts as its default, which is what that version did.
    """
    changed, usual = [], Recipe(name="").to_dict()
    for section, values in new.items():
        before = old.get(section)
        if not isinstance(values, dict):
            if before != values:
                changed.append(f"{section} was {before}, now {values}")
            continue
        for field, value in values.items():
            if section in FREE or f"{section}.{field}" in FREE:
                continue
            was = (before or {}).get(field, usual[section][field])
            if was != value:
                changed.append(f"{section}.{field} was {was}, now {value}")
    return changed
