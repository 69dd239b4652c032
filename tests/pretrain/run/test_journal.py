"""The journal: epoch statistics against loops, and a metrics file that a kill cannot spoil."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from excb.errors import UserError
from excb.files.run_files import METRICS, read_metrics
from excb.images.image_set import ImageSet
from excb.method import Clustered, Step
from excb.pretrain.data.batch import ViewBatch
from excb.pretrain.figures import curves
from excb.pretrain.recipe import Recipe
from excb.pretrain.run.journal import EpochStatistics, Journal, batch_statistics, purity

LABELS = np.array([0, 0, 1, 1, 2, 2, 2, 0])


def test_purity_against_loops() -> None:
    random = np.random.default_rng(0)
    clusters, labels = random.integers(0, 6, 200), random.integers(0, 4, 200)
    best = sum(max(sum((clusters == k) & (labels == j)) for j in range(4)) for k in range(6))
    assert purity(clusters, labels) == pytest.approx(best / 200)
    assert purity(np.arange(5), np.zeros(5, int)) == 1


def fill(statistics: EpochStatistics, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        winners = (torch.arange(4).reshape(2, 2) * (step + 1)) % 5
        raw = winners.clamp(max=2)  # before balancing, the last two clusters have none
        loss = torch.tensor(1.0 + step)
        clusters = Clustered(loss, winners, winners, torch.tensor(0.1 * step), torch.tensor(0.5), raw)
        output = Step(loss, clusters, None, None)
        used = torch.tensor([step, step + 3])
        statistics.add(output, ViewBatch(torch.empty(0), torch.empty(0), None, None, used, used, []))


def statistics() -> EpochStatistics:
    images = ImageSet(Path(), [str(i) for i in range(8)], LABELS, ("a", "b", "c"))
    recipe = Recipe(name="").change(views={"global_views": 2}, method={"clusters": 5})
    return EpochStatistics(images, recipe, samples=8, device=torch.device("cpu"))


def test_epoch_statistics_against_loops() -> None:
    ours = statistics()
    fill(ours, 4)
    assigned = [
        ((2 * view + image) * (step + 1) % 5, int(LABELS[[step, step + 3][image]]))
        for step in range(4)
        for view in range(2)
        for image in range(2)
    ]
    counts = [sum(cluster == k for cluster, _ in assigned) for k in range(5)]
    pure = sum(max(sum(pair == (k, j) for pair in assigned) for j in range(3)) for k in range(5))
    summary = ours.summary()
    assert summary["loss"] == pytest.approx(2.5)
    assert summary["confidence"] == pytest.approx(0.15)
    assert summary["agreement"] == pytest.approx(0.5)
    assert summary["smallest_cluster"] == pytest.approx(min(counts) * 5 / 16)
    assert summary["largest_cluster"] == pytest.approx(max(counts) * 5 / 16)
    assert summary["empty_clusters_balanced"] == sum(count == 0 for count in counts)
    nearest = {min(cluster, 2) for cluster, _ in assigned}
    assert summary["empty_clusters_unbalanced"] == 5 - len(nearest) == 2
    assert summary["purity"] == pytest.approx(pure / 16)


def test_statistics_go_on_from_their_state() -> None:
    whole, half = statistics(), statistics()
    fill(whole, 4)
    fill(half, 2)
    restored = statistics()
    restored.restore(half.state())
    fill(restored, 2, start=2)
    assert restored.summary() == whole.summary()
    whole.reset()
    fill(whole, 1)
    fresh = statistics()
    fill(fresh, 1)
    assert whole.summary() == fresh.summary()


def test_batch_statistics_against_loops() -> None:
    winners = np.random.default_rng(0).integers(0, 6, (4, 3, 5))  # batches, views, images
    shared = [
        [a == b for v, one in enumerate(batch) for w, other in enumerate(batch) if v != w
         for i, a in enumerate(one) for j, b in enumerate(other) if i != j]
        for batch in winners
    ]  # fmt: skip
    figures = batch_statistics(winners, 6)
    assert figures["same_winner"] == pytest.approx(6 * np.mean(shared))
    filled = np.mean([len(set(batch.ravel().tolist())) for batch in winners])
    draws = np.random.default_rng(1).integers(0, 6, (20_000, 15))
    by_chance = np.mean([len(set(draw)) for draw in draws.tolist()])
    assert figures["distinct_winners"] == pytest.approx(filled / by_chance, rel=0.01)


@pytest.mark.parametrize("rotating", [False, True])
def test_batch_statistics_see_what_the_sizes_of_an_epoch_hide(rotating: bool) -> None:
    """Both epochs fill all clusters evenly: one image by image, the other batch by batch."""
    winners = np.tile(np.arange(64), 64) if not rotating else np.repeat(np.arange(64), 64)
    batches = np.repeat(winners.reshape(64, 1, 64), 2, axis=1)
    figures = batch_statistics(batches, 64)
    assert figures["same_winner"] == (64 if rotating else 0)
    assert (figures["distinct_winners"] > 1) is not rotating


def test_batch_statistics_of_independent_winners_are_one() -> None:
    winners = np.random.default_rng(2).integers(0, 32, (200, 2, 64))
    figures = batch_statistics(winners, 32)
    assert figures == {"same_winner": pytest.approx(1, abs=0.02), "distinct_winners": pytest.approx(1, abs=0.02)}


@pytest.mark.parametrize(("shape", "names"), [((2, 1, 4), {"distinct_winners"}), ((2, 2, 1), {"distinct_winners"})])
def test_one_view_or_image_has_no_pairs(shape: tuple[int, ...], names: set[str]) -> None:
    assert batch_statistics(np.zeros(shape, int), 3).keys() == names


def test_statistics_of_a_run_without_clusters_say_nothing_of_them() -> None:
    images = ImageSet(Path(), [str(i) for i in range(8)], LABELS, ("a", "b", "c"))
    simclr = {"clustering": False, "contrast": 1.0, "predictor": False, "teacher_statistics": "averaged"}
    recipe = Recipe(name="").change(method=simclr)
    ours = EpochStatistics(images, recipe, samples=2, device=torch.device("cpu"))
    used = torch.arange(2)
    loss = torch.tensor(1.5)
    ours.add(Step(loss, None, loss, None), ViewBatch(torch.empty(0), torch.empty(0), None, None, used, used, []))
    assert ours.summary() == {"loss": 1.5, "contrast": 1.5}
    assert ours.counts(ours.state()) is None


def test_states_of_older_checkpoints_have_three_sums() -> None:
    whole, resumed = statistics(), statistics()
    fill(whole, 2)
    state = whole.state()
    resumed.restore(state | {"sums": state["sums"][:3]})
    assert resumed.summary() == whole.summary()


def test_a_step_taken_back_leaves_no_cluster_chosen() -> None:
    ours, other = statistics(), statistics()
    fill(ours, 2)
    fill(other, 1)
    ours.take_back()
    assert ours.summary() == other.summary()


def test_an_epoch_begun_by_a_version_that_did_not_count_before_balancing_has_no_such_figure() -> None:
    older = statistics()
    fill(older, 2)
    state = older.state()
    del state["chosen"]
    ours = statistics()
    ours.restore(state)
    fill(ours, 2, start=2)
    assert "empty_clusters_unbalanced" not in ours.summary()
    ours.reset()
    fill(ours, 4)
    assert ours.summary()["empty_clusters_unbalanced"] == 2


def test_lines_beyond_the_resumed_step_and_a_cut_line_are_dropped(tmp_path: Path) -> None:
    journal = Journal(tmp_path, step=0)
    for step in (1, 2, 3):
        journal.write("step", step, {"loss": float(step)})
    journal.close()
    with (tmp_path / METRICS).open("a") as stream:
        stream.write('{"kind": "step", "st')
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]
    journal = Journal(tmp_path, step=2)
    journal.write("step", 3, {"loss": 9.0})
    journal.close()
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 1.0), (2, 2.0), (3, 9.0)]


def test_tensorboard_has_the_figures(tmp_path: Path) -> None:
    journal = Journal(tmp_path, step=0)
    journal.write("epoch", 4, {"loss": 2.5})
    journal.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("epoch/loss")] == [(4, 2.5)]


def test_curves_are_drawn_with_and_without_labels(tmp_path: Path) -> None:
    assert curves.draw_curves(tmp_path, clusters=8, title="nothing yet") is None
    journal = Journal(tmp_path, step=0)
    figures = {"loss": 2.0, "confidence": 0.1, "agreement": 0.2, "smallest_cluster": 0.5, "largest_cluster": 2.0}
    for epoch in (1, 2):
        journal.write("step", epoch, {"epoch": float(epoch), "loss": 2.0})
        journal.write("epoch", epoch, {"epoch": epoch, "empty_clusters_balanced": 1} | figures)
    journal.close()
    without = curves.draw_curves(tmp_path, clusters=8, title="no labels")
    assert without is not None
    small = without.read_bytes()
    journal = Journal(tmp_path, step=2)
    journal.write("epoch", 3, {"epoch": 3, "empty_clusters_balanced": 0, "purity": 0.5, "knn_top1": 50.0} | figures)
    journal.close()
    curves.draw_curves(tmp_path, clusters=8, title="labels")
    assert without.read_bytes() != small
    assert not list(tmp_path.glob(".*.tmp*"))


class StubWandb(types.ModuleType):
    """Stands in for Weights & Biases: remembers its input."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.said: list[tuple[str, object]] = []

    def init(self, **arguments: object) -> "StubWandb":
        self.said.append(("init", arguments))
        return self

    def log(self, figures: dict[str, float], *, step: int) -> None:
        self.said.append((f"log {step}", figures))

    def alert(self, *, title: str, text: str) -> None:
        self.said.append(("alert", (title, text)))

    def finish(self) -> None:
        self.said.append(("finish", None))


