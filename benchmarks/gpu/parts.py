"""The measurements that need a GPU, as one table of parts: a command, its guessed time, and how its figures read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import results

DETECTION = "excb.transfer.cli detection --ckpt untrained:resnet50 --data {coco} --schedule smoke --device {device}"
TINY_DETECTION = (
    "--set iterations=2 --set steps=1 --set warmup=1 --set min_sizes=64 --set test_size=64 --set max_size=96 "
    "--set batch=1 --set rois=8 --set precise_bn_iterations=1 --set rpn_pre_test=20 --set rpn_post_test=5"
)
TINY_RUN = (
    "--recipe quickstart method.clusters=16 method.hidden=32 method.width=16 views.global_size=24 views.local_size=16 "
    "optim.epochs=30 optim.batch=4 monitor.every_epochs=30 run.save_steps=3 efficiency.workers=0"
)


@dataclass(frozen=True)
class Places:
    """Where parts read and write, and the device they use."""

    out: Path  # of all calls
    data: Path | None  # images of the user
    device: str  # cuda or cpu

    def own(self, part: str) -> Path:
        """The folder that one part alone writes: its log, its figures, and what else it makes."""
        return self.out / "parts" / part

    def words(self, part: str, *, workers: int) -> dict[str, str]:
        """The values of the words in braces of a part's command."""
        made = self.own("images")
        return {
            "own": str(self.own(part)),
            "figures": str(self.own(part) / "figures.json"),
            "images": str(self.data or made / "photos"),
            "noise": str(made / "photos"),
            "coco": str(made / "coco"),
            "device": self.device,
            "gpus": "1" if self.device == "cuda" else "0",
            "workers": str(workers),
        }


@dataclass(frozen=True)
class Part:
    """One thing to run.

    A command that exits with 0 has written its figures as JSON to `{figures}`.
    """

    name: str
    what: str  # for people, as a table has it
    seconds: int  # a guess for one H100; where it is wrong, parts are only cut off or begun at other times
    command: str  # words after `python`; those in braces are of `Places.words`
    result: Callable[[Any], str]  # its figures as one line
    table: Callable[[Any], str] | None = None  # more of them, as a table of its own
    tiny: str = ""  # words that follow with --tiny, where the last one of an option counts
    needs: tuple[str, ...] = ()  # modules without which it is skipped
    gpus: int = 1  # with fewer it is skipped
    continues: bool = False  # started again in the folder of a start that was cut off, it continues there
    makes: str = ""  # in its own folder; where that is gone, on another machine, the part runs once more

    def words(self, places: Places, *, workers: int, tiny: bool) -> list[str]:
        """The command's words after `python`."""
        values = places.words(self.name, workers=workers)
        text = f"{self.command} {self.tiny}" if tiny else self.command
        return [word.format_map(values) for word in text.split()]

    @property
    def shown(self) -> str:
        """The command as a reader would type it: names for the places, and without the file of figures."""
        values = Places(Path("OUT"), Path("IMAGES"), "cuda").words(self.name, workers=0)
        values |= {"own": "RUN", "noise": "IMAGES", "coco": "COCO", "workers": "WORKERS", "figures": "FIGURES.json"}
        words = [word.format_map(values) for word in self.command.split()]
        return f"python {' '.join(words).removesuffix(' --json FIGURES.json').removesuffix(' --out FIGURES.json')}"


