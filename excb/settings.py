"""Every option of the ExCB method, frozen and documented. Importing it needs no torch.

Where the paper's text, its pseudo-code and the authors' code differ, the difference is an option here. The defaults are
the paper's text but for two, `loss_reduction` and `empty_clusters` (docs/method.md has the reasons); `OFFICIAL` holds
what the authors' code does (recipe family `official`). Options whose source is "ours" are off in both families.
"""

from dataclasses import dataclass
from typing import Any, Literal

from excb.balancing.table import BALANCERS
from excb.errors import require
from excb.objective.table import LOSSES
from excb.options import option, require_choices


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """The options of ExCB. Equation numbers are those of the ECCV 2024 paper."""

    clusters: int = option(65_536, "number of clusters K", paper="65,536 (ablated 32,768 to 98,304)")
    width: int = option(256, "width D of the space where samples meet centroids", paper="256")
    hidden: int = option(2048, "hidden width of projector and predictor", paper="2,048")
    projector_layers: int = option(2, "hidden layers of the projector h", paper="2")
    predictor_layers: int = option(1, "hidden layers of the predictor g", paper="1")
    predictor: bool = option(True, "train the second half of the loss through a predictor g (ablated)", paper="yes")
    predictor_input_norm: bool = option(
        False, "BatchNorm before the predictor", paper="not said", source="settled; the authors' code has it"
    )
    projector_output_norm: bool = option(
        False,
        "BatchNorm without scale and shift on the projector's output, before n(.): keeps early projections apart, so "
        "that B does not move whole batches from cluster to cluster",
        paper="no",
        source="ours",
    )
    head: Literal["auto", "batchnorm", "gelu"] = option(
        "auto",
        "hidden layers of the heads: Linear-BatchNorm-ReLU or Linear-GELU (auto: as the backbone has BatchNorm or not)",
        paper="not said for ResNet-50; DINO's for ViT",
        source="authors' code",
    )
    head_batches: Literal["all_views", "per_resolution"] = option(
        "all_views",
        "what passes the heads together, and so shares BatchNorm statistics",
        paper="not said; pseudo-code: per_resolution",
        source="authors' code",
    )
    teacher_temperature: float = option(0.04, "tau_t of Eq. 6", paper="0.04")
    student_temperature: float = option(0.1, "tau_s of Eq. 5", paper="0.1")
    sizes_momentum: float = option(0.999, "m_s of Eq. 9: momentum of the relative cluster sizes s", paper="0.999")
    sizes_counted: Literal["balanced", "raw"] = option(
        "balanced",
        "which assignments are counted into s (Eq. 8): after B, or before it",
        paper="balanced (Eq. 8); pseudo-code: raw",
    )
    sizes_updated: Literal["after_loss", "before_balancing"] = option(
        "after_loss",
        "when a batch's assignments enter s: after its loss, or before it is balanced",
        paper="not said; pseudo-code: before_balancing",
        source="authors' code",
    )
    balancing: str = option(
        "linear",
        "B, below 1/K (Eq. 10) linear in s, squared, or the pseudo-code with its sign slip; for comparison none at "
        "all, DINO's centering, SwAV's Sinkhorn-Knopp or MIRA's assignment",
        paper="linear (squared ablated)",
        choices=BALANCERS.keys,
    )
    center_momentum: float = option(0.9, "of balancing=centering: momentum of the centre", source="DINO")
    sinkhorn_iterations: int = option(
        3, "of balancing=sinkhorn: normalisations of clusters and samples; their epsilon is tau_t", source="SwAV"
    )
    mira_beta: float = option(
        2 / 3,
        "of balancing=mira: weight of mutual information; its targets are as sharp as tau_t (1 - beta)",
        source="MIRA",
    )
    mira_beta_start: float | None = option(
        None,
        "of balancing=mira: its first beta, which moves to mira_beta on a cosine (MIRA's authors' code: 0.75); none: "
        "beta does not move",
        source="MIRA",
    )
    mira_iterations: int = option(30, "of balancing=mira: steps of its fixed-point iteration", source="MIRA")
    empty_clusters: Literal["noise", "exact"] = option(
        "noise",
        "weight of an empty cluster in B: a random 0 to 0.001, so that ties break at random, or exactly 0",
        paper="exact",
        source="authors' code",
    )
    winner_gain: float = option(
        1.0, "factor on the winning similarity after B", paper="not said (authors' code: 1.01)", source="settled: none"
    )
    clamp: bool = option(
        False, "clamp similarities to [-1, 1] after B", paper="not said (authors' code: yes)", source="settled: none"
    )
    projector_on_local: bool = option(
        True, "match the projector's output on local views too", paper="yes (Eq. 7; authors' code: no)"
    )
    centroid_gradient_from_local: bool = option(
        False, "let local views move the centroids: the stop-gradient on q_s, ablated", paper="no"
    )
    loss: str = option(
        "cross_entropy", "what compares the student with p_t (Eq. 7)", paper="cross_entropy", choices=LOSSES.keys
    )
    loss_reduction: Literal["halves", "sum", "pairs", "pseudocode"] = option(
        "halves",
        "weights of view pairs: each half a mean; Eq. 7's plain sums; one mean over all pairs; the pseudo-code's",
        paper="sum (Eq. 7); pseudo-code: pseudocode; authors' code: pairs",
        source="settled: the mean of the two halves",
    )
    clustering: bool = option(
        True,
        "train by Eq. 7; without it the terms of contrast (SimCLR) and regression (BYOL) are the whole loss",
        paper="yes",
        source="ours",
    )
    contrast: float = option(
        0.0, "weight of NT-Xent between the views' projections, added to Eq. 7", paper="0", source="ours; SimCLR"
    )
    regression: float = option(
        0.0,
        "weight of BYOL's loss, the student's prediction of the teacher's projections, added to Eq. 7",
        paper="0",
        source="ours; BYOL",
    )
    contrast_temperature: float = option(0.2, "tau of NT-Xent", paper="-", source="ours; SimCLR: 0.1 to 0.5")
    centroid_init: Literal["random", "kmeans"] = option(
        "random",
        "first centroids: torch's Linear default, or spherical k-means of projected training views",
        paper="not said (authors' code: kmeans)",
        source="settled: torch's",
    )
    kmeans_samples: int = option(500_000, "training views used by k-means at most", source="authors' code")
    kmeans_iterations: int = option(50, "iterations of k-means", source="authors' code")
    teacher_momentum: float = option(0.996, "first value of the teacher's EMA momentum m", paper="0.996")
    teacher_momentum_end: float = option(1.0, "last value of m, reached on a cosine", paper="1")
    teacher_centroids: Literal["rows", "unit"] = option(
        "rows",
        "what the EMA averages in C: the rows as they are, or the unit rows",
        paper="not said",
        source="authors' code",
    )
    teacher_statistics: Literal["own", "averaged"] = option(
        "own",
        "the teacher's BatchNorm statistics: from its own forward passes, or an EMA of the student's",
        paper="not said",
        source="authors' code",
    )

    @property
    def active(self) -> bool:
        """Whether any of the method's own losses is on; a run may learn from frozen teachers alone."""
        return self.clustering or self.contrast > 0 or self.regression > 0

    @property
    def needs_teacher(self) -> bool:
        """Whether the loss depends on the teacher, which otherwise only averages the student's weights."""
        return self.clustering or self.regression > 0

    def __post_init__(self) -> None:
        """Raise UserError for values that no run could use."""
        require_choices("method", self)
        for name in ("clusters", "width", "hidden", "kmeans_samples", "kmeans_iterations"):
            require(getattr(self, name) >= 1, f"method.{name} must be at least 1")
        require(self.clusters >= 2, "method.clusters must be at least 2")
        for name in ("projector_layers", "predictor_layers", "sinkhorn_iterations", "mira_iterations"):
            require(getattr(self, name) >= 0, f"method.{name} must not be negative")
        for name in ("teacher_temperature", "student_temperature", "contrast_temperature", "winner_gain"):
            require(getattr(self, name) > 0, f"method.{name} must be above 0")
        for name in ("sizes_momentum", "center_momentum", "teacher_momentum", "teacher_momentum_end"):
            require(0 <= getattr(self, name) <= 1, f"method.{name} must lie between 0 and 1")
        for name in ("mira_beta", "mira_beta_start"):
            beta = getattr(self, name)
            require(beta is None or 0 <= beta < 1, f"method.{name} must be at least 0 and below 1")
        require(self.contrast >= 0, "method.contrast must not be negative")
        require(self.regression >= 0, "method.regression must not be negative")
        require(
            self.predictor or not self.regression,
            "method.regression is the loss of a predictor: set method.predictor=true",
        )
        if not self.clustering:
            require(
                not self.predictor or self.regression > 0,
                "method.clustering=false trains no predictor: set method.predictor=false",
            )
            require(
                self.needs_teacher or self.teacher_statistics == "averaged",
                "method.clustering=false makes no pass of the teacher, so its BatchNorm statistics must follow the "
                "student's: set method.teacher_statistics=averaged",
            )
            require(
                self.centroid_init == "random",
                "method.clustering=false has no clusters to start: set method.centroid_init=random",
            )
        require(
            BALANCERS[self.balancing].bounded or (self.winner_gain == 1 and not self.clamp),
            "method.winner_gain and method.clamp act on similarities between -1 and 1, which method.balancing="
            f"{self.balancing} does not keep: set method.winner_gain=1 method.clamp=false",
        )


# What the authors' released code (github.com/ManiadisG/ExCB) does where it differs from the paper's text.
OFFICIAL: dict[str, Any] = {
    "predictor_input_norm": True,
    "winner_gain": 1.01,
    "clamp": True,
    "projector_on_local": False,
    "loss_reduction": "pairs",
    "centroid_init": "kmeans",
}