def test_weights_and_biases_hears_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = StubWandb()
    monkeypatch.setitem(sys.modules, "wandb", stub)
    for step in (0, 1):
        with Journal(tmp_path, step=step, wandb={"project": "mine", "config": {"a": 1}}) as journal:
            journal.write("step", step + 1, {"loss": 2.5})
            journal.write("alarm", step + 1, {"epoch": 1, "name": "clusters", "message": "empty"})
    kinds = [kind for kind, _ in stub.said]
    assert kinds == ["init", "log 1", "alert", "finish", "init", "log 2", "alert", "finish"]
    first, second = (dict(arguments) for kind, arguments in stub.said if kind == "init")  # type: ignore[call-overload]
    assert first["project"] == "mine"
    assert first["resume"] == "allow"
    assert first["id"] == second["id"]  # one folder, one run there
    assert stub.said[1][1] == {"step/loss": 2.5}
    assert [line["kind"] for line in read_metrics(tmp_path)] == ["step", "alarm", "step", "alarm"]


def test_weights_and_biases_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="pip install wandb"):
        Journal(tmp_path, step=0, wandb={"project": "mine"})


def test_a_process_without_a_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Journal(None, step=0) as journal:
        journal.write("step", 1, {"loss": 1.0})
    assert not list(tmp_path.iterdir())


