"""Heads in the files of layouts that have them: projectors, predictor, centroids and sizes, by our names."""

from torch import Tensor

from excb.checkpoint.places import Dictionaries, Place

# Tensors of a run that are no heads: backbones, and what a balancer remembers, which assignments after training ignore.
NOT_HEADS = ("student.backbone.", "teacher.backbone.", "balancer.")


def heads_of_run(dictionaries: Dictionaries) -> dict[str, Tensor]:
    """Heads in a run's checkpoint of this package."""
    return {name: value for name, value in dictionaries["model",].items() if not name.startswith(NOT_HEADS)}


def heads_of_authors(dictionaries: Dictionaries) -> dict[str, Tensor]:
    """Heads in files of ManiadisG/ExCB, by our names.

    Centroids are the directions of a weight-normalised layer whose lengths stay one. Their teacher averages a predictor
    that nothing uses: ours has none. s is kept with a drift of rounding in its sum, which every use of it divides out.
    """
    found: dict[str, Tensor] = {}
    for network in ("student", "teacher"):
        heads = Place((network,), "classifier.").cut(dictionaries)
        norm = any(name.startswith("predictor_activation.") for name in heads)  # a BatchNorm before the predictor
        for name, value in heads.items():
            match name.split("."):
                case ["centroid_layer", "weight_v"]:
                    found[f"{network}.centroids.weight"] = value
                case ["projector", "mlp", *rest]:
                    found[".".join([network, "projector", *rest])] = value
                case ["predictor_activation", *rest] if network == "student":
                    found[".".join([network, "predictor", "0", *rest])] = value
                case ["predictor", "mlp", layer, *rest] if network == "student" and layer.isdecimal():
                    found[".".join([network, "predictor", str(int(layer) + norm), *rest])] = value
    if (center := dictionaries.get(("criterion",), {}).get("center")) is not None:
        sizes = center.float().flatten()
        found["sizes"] = sizes / sizes.sum()
    return found


def heads_of_dino(dictionaries: Dictionaries) -> dict[str, Tensor]:
    """Heads in full files of facebookresearch/dino, by our names: its last layer's rows are its centroids.

    The layer is weight-normalised. Where training learned the rows' lengths (`norm_last_layer` off), they are kept as
    `gain`.
    A head with BatchNorm (`use_bn_in_head`), which no published file has, is left out: it is none of `excb.heads`.
    """
    found: dict[str, Tensor] = {}
    for network in ("student", "teacher"):
        heads = Place((network,), "head.").cut(dictionaries)
        if any(name.endswith(".running_mean") for name in heads):
            continue
        for name, value in heads.items():
            match name.split("."):
                case ["mlp", *rest]:
                    found[".".join([network, "projector", *rest])] = value
                case ["last_layer", "weight_v"]:
                    found[f"{network}.centroids.weight"] = value
                case ["last_layer", "weight_g"] if not bool((value == 1).all()):
                    found[f"{network}.gain"] = value.flatten()
    return found
