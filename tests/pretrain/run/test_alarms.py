"""Health: what rings, what does not, and what a run does when it is ill."""

import json
import math
from pathlib import Path

import pytest
import torch

import excb
from excb.checkpoint import run_checkpoint
from excb.files.run_files import read_metrics
from excb.method import balancing, batch_sizes, unit
from excb.pretrain.__main__ import main
from excb.pretrain.figures.curves import Curves, statistics
from excb.pretrain.overrides import apply, find_recipe
from excb.pretrain.recipes import RECIPES
from excb.pretrain.run.alarms import COINCIDENT, AlarmState, Health, coincident
from excb.pretrain.run.journal import batch_statistics
from tests.pretrain.small_runs import OVERRIDES, write_images

pytestmark = pytest.mark.usefixtures("one_thread", "short_end")

WELL = {
    "epoch": 5,
    "loss": 3.0,
    "confidence": 0.2,
    "agreement": 0.3,
    "coincident_centroids": 0.0,
    "empty_clusters_balanced": 0,
    "smallest_cluster": 0.7,
    "largest_cluster": 1.3,
    "effective_rank": 80.0,
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of labelled pictures."""
    return write_images(tmp_path_factory.mktemp("images"), each=40)


def health(*overrides: str) -> Health:
    """Of the quickstart: K = 128, 5,632 assignments an epoch."""
    return Health(apply(find_recipe("quickstart"), ["method.contrast=0", *overrides]), assignments=5632)


def names(judge: Health, **figures: float) -> list[str]:
    return [alarm.name for alarm in judge.judge(WELL | figures)]


def test_a_healthy_epoch_rings_nothing() -> None:
    assert names(health()) == []


@pytest.mark.parametrize(
    ("figures", "alarm"),
    [
        ({"loss": math.log(128)}, "chance"),
        ({"loss": 0.995 * math.log(128)}, "chance"),
        ({"loss": 1.1 * math.log(128)}, "chance"),
        ({"empty_clusters_balanced": 100}, "clusters"),
        ({"largest_cluster": 50.0}, "clusters"),
        ({"coincident_centroids": 0.17}, "coincide"),
        ({"confidence": 0.95}, "certain"),
        ({"held_empty_clusters": 37}, "wound up"),
        ({"effective_rank": 1.2}, "collapse"),
    ],
)
def test_each_illness_rings_with_advice(figures: dict[str, float], alarm: str) -> None:
    found = health().judge(WELL | figures)
    assert [each.name for each in found] == [alarm]
    assert any(word in found[0].message for word in ("method.", "optim."))


def test_a_loss_above_chance_diverges_only_if_it_was_lower() -> None:
    """Untrained networks of few dimensions start above chance."""
    judge = health()
    assert [names(judge, loss=loss, epoch=epoch) for epoch, loss in enumerate((5.1, 4.0, 5.1), 1)] == [
        [],
        [],
        ["diverging"],
    ]
    slow = health()
    assert [names(slow, loss=loss, epoch=epoch) for epoch, loss in enumerate((5.10, 5.09, 5.08), 1)] == [
        [],
        ["chance"],
        [],
    ]


def test_an_alarm_is_reported_when_it_begins_and_when_it_comes_back() -> None:
    judge = health()
    assert names(judge, confidence=0.99) == ["certain"]
    assert names(judge, confidence=0.99) == []
    assert names(judge) == []
    assert names(judge, confidence=0.99) == ["certain"]
    resumed = Health(find_recipe("quickstart"), assignments=5632, state=judge.state)
    assert names(resumed, confidence=0.99) == []


def test_a_collapse_rings_on_until_it_is_measured_again() -> None:
    judge = health()
    unmeasured = {name: value for name, value in WELL.items() if name != "effective_rank"}
    assert names(judge, effective_rank=1.0) == ["collapse"]
    assert [alarm.name for alarm in judge.judge(unmeasured)] == []
    assert judge.state.active == ["collapse"]
    assert names(judge, effective_rank=1.0) == []


def test_low_agreement_rings_where_it_does_not_rise_and_only_after_warm_up() -> None:
    judge = health("optim.warmup_epochs=2")
    flat = [0.065, 0.061, 0.065, 0.070, 0.061, 0.066, 0.062, 0.061]  # of a teacher that never moves
    assert [names(judge, agreement=value, epoch=epoch) for epoch, value in enumerate(flat, 1)] == [[]] * 7 + [
        ["stalled"]
    ]
    assert names(judge, agreement=0.2, epoch=9) == []
    for course in ([0.02 * epoch for epoch in range(1, 19)], [0.3] * 18):
        judge = health()
        assert [names(judge, agreement=value, epoch=epoch) for epoch, value in enumerate(course, 1)] == [[]] * 18


def test_how_low_an_agreement_is_depends_on_the_number_of_clusters() -> None:
    few, many = health("method.clusters=4"), health("method.clusters=128")
    for judge, alarms in ((few, ["stalled"]), (many, [])):
        reported = [names(judge, agreement=0.3, epoch=epoch, loss=1.0) for epoch in range(1, 13)]
        assert [alarm for alarms in reported for alarm in alarms] == alarms


def test_a_long_run_may_rise_slowly() -> None:
    """Of 400 epochs, six show no rise: the window is a tenth of the schedule."""
    judge = health("optim.epochs=400")
    assert all(names(judge, agreement=0.03 + 0.0005 * epoch, epoch=epoch) == [] for epoch in range(1, 401))


@pytest.mark.parametrize("stop", range(1, 12))
def test_a_resumed_run_judges_as_one_that_went_through(stop: int) -> None:
    course = [0.06, 0.07, 0.06, 0.06, 0.07, 0.06, 0.06, 0.2, 0.06, 0.06, 0.06, 0.06]
    whole, half = health(), health()
    for epoch, value in enumerate(course, 1):
        if epoch == stop:
            state = AlarmState.from_dict(json.loads(json.dumps(half.state.to_dict())))
            half = Health(find_recipe("quickstart"), assignments=5632, state=state)
        assert names(half, agreement=value, epoch=epoch) == names(whole, agreement=value, epoch=epoch)


def test_centroids_may_start_close_together() -> None:
    """k-means of an untrained network's features, which lie in a cone."""
    assert names(health("optim.warmup_epochs=3"), coincident_centroids=0.5, epoch=3) == []
    assert names(health("optim.warmup_epochs=3"), coincident_centroids=0.5, epoch=4) == ["coincide"]


def clustered(
    spread: float, momentum: float, *, normalised: bool = False, sizes: torch.Tensor | None = None
) -> dict[str, float]:
    """Figures of the last 40 of 200 steps of B on rows that no training moves: K = 64 and 64 images in two views.

    Rows are one common direction plus `spread` times what tells images apart, as those of an untrained network.
    """
    random = torch.Generator().manual_seed(0)
    centroids, common = unit(torch.randn(64, 64, generator=random)), torch.randn(64, generator=random)
    sizes = torch.full((64,), 1 / 64) if sizes is None else sizes
    steps = []
    for _ in range(200):
        image = torch.randn(64, 64, generator=random)
        views = [common + spread * (image + 0.5 * torch.randn(64, 64, generator=random)) for _ in range(2)]
        rows = torch.cat(views)
        if normalised:
            rows = (rows - rows.mean(0)) / rows.std(0)
        scale, offset = balancing(sizes)
        winners = (unit(rows) @ centroids.T * scale + offset).argmax(1)
        sizes = sizes.lerp(batch_sizes(winners, 64, sizes.dtype), 1 - momentum)
        steps.append(winners.view(2, 64))
    last = torch.stack(steps[-40:])
    counts = torch.bincount(last.flatten(), minlength=64)
    relative = counts * 64 / counts.sum()
    return batch_statistics(last.numpy(), 64) | {
        "same_winner_by_sizes": float(relative.square().mean()),
        "largest_cluster": float(relative.max()),
        "held_empty_clusters": int(((counts == 0) & (sizes * 64 > 1)).sum()),
    }


def test_collinear_rows_rotate_and_normalised_ones_do_not() -> None:
    collinear, normalised = (clustered(0.02, 0.99, normalised=each) for each in (False, True))
    judge = health("method.clusters=64")
    assert [names(judge, **collinear) for _ in range(4)] == [[], [], ["rotating"], []]
    assert collinear["same_winner"] > 10
    assert collinear["largest_cluster"] < 3  # the sizes of an epoch look well
    assert normalised["same_winner"] == pytest.approx(1, abs=0.2)
    assert names(health("method.clusters=64"), **normalised) == []


def rotation(*course: float, first: int = 2) -> list[int]:
    """The epochs in which `rotating` is reported of images that share a cluster so many times as often as by chance."""
    judge = health()
    epochs = enumerate(course, first)
    return [epoch for epoch, same in epochs if "rotating" in names(judge, same_winner=same, epoch=epoch)]


@pytest.mark.parametrize(
    ("course", "reported"),
    [
        ((31.9, 40.6, 40.9, 40.8, 40.8), [4]),  # conv4_tiny on groceries without the output norm, m_s = 0.9
        ((5.4, 4.9, 4.2, 3.5, 2.8, 2.3), []),  # conv4_tiny on groceries
        ((9.0, 8.0, 7.0, 6.0, 5.0, 4.1), []),  # it falls on
        ((9.0, 7.0, 5.0, 5.0, 5.0, 5.0), [6]),  # it falls, and stays above
        ((40.0, 40.0, 1.0, 40.0, 40.0, 1.0), []),  # never three in a row
        ((6.0, 6.0, 6.0, 4.1, 4.1, 3.9, 6.0, 6.0, 6.0), [4, 10]),  # a new one needs to last again
    ],
)
def test_rotation_is_an_alarm_only_where_it_lasts(course: tuple[float, ...], reported: list[int]) -> None:
    assert rotation(*course) == reported


def test_rotation_during_warm_up_does_not_count() -> None:
    assert rotation(8.0, 8.0, 8.0, first=1) == []
    assert rotation(8.0, 8.0, 8.0, 8.0, first=1) == [4]


@pytest.mark.parametrize("stop", range(2, 7))
def test_rotation_lasts_through_a_resumption(stop: int) -> None:
    judge, reported = health(), []
    for epoch, same in enumerate((5.0, 5.0, 5.0, 5.0, 5.0), 2):
        if epoch == stop:
            state = AlarmState.from_dict(json.loads(json.dumps(judge.state.to_dict())))
            judge = Health(find_recipe("quickstart"), assignments=5632, state=state)
        reported += [epoch] if names(judge, same_winner=same, epoch=epoch) else []
    assert reported == [4]


def test_a_checkpoint_of_before_rotation_was_kept_is_read() -> None:
    assert AlarmState.from_dict({"ringing": ["rotating"], "agreement": [], "lowest_loss": 1.0}).rotation == []


def test_sizes_that_follow_slowly_hold_clusters_empty() -> None:
    uneven = torch.tensor([1.9, 0.1]).repeat(32) / 64  # as an unsteady start leaves them
    slow, fast = (clustered(0.3, momentum, sizes=uneven) for momentum in (0.9999, 0.99))
    assert names(health("method.clusters=64"), **slow) == ["wound up"]
    assert names(health("method.clusters=64"), **fast) == []


def test_coincident_centroids_against_all_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 6, generator=generator)
    rows[40:] = rows[:20] * torch.rand(20, 1, generator=generator) * 3 + 0.15 * torch.randn(20, 6, generator=generator)
    cosines = torch.nn.functional.cosine_similarity(rows[:, None], rows[None], dim=-1).fill_diagonal_(-1)
    share = (cosines > COINCIDENT).any(1).double().mean().item()
    assert 0 < share < 1
    assert coincident(rows) == pytest.approx(share)
    assert coincident(rows[:1]) == 0
    rows[3, 2] = math.nan
    assert math.isnan(coincident(rows))


