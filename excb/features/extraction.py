"""Features of a set: what they depend on, computed by all ranks together or read from the cache."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from excb.console import Reporter, plural
from excb.distributed.collectives import all_succeed, gather_numbers, gather_objects, rank, run_on_rank0, world_size
from excb.errors import UserError, require
from excb.features import cache
from excb.features.cache import CachedFeatures, FeatureStore
from excb.features.listing import FOLDER
from excb.features.precision import Precision, in_precision
from excb.hub.backbone import Backbone
from excb.images.image_set import Images, clipped_of, share_clipped
from excb.images.survey import has_profiles
from excb.networks.backbone import has_batchnorm, weights_hash
from excb.networks.features import Features, Inputs, Kind, in_batches, stream
from excb.networks.outputs import LastClassTokens
from excb.networks.preprocessing import Preprocessing

CODE_VERSION = 2  # raise it with every change of the code that changes features
GATHERED = 4  # batches of each rank between two exchanges of rows
PACKAGES = ("torch", "torchvision", "timm", "pillow")


def modules_hash(network: nn.Module) -> str:
    """SHA-256 of a module's settings other than weights, such as padding or a norm's epsilon."""
    return hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(network)).encode()).hexdigest()


def refuse_broken(broken: Mapping[str, str], images: Images, *, already_reported: bool = False) -> None:
    """Raise UserError if images could not be read: figures over the others would not be comparable."""
    if broken:
        path, reason = next(iter(broken.items()))
        raise UserError(
            f"{len(broken):,} of {plural(len(images), 'image')} in {images.root} cannot be read, such as {path} "
            f"({reason}): fix or remove them",
            already_reported=already_reported,
        )


def files_hash(images: Images) -> str:
    """SHA-256 of the stamps that show whether image files have changed; of nothing for images without files."""
    digest = hashlib.sha256()
    for index in range(len(images)):
        if stamp := images.stamp(index):
            digest.update(f"{stamp}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Extraction:
    """Everything needed to compute the features of a set."""

    backbone: Backbone  # in eval mode, on `device`
    preprocessing: Preprocessing  # of every image
    images: Images  # the set
    kind: Kind  # which features (`excb.networks.features.Kind`)
    device: torch.device  # where to compute
    batch: int  # images at once on each rank
    workers: int  # number of data loading processes
    # What an unreadable image does: figures over the others would not compare, but embeddings of the others are of use.
    unreadable: Literal["refuse", "nan"] = "refuse"
    precision: Precision = "fp32"  # of the pass
    advice: str = "use a smaller batch"  # where memory is too small, as the end of a sentence

    @property
    def reader(self) -> nn.Module:
        """The module that gives the features.

        Raises:
            UserError: the backbone has no features of this kind.
        """
        require(self.kind in get_args(Kind), f"features are {' or '.join(get_args(Kind))}, not '{self.kind}'")
        return self.backbone if self.kind == "pooled" else LastClassTokens(self.backbone.network)

    @property
    def network(self) -> nn.Module:
        """The reader, in the precision of the pass."""
        return in_precision(self.reader, self.precision)

    @property
    def width(self) -> int:
        """D, the features' width."""
        return int(self.reader.width)  # type: ignore[arg-type]

    @property
    def shards(self) -> list[range]:
        """The images of every shard."""
        return in_batches(range(len(self.images)), max(1, cache.SHARD_BYTES // (4 * self.width)))

    def description(self) -> dict[str, Any]:
        """Everything that the features depend on."""
        backbone = self.backbone
        dtype = next((parameter.dtype for parameter in backbone.parameters()), torch.float32)
        other: dict[str, Any] = {} if backbone.features == "pool" else {"returns": backbone.features}
        other |= {} if self.unreadable == "refuse" else {"unreadable": self.unreadable}
        other |= {} if self.precision == "fp32" else {"autocast": self.precision}
        if self.device.type == "cpu" and has_batchnorm(backbone.network):
            other["batchnorm"] = "folded"
        return other | {
            "code": CODE_VERSION,
            "weights": weights_hash(backbone.network),
            "architecture": asdict(backbone.entry.architecture),
            "modules": modules_hash(backbone.network),
            "preprocessing": self.preprocessing.to_dict(),
            "images": {"fingerprint": self.images.fingerprint, "files": files_hash(self.images)},
            "kind": self.kind,
            "precision": f"{dtype} on {self.device.type}",
            "versions": {name: metadata.version(name) for name in PACKAGES},
        }

    def store(self, root: Path, description: dict[str, Any]) -> FeatureStore:
        """The features' place in the cache."""
        key = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
        return FeatureStore(root / FOLDER / key, self.shards, self.width)

    def run(
        self,
        numbers: Sequence[int],
        progress: Callable[[int], None],
        *,
        kept: Mapping[int, Tensor] | None = None,
        keep: Callable[[int, Sequence[Tensor]], None] = lambda _number, _rows: None,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Compute some of the shards. Batches are strided by rank, and every rank gets all rows.

        Batch boundaries do not depend on the world size, so that the rows are bit-exact for any number of ranks.

        Args:
            numbers: of the shards.
            progress: called with numbers of images.
            kept: first rows [n, D] of some of the shards, which are there already.
            keep: called with the rows so far of an unfinished shard, on all ranks, every few batches.

        Raises:
            UserError: an image cannot be read (all are tried first, and shards without broken images are returned) and
                `unreadable` is "refuse"; or memory is too small. With "nan", such an image has a row of NaN.
        """
        batch = int(gather_numbers([self.batch]).min())  # automatic batch sizes may differ between ranks
        kept = kept or {}
        left = {number: self.shards[number][len(kept.get(number, ())) :] for number in numbers}
        batches = {number: in_batches(images, batch) for number, images in left.items()}
        passed = self._pass([part for number in numbers for part in batches[number][rank() :: world_size()]])
        broken: dict[str, str] = {}
        at_once = GATHERED * world_size()
        for number, shard_batches in batches.items():
            rows, bad = [kept[number]] if number in kept else [], dict[str, str]()
            for start in range(0, len(shard_batches), at_once):
                some = shard_batches[start : start + at_once]
                # One rank may run out of memory while the others wait for its rows.
                by_rank = gather_objects(all_succeed(partial(self._parts, passed, some, progress)))
                in_order = [by_rank[turn % world_size()][turn // world_size()] for turn in range(len(some))]
                bad |= {path: reason for part in in_order for path, reason in part.broken.items()}
                rows += [part.rows for part in in_order]
                if not bad and start + at_once < len(shard_batches):
                    keep(number, rows)
            broken |= bad
            if not bad:
                yield number, torch.cat(rows).numpy()
        refuse_broken(broken, self.images, already_reported=rank() > 0)

    def _parts(
        self, passed: Iterator[Features], batches: Sequence[range], progress: Callable[[int], None]
    ) -> list[Features]:
        """This rank's features of a shard's batches."""
        parts = []
        mine = batches[rank() :: world_size()]
        for turn, part in enumerate(islice(passed, len(mine))):
            parts.append(part if self.unreadable == "refuse" else _filled(part, mine[turn], self.width))
            progress(sum(map(len, batches[turn * world_size() : (turn + 1) * world_size()])))
        return parts

    def _pass(self, batches: Sequence[range]) -> Iterator[Features]:
        inputs = Inputs(self.images, self.preprocessing)
        try:
            yield from stream(self.network, inputs, batches, device=self.device, workers=self.workers)
        except torch.OutOfMemoryError:
            raise UserError(
                f"{plural(self.batch, 'image does', 'images do')} not fit into the memory of {self.device}: "
                f"{self.advice}"
            ) from None


def _filled(part: Features, batch: range, width: int) -> Features:
    """The features of a batch with a row of NaN for each image that could not be read."""
    rows = torch.full((len(batch), width), torch.nan)
    if len(part.samples):
        rows[part.samples - batch.start] = part.rows
    return Features(rows, torch.arange(batch.start, batch.stop), {})


def are_cached(extraction: Extraction, root: Path) -> bool:
    """Whether the cache can be read and holds all features of a set, so that nothing is written there; on rank 0."""
    try:
        return _complete_in(extraction.store(root, extraction.description()), extraction.images)
    except OSError:
        return False


def _complete_in(store: FeatureStore, images: Images) -> bool:
    return store.finished() and _honours_profiles(store, images) and not store.missing(lambda _line: None)


def _honours_profiles(store: FeatureStore, images: Images) -> bool:
    return store.of_profiles(lambda: has_profiles(images))


def features_of(extraction: Extraction, root: Path | None, reporter: Reporter, *, name: str) -> CachedFeatures:
    """The features of a set: read from the cache, or computed and cached.

    An interrupted extraction resumes where it was at most `cache.KEEP_SECONDS` and a few batches before. All ranks call
    this together.

    Args:
        extraction: what to compute.
        root: of the cache; None caches nothing, and every rank holds all rows in memory.
        reporter: for messages and progress.
        name: of the set, for messages.

    Raises:
        UserError: an image cannot be read, or the cache cannot be written.
    """
    if root is None:
        with reporter.progress(f"features of {name}", len(extraction.images)) as bar:
            return CachedFeatures([rows for _, rows in extraction.run(range(len(extraction.shards)), bar.advance)])
    description = run_on_rank0(extraction.description)
    store = extraction.store(root, description)
    if run_on_rank0(lambda: _complete_in(store, extraction.images)):
        _add_clipped(extraction, store)
        if rank() == 0:
            reporter.detail(f"features of {name}: {plural(len(extraction.images), 'row')} from the cache")
        return all_succeed(store.open)
    with _only_process(store, reporter):
        if not run_on_rank0(lambda: _honours_profiles(store, extraction.images)):
            reporter.note(f"features of {name} are computed again: an earlier version ignored the images' profiles")
            run_on_rank0(store.discard)
        _complete(extraction, store, description, reporter, name=name)
        return all_succeed(store.open)


@contextmanager
def _only_process(store: FeatureStore, reporter: Reporter) -> Iterator[None]:
    """Hold the lock of a set's features, so that of several commands one computes them and the others wait for it."""
    held = []
    run_on_rank0(lambda: held.append(store.lock(reporter.note)))
    try:
        yield
    finally:
        for lock in filter(None, held):
            lock.release()


def _add_clipped(extraction: Extraction, store: FeatureStore) -> None:
    """Add what was seen of the images whose rows are in the store."""
    if (clipped := clipped_of(extraction.images)) is not None:
        clipped.add(number for number in run_on_rank0(store.clipped) if number < len(clipped))


def _complete(
    extraction: Extraction, store: FeatureStore, description: dict[str, Any], reporter: Reporter, *, name: str
) -> None:
    """Compute what a store lacks; arguments and errors as `features_of`."""
    total, sizes = len(extraction.images), list(map(len, extraction.shards))
    clipped = clipped_of(extraction.images)
    _add_clipped(extraction, store)

    def keep_clipped() -> None:
        """Before rows are kept: those who read them from the cache know what was seen of their images."""
        if clipped is not None:
            share_clipped(extraction.images)
            run_on_rank0(lambda: store.write_clipped(clipped.indices))

    missing = run_on_rank0(lambda: store.missing(reporter.warn))
    if missing or not run_on_rank0(store.finished):
        run_on_rank0(lambda: store.start(missing))
        kept = run_on_rank0(lambda: store.kept(missing, reporter.warn))
        done = total - sum(sizes[number] - len(kept.get(number, ())) for number in missing)

        def keep(number: int, rows: Sequence[Tensor]) -> None:
            keep_clipped()
            run_on_rank0(lambda: store.keep(number, rows))

        with reporter.progress(f"features of {name}", total, done=done) as bar:
            for number, rows in extraction.run(missing, bar.advance, kept=kept, keep=keep):
                keep_clipped()
                run_on_rank0(partial(store.write, number, rows))
        run_on_rank0(lambda: store.finish(description))
    elif rank() == 0:
        reporter.detail(f"features of {name}: {plural(total, 'row')} from the cache")