def test_curves_mark_alarms(tmp_path: Path) -> None:
    well, ill = tmp_path / "well", tmp_path / "ill"
    epoch = {"loss": 2.0, "confidence": 0.2, "agreement": 0.3, "empty_clusters_balanced": 0}
    epoch |= {"smallest_cluster": 0.8, "largest_cluster": 1.2}
    for folder in (well, ill):
        folder.mkdir()
        with Journal(folder, step=0) as journal:
            for number in (1, 2):
                journal.write("epoch", number, {"epoch": number} | epoch)
            if folder == ill:
                journal.write("alarm", 2, {"epoch": 2, "name": "chance", "message": "rests"})
    pictures = []
    for folder in (well, ill):
        file = curves.draw_curves(folder, clusters=8, title="same")
        assert file is not None
        pictures.append(np.asarray(Image.open(file).convert("RGB")).astype(int))
    red = [((p[..., 0] > 150) & (p[..., 1] < 90) & (p[..., 2] < 90)).sum() for p in pictures]
    assert red[0] == 0
    assert red[1] > 20


def test_lines_that_no_run_writes_are_passed_over(tmp_path: Path) -> None:
    good = {"kind": "epoch", "step": 3, "epoch": 1, "loss": 2.0}
    odd: list[Any] = [[1], "text", 3, None, {"kind": "epoch"}, {"kind": [1], "step": 3}, {"step": 3}]
    lines = [json.dumps(good), *map(json.dumps, odd), "[" * 100_000, '{"kind"']
    (tmp_path / METRICS).write_bytes("\n".join(lines).encode() + b"\n\xff\xfe")
    assert read_metrics(tmp_path) == [good]


def test_curves_leave_out_panels_without_figures_and_say_alarms_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(curves, "save_figure", lambda figure, *_args, **_options: drawn.append(figure))
    message = "the loss of 2.1 is no better than chance ($2.08$)"
    with Journal(tmp_path, step=0) as journal:
        journal.write("epoch", 1, {"epoch": 1, "loss": 2.1, "agreement": 0.2})
        for epoch in (1, 2):
            journal.write("alarm", epoch, {"epoch": epoch, "name": "chance", "message": message})
        for number in range(curves.MOST_ALARMS):
            journal.write("alarm", 2, {"epoch": 2, "name": f"other {number}", "message": "words " * 100})
    curves.draw_curves(tmp_path, clusters=8, title="no labels")
    (figure,) = drawn
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["Loss", "Agreement between views $a_{avg}$"]
    words = figure.get_supxlabel()
    assert words.replace("\n", " ").count(message.replace("$", r"\$")) == 1
    assert "Alarm in epoch 1: the loss" in words
    assert words.endswith("and 1 more in metrics.jsonl")