def test_the_loss_may_be_at_chance_while_the_rate_warms_up() -> None:
    assert names(health("optim.warmup_epochs=10"), loss=math.log(128)) == []
    assert names(health("optim.warmup_epochs=10"), loss=math.log(128), epoch=11) == ["chance"]


@pytest.mark.parametrize("reduction", ["halves", "sum", "pairs", "pseudocode"])
@pytest.mark.parametrize("predictor", ["true", "false"])
def test_chance_is_the_loss_of_a_student_that_tells_nothing_apart(reduction: str, predictor: str) -> None:
    from excb.method import pair_weights
    from excb.objective.loss import assign, cross_entropy

    judge = health(f"method.loss_reduction={reduction}", f"method.predictor={predictor}")
    weights = pair_weights(2, 2, reduction=reduction, predictor=predictor == "true")  # type: ignore[arg-type]
    queries = torch.zeros(4, 3, 5, dtype=torch.float64)  # similarity 0 to every centroid
    centroids = torch.randn(128, 5, dtype=torch.float64)
    teacher = torch.randn(2 * 3, 5, dtype=torch.float64)
    even = torch.ones(128, dtype=torch.float64), torch.zeros(128, dtype=torch.float64)
    assignment = assign(teacher, centroids, *even, centroids, temperature=0.04)
    loss = sum(cross_entropy(queries, centroids, assignment, half, temperature=0.1).item() for half in weights)
    assert judge.chance == pytest.approx(loss)


