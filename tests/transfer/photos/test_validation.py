"""Cross-validated predictions against scikit-learn, and what stays together in their parts."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from excb import UserError
from excb.inference.accuracy import difference_interval
from excb.transfer.photos.comparison import Compared, NetworkComparison, effective
from excb.transfer.photos.prediction import adaptive_calibration_error, certainty_of
from excb.transfer.photos.validation import Validated, cross_validate, fit_classifier, validation_parts

CLASSES = 4


def drawn(number: int, width: int, *, apart: float, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Rows around the centres of their classes."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, number)
    rows = apart * random.normal(size=(CLASSES, width))[labels] + random.normal(size=(number, width))
    return torch.from_numpy(rows).float(), labels


def with_hits(hits: torch.Tensor, confidence: torch.Tensor | None = None) -> Validated:
    """Two classes, of which the first is always guessed."""
    first = torch.ones(len(hits), dtype=torch.float64) if confidence is None else confidence
    return Validated(torch.stack([first, 1 - first], 1), (~hits).long(), hits, 1.0, 1.0, True)


@pytest.mark.parametrize("width", [6, 200])  # fewer and more than there are images
def test_every_part_is_predicted_by_the_others_as_scikit_learn_does(width: int) -> None:
    rows, labels = drawn(90, width, apart=0.5)
    parts = validation_parts(labels, np.arange(90), 0)
    found = cross_validate(rows, torch.from_numpy(labels), parts, classes=CLASSES)
    assert np.sum(parts, 0).tolist() == [1] * 90
    for part in parts:
        train = rows[~part].double().numpy()
        mean, scale = train.mean(0), np.sqrt(np.square(train - train.mean(0)).mean())
        agreeing = 0
        for C in (1e-3, 1e-2, 0.1, 1.0):
            model = LogisticRegression(C=C, max_iter=1000, tol=1e-8).fit((train - mean) / scale, labels[~part])
            logits = torch.from_numpy(model.decision_function((rows[part].double().numpy() - mean) / scale))
            ours, theirs = (x - x.mean(1, keepdim=True) for x in (found.probabilities[part].log(), logits))
            slope = (ours * theirs).sum() / theirs.square().sum()  # the inverse temperature
            agreeing += bool((ours - slope * theirs).norm() < 5e-3 * ours.norm())
        assert agreeing == 1


def test_a_group_is_never_on_both_sides() -> None:
    _, labels = drawn(200, 2, apart=1)
    groups = np.random.default_rng(0).integers(0, 40, 200)
    for part in validation_parts(labels, groups, 3):
        assert not set(groups[part]) & set(groups[~part])


def test_few_labels_make_fewer_parts() -> None:
    assert len(validation_parts(np.array([0, 0, 0, 1, 2]), np.arange(5), 0)) == 3


@pytest.mark.parametrize(("labels", "groups"), [([0, 0, 0], [0, 1, 2]), ([0, 1, 1], [0, 0, 0]), ([0, 1, 2], [0, 1, 2])])
def test_too_few_labels_are_refused(labels: list[int], groups: list[int]) -> None:
    with pytest.raises(UserError, match="too few labels"):
        validation_parts(np.array(labels), np.array(groups), 0)


def test_probabilities_are_calibrated_where_the_model_is_sure_of_too_much_or_too_little() -> None:
    everything, truth = drawn(4600, 30, apart=0.25)
    rows, labels, others, answers = everything[:600], truth[:600], everything[600:], torch.from_numpy(truth[600:])
    found = cross_validate(rows, torch.from_numpy(labels), validation_parts(labels, np.arange(600), 0), classes=CLASSES)
    assert adaptive_calibration_error(found.probabilities.max(1).values, found.hits) < 0.07
    model = fit_classifier(rows, torch.from_numpy(labels), found, classes=CLASSES)
    chances, guess = model.probabilities(others).max(1)
    assert adaptive_calibration_error(chances, guess == answers) < 0.07


def test_a_class_whose_only_label_is_held_out_is_an_error_and_moves_no_temperature() -> None:
    rows, labels = drawn(80, 5, apart=2)
    with_rare = np.append(labels, CLASSES)
    more = torch.cat([rows, torch.randn(1, 5, generator=torch.Generator().manual_seed(0))])
    parts = validation_parts(with_rare, np.arange(81), 0)
    found = cross_validate(more, torch.from_numpy(with_rare), parts, classes=CLASSES + 1)
    assert not found.hits[80]
    assert 0.1 < found.temperature < 10
    assert found.probabilities[80].sum().item() == pytest.approx(1)


def test_the_threshold_is_the_lowest_that_is_right_often_enough() -> None:
    confidence = torch.linspace(0.99, 0.5, 100, dtype=torch.float64)
    hits = torch.ones(100, dtype=torch.bool)
    hits[50::2] = False  # from 0.74 down, every other one is wrong
    found = certainty_of(with_hits(hits, confidence), 0.9)
    sure = confidence >= found.threshold
    assert hits[sure].double().mean() >= 0.9
    assert found.right == pytest.approx(float(hits[sure].double().mean()))
    lower = confidence >= confidence[int(sure.sum()) + 1]
    assert hits[lower].double().mean() < 0.9
    none = certainty_of(with_hits(torch.zeros(100, dtype=torch.bool), confidence), 0.9)
    assert none.interval is None
    assert none.threshold > 1
    assert "unsure" in none.words


def test_calibration_error_of_a_coin_that_is_called_certain_is_a_half() -> None:
    hits = torch.arange(1000) % 2 == 0
    assert adaptive_calibration_error(torch.ones(1000), hits) == pytest.approx(0.5)
    assert adaptive_calibration_error(torch.full((1000,), 0.5), hits) == pytest.approx(0, abs=0.02)


def test_three_images_show_no_lead() -> None:
    right, wrong = (with_hits(torch.full((3,), hit)) for hit in (True, False))
    network, reference = Compared("a", "network", right, np.arange(3)), Compared("b", "reference", wrong, np.arange(3))
    assert not network.is_ahead(reference)
    assert "Predictions from these labels show little" in NetworkComparison((network, reference), 3, 1, 0).words


def test_a_lead_is_the_adjusted_one_of_pairs() -> None:
    """Where every image is a group, the interval is that of `difference_interval`, but for Student's t."""
    random = torch.Generator().manual_seed(0)
    hits = [torch.rand(2000, generator=random) < share for share in (0.6, 0.55)]
    first, second = (Compared("", "network", with_hits(own), np.arange(2000)) for own in hits)
    lead = first.lead(second)
    low, high = difference_interval(hits[1], hits[0])
    assert 100 * (lead.value - lead.margin()) == pytest.approx(low, abs=0.02)
    assert 100 * (lead.value + lead.margin()) == pytest.approx(high, abs=0.02)


def test_copies_of_an_image_are_worth_one() -> None:
    hits = torch.rand(100, generator=torch.Generator().manual_seed(0)) < 0.6
    assert effective(hits, np.arange(100)) == pytest.approx(100, rel=0.02)
    assert effective(hits.repeat_interleave(5), np.repeat(np.arange(100), 5)) == pytest.approx(100, rel=0.02)
