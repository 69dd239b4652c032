"""The table of layouts of public checkpoints: where each kind of file keeps a network, and how it is recognised.

To add a layout, add a row to `LAYOUTS`; nothing else knows their names. A place, where a network's tensors are in a
file, is written "outer>inner:prefix.": the names of nested dictionaries, then how the names of its tensors begin.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from excb.networks.preprocessing import Preprocessing

Dictionaries = dict[tuple[str, ...], dict[str, Tensor]]  # a file's tensors by the names of the dictionaries around them
# Tensors of a run that are not heads: backbones, a balancer's memory, which assignments after training ignore, and
# the heads towards frozen teachers.
NOT_HEADS = ("student.backbone.", "teacher.backbone.", "balancer.", "student.distillation.")


class NetworkPlace(NamedTuple):
    """Where a network's tensors are in a file."""

    path: tuple[str, ...]
    prefix: str

    @classmethod
    def parse(cls, text: str) -> "NetworkPlace":
        """Read "outer>inner:prefix."."""
        path, _, prefix = text.rpartition(":")
        return cls(tuple(name for name in path.split(">") if name), prefix)

    def __str__(self) -> str:
        return f"{'>'.join(self.path)}:{self.prefix}"

    @property
    def words(self) -> set[str]:
        """The words that its names consist of."""
        return set(re.split(r"[\W_]", str(self)))

    def cut(self, dictionaries: Dictionaries) -> dict[str, Tensor]:
        """The tensors at this place, by their names without the prefix."""
        tensors = dictionaries.get(self.path, {}).items()
        return {name.removeprefix(self.prefix): value for name, value in tensors if name.startswith(self.prefix)}


def heads_of_run(dictionaries: Dictionaries) -> dict[str, Tensor]:
    """Heads in a run's checkpoint of this package."""
    return {name: value for name, value in dictionaries["model",].items() if not name.startswith(NOT_HEADS)}


def heads_of_authors(dictionaries: Dictionaries) -> dict[str, Tensor]:
    """Heads in files of ManiadisG/ExCB, by our names.

    Centroids are the directions of a weight-normalised layer whose lengths stay one. Their teacher averages a predictor
    that nothing uses: ours has none. s is kept with a drift of rounding in its sum, which every use of it divides out.
    """
    renamed: dict[str, Tensor] = {}
    for network in ("student", "teacher"):
        heads = NetworkPlace((network,), "classifier.").cut(dictionaries)
        norm = any(name.startswith("predictor_activation.") for name in heads)  # a BatchNorm before the predictor
        for name, value in heads.items():
            match name.split("."):
                case ["centroid_layer", "weight_v"]:
                    renamed[f"{network}.centroids.weight"] = value
                case ["projector", "mlp", *rest]:
                    renamed[".".join([network, "projector", *rest])] = value
                case ["predictor_activation", *rest] if network == "student":
                    renamed[".".join([network, "predictor", "0", *rest])] = value
                case ["predictor", "mlp", layer, *rest] if network == "student" and layer.isdecimal():
                    renamed[".".join([network, "predictor", str(int(layer) + norm), *rest])] = value
    if (center := dictionaries.get(("criterion",), {}).get("center")) is not None:
        sizes = center.float().flatten()
        renamed["sizes"] = sizes / sizes.sum()
    return renamed


def heads_of_dino(dictionaries: Dictionaries) -> dict[str, Tensor]:
    """Heads in full files of facebookresearch/dino, by our names: its last layer's rows are its centroids.

    The layer is weight-normalised. Where training learned the rows' lengths (`norm_last_layer` off), they are kept as
    `gain`.
    A head with BatchNorm (`use_bn_in_head`), which no published file has, is left out: it is none of `excb.heads`.
    """
    renamed: dict[str, Tensor] = {}
    for network in ("student", "teacher"):
        heads = NetworkPlace((network,), "head.").cut(dictionaries)
        if any(name.endswith(".running_mean") for name in heads):
            continue
        for name, value in heads.items():
            match name.split("."):
                case ["mlp", *rest]:
                    renamed[".".join([network, "projector", *rest])] = value
                case ["last_layer", "weight_v"]:
                    renamed[f"{network}.centroids.weight"] = value
                case ["last_layer", "weight_g"] if not bool((value == 1).all()):
                    renamed[f"{network}.gain"] = value.flatten()
    return renamed