PARTS = (
    Part(
        "images",
        "images of noise, photographs' size, and a set in COCO's format",
        5,
        "-m benchmarks.gpu.images {own} --json {figures}",
        results.images,
        tiny="--photos 8 --classes 2 --coco 3",
        needs=("PIL", "numpy"),
        makes="coco",
    ),
    Part(
        "tests",
        "tests marked `gpu`",
        120,
        "-m benchmarks.gpu.marked_tests --json {figures}",
        results.tests,
        tiny="--files tests/pretrain/data/test_prefetch.py",
        needs=("pytest", "pytest_timeout"),
        continues=True,
    ),
    Part(
        "loss_head",
        "loss head, forward and backward: 256 images, 2 + 6 views, K = 65,536, D = 256",
        30,
        "-m benchmarks.loss_head --device {device} --batch 256 --turns 10 --json {figures}",
        results.loss_head,
        tiny="--batch 2 --clusters 256 --width 16 --turns 1",
    ),
    Part(
        "whole_step_rn50",
        "whole step of `rn50_100ep`, ours against a plain one, alone and with a loader",
        190,
        "-m benchmarks.whole_step --recipes rn50_100ep --data {images} --workers {workers} --device {device} "
        "--json {figures}",
        results.whole_step,
        tiny="--tiny --batch 4",
    ),
    Part(
        "whole_step_vits16",
        "whole step of `vits16_300ep`, likewise",
        190,
        "-m benchmarks.whole_step --recipes vits16_300ep --data {images} --workers {workers} --device {device} "
        "model.drop_path=0 --json {figures}",
        results.whole_step,
        tiny="--tiny --batch 4",
    ),
    Part(
        "memory_rn50",
        "memory of `rn50_400ep`'s step, measured against computed",
        180,
        "-m benchmarks.step_memory --recipes rn50_400ep --images 32 64 128 256 512 --device {device} --json {figures}",
        results.memory,
        results.memory_table,
        tiny="--recipes rn18_small --images 2",
    ),
    Part(
        "memory_vits16",
        "memory of `vits16_300ep`'s step, likewise",
        65,
        "-m benchmarks.step_memory --recipes vits16_300ep --images 64 128 256 --device {device} --json {figures}",
        results.memory,
        results.memory_table,
        tiny="--recipes rn18_small --images 2",
    ),
    Part(
        "extraction",
        "features of images by a ResNet-50: `excb-eval`'s reading and network against torchvision's loader",
        60,
        "-m benchmarks.extraction --device {device} --data {images} --images 2048 --batch 32 --workers {workers} "
        "--turns 2 --json {figures}",
        results.extraction,
        tiny="--arch resnet18 --images 4 --batch 2 --workers 0 --turns 1",
    ),
    Part(
        "decoding",
        "JPEGs decoded by nvJPEG in batches, against one core's decoders",
        25,
        "-m benchmarks.jpeg_decoding --device {device} --data {images} --images 512 --turns 3 --json {figures}",
        results.decoding,
        tiny="--images 4 --turns 1",
        needs=("simplejpeg",),
    ),
    Part(
        "knn",
        "exact k-NN, 1,281,167 x 384 bank, 10,000 queries, k = 200, against full similarity rows with topk",
        60,
        "-m benchmarks.knn_search --device {device} --bank 1281167 --queries 10000 --json {figures}",
        results.knn,
        tiny="--bank 500 --queries 20 --width 16 --k 5 --turns 1",
    ),
    Part(
        "detection_cost",
        "what each option of the `ssl` detection recipe adds to Detectron2's stock one, torchvision engine",
        90,
        "-m benchmarks.detection_recipe --engine torchvision --device {device} --turns 2 --json {figures}",
        results.detection_cost,
        tiny="--short 64 --batch 1 --rois 8 --turns 1",
    ),
    Part(
        "detection_smoke",
        "detection end to end, torchvision engine",
        90,
        f"-m {DETECTION} --engine torchvision --run {{own}}/run --out {{figures}}",
        results.detection,
        tiny=TINY_DETECTION,
        needs=("pycocotools", "tensorboard"),
        continues=True,
    ),
    Part(
        "detection_smoke_detectron2",
        "detection end to end, Detectron2",
        90,
        f"-m {DETECTION} --engine detectron2 --run {{own}}/run --out {{figures}}",
        results.detection,
        tiny=TINY_DETECTION,
        needs=("pycocotools", "tensorboard", "detectron2"),
        continues=True,
    ),
    Part(
        "rn18_small",
        "a run of `rn18_small` on the images, stopped and resumed",
        150,
        "-m benchmarks.gpu.resumed_run --recipe rn18_small --data {noise} --gpus {gpus} --out {own}/run "
        "run.save_steps=200 --json {figures}",
        results.resumed_run,
        tiny=TINY_RUN,
        needs=("matplotlib", "tensorboard"),
        continues=True,
    ),
    Part(
        "two_gpus",
        "the same with NCCL on two GPUs",
        150,
        "-m benchmarks.gpu.resumed_run --recipe rn18_small --data {noise} --gpus 2 --out {own}/run "
        "run.save_steps=200 --json {figures}",
        results.resumed_run,
        needs=("matplotlib", "tensorboard"),
        gpus=2,
        continues=True,
    ),
)
