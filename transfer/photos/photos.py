"""`excb.Photos`: a folder of photographs, and all that can be said of it with the networks at hand."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from excb.console import Reporter, plural
from excb.distributed.parallel import joined
from excb.errors import UserError, in_short, is_rank0, path_text, path_texts, require
from excb.hub.resolve import networks_here
from excb.images.image_set import Images
from excb.images.scanning import scan_folder
from excb.images.subset import Subset
from excb.images.survey import common_channels
from excb.ledger import Ledger, LedgerEntry

from ..embeddings.computing import compute, open_embedding
from ..embeddings.options import EmbedOptions
from ..probes.logistic import STEPS
from .comparison import Compared, Kind, NetworkComparison, most_frequent, single_groups
from .findings import Findings
from .grouping import copy_groups, members, with_series
from .label_errors import PossibleError, doubted_label, suspicious, suspicious_sets
from .label_kinds import kind_of_labels
from .labelling import NextLabels, Rule, next_to_label
from .labels import UNLABELLED, PhotoLabels, photo_labels
from .options import SURE
from .prediction import GuessedLabels, certainty_of, guesses_of, with_copies
from .references import references
from .report import check_out, write_findings
from .validation import Classifier, cross_validate, fit_classifier, possible_parts, validation_fits, validation_parts

if TYPE_CHECKING:
    from ..embeddings.embeddings import Embeddings
    from ..task import Task

NETWORK = "a network is a name, a path or a run"  # and nothing else
SPLIT = 0.2  # of the groups, for testing
# Of the solver, for references. They have thousands of dimensions, in which it takes ten times as many to converge, and
# their accuracy does not change: benchmarks/photos.py measures it.
REFERENCE_STEPS = 100


class Photos:
    """A folder of photographs, of which some, all or none are labelled.

    ::

        photos = excb.Photos("photos", "labels.csv")
        print(photos.compare().words)
        photos.predict().sure
        photos.label_next(20).paths
        photos.report("runs/photos")  # one page and a table of everything

    Nothing is computed before it is asked for, and everything once. Vectors are kept in the feature cache.

    Args:
        folder: of images, at any depth. If all of them are in sub-folders, these are the classes, unless there is a
            table of labels. Below train, test and val, their sub-folders are, and all images are one set.
        labels: a CSV or Parquet file with the columns path (below the folder) and label; a row without a label, like an
            image without a row, is an image without one. With the column labels instead, a cell holds any number of
            them, separated by ; | or a comma, and - says that an image has none.
        networks: to compare, as `excb.load` takes them: names, runs, exported folders; by default those of
            `excb.checkpoints` that are on this machine and take images of as many channels.
        series: a column of the table that names what was taken together, such as a day or an animal: those images are
            never on both sides of a split.
        device: cpu, cuda or auto.
        cache: folder for vectors, by default `$EXCB_CACHE`, else ~/.cache/excb.
        range: LOW..HIGH, the stored values that become black and white, of images of more than 8 bits; by default
            measured on the folder.
        seed: names the parts of cross-validation and the clusters of `label_next`.
        quiet: no notes and no progress.

    Raises:
        UserError: the folder holds no image, or the table does not fit it.
    """

    def __init__(
        self,
        folder: str | Path,
        labels: str | Path | None = None,
        *,
        networks: str | Path | Iterable[str | Path] = (),
        series: str | None = None,
        device: str = "auto",
        cache: str | Path | None = None,
        range: str | None = None,  # noqa: A002 - as the option of commands is called
        seed: int = 0,
        quiet: bool = False,
    ) -> None:
        found = scan_folder(path_text(folder, "photographs are one folder"))
        self.images: Images = found
        self.labels: PhotoLabels = photo_labels(found, labels, series)
        self.seed = seed
        self._device, self._cache = device, None if cache is None else Path(path_text(cache, "cache is a folder"))
        self._reporter = Reporter(quiet=quiet or not is_rank0(), brief=True)  # it reads many sets from the cache
        self._embeddings, self._tasks = dict[str, "Embeddings"](), dict[str, "Task"]()
        self._range, self._table = range, None if labels is None else Path(labels)
        self._scanned = found
        self._scanned.ledger.tell(self._reporter)
        if labels is None and found.classes is not None:
            below = "" if found.classes == self.labels.classes else f" below {' and '.join(found.classes)}, all one set"
            self._reporter.note(
                f"labels: the sub-folders{below}, {plural(len(self.labels.classes), 'class', 'classes')}"
            )
        named = tuple(path_texts(networks, "networks are names, paths or runs"))
        self.networks: tuple[str, ...] = named or self._fitting()

    def _fitting(self) -> tuple[str, ...]:
        """The networks on this machine that take the channels of these images."""
        here = networks_here()
        require(
            bool(here), "no network is on this machine: fetch one with `excb-zoo pull mobilenetv2` (9 MB), or name some"
        )
        channels = common_channels(self._scanned)
        fitting = tuple(name for name, taken in here.items() if taken == channels)
        require(
            bool(fitting),
            f"the images have {plural(channels, 'channel')}, and no network on this machine takes them: adapt one with "
            "`excb-pretrain adapt NAME --data DIR`, and name it",
        )
        if others := [name for name in here if name not in fitting]:
            self._reporter.note(
                f"left out, for they take images of other channels than {channels}: {', '.join(others)}"
            )
        return fitting

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        labelled = int(self.labels.labelled.sum())
        return f"<Photos in {self._scanned.root}: {plural(len(self), 'image')}, {labelled:,} labelled>"

    @cached_property
    def ledger(self) -> Ledger:
        """All that was left out or is doubted, counted: of the folder, and images that cannot be read."""
        entries = []
        if missing := self.embeddings(self.networks[0]).unreadable:
            entries.append(LedgerEntry("images that cannot be read", len(missing), tuple(list(missing)[:3])))
        if not self._copies[1]:
            entries.append(LedgerEntry("too many images to look for near-copies: compared by files only", len(self)))
        return self._scanned.ledger + Ledger(tuple(entries))

    @cached_property
    def _copies(self) -> tuple[np.ndarray, bool]:
        return copy_groups(self._scanned)

    @cached_property
    def groups(self) -> np.ndarray:
        """The group of every image, int64 [N]: copies, near-copies and series are together in every split."""
        groups = self._copies[0]
        return with_series(groups, self.labels.series) if self.labels.series else groups

    def embeddings(self, network: str | Path) -> "Embeddings":
        """The vectors of all images that can be read.

        Raises:
            UserError: the network cannot be loaded, or no image can be read.
        """
        name = path_text(network, NETWORK)
        if name not in self._embeddings:
            options = EmbedOptions(ckpt=name, device=self._device, cache=self._cache, range=self._range)
            with joined(self._device, stay=True) as device:
                task = self._tasks[name] = open_embedding(options, device, Reporter(quiet=True), self.images)
                self.images = task.train  # with the range that was stated, or measured
                self._embeddings[name] = compute(
                    task,
                    task.cache or options.features_folder,
                    self._reporter,
                    loads=name,
                    name=f"images by {name}",
                    name_unreadable=not self._embeddings,  # once, and not for each network
                )
        return self._embeddings[name]

    @cached_property
    def readable(self) -> np.ndarray:
        """Whether each image can be read, bool [N]."""
        there = set(self.embeddings(self.networks[0]).paths)
        return np.array([path in there for path in self.images.paths])

    def rows(self, network: str | Path) -> Tensor:
        """The vectors of `readable` images [R, D] float32, in the order of the images."""
        return torch.from_numpy(self.embeddings(network).vectors)

    @cached_property
    def targets(self) -> np.ndarray:
        """The class of every readable image, int64 [R], or its rarest label; -1 of those without a label."""
        targets: np.ndarray = self.labels.of[self.readable]
        return targets

    def compare(self) -> NetworkComparison:
        """The networks and the references by cross-validated logistic regression on the labels.

        Raises:
            UserError: fewer than two classes or groups are labelled, or a network cannot be loaded.
        """
        return self._comparison

    @cached_property
    def _comparison(self) -> NetworkComparison:
        known, labels, parts = self._labelled
        groups, classes = self.groups[self.readable][known], len(self.labels.classes)
        entries = [most_frequent(labels, groups, classes)]

        def add(name: str, kind: Kind, rows: Tensor) -> None:
            with self._reporter.progress(f"labels by {name}", validation_fits(len(labels), len(parts))) as bar:
                steps = STEPS if kind == "network" else REFERENCE_STEPS
                found = cross_validate(rows, labels, parts, classes=classes, steps=steps, progress=bar.advance)
            if not found.converged and kind == "network":
                self._reporter.warn(
                    f"labels by {name}: a logistic regression has not converged in {plural(STEPS, 'step')}"
                )
            entries.append(Compared(name, kind, found, groups))

        for name in self.networks:
            add(name, "network", self.rows(name)[known])
        best = max(entries[1:], key=lambda entry: entry.accuracy).name  # of equals the first
        for title, rows in references(self._tasks[best], self._shown(known), self._reporter):
            add(title, "reference", rows)
        single = single_groups(kind_of_labels(labels).truth(labels, classes), groups)
        return NetworkComparison(tuple(entries), len(labels), classes, single)

    @cached_property
    def _labelled(self) -> tuple[Tensor, Tensor, list[np.ndarray]]:
        """Which readable images are labelled [R] bool; their labels [n] or [n, K]; the parts of cross-validation."""
        known = self.targets != UNLABELLED
        require(bool(known.any()), "no image has a label: pass a table of labels, or sort some into folders")
        parts = validation_parts(self.targets[known], self.groups[self.readable][known], self.seed)
        labels = self.targets[known] if self.labels.sets is None else self.labels.sets[self.readable][known]
        return torch.from_numpy(known), torch.from_numpy(labels), parts

    def _shown(self, among: Tensor) -> Images:
        """Some of the readable images."""
        return Subset(self.images, np.flatnonzero(self.readable)[among.numpy()])

    def _entry(self, network: str | Path | None) -> Compared:
        comparison = self.compare()
        if network is None:
            return comparison.best
        name = path_text(network, NETWORK)
        found = next((entry for entry in comparison.of("network") if entry.name == name), None)
        if found is None:
            raise UserError(f"{name} is not among the networks: {', '.join(self.networks)}")
        return found

    def classifier(self, network: str | Path | None = None) -> Classifier:
        """Calibrated logistic regression of all labels on a network's features, by default the best one's."""
        entry = self._entry(network)
        known, labels, _ = self._labelled
        return fit_classifier(self.rows(entry.name)[known], labels, entry.validated, classes=len(self.labels.classes))

    def predict(self, network: str | Path | None = None, *, sure: float = SURE) -> GuessedLabels:
        """Guesses of all images without a label, each with a calibrated probability.

        Where images have several labels, those of 0.5 or more are guessed: none of an image that probably has none.

        Args:
            network: one of those compared; by default the best one.
            sure: share of right answers wanted among the guesses that are called sure, 0 to 1.

        Raises:
            UserError: as `compare`, or `sure` is out of range.
        """
        require_share(sure)
        entry = self._entry(network)
        certainty = certainty_of(entry.validated, sure)
        asked = torch.from_numpy(self.targets == UNLABELLED)
        paths = [path for path, wanted in zip(self._paths, asked.tolist(), strict=True) if wanted]
        probabilities = self.classifier(entry.name).probabilities(self.rows(entry.name)[asked])
        kind = entry.validated.kind
        guesses = guesses_of(kind, paths, probabilities, self.labels.classes, certainty.threshold)
        if self.labels.sets is None:
            guesses = with_copies(guesses, self._like_labelled)
        return GuessedLabels(entry.name, tuple(guesses), certainty)

    @cached_property
    def _like_labelled(self) -> dict[str, tuple[str, str]]:
        """Of images without a label, a labelled one that looks the same, and its label; none where labels differ."""
        of, paths = self.labels.of, self.images.paths
        known = defaultdict[int, list[int]](list)
        for index in np.flatnonzero(of != UNLABELLED).tolist():
            known[int(self._copies[0][index])].append(index)
        found = {}
        for index in np.flatnonzero(of == UNLABELLED).tolist():
            like = known.get(int(self._copies[0][index]), [])
            if len({int(of[other]) for other in like}) == 1:
                found[paths[index]] = paths[like[0]], self.labels.classes[int(of[like[0]])]
        return found

    def label_next(self, count: int = 20, *, network: str | Path | None = None, rule: Rule | None = None) -> NextLabels:
        """Images to label next: ones that cover what has no label, then ones that the model is least sure of.

        Copies and near-copies of each other are asked for once, those of labelled images not at all, while there are
        others.

        Args:
            count: how many.
            network: whose features decide; by default the best one, or the first where nothing is labelled.
            rule: coverage, uncertainty or k-center, instead of what the number of labels suggests.

        Raises:
            UserError: all images are labelled, or a network cannot be loaded.
        """
        require(isinstance(count, Integral) and count >= 1, f"count is {in_short(count)}: ask for one image at least")
        require(bool((self.targets == UNLABELLED).any()), "all images are labelled")
        enough = self._can_predict()
        best = self._entry(None).name if network is None and enough else self.networks[0]
        name = best if network is None else path_text(network, NETWORK)
        rows = self.rows(name)
        model = self.classifier(name) if enough and name in self.networks else None
        margins = None if model is None else model.kind.margins(model.probabilities(rows))
        groups = self._copies[0][self.readable]
        chosen, by = next_to_label(rows, self.targets, count, margins=margins, seed=self.seed, groups=groups, rule=rule)
        return NextLabels(tuple(self._paths[index] for index in chosen), by)

    def label_errors(self, network: str | Path | None = None) -> list[PossibleError]:
        """Labels that the other labels contradict, the most suspicious first; people should look at them.

        Raises:
            UserError: as `compare`.
        """
        entry = self._entry(network)
        known, labels, _ = self._labelled
        chances, classes = entry.validated.probabilities, self.labels.classes
        paths = [self._paths[place] for place in known.nonzero()[:, 0].tolist()]
        if labels.ndim == 2:
            return [
                doubted_label(paths[row], classes[k], chances[row, k], labels[row, k])
                for row, k in suspicious_sets(chances, labels)
            ]
        return [
            PossibleError(
                paths[row],
                classes[int(labels[row])],
                classes[other],
                float(chances[row, labels[row]]),
                float(chances[row, other]),
            )
            for row, other in suspicious(chances, labels)
        ]

    def split(self, test: float = SPLIT) -> tuple[list[str], list[str]]:
        """Paths of labelled images for training and for testing: whole groups, each class about in proportion.

        Args:
            test: share of the images for testing, 0 to 1.

        Raises:
            UserError: as `compare`, or `test` is out of range.
        """
        from sklearn.model_selection import StratifiedGroupKFold

        require(0 < test < 1, f"test is {test}: it is a share of the images between 0 and 1")
        known = self.targets != UNLABELLED
        groups = self.groups[self.readable][known]
        number = round(1 / test) if test <= 0.5 else round(1 / (1 - test))
        fewest = min(len(np.unique(groups)), int(np.bincount(self.targets[known]).max()))
        require(number <= fewest, "too few labelled images for this split: label more, or share more")
        parts = StratifiedGroupKFold(number, shuffle=True, random_state=self.seed)
        rest, held = next(parts.split(np.zeros(len(groups)), self.targets[known], groups))
        paths = [path for path, labelled in zip(self._paths, known.tolist(), strict=True) if labelled]
        first, second = sorted(rest.tolist()), sorted(held.tolist())
        train, tested = (first, second) if test <= 0.5 else (second, first)
        return [paths[index] for index in train], [paths[index] for index in tested]

    def findings(self, *, sure: float = SURE, count: int = 20) -> Findings:
        """All of this at once; too few labels leave out what needs them, and it says so.

        Args:
            sure: as of `predict`.
            count: as of `label_next`.

        Raises:
            UserError: a network cannot be loaded, or a value is out of range.
        """
        comparison, why = None, ""
        try:
            comparison = self.compare()
        except UserError as error:
            if self._can_predict():
                raise  # such as a network that cannot be loaded
            why = str(error)
        asked = bool((self.targets == UNLABELLED).any())
        return Findings(
            self.images,
            self.labels,
            self.groups,
            self.ledger,
            members(self._copies[0], self.images.paths),
            comparison,
            self.predict(sure=sure) if comparison is not None and asked else None,
            tuple(self.label_errors()) if comparison is not None else (),
            self.label_next(count) if asked else None,
            why,
        )

    def report(self, out: str | Path, *, sure: float = SURE, count: int = 20, overwrite: bool = False) -> Path:
        """Write a page, photos.html, and tables of everything below a folder; the page's path.

        Args:
            out: the folder.
            sure: as `findings` takes it.
            count: likewise.
            overwrite: replace what the folder has of other photographs, and a table that was changed since.

        Raises:
            UserError: as `findings`, or the folder is among the images or cannot be written, or something would be
                lost.
        """
        folder = Path(path_text(out, "out is a folder"))
        check_out(self.images, folder, labels=self._table, overwrite=overwrite)
        page, *_ = write_findings(self.findings(sure=sure, count=count), folder, self._reporter)
        return page

    @cached_property
    def _paths(self) -> list[str]:
        """Of readable images."""
        return [path for path, there in zip(self.images.paths, self.readable.tolist(), strict=True) if there]

    def _can_predict(self) -> bool:
        """Whether there are labels enough to compare networks by."""
        known = self.targets != UNLABELLED
        return possible_parts(self.targets[known], self.groups[self.readable][known]) > 0


def require_share(sure: float) -> None:
    """Raise UserError if it is no share of right answers."""
    require(0 < sure < 1, f"sure is {sure}: it is a share of right answers between 0 and 1")
