"""Runs that learn from teachers in several processes: the run of one process, whatever the objectives."""

from pathlib import Path

import pytest

from excb.pretrain.__main__ import main
from tests.forked import launch
from tests.pretrain.distil import taught
from tests.pretrain.small_runs import write_images
from tests.pretrain.test_parallel import assert_same_run

# AdamW would make steps of the rounding errors of gradients that are zero, of biases in front of BatchNorm.
EXACT = ("efficiency.precision=fp64", "optim.optimizer=sgd", "optim.base_lr=0.3", "optim.clip=1")
STEPS = 6  # 27 images, batches of 8, 2 epochs; the third batch of an epoch meets what the first two left behind
ROWS = ("distil.features=1", "distil.similarities=0.5", "distil.assignments=0.25", "distil.queue=11")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of labelled pictures."""
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two of different widths, which give maps."""
    folder = tmp_path_factory.mktemp("teachers")
    return [
        str(taught.write_teacher(folder, taught.RESNET, name="resnet.pt")),
        str(taught.write_teacher(folder, taught.CONV, seed=2, crop=48, name="conv.pt")),
    ]


@pytest.fixture(autouse=True)
def one_thread_each(one_thread: None, short_end: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes beside each other are quickest with a thread each."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


# Every objective is compared by itself too: its mean is in the journal, its queue or sizes are in checkpoints.
@pytest.mark.parametrize(
    ("network", "overrides"),
    [
        pytest.param("RESNET", (*ROWS, "distil.statistics=whitened"), id="whole images, BatchNorm"),
        pytest.param(
            "RESNET",
            (*ROWS, "distil.maps=0.5", "distil.teacher_sees=view", "views.global_views=2", "views.local_views=1"),
            id="every view, BatchNorm",
        ),
        pytest.param(
            "CONVNEXT",
            ("distil.features=0", "distil.maps=1", "distil.teacher_sees=view"),
            id="maps alone, and layers behind the last map",
        ),
        pytest.param(
            "VIT",
            (
                *ROWS,
                "distil.distance=squared",
                "method.contrast=1",
                "views.global_views=2",
                "efficiency.static_graph=true",
            ),
            id="beside contrast",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_processes_are_one_run(
    images: Path, teachers: list[str], tmp_path: Path, network: str, overrides: tuple[str, ...]
) -> None:
    def command(out: str) -> list[str]:
        model = getattr(taught, network)
        return taught.command(images, tmp_path / out, *teachers, *EXACT, *overrides, model=model)

    assert main(command("one")) == 0
    assert launch("excb.pretrain", command("two"), 2) == 0
    assert_same_run(tmp_path / "one", tmp_path / "two", steps=STEPS)