USUAL = Preprocessing()
_BICUBIC = Preprocessing(interpolation="bicubic")


@dataclass(frozen=True)
class Layout:
    """How one kind of file names its tensors."""

    name: str  # of the layout
    teacher: tuple[str, ...]  # places of the network that is evaluated, the first that exists is taken
    student: tuple[str, ...] = ()  # places of the other network; empty where files hold only one
    keys: tuple[str, ...] = ()  # of the outermost dictionary that identify this layout
    marks: tuple[str, ...] = ()  # how names beside the network's begin that identify this layout
    others: tuple[str, ...] = ()  # how names beside the network's may begin; "" is anything
    spare: tuple[str, ...] = ()  # how names of the network's own heads begin, besides classifiers
    renames: Mapping[str, str] = field(default_factory=dict)  # beginnings of names and what they become
    # Of ViTs by width, as the only code that writes this layout has them. Others are never assumed, but asked for.
    attention_heads: Mapping[int, int] = field(default_factory=dict)
    # How the only code that writes this layout interpolates position embeddings of ViTs (`POSITIONS`).
    positions: str = "antialiased"
    # Gives the trained heads of a file by our names (see `excb.hub.trained_heads.Heads`); None if files have none that
    # we read.
    heads_of: Callable[[Dictionaries], dict[str, Tensor]] | None = None
    # That the authors evaluate with; None where anybody's files are of this layout.
    preprocessing: Preprocessing | None = USUAL
    own_size: bool = False  # whether they evaluate at the size that the network's position embeddings are for


_STD_228 = Preprocessing(std=(0.228, 0.224, 0.225))  # SwAV's, and so DeepCluster-v2's and ExCB's
# What a network may have besides its own tensors: classifiers, and what only training with masked patches uses.
SPARE = (
    *("fc.", "head.", "heads.", "head_dist.", "classifier.", "linear."),
    *("mask_token", "masked_embed"),
    *("decoder_embed.", "decoder_pos_embed", "decoder_blocks.", "decoder_norm.", "decoder_pred."),
)
# Heads of ViTs by width, in code that keeps 64 channels a head.
_BY_64 = {192: 3, 384: 6, 768: 12, 1024: 16}

# A backbone alone: also those of DINO, Barlow Twins, VICReg, TWIST and of converters. timm too prefers the averaged
# weights of its training checkpoints.
_PLAIN = ("state_dict_ema:", "model_ema:", "state_dict:", "model:", ":")
_PLAIN_STUDENT = ("state_dict:", "model:")

