"""Every option of learning from teachers, frozen and documented. Importing it needs no torch."""

from dataclasses import dataclass
from typing import Literal

from excb.errors import require
from excb.options import option, require_choices

from .table import OBJECTIVES


@dataclass(frozen=True, kw_only=True)
class DistilSettings:
    """Learning from frozen teachers, besides the losses of `method`. By default all of it is off."""

    teachers: tuple[str, ...] = option(
        (), "the networks to learn from, as excb.load takes them; each has a head of its own", source="ours"
    )
    features: float = option(0.0, "weight of the distance between predicted and teacher's features", source="AM-RADIO")
    similarities: float = option(
        0.0,
        "weight of the cross-entropy of similarities to other images, of the batch and a queue",
        source="SEED, CompRess",
    )
    assignments: float = option(
        0.0,
        "weight of the cross-entropy of assignments to clusters of the teacher's features, balanced by ExCB's s and B",
        source="ours; ExCB",
    )
    maps: float = option(
        0.0, "weight of the distance between maps, cell by cell: for dense tasks", source="AM-RADIO, DINOv2"
    )
    distance: Literal["cosine", "squared"] = option(
        "cosine", "of features and maps: 1 - cosine, or the mean squared error of standardised ones", source="ours"
    )
    teacher_sees: Literal["image", "view", "other_view"] = option(
        "image",
        "image: the whole image, once, in the teacher's own preprocessing, and its features are kept; view: the "
        "student's view; other_view: the image's other global views",
        source="ours; view: Beyer et al., 2022",
    )
    teacher_size: int | None = option(
        None, "side in pixels of the teachers' inputs; none: what each was trained for", source="ours"
    )
    teacher_channels: tuple[int, ...] = option(
        (),
        "channels, from 0, that teachers of colour images see as red, green and blue, of images of others: 3,2,1",
        source="ours",
    )
    statistics: Literal["none", "centred", "whitened"] = option(
        "centred", "of a teacher's unit features: left as they are, their mean removed, or whitened too", source="ours"
    )
    whitening_floor: float = option(
        0.1, "of statistics=whitened: added to every variance, as a share of their mean", source="ours"
    )
    samples: int = option(10_000, "images that statistics and k-means see at most", source="ours")
    average: float = option(
        0.125,
        "share of the run so far that the average of the student covers, which is what is measured and loaded; 0: that "
        "of method.teacher_momentum, as in runs whose losses need the method's own teacher",
        source="ours; relative widths: EDM2",
    )
    head: Literal["linear", "mlp"] = option("mlp", "from the student's features to a teacher's", source="ours")
    hidden: int = option(512, "hidden width of head=mlp", source="ours")
    temperature: float = option(0.04, "tau_t of the teacher's similarities and assignments", source="ExCB")
    student_temperature: float = option(0.1, "tau_s of the student's", source="ExCB")
    queue: int = option(0, "features of earlier images kept for similarities, besides the batch's", source="ours")
    clusters: int = option(256, "K of assignments", source="ours")
    sizes_momentum: float = option(0.99, "m_s of the relative cluster sizes s of assignments", source="ours")
    kmeans_iterations: int = option(50, "of the k-means that starts the clusters", source="ExCB's authors' code")

    @property
    def weights(self) -> dict[str, float]:
        """The objectives that are on, with their weights."""
        return {name: weight for name in OBJECTIVES if (weight := getattr(self, name)) > 0}

    @property
    def active(self) -> bool:
        """Whether anything is learned from teachers."""
        return bool(self.weights)

    @property
    def needs_rows(self) -> bool:
        """Whether teachers' vectors are compared."""
        return any(not OBJECTIVES[name].maps for name in self.weights)

    @property
    def needs_maps(self) -> bool:
        """Whether maps are compared."""
        return any(OBJECTIVES[name].maps for name in self.weights)

    @property
    def whole_batch(self) -> bool:
        """Whether an objective needs the whole batch at once."""
        return any(OBJECTIVES[name].whole_batch for name in self.weights)

    def __post_init__(self) -> None:
        """Raise UserError for values that no run could use."""
        require_choices("distil", self)
        for name in OBJECTIVES:
            require(getattr(self, name) >= 0, f"distil.{name} must not be negative")
        require(
            not self.teachers or self.active,
            "distil.teachers are named, but nothing is learned from them: set distil.features=1",
        )
        require(
            len(set(self.teachers)) == len(self.teachers) and all(name.strip() for name in self.teachers),
            "distil.teachers names a teacher twice, or one without a name: name each once",
        )
        require(
            len(self.teacher_channels) in {0, 3} and all(channel >= 0 for channel in self.teacher_channels),
            "distil.teacher_channels takes three channels, counted from 0, such as 3,2,1",
        )
        require(
            not self.needs_maps or self.teacher_sees == "view",
            "distil.maps compares what teacher and student make of the same view: set distil.teacher_sees=view",
        )
        for name in ("samples", "clusters"):
            require(getattr(self, name) >= 2, f"distil.{name} must be at least 2")
        for name in ("hidden", "kmeans_iterations"):
            require(getattr(self, name) >= 1, f"distil.{name} must be at least 1")
        require(self.queue >= 0, "distil.queue must not be negative")
        require(
            self.teacher_size is None or self.teacher_size >= 8,
            "distil.teacher_size must be at least 8 pixels, or none",
        )
        for name in ("temperature", "student_temperature", "whitening_floor"):
            require(getattr(self, name) > 0, f"distil.{name} must be above 0")
        require(0 <= self.sizes_momentum <= 1, "distil.sizes_momentum must lie between 0 and 1")
        require(0 <= self.average <= 1, "distil.average is a share of the run: between 0 and 1")
