"""Checkpoints at s3://, gs:// and all that fsspec reaches: fetched into the cache, and again when they change."""

import hashlib
from pathlib import Path

from excb.checkpoint import run_checkpoint
from excb.checkpoint.exported import CONFIG, FILES
from excb.console import Reporter
from excb.errors import UserError
from excb.files.atomic import write_text
from excb.files.foreign import read_text
from excb.remote import byte_ranges
from excb.remote.home import cache_root
from excb.remote.object_store import ObjectStore, StoreError

FOLDER = "checkpoints"  # in the cache


def fetch_kept(url: str, reporter: Reporter) -> Path:
    """Fetch the checkpoint at a URL: a run's newest intact checkpoint, an exported folder, or a file.

    Raises:
        UserError: there is no checkpoint, or it cannot be read.
    """
    store = ObjectStore(url)
    target = cache_root() / FOLDER / hashlib.sha256(store.url.encode()).hexdigest()[:32]
    try:
        if steps := [name for name in store.sizes(run_checkpoint.FOLDER) if run_checkpoint.is_name(name)]:
            return _newest(store, steps, target, reporter)
        names = store.sizes()
        if CONFIG in names:
            for name in FILES & names.keys():
                _fetch(store, name, target / name, reporter)
            return target
        folder, _, name = store.url.rpartition("/")
        if not names or set(names) == {name}:  # what some stores list for a file is the file
            above = ObjectStore(folder)
            if name in above.sizes():
                _fetch(above, name, target / name, reporter)
                return target / name
    except StoreError as error:
        raise UserError(f"{error}: check the name, and your access to it") from None
    raise UserError(f"no checkpoint at {url}: name a run, a checkpoint file or an exported folder")


def _newest(store: ObjectStore, names: list[str], folder: Path, reporter: Reporter) -> Path:
    """A run's newest intact checkpoint, or the one that it names as the best; others in the cache are removed."""
    for name in sorted(names, key=lambda name: run_checkpoint.step_of(Path(name)), reverse=True):
        _fetch(store, f"{run_checkpoint.FOLDER}/{name}", folder / name, reporter)
        try:
            contents = run_checkpoint.read_in_run(folder / name)
        except run_checkpoint.DamagedFileError:
            reporter.warn(f"{store.url}/{run_checkpoint.FOLDER}/{name} is damaged; trying the one before")
            continue
        best = run_checkpoint.evaluated_name(contents)
        if best not in names:
            best = name
        _fetch(store, f"{run_checkpoint.FOLDER}/{best}", folder / best, reporter)
        for other in run_checkpoint.among(folder):
            if other.name not in (name, best):
                other.unlink(missing_ok=True)
        return folder / best
    raise UserError(f"every checkpoint of {store.url} is damaged")


def _fetch(store: ObjectStore, name: str, target: Path, reporter: Reporter) -> None:
    """Fetch a file unless it is here and has not changed there."""
    stamp = byte_ranges.stamp(f"{store.url}/{name}")
    # Not beside the file, because an exported folder holds nothing else.
    kept = target.parent.with_name(f"{target.parent.name}-{target.name}.stamp")
    if target.is_file() and kept.is_file() and read_text(kept) == stamp:
        return
    reporter.note(f"fetching {store.url}/{name}")
    kept.unlink(missing_ok=True)
    store.fetch(name, target)
    write_text(stamp, kept)