# In order: the more specific comes first, so that the evaluated network wins over others in the file.
LAYOUTS = (
    Layout(
        "excb-run",
        teacher=("model:teacher.backbone.",),
        student=("model:student.backbone.",),
        keys=("format",),
        marks=("teacher.centroids.", "sizes"),
        others=("teacher.", "student.", "sizes", "balancer."),
        heads_of=heads_of_run,
    ),
    Layout(
        "excb",
        teacher=("teacher:backbone.",),
        student=("student:backbone.",),
        marks=("classifier.centroid_layer.",),
        others=("classifier.",),
        renames={"layer0.0.": "conv1.", "layer0.1.": "bn1."},
        attention_heads=_BY_64,
        positions="dino",
        preprocessing=_STD_228,
        heads_of=heads_of_authors,
    ),
    Layout(
        "dino",
        teacher=("teacher:backbone.",),
        student=("student:backbone.",),
        marks=("head.last_layer.",),
        others=("head.",),
        attention_heads=_BY_64,
        positions="dino",
        preprocessing=_BICUBIC,
        heads_of=heads_of_dino,
    ),
    Layout(
        "twist",
        teacher=("teacher_backbone:", "backbone:"),
        student=("backbone:",),
        keys=("model",),  # names that others use too: they say nothing of heads
    ),
    Layout(
        "mocov3",
        teacher=("state_dict:base_encoder.",),
        marks=("momentum_encoder.",),
        others=("momentum_encoder.", "predictor."),
        attention_heads={384: 12, 768: 12},
    ),
    Layout("moco", teacher=("state_dict:encoder_q.",), marks=("queue",), others=("encoder_k.", "queue")),
    Layout(
        "coke",
        teacher=("state_dict:encoder.",),
        marks=("assign_labels", "pre_center_"),
        others=("predictor.", "assign_labels", "label_", "pre_center_", "cur_center_", "dual_", "counter_"),
    ),
    # Four of masked images. The first two name their networks alike, and what lies beside these tells them apart.
    Layout(
        "msn",
        teacher=("target_encoder:",),
        student=("encoder:",),
        keys=("prototypes",),
        attention_heads=_BY_64,
        preprocessing=_BICUBIC,
    ),
    Layout(
        "ijepa",
        teacher=("target_encoder:",),
        student=("encoder:",),
        keys=("predictor",),
        attention_heads={1280: 16, 1408: 16},
        preprocessing=_BICUBIC,
        own_size=True,
    ),
    Layout(
        "data2vec",
        teacher=("model:",),
        marks=("rel_pos_bias.", "lm_head."),
        spare=("rel_pos_bias.relative_position_index", "lm_head."),
        preprocessing=_BICUBIC,
    ),
    Layout(
        "capi",
        teacher=(":backbone.",),
        marks=("backbone.encoder.blocks.0.residual1.",),
        others=("",),
        preprocessing=_BICUBIC,
    ),
    Layout("simsiam", teacher=("state_dict:encoder.",), marks=("predictor.",), others=("predictor.",)),
    Layout(
        "mira",
        teacher=("state_dict:ema_model.encoder.",),
        student=("state_dict:model.encoder.",),
        marks=("ema_model.", "model."),
        others=("ema_model.", "model."),
    ),
    Layout("barlowtwins", teacher=("model:backbone.",), marks=("projector.", "bn."), others=("projector.", "bn.")),
    Layout("vicreg", teacher=("model:backbone.",), marks=("projector.",), others=("projector.",)),
    Layout(
        "swav",
        teacher=(":", "state_dict:"),
        marks=("projection_head.", "prototypes."),
        spare=("projection_head.", "prototypes."),
        preprocessing=_STD_228,
    ),
    Layout(
        "vissl",
        teacher=(
            "classy_state_dict>base_model>model>trunk:_feature_blocks.",
            "model_state_dict:_feature_blocks.",
            "model_state_dict:",
        ),
    ),
    Layout("openmmlab", teacher=("state_dict:backbone.",), keys=("meta",), others=("",)),
    Layout(
        "lightly",  # and solo-learn
        teacher=("state_dict:backbone.", "state_dict:encoder.", "state_dict:model.backbone.", ":backbone."),
        others=("",),
        preprocessing=None,
    ),
    Layout(
        "mae",
        teacher=("model:",),
        marks=("decoder_embed.", "mask_token"),
        attention_heads={768: 12, 1024: 16, 1280: 16},
        preprocessing=_BICUBIC,
    ),
    Layout(
        "ibot",
        teacher=_PLAIN,
        marks=("masked_embed",),
        attention_heads=_BY_64,
        positions="dino",
        preprocessing=_BICUBIC,
    ),
    Layout("torchvision", teacher=_PLAIN, student=_PLAIN_STUDENT, preprocessing=None),
    Layout("timm", teacher=_PLAIN, student=_PLAIN_STUDENT, preprocessing=None),
)
