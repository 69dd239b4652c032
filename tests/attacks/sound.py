"""A folder with a small sound file of every kind that commands read or write, made by the commands themselves."""

import json
import shutil
from pathlib import Path

import torch

import excb
from excb.hub import catalogue
from excb.hub.catalogue import Checkpoint
from excb.transfer.cli import main as evaluate
from excb.zoo.__main__ import main as zoo
from tests.excb.images.shard_files import pack_folder
from tests.excb.networks.from_transformers.small_models import save
from tests.pretrain.small_runs import write_images
from tests.run_files import TINY_RESNET, tiny_recipe
from tests.transfer.dense.masked_images import write_set
from tests.transfer.instances.sets import write_pairs, write_revisited
from tests.transfer.tiny_coco import write_coco
from tests.transfer.watch.watched import finish, grow

MACHINE = ("--device", "cpu", "--workers", "0")
CPU = ("efficiency.device=cpu", "efficiency.workers=0")
RUN, DATA = "run", "data"
SETS = '[[set]]\nname = "a"\ndata = "data"\n\n[[set]]\nname = "b"\ntrain = "data/train"\ntest = "data/test"\n'


def make(folder: Path) -> int:
    """Fill the folder; $EXCB_HOME and $EXCB_CACHE lie in it."""
    write_images(folder / DATA / "train", classes=3, each=5)
    write_images(folder / DATA / "test", classes=3, each=2)
    write_images(folder / "more", each=12)  # enough for `choose`
    grow(folder / RUN, 10, 20)
    finish(folder / RUN, 20)
    grow(folder / "one", 10)
    pack_folder(folder / DATA / "train", folder / "shards", count=2)
    write_coco(folder / "coco", train=3, val=2)
    write_set(folder / "dense", train=4, test=2)
    truth = {"bbx": [4, 3, 44, 33], "easy": [0], "hard": [5], "junk": [1]}
    write_revisited(folder / "revisited", [truth, truth | {"easy": [1], "hard": [6], "junk": [2]}], gallery=7)
    write_pairs(folder / "pairs", references=4, queries=3, unmatched=1)
    (folder / "sets.toml").write_text(SETS, encoding="utf-8")
    rows = [f"train/class{label}/{number}.png,class{label}" for label in range(3) for number in range(4)]
    (folder / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n", encoding="utf-8")
    (folder / "list.txt").write_text("\n".join(row.partition(",")[0] for row in rows) + "\n", encoding="utf-8")
    save(folder / "transformers", "vit")
    network = tiny_recipe().model.architecture.build()
    torch.save({"state_dict": network.state_dict()}, folder / "foreign.pth")
    _command(zoo, "export", f"{folder}/{RUN}", "--out", f"{folder}/exported")
    _command(zoo, "export", f"{folder}/{RUN}", "--format", "timm", "--out", f"{folder}/foreign.safetensors")
    _command(zoo, "import", f"{folder}/foreign.pth", "--name", "mine", *architecture())
    on = ("--ckpt", f"{folder}/{RUN}", "--data", f"{folder}/{DATA}", *MACHINE, "--quiet")
    for ending in ("npz", "safetensors", "parquet", "csv"):
        made = excb.Embeddings.load(folder / "e.npz") if ending == "csv" else None
        if made is None:
            _command(evaluate, "embed", *on, "--out", f"{folder}/e.{ending}")
        else:
            made.to_csv(folder / "e.csv")
    _command(evaluate, "knn", *on, "--k", "3", "--out", f"{folder}/knn.json")
    _command(evaluate, "embed", *on[:2], "--data", f"{folder}/shards", *MACHINE, "--out", f"{folder}/shards.npz")
    shutil.copy(folder / "knn.json", folder / "other.json")
    shutil.copy(folder / "knn.npz", folder / "other.npz")
    _command(
        evaluate, "sets", f"{folder}/sets.toml", *on[:2], *MACHINE, "--quiet", "--out", f"{folder}/setsout", "--shots"
    )
    row = Checkpoint(
        name="theirs",
        method="DINO",
        architecture=tiny_recipe().model.architecture,
        preprocessing=tiny_recipe().views.preprocessing,
        source="https://theirs.example",
    )
    catalogue.add(row, folder / "home" / catalogue.USERS)
    return 0


def architecture() -> tuple[str, ...]:
    """The options of `excb-zoo import` that name the network of `foreign.pth`."""
    options = (f"--arch-option={name}={json.dumps(value)}" for name, value in TINY_RESNET["options"].items())
    return ("--arch", TINY_RESNET["backbone"], *options)


def _command(main: object, *words: str) -> None:
    assert callable(main)
    code = main(list(words))
    assert code == 0, words
