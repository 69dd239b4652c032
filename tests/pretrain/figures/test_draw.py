"""`excb-pretrain draw`: what the pictures show, that both formats are drawn, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from excb.charts.style import save_figure
from excb.files.run_files import METRICS
from excb.pretrain.__main__ import main
from excb.pretrain.figures import curves, diagrams, tsne

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = (0.0, 0.01, 0.1, 0.125, 0.2, 0.7, 1.0)


@pytest.fixture(scope="module")
def images(finished_run: Path) -> Path:
    """Three classes of pictures."""
    return finished_run.parent / "images"


@pytest.fixture(scope="module")
def run(finished_run: Path) -> Path:
    """A finished run."""
    return finished_run


def draw(*words: object) -> int:
    return main(["draw", *map(str, words), "--quiet"])


def assert_drawn(folder: Path, *words: object) -> None:
    """Both formats come out, each with something on it."""
    png, svg = folder / "picture.png", folder / "deeper" / "picture.svg"
    assert draw(*words, "--out", png, svg) == 0
    pixels = np.asarray(Image.open(png).convert("RGB")).reshape(-1, 3)
    assert (pixels == 255).all(1).any()
    assert len(np.unique(pixels, axis=0)) > 20  # lines and letters have soft edges
    paths = [element for element in ElementTree.parse(svg).iter() if element.tag.endswith("}path")]
    assert len(paths) > 5
    assert not list(folder.rglob(".*"))


# ---------------------------------------------------------------------------------------------------------------------
# What is drawn
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("z", [-1.0, -0.6, 0.0, 0.6, 1.0])
def test_curves_of_the_operator_are_equation_10(z: float, power: int) -> None:
    K = 8
    wanted = [
        1 - (1 - z) * (s * K) ** power if s < 1 / K else z if s == 1 / K else (1 + z) / (s * K) - 1 for s in SIZES
    ]
    drawn = diagrams.balanced(z, SIZES, K, "linear" if power == 1 else "squared")
    assert drawn == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("angle", [0.3, math.pi / 2, math.pi])
@pytest.mark.parametrize("share", [0.5, 0.45, 0.55, 1 / 3, 0.4])
def test_the_boundary_is_where_equation_10_ties(share: float, angle: float) -> None:
    """At every angle the cluster of higher z^B, by Eq. 10 written out, is the one on whose side of the arc it lies."""

    def adjusted(z: np.ndarray, s: float) -> np.ndarray:
        return 1 - (1 - z) * 2 * s if s < 0.5 else (1 + z) / (2 * s) - 1

    at = np.linspace(-math.pi, math.pi, 3601)
    lead = adjusted(np.cos(at - angle / 2), 1 - share) - adjusted(np.cos(at + angle / 2), share)
    arc = diagrams.boundary(share, angle)
    if arc is None:
        assert (lead > 0).all() or (lead < 0).all()
        return
    start, stop = arc
    inside = (at - start) % math.tau < stop - start
    clear = np.abs(lead) > 1e-6
    assert np.array_equal((lead > 0)[clear], inside[clear])
    for end in arc:
        tied = [float(adjusted(np.cos(end + sign * angle / 2), s)) for sign, s in ((1, share), (-1, 1 - share))]
        assert tied[0] == pytest.approx(tied[1])


def test_the_boundary_moves_towards_the_larger_cluster_and_may_vanish() -> None:
    ends = [diagrams.boundary(1 / (1 + ratio), math.pi / 2) for ratio in (1, 1.25, 1.5, 2)]
    arcs = [stop - start for start, stop in filter(None, ends)]
    assert arcs[0] == pytest.approx(math.pi)
    assert len(arcs) == 4
    assert arcs == sorted(arcs, reverse=True)
    assert diagrams.boundary(0.01, math.pi / 2) is None


def test_the_papers_points_are_those_of_its_text() -> None:
    points = {
        (point.method, point.epochs): (point.accuracy, point.batch) for point in diagrams.read_points(diagrams.PAPER)
    }
    assert points["ExCB", 400] == (76.5, 1024)
    assert points["SwAV", 800] == (75.3, 4096)
    assert points["MAST", 1000] == (75.8, 2048)
    assert len(points) == 17


def test_a_class_is_named_where_it_is_densest() -> None:
    random = np.random.default_rng(0)
    points = np.concatenate([random.normal(0, 3, (60, 2)), random.normal(20, 0.1, (40, 2))])
    assert np.abs(tsne._densest(points) - 20).max() < 1


# ---------------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("balancing",),
        ("boundary", "--ratios", 1.5, 9, "--angle", 120),
        ("accuracy",),
    ],
)
def test_pictures_of_the_method(words: tuple[object, ...], tmp_path: Path) -> None:
    assert_drawn(tmp_path, *words)


def test_equal_pictures_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        assert draw("balancing", "--out", tmp_path / name) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_accuracy_of_points_of_ones_own(tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text("batch,method,accuracy,epochs\n64,mine,17.5,8\n64,other,12,8\n128,mine,18,16\n")
    assert [point.method for point in diagrams.read_points(points)] == ["mine", "other", "mine"]
    assert draw("accuracy", points, "--out", tmp_path / "points.svg") == 0


def test_statistics_of_one_run_and_of_several(run: Path, tmp_path: Path) -> None:
    assert_drawn(tmp_path, "statistics", run)
    assert_drawn(tmp_path, "statistics", run, run / METRICS, "--labels", "one", "the other")
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / METRICS).write_bytes((run / METRICS).read_bytes())
    assert curves.Curves.read(copied).clusters is None
    assert curves.Curves.read(run).clusters == 12
    assert draw("statistics", copied, "--out", tmp_path / "copied.png") == 0


def test_all_lines_of_several_runs_are_in_the_panels(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        epochs = [
            {"kind": "epoch", "step": epoch, "epoch": epoch, "loss": 3.0 - number, "confidence": 0.1 * epoch}
            | {
                "smallest_cluster": 0.5,
                "largest_cluster": 90.0 * number + 2,
                "agreement": 0.2,
                "empty_clusters_balanced": 3,
                "empty_clusters_unbalanced": 9,
            }
            for epoch in (1, 2)
        ]
        alarm = {"kind": "alarm", "step": 2, "epoch": 2, "name": "stalled", "message": "..."}
        lines = [*epochs, *([alarm] if number else [])]
        (tmp_path / name / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    figure = curves.statistics([curves.Curves.read(tmp_path / name) for name in ("a", "b")])
    loss, confidence, sizes, agreement, purity, key = figure.axes

    def heights(axes: Any) -> list[list[float]]:
        return [np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()]

    assert heights(loss) == [[3.0, 3.0], [2.0, 2.0]]
    assert heights(confidence) == [[0.1, 0.2]] * 2
    assert [line[0] for line in heights(sizes)] == [0.5, 2.0, 0.5, 92.0, 1]
    assert sizes.get_yscale() == "symlog"
    assert [text.get_text() for text in agreement.texts] == ["stalled"]
    assert not purity.get_lines()
    names = key.get_legend()
    assert names is not None
    assert [text.get_text() for text in names.get_texts()] == ["a", "b"]


@pytest.mark.parametrize("sign", ["m", "W", "漢", "$", "\x1b"])
def test_names_without_end_leave_the_panels_their_room(sign: str, tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text(json.dumps({"kind": "epoch", "step": 1, "epoch": 1, "loss": 1.0}))
    runs = [curves.Curves.read(tmp_path, label=f"{number}{sign * 5_000}") for number in range(2)]
    assert all(run.label.replace("\\$", "$").endswith("…") for run in runs)
    save_figure(curves.statistics(runs), tmp_path / "picture.png")  # a warning, as of panels without room, is an error


def test_tsne_of_a_run(run: Path, images: Path, tmp_path: Path) -> None:
    assert_drawn(tmp_path, "tsne", run, "--data", images, "--classes", "class2", "class0")
    from excb.console import Reporter

    plane = tsne.compute_plane(str(run), images, Reporter(quiet=True), classes=["class2", "class0"], each=4)
    assert plane.points.shape == (8, 2)
    assert np.isfinite(plane.points).all()
    assert plane.labels.tolist() == [0] * 4 + [1] * 4
    assert plane.classes == ["class2", "class0"]


def test_tsne_shows_projected_features_of_the_teacher(run: Path, images: Path) -> None:
    import torch

    import excb

    backbone = excb.load(run, heads=True)
    assert backbone.heads is not None
    assert backbone.heads.teacher is not None
    views = torch.randn(2, 3, 32, 32)
    _, projected = tsne._load(str(run))
    assert torch.equal(projected(views), backbone.heads.teacher.projector(backbone(views)))


def test_mistakes_are_one_line(run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported = tmp_path / "points.csv"
    exported.write_text("method,epochs,batch,accuracy\nmine,eight,64,17.5\n")
    out = tmp_path / "x.png"
    for words, said in (
        (("statistics", tmp_path), "has no metrics.jsonl"),
        (("statistics", run, "--labels", "a", "b"), "give one for each"),
        (("accuracy", exported), "is no point"),
        (("accuracy", tmp_path / "none.csv"), "cannot read"),
        (("balancing", "--clusters", 1), "at least 2"),
        (("balancing", "--similarities", "nan"), "cosines from -1 to 1"),
        (("boundary", "--ratios", -1), "above 0"),
        (("boundary", "--ratios", "nan"), "above 0"),
        (("boundary", "--ratios", "inf"), "finite"),
        (("tsne", run, "--data", images, "--seed", -1), "--seed must be from 0"),
        (("tsne", run, "--data", images), "no class folder n02056570"),
        (("tsne", run, "--data", images / "class0", "--classes", "class0"), "no class folders"),
        (("tsne", run, "--data", images, "--classes", "class0", "--each", 2), "too few"),
    ):
        assert draw(*words, "--out", out) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert draw("balancing", "--out", tmp_path / "x.pdf") == 2
    assert ".png or .svg" in capsys.readouterr().err
    assert not out.exists()
    tsne_of_two = ("tsne", run, "--data", images, "--classes", "class0", "class1")
    assert draw(*tsne_of_two, "--out", images / "class0" / "x.png") == 2
    assert "among the images" in capsys.readouterr().err
    assert draw(*tsne_of_two, "--out", exported / "x.png") == 2
    messages = capsys.readouterr().err
    assert "cannot write in" in messages
    assert "t-SNE of" not in messages  # minutes of it, on large sets