def test_clusters_that_chance_leaves_empty_are_no_illness() -> None:
    recipe = apply(find_recipe("quickstart"), ["method.clusters=65536"])
    few = Health(recipe, assignments=400)
    assert names(few, empty_clusters_balanced=65536 - 350, loss=9.0) == []
    many = Health(recipe, assignments=65536 * 40)
    assert names(many, empty_clusters_balanced=40000, loss=9.0) == ["clusters"]


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_papers_course_rings_nothing(name: str) -> None:
    """400 epochs as the paper's figure shows them: loss 10 to 5, confidence below 0.3, sizes 0.7 to 1.3."""
    recipe = RECIPES[name]()
    judge = Health(recipe, assignments=2 * 1_281_167)
    start = judge.chance
    for epoch in range(1, 401):
        figures = {"epoch": epoch, "loss": start * (0.93 - 0.45 * epoch / 400), "confidence": 0.3 * epoch / 400}
        figures["agreement"] = 0.03 + 0.47 * min(1, epoch / recipe.optim.epochs)
        assert judge.judge(WELL | figures) == []


# ---------------------------------------------------------------------------------------------------------------------
# Runs
# ---------------------------------------------------------------------------------------------------------------------


def pretrain(images: Path, out: Path, *overrides: str) -> int:
    return main(["quickstart", "--data", str(images), "--out", str(out), "--quiet", *OVERRIDES, *overrides])


def alarms(out: Path) -> list[tuple[float, str]]:
    return [(line["epoch"], line["name"]) for line in read_metrics(out) if line["kind"] == "alarm"]


def test_without_balancing_the_alarm_rings_within_an_epoch(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("method.clusters=48", "optim.epochs=3", "optim.base_lr=1")
    assert pretrain(images, tmp_path / "ill", *settings, "method.balancing=none") == 0
    assert alarms(tmp_path / "ill")[0] == (1, "clusters")
    capsys.readouterr()
    assert pretrain(images, tmp_path / "well", *settings, "method.balancing=linear") == 0
    assert "clusters" not in [name for _, name in alarms(tmp_path / "well")]


def test_a_learning_rate_that_diverges_is_named_and_its_state_kept(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    vit = 'model.options={"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 32}'
    code = pretrain(images, out, "model.backbone=timm:vit_tiny_patch16_224", vit, "optim.base_lr=1e20")
    assert code == 2
    said = capsys.readouterr().err
    assert "learning rate" in said
    assert "is not finite" in said
    assert "lower optim.base_lr" in said
    kept = list((out / "diverged").glob("step-*.pt"))
    assert len(kept) == 1
    assert str(kept[0]) in said
    contents = run_checkpoint.read_run_checkpoint(kept[0])
    assert contents["cause"]
    assert f"step-{contents['step']}.pt" == kept[0].name
    excb.load(kept[0])
    assert all(run_checkpoint.step_of(file) <= contents["step"] for file in run_checkpoint.in_run(out))
    assert [line["name"] for line in read_metrics(out) if line["kind"] == "alarm"][-1] == "not finite"


def test_the_report_says_how_much_memory_and_time_it_took(images: Path, tmp_path: Path) -> None:
    assert pretrain(images, tmp_path / "run", "optim.epochs=1") == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["processes"] == 1
    assert 2**26 < report["peak_memory"] < 2**36
    assert report["images_per_second"] > 0
    assert report["best"]["epoch"] == 1


def test_a_teacher_that_never_moves_is_reported_everywhere(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the console, in metrics.jsonl and in the picture."""
    out = tmp_path / "run"
    frozen = ("method.teacher_momentum=1", "method.teacher_momentum_end=1", "method.clusters=200", "method.width=32")
    hard = ("views.global_scale=[0.01, 0.02]", "views.local_views=0", "views.jitter=1", "views.hue=0.5")
    brief = ("optim.batch=40", "optim.epochs=12", "monitor.every_epochs=12")
    assert main(["quickstart", "--data", str(images), "--out", str(out), *OVERRIDES, *frozen, *hard, *brief]) == 0
    said = capsys.readouterr().err
    assert "stalled" in [name for _, name in alarms(out)]
    (reported,) = [line for line in read_metrics(out) if line["kind"] == "alarm" and line["name"] == "stalled"]
    assert f"warning: epoch {reported['epoch']}: {reported['message']}" in said
    assert "method.teacher_momentum" in reported["message"]
    assert all("coincident_centroids" in line for line in read_metrics(out) if line["kind"] == "epoch")
    assert run_checkpoint.read_run_checkpoint(run_checkpoint.in_run(out)[0])["health"]["ringing"]
    agreement = statistics([Curves.read(out)]).axes[3]
    assert [text.get_text() for text in agreement.texts] == ["stalled"]


def test_a_rate_far_too_high_makes_centroids_coincide(images: Path, tmp_path: Path) -> None:
    assert pretrain(images, tmp_path, "optim.base_lr=100", "optim.epochs=4", "method.clusters=48") == 0
    assert "coincide" in [name for _, name in alarms(tmp_path)]
